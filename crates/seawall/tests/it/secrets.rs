//! Planted keys: whatever fails, only the upstream ever sees more than four characters of them.

use super::gateway::Start;
use super::upstream::{OK, Upstream, answer};

const CANARIES: [&str; 4] = ["canary-in-a-query-1111", "canary-in-a-header-2222", "canary-as-bearer-3333", "user:canary-as-basic-4444"];

#[test]
fn no_key_is_ever_shown() {
    let upstream = Upstream::with(|turn| match turn.seen.line().split(' ').nth(1).unwrap().split(['?', '#']).next().unwrap() {
        "/ok" => turn.say(OK),
        "/limit" => turn.say(answer("429 Slow Down", "Retry-After: 900\r\n", "")),
        "/denied" => turn.say(answer("401 Unauthorized", "", "")),
        "/broken" => turn.say(answer("500 Oops", "", "")),
        "/garbage" => turn.send("canary? no: garbage\r\n\r\n").close(),
        "/cut" => turn.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx").close(),
        "/hang" => turn.hang(700),
        _ => turn.close(),
    });
    let ways = ["query:key", "header:X-Key", "header:Authorization: Bearer {secret}", "basic"];
    let mut policy = String::new();
    for (i, inject) in ways.iter().enumerate() {
        for (name, url) in [("up", upstream.at.to_string()), ("down", "127.0.0.1:1".to_owned())] {
            policy.push_str(&format!("[upstreams.{name}{i}]\nurl = \"http://{url}\"\ntimeout = {{ attempt = \"300ms\", total = \"600ms\" }}\nretry = {{ attempts = 2, base = \"1ms\", cap = \"2ms\" }}\n[upstreams.{name}{i}.auth]\ninject = \"{inject}\"\nkeys = [{{ id = \"k{i}\", secret = \"env:CANARY_{i}\" }}]\nmax_wait = \"1ms\"\n"));
        }
    }
    let mut start = Start::with(&policy);
    for (i, canary) in CANARIES.iter().enumerate() {
        start = start.secret(&format!("CANARY_{i}"), canary);
    }
    let gateway = start.go();
    let mut told = String::new();
    for path in ["ok", "garbage", "cut", "hang", "drop", "broken", "limit", "denied", "ok"] {
        for i in 0..ways.len() {
            for name in ["up", "down"] {
                told.push_str(&format!("{:?}", gateway.get_with(&format!("/{name}{i}/{path}?a=b"), "Seawall-Timeout-Ms: 500\r\n")));
            }
        }
    }
    gateway.rewrite(&Start::with("[upstreams.up0]\nurl = \"http://x\"\nurrl = 1"));
    gateway.signal("HUP");
    super::caller::eventually("the reload is told", || gateway.stderr().contains("stays as it is"));
    gateway.log(9 * 8);
    told = [told, gateway.stdout(), gateway.stderr(), gateway.metrics()].join("\n");
    for canary in CANARIES {
        for shown in [canary, canary.trim_start_matches("user:"), &canary[canary.len() - 5..]] {
            assert!(!told.contains(shown), "{shown} is shown in {told}");
        }
        assert!(gateway.stdout().contains(&format!("\"key_id\":\"…{}\"", &canary[canary.len() - 4..])), "logs tell keys apart");
    }
    assert!(!told.contains("dXNlcjpj"), "not in disguise either");
    let raw = upstream.raw();
    for sent in [
        "?a=b&key=canary-in-a-query-1111 ",
        "x-key: canary-in-a-header-2222",
        "authorization: Bearer canary-as-bearer-3333",
        "authorization: Basic dXNlcjpjYW5hcnktYXMtYmFzaWMtNDQ0NA==",
    ] {
        assert!(raw.contains(sent), "the upstream gets `{sent}`: {raw}");
    }
}

