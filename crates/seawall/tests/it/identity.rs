//! Addresses of callers, the reach of URLs that users hand in, and references to secrets.

use super::caller::{Caller, eventually};
use super::dir::Dir;
use super::gateway::Start;
use super::schedules;
use super::upstream::{Upstream, answer};
use serde_json::json;
use std::net::SocketAddr;

const PER_ADDRESS: &str = "limits = [{ name = \"each\", key = \"ip\", rate = \"1/h\", burst = 1 }]\n";

/// A caller with an address of its own.
fn caller_from(address: [u8; 4], port: u16) -> Caller {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    Caller::over(socket.into())
}

fn status(caller: &mut Caller, headers: &str) -> u16 {
    caller.send(format!("GET /api/x HTTP/1.1\r\nHost: gateway\r\n{headers}\r\n")).reply().status
}

#[test]
fn ipv4_callers_of_a_listener_for_both_families_are_told_apart() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, PER_ADDRESS).listen("[::]:0").server("trust_forwarded = [\"127.0.0.3/32\"]").go();
    let port = gateway.at.port();
    assert_eq!(status(&mut caller_from([127, 0, 0, 1], port), ""), 200);
    assert_eq!(status(&mut caller_from([127, 0, 0, 1], port), ""), 429);
    assert_eq!(status(&mut caller_from([127, 0, 0, 2], port), ""), 200);
    let mut proxy = caller_from([127, 0, 0, 3], port);
    let forwarded = [("9.9.9.1", 200), ("9.9.9.2", 200), ("9.9.9.1", 429), ("::ffff:9.9.9.2", 429)];
    for (address, expected) in forwarded {
        assert_eq!(status(&mut proxy, &format!("X-Forwarded-For: {address}\r\n")), expected, "{address}");
    }
    for (address, expected) in [("2001:db8:1:1::1", 200), ("2001:db8:1:1::2", 429), ("2001:db8:1:2::1", 200)] {
        assert_eq!(status(&mut proxy, &format!("X-Forwarded-For: {address}\r\n")), expected, "a subscriber has a /64: {address}");
    }
}

#[test]
fn a_client_cannot_choose_its_address_by_the_header_that_its_proxy_does_not_write() {
    let upstream = Upstream::fine();
    let server = "trust_forwarded = [\"127.0.0.0/8\"]";
    for (named, other, more) in
        [("X-Forwarded-For: ", "Forwarded: for=", ""), ("Forwarded: for=", "X-Forwarded-For: ", "forwarded_header = \"forwarded\"")]
    {
        let gateway = Start::before(&upstream, PER_ADDRESS).server(server).server(more).go();
        let call = |own: u8| gateway.get_with("/api/x", &format!("{other}9.9.9.{own}\r\n{named}8.8.8.8\r\n")).status;
        assert_eq!((call(1), call(2), call(3)), (200, 429, 429), "{named}");
    }
}

#[test]
fn where_a_caller_comes_from_is_told_only_to_upstreams_that_may_know() {
    let upstream = Upstream::fine();
    let known = format!("[upstreams.known]\nurl = \"http://{}\"\nforwarded = true\n", upstream.at);
    let gateway = Start::before(&upstream, &known).go();
    let headers = "X-Forwarded-For: 10.1.2.3\r\nX-Forwarded-Host: inside\r\nForwarded: for=10.1.2.3\r\nX-Real-IP: 10.1.2.3\r\nX-End: 1\r\n";
    assert_eq!(gateway.get_with("/api/x", headers).status, 200);
    let seen = upstream.seen().pop().unwrap();
    assert!(seen.has("x-end") && !seen.text().contains("10.1.2.3") && !seen.text().contains("inside"), "{}", seen.text());
    assert_eq!(gateway.get_with("/known/x", headers).status, 200);
    let seen = upstream.seen().pop().unwrap();
    assert_eq!((seen.all("x-forwarded-for"), seen.all("forwarded")), (vec!["10.1.2.3"], vec!["for=10.1.2.3"]));
}

