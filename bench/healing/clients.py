"""Real clients, each as one function that makes one call and raises where its user would get an error.

`make(name, base, retries)` gives that function. `retries` is False for a client whose own retries are switched off, True for its defaults.
"""

import json

CHAT = json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
})
MESSAGE = json.dumps({
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "hello"}],
    "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
})
CUSTOMER = json.dumps({"id": "cus_1", "object": "customer", "livemode": False, "created": 1})
ITEM = json.dumps({"Item": {"id": {"S": "1"}}})
PLAIN = json.dumps({"ok": True})


def openai(base, retries):
    import openai
    client = openai.OpenAI(base_url=base + "/v1", api_key="sk-test", **({} if retries else {"max_retries": 0}))

    def call(_):
        reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert reply.choices[0].message.content == "hello"
    return call


def anthropic(base, retries):
    import anthropic
    client = anthropic.Anthropic(base_url=base, api_key="sk-test", **({} if retries else {"max_retries": 0}))

    def call(_):
        reply = client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
        assert reply.content[0].text == "hello"
    return call


def stripe(base, retries):
    import stripe
    client = stripe.StripeClient("sk_test_1", base_addresses={"api": base}, max_network_retries=2 if retries else 0)

    def call(n):
        assert client.v1.customers.create({"name": f"n{n}"}).id == "cus_1"
    return call


def aws(service, base, retries, mode):
    import boto3
    from botocore.config import Config
    own = {"mode": mode} if retries else {"total_max_attempts": 1, "mode": "standard"}
    return boto3.client(service, endpoint_url=base, region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="s",
                        config=Config(retries=own, max_pool_connections=64, s3={"addressing_style": "path"}))


def dynamodb(base, retries, mode="standard"):
    client = aws("dynamodb", base, retries, mode)

    def call(_):
        assert client.get_item(TableName="t", Key={"id": {"S": "1"}})["Item"]["id"]["S"] == "1"
    return call


def dynamodb_adaptive(base, retries):
    return dynamodb(base, retries, "adaptive")


def s3(base, retries):
    client = aws("s3", base, retries, "standard")

    def call(n):
        assert client.get_object(Bucket="b", Key=f"k{n}")["Body"].read() == PLAIN.encode()
    return call


def lastfm(base, retries):
    """An API that says its errors with a 200: the client's retries cannot see them."""
    session = plain(retries)

    def call(n):
        reply = session.get(f"{base}/2.0/?method=track.getInfo&format=json&n={n}", timeout=60)
        reply.raise_for_status()
        assert "error" not in reply.json(), reply.text
    return call


def plain(retries):
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util.retry import Retry
    session = requests.Session()
    own = Retry(total=3, backoff_factor=0.5, status_forcelist=[429, 500, 502, 503, 504]) if retries else 0
    session.mount("http://", HTTPAdapter(max_retries=own, pool_maxsize=64))
    return session


def requests(base, retries):
    session = plain(retries)

    def call(n):
        reply = session.get(f"{base}/items/{n}", timeout=60)
        reply.raise_for_status()
        assert reply.json()["ok"]
    return call


def httpx(base, retries):
    import httpx
    client = httpx.Client(transport=httpx.HTTPTransport(retries=2 if retries else 0, limits=httpx.Limits(max_connections=600)), timeout=60)

    def call(n):
        reply = client.get(f"{base}/items/{n}")
        reply.raise_for_status()
        assert reply.json()["ok"]
    return call


ONE_KEY = 'keys = [{ id = "a", secret = "env:KEY" }]'
THREE_KEYS = 'keys = [{ id = "a", secret = "env:KEY" }, { id = "b", secret = "env:KEY_B" }, { id = "c", secret = "env:KEY_C" }]'
LASTFM = json.dumps({"track": {"name": "x"}})

# What each client expects to be told, and the policy that its user would write first. `None` is a client of `clients.mjs`.
CLIENTS = {
    "openai": (openai, CHAT, 'preset = "openai"'),
    "openai, one key": (openai, CHAT, f'preset = "openai"\n[upstreams.api.auth]\n{ONE_KEY}'),
    "openai, three keys": (openai, CHAT, f'preset = "openai"\n[upstreams.api.auth]\n{THREE_KEYS}'),
    "anthropic": (anthropic, MESSAGE, 'preset = "anthropic"'),
    "stripe": (stripe, CUSTOMER, 'preset = "stripe"'),
    "boto3 dynamodb": (dynamodb, ITEM, 'preset = "aws"'),
    "boto3 dynamodb, adaptive": (dynamodb_adaptive, ITEM, 'preset = "aws"'),
    "boto3 s3": (s3, PLAIN, 'preset = "aws"'),
    "requests": (requests, PLAIN, ""),
    "requests, lastfm": (lastfm, LASTFM, 'preset = "lastfm"'),
    "httpx": (httpx, PLAIN, ""),
    "node openai": (None, CHAT, 'preset = "openai"'),
    "node stripe": (None, CUSTOMER, 'preset = "stripe"'),
    "axios": (None, PLAIN, ""),
    "got": (None, PLAIN, ""),
    "octokit": (None, PLAIN, 'preset = "github"'),
}