#[test]
fn a_callers_own_credentials_stay_here_where_ours_are_put_in() {
    // 87
    for (inject, expected) in [("query:key", vec![]), ("header:X-Key", vec![]), ("basic", vec!["Basic dTpzZWNyZXQtc2VjcmV0"])] {
        let upstream = Upstream::fine();
        let keys = format!(
            "[upstreams.api.auth]\ninject = \"{inject}\"\nkeys = [{{ id = \"a\", secret = \"env:KEY\" }}]\n[upstreams.open]\nurl = \"http://{}\"\n",
            upstream.at
        );
        let gateway = Start::before(&upstream, &keys).secret("KEY", "u:secret-secret").go();
        for connection in ["", "Connection: Authorization\r\n", "Connection: X-Key, authorization, close\r\n"] {
            let headers = format!("{connection}Authorization: Bearer mine\r\nX-Key: mine\r\n");
            assert_eq!(gateway.get_with("/api/x?key=mine&k%65y=mine&b=1&key=mine", &headers).status, 200);
            let seen = upstream.seen().pop().unwrap();
            assert_eq!(seen.all("authorization"), expected);
            match inject {
                "query:key" => assert_eq!(seen.line(), "GET /x?b=1&key=u%3Asecret-secret HTTP/1.1"),
                "header:X-Key" => assert_eq!(seen.all("x-key"), ["u:secret-secret"]),
                _ => {}
            }
        }
        assert_eq!(gateway.get_with("/open/x", "Authorization: Bearer mine\r\n").status, 200);
        assert_eq!(upstream.seen().pop().unwrap().all("authorization"), ["Bearer mine"], "without a key of ours, the caller's goes on");
    }
}

/// The names of callers' own secrets: each planted value contains its name.
const HEADERS: [&str; 8] =
    ["api-key", "x-auth-token", "x-amz-security-token", "x-goog-api-key", "x-csrf-token", "x-client-secret", "x-apikey", "authorization"];
const PARAMETERS: [&str; 9] =
    ["key", "api_key", "apiKey", "token", "access_token", "sig", "X-Amz-Signature", "password", "client%5Fsecret"];

#[test]
fn what_a_caller_sends_along_arrives_and_is_never_shown() {
    // An upstream that repeats every secret of the request.
    let repeated: Vec<String> = HEADERS.iter().chain(&PARAMETERS).map(|name| format!("planted-{name}")).collect();
    let said = format!("nothing here for {}", repeated.join(", "));
    let upstream = Upstream::replying(&[&answer("404 No", "X-Echo: planted-x-auth-token\r\n", &said)]);
    let receiver = Upstream::replying(&[&answer("404 No", "", "nobody home")]);
    let policy = "dead_letter = { from = [\"jobs\", \"gateway\"] }\nretry = { attempts = 1 }";
    let gateway = Start::before(&upstream, policy).server("allow_private = [\"127.0.0.0/8\"]").go();
    let headers: String = HEADERS.iter().map(|name| format!("{name}: planted-{name}\r\n")).collect();
    let query: Vec<String> = PARAMETERS.iter().map(|name| format!("{name}=planted-{name}")).collect();
    let path = format!("/x?page=two&{}", query.join("&"));
    let plain = "Idempotency-Key: seen-1\r\nX-Plain: seen-2\r\n";
    assert_eq!(gateway.get_with(&format!("/api{path}"), &format!("{plain}{headers}")).status, 404);
    assert_eq!(gateway.get_with(&format!("/api{path}"), &format!("Prefer: respond-async\r\n{plain}{headers}")).status, 202);
    let named: serde_json::Map<String, serde_json::Value> =
        HEADERS.iter().map(|name| ((*name).to_owned(), serde_json::json!(format!("planted-{name}")))).collect();
    let callback = format!("http://{}/hook?token=planted-in-a-callback", receiver.at);
    let job = serde_json::json!({ "upstream": "api", "path": path, "headers": named, "callback": callback });
    let id = gateway.admin("POST", "/v1/jobs", &job.to_string()).json()["id"].as_str().unwrap().to_owned();
    let letters = || gateway.admin("GET", "/v1/dead-letters", "").json()["items"].as_array().unwrap().len();
    super::caller::eventually("each left a letter, and the callback too", || letters() == 4);
    let mut told = vec![gateway.stdout(), gateway.stderr(), gateway.metrics()];
    let list = gateway.admin("GET", "/v1/dead-letters", "").json();
    let ids = list["items"].as_array().unwrap().iter().map(|letter| letter["id"].as_str().unwrap().to_owned());
    for id in ids.chain([id.clone()]) {
        let places = [format!("/v1/dead-letters/{id}"), format!("/v1/jobs/{id}"), format!("/v1/calls/{id}")];
        told.extend(places.iter().map(|place| gateway.admin("GET", place, "").text()));
    }
    for place in ["/v1/jobs", "/v1/dead-letters", "/v1/dead-letters/export", "/v1/calls", "/v1/events/recent", "/v1/errors", "/v1/issues"] {
        told.push(gateway.admin("GET", place, "").text());
    }
    let callbacks = receiver.seen().into_iter().filter(|seen| seen.line().starts_with("POST /hook"));
    told.extend(callbacks.map(|seen| String::from_utf8(seen.body).unwrap()));
    let told = told.join("\n");
    let at = told.find("planted");
    assert_eq!(at.map(|at| &told[at.saturating_sub(200)..(at + 60).min(told.len())]), None);
    for shown in ["page=two", "seen-1", "seen-2", "token=[redacted]", "nothing here"] {
        assert!(told.contains(shown), "{shown}");
    }
    let requests: Vec<_> = upstream.seen().into_iter().filter(|seen| seen.line().contains(&path)).collect();
    assert_eq!(requests.len(), 3, "what is kept is sent as it came");
    for name in HEADERS {
        assert!(requests.iter().all(|seen| seen.all(name) == [format!("planted-{name}")]), "{name}");
    }
    assert!(receiver.raw().contains("/hook?token=planted-in-a-callback"));
}