#[test]
fn a_callers_token_goes_nowhere_however_it_is_sent() {
    let upstream = Upstream::fine();
    let start = Start::with(&format!("[callers.acme]\ntoken = \"env:ACME\"\n[upstreams.api]\nurl = \"http://{}\"\n", upstream.at));
    let gateway = start.secret("ACME", "token-of-acme").go();
    for headers in [
        "Seawall-Token: token-of-acme\r\nAuthorization: Bearer token-of-acme\r\nX-End: 1\r\n",
        "Authorization: Bearer theirs\r\nAuthorization: bearer token-of-acme\r\nX-End: 1\r\n",
    ] {
        assert_eq!(gateway.get_with("/api/x", headers).status, 200);
        let seen = upstream.seen().pop().unwrap();
        assert!(seen.has("x-end") && !seen.text().contains("token-of-acme"), "{}", seen.text());
    }
    assert_eq!(upstream.seen().pop().unwrap().all("authorization"), ["Bearer theirs"]);
}

#[test]
fn a_reload_changes_what_urls_may_reach_in_both_directions() {
    let upstream = Upstream::fine();
    let start = |allow: &str| Start::before(&upstream, "").server(&format!("allow_private = [{allow}]"));
    let gateway = start("").go();
    let ended = || {
        let job = json!({ "url": format!("http://127.1:{}/x", upstream.at.port()), "method": "GET" });
        let id = gateway.admin("POST", "/v1/jobs", &job.to_string()).json()["id"].as_str().unwrap().to_owned();
        let state = || gateway.look(&format!("/v1/jobs/{id}"))["state"].as_str().unwrap().to_owned();
        eventually("it is over", || ["done", "dead"].contains(&state().as_str()));
        state()
    };
    assert_eq!(ended(), "dead");
    for (allow, expected) in [("\"127.0.0.0/8\"", "done"), ("", "dead"), ("\"127.0.0.0/8\"", "done")] {
        gateway.rewrite(&start(allow));
        assert_eq!(gateway.admin("POST", "/v1/config/reload", "").status, 200);
        assert_eq!(ended(), expected, "allow_private = [{allow}]");
    }
    assert_eq!(upstream.count(), 2, "not over a connection that was allowed before");
}

#[test]
fn a_schedules_header_is_resolved_when_it_is_sent_and_kept_nowhere() {
    let upstream = Upstream::with(|turn| {
        let said = turn.seen.all("authorization").join(" ");
        turn.say(answer("200 OK", "", &format!("you are {said}")));
    });
    let keys = "request.headers = { Authorization = \"Bearer env:TICK\", X-Who = \"{subject}\" }\nevery = \"1h\"\nsubjects = [\"env:TICK\"]\nspread = \"0%\"\n";
    let policy =
        schedules::policy(&upstream, keys).replace("request = { path = \"/users/{subject}/history\" }", "request.path = \"/users\"");
    let gateway = Start::with(&policy).secret("TICK", "sparrow-of-a-schedule").go();
    eventually("it is sent", || upstream.count() == 1);
    let seen = upstream.seen().pop().unwrap();
    assert_eq!((seen.all("authorization"), seen.all("x-who")), (vec!["Bearer sparrow-of-a-schedule"], vec!["env:TICK"]));
    let job = json!({ "upstream": "api", "path": "/x", "headers": { "X-Who": "env:TICK" } });
    assert_eq!(gateway.admin("POST", "/v1/jobs", &job.to_string()).status, 202);
    eventually("what a caller hands in is no reference", || upstream.seen().last().is_some_and(|seen| seen.all("x-who") == ["env:TICK"]));
    let result = || gateway.look("/v1/jobs?correlation_id=schedule:sync:env:TICK")["items"][0]["id"].as_str().unwrap().to_owned();
    eventually("its result is kept", || gateway.look(&format!("/v1/jobs/{}", result()))["state"] == "done");
    let shown = gateway.look(&format!("/v1/jobs/{}", result())).to_string();
    assert!(shown.contains("you are Bearer …dule"), "{shown}");
    for file in std::fs::read_dir(gateway.directory()).unwrap() {
        let kept = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&kept).contains("sparrow"));
    }
}

