"""What schemathesis has to know to check the admin API: a list of application/x-ndjson has one member a line."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def write(ctx, value):
    members = value if isinstance(value, list) else [value]
    return "".join(json.dumps(member) + "\n" for member in members).encode()


@schemathesis.deserializer("application/x-ndjson")
def read(ctx, response):
    return [json.loads(line) for line in response.content.splitlines()]