#[test]
fn what_an_upstream_repeats_is_for_its_caller_alone() {
    let said = "you are planted-token, and came with planted-parameter and planted-as-key";
    let upstream = Upstream::replying(&[&answer("200 OK", "X-Echo: planted-token\r\n", said)]);
    let receiver = Upstream::fine();
    let auth = "[upstreams.api.auth]\ninject = \"header:X-Key\"\nkeys = [{ id = \"a\", secret = \"env:KEY\" }]";
    let gateway = Start::before(&upstream, auth).server("allow_private = [\"127.0.0.0/8\"]").secret("KEY", "planted-as-key").go();
    let hook = format!("Seawall-Callback: http://{}/hook\r\n", receiver.at);
    let headers = format!("Prefer: respond-async\r\nX-Auth-Token: planted-token\r\n{hook}");
    let id = gateway.get_with("/api/x?sig=planted-parameter", &headers).json()["id"].as_str().unwrap().to_owned();
    super::caller::eventually("its receiver hears of it", || receiver.count() == 1);
    let own = gateway.get(&format!("/-/jobs/{id}")).json()["response"].clone();
    let mine = said.replace("planted-as-key", "…-key");
    assert_eq!((&own["body"], &own["headers"]["x-echo"]), (&serde_json::json!(mine), &serde_json::json!("planted-token")));
    let list = gateway.look("/v1/jobs");
    assert_eq!(list["items"].as_array().unwrap().len(), 2, "the job and its callback");
    let mut told = vec![list.to_string(), String::from_utf8(receiver.seen().remove(0).body).unwrap(), gateway.stdout()];
    for item in list["items"].as_array().unwrap() {
        told.push(gateway.look(&format!("/v1/jobs/{}", item["id"].as_str().unwrap())).to_string());
    }
    for told in &told {
        assert!(!told.contains("planted-"), "{told}");
    }
    assert!(told[1].contains("you are [redacted], and came with [redacted] and …-key"), "{}", told[1]);
}