#[test]
fn check_finds_what_serve_would_refuse() {
    let upstream = "[upstreams.a]\nurl = \"https://a.test\"\n";
    let schedule = "[[schedules]]\nname = \"s\"\nupstream = \"a\"\nevery = \"5m\"\n";
    let inline = format!("{upstream}{schedule}request = {{ path = \"/\", headers = {{ Authorization = \"Bearer sparrow-inline\" }} }}\n");
    let run = Dir::with(&inline).run(["check"]).ends_with(78);
    assert!(run.err.contains("schedules[0].request.headers.Authorization") && run.err.contains("inline secret"), "{}", run.err);
    assert!(!run.err.contains("sparrow"), "{}", run.err);
    let missing = format!(
        "[server]\nstore = \"env:NO_STORE\"\n{upstream}{schedule}deliver = \"env:NO_DELIVER\"\nrequest = {{ path = \"/\", headers = {{ x-api-key = \"env:NO_HEADER\" }} }}\n[[notify]]\nurl = \"env:NO_URL\"\n"
    );
    let dir = Dir::with(&missing);
    let run = dir.run(["check", "--strict", "--elsewhere"]).ends_with(4);
    for place in ["server.store", "schedules[0].deliver", "schedules[0].request.headers.x-api-key", "notify[0].url"] {
        assert!(run.out.contains(&format!("SW008 {place}")), "{place}: {}", run.out);
    }
    dir.run(["serve"]).ends_with(78);
}

#[test]
fn a_secret_without_an_end_is_refused() {
    let dir = Dir::with(
        "[upstreams.a]\nurl = \"https://a.test\"\nauth = { inject = \"header:X-Key\", keys = [{ id = \"a\", secret = \"file:/dev/zero\" }] }\n",
    );
    let run = dir.run(["serve"]).ends_with(78);
    assert!(run.err.contains("it is not a regular file"), "{}", run.err);
    assert_eq!(dir.run(["check"]).ends_with(78).err, run.err);
}

#[test]
fn a_secret_that_is_a_pipe_is_refused_and_not_waited_for() {
    let dir = Dir::with(
        "[upstreams.a]\nurl = \"https://a.test\"\nauth = { inject = \"header:X-Key\", keys = [{ id = \"a\", secret = \"file:pipe\" }] }\n",
    );
    assert!(std::process::Command::new("mkfifo").arg(dir.path("pipe")).status().unwrap().success());
    let run = dir.run(["serve"]).ends_with(78);
    assert!(run.err.contains("it is not a regular file"), "{}", run.err);
}

#[test]
fn pages_are_followed_without_the_key_that_their_links_repeat() {
    for (pages, items) in [("link", "/data"), ("next:/next", "/data")] {
        let upstream = Upstream::with(|turn| {
            let at = turn.seen.line().split(' ').nth(1).unwrap().to_owned();
            let next = format!("{}&p={}", at.split("&p=").next().unwrap(), turn.number + 2);
            let body = json!({ "data": [at], "next": if turn.number < 2 { json!(next) } else { json!(null) } });
            let link = if turn.number < 2 { format!("Link: <{next}>; rel=\"next\"\r\n") } else { String::new() };
            turn.say(answer("200 OK", &format!("{link}Content-Type: application/json\r\n"), &body.to_string()));
        });
        let dir = Dir::with(format!(
            "[upstreams.api]\nurl = \"http://{}\"\nauth = {{ inject = \"query:key\", keys = [{{ id = \"a\", secret = \"file:key\" }}] }}\n",
            upstream.at
        ));
        dir.write("key", "sparrow/of+pages");
        dir.write("in", "/x?a=1\n");
        let run = dir.run(["fetch", "in", "--upstream", "api", "--pages", pages, "--items", items]).ends_with(0);
        assert_eq!(upstream.count(), 3, "{pages}: {}", run.err);
        assert_eq!(upstream.seen()[2].line(), "GET /x?a=1&p=3&key=sparrow%2Fof%2Bpages HTTP/1.1");
        let mut told = vec![run.out, run.err];
        for file in std::fs::read_dir(dir.path("")).unwrap().map(|file| file.unwrap().path()).filter(|path| !path.ends_with("key")) {
            told.push(String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned());
        }
        assert!(!told.join("\n").contains("sparrow"), "{pages}: {}", told.join("\n"));
    }
}
