//! Running the program: signals, reloads, and starts that must fail with a clear word.

use super::caller::Caller;
use super::caller::{Watch, eventually};
use super::forwarding::FAST;
use super::gateway::{Start, program};
use super::upstream::{OK, Upstream, answer};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn slow() -> Upstream {
    Upstream::with(|turn| {
        turn.pause(600).send(OK);
    })
}

#[test]
fn calls_in_flight_finish_before_the_program_ends() {
    // 97
    let upstream = slow();
    let mut gateway = Start::before(&upstream, "timeout = { attempt = \"5s\" }").go();
    let mut callers: Vec<_> = (0..8).map(|_| gateway.caller()).collect();
    let mut silent = gateway.caller();
    for caller in &mut callers {
        caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    eventually("every call is upstream", || upstream.count() == 8);
    gateway.signal("TERM");
    eventually("new connections are refused", || TcpStream::connect(gateway.at).is_err());
    for caller in &mut callers {
        let reply = caller.reply();
        assert_eq!((reply.status, reply.text().as_str()), (200, "ok"));
        assert!(caller.is_closed());
    }
    assert!(silent.is_closed());
    let watch = Watch::start();
    assert_eq!(gateway.ended(), Some(0));
    assert!(watch.ms() < 1000, "nothing is waited for that is not in flight");
    assert_eq!(gateway.log(8).iter().filter(|line| line["event"] == "call").count(), 8, "the log is complete");
}

#[test]
fn there_is_room_for_every_file_that_it_may_open() {
    let gateway = Start::before(&slow(), "").go();
    let allowed: usize = gateway.told("limits", "Max open files").split_whitespace().next().unwrap().parse().unwrap();
    let room: usize = gateway.told("status", "FDSize:").parse().unwrap();
    assert!(room >= allowed.min(131_072), "a table that grows between threads halts them: {room} of {allowed}");
}

#[test]
fn while_it_drains_the_program_says_that_it_is_not_ready() {
    let upstream = slow();
    let mut gateway = Start::before(&upstream, "timeout = { attempt = \"5s\" }").go();
    let ready = || Caller::connect(gateway.admin).send("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").reply();
    assert_eq!(ready().status, 200);
    let mut caller = gateway.caller();
    caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n");
    eventually("the call is upstream", || upstream.count() == 1);
    gateway.signal("TERM");
    eventually("it drains", || TcpStream::connect(gateway.at).is_err());
    let told = ready();
    assert_eq!((told.status, told.text().contains("draining")), (503, true));
    assert_eq!(caller.reply().status, 200);
    assert_eq!(gateway.ended(), Some(0));
}

#[test]
fn draining_ends_in_time_and_a_second_signal_ends_it_at_once() {
    for second in [false, true] {
        let upstream = Upstream::with(|turn| turn.hang(3000));
        let drain = if second { "drain = \"20s\"" } else { "drain = \"300ms\"" };
        let mut gateway = Start::before(&upstream, "").server(drain).go();
        let mut caller = gateway.caller();
        caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n");
        eventually("the call is upstream", || upstream.count() == 1);
        let watch = Watch::start();
        gateway.signal("TERM");
        if second {
            eventually("it drains", || TcpStream::connect(gateway.at).is_err());
            gateway.signal("INT");
        }
        assert_eq!(gateway.ended(), Some(if second { 130 } else { 0 }), "who cuts a call off by hand is told");
        assert!(watch.ms() < 1500, "{} ms", watch.ms());
    }
}

#[test]
fn a_reload_changes_behaviour_and_keeps_state() {
    let (upstream, other) = (Upstream::replying(&[&answer("500 Oops", "", "")]), Upstream::fine());
    let keys = "retry = { attempts = 1 }\nbreaker = { consecutive = 2, open = \"30s\" }\n";
    let gateway = Start::before(&upstream, keys).go();
    assert_eq!([500, 500, 503], [(); 3].map(|()| gateway.get("/api/x").status));
    let more = format!("{keys}[upstreams.other]\nurl = \"http://{}\"\n", other.at);
    gateway.rewrite(&Start::before(&upstream, &more));
    assert_eq!(gateway.get("/other/x").status, 404);
    gateway.signal("HUP");
    eventually("the reload is told", || gateway.stderr().contains("configuration reloaded"));
    assert_eq!(gateway.get("/other/x").status, 200, "what is new works");
    assert_eq!(gateway.get("/api/x").status, 503, "what was open stays open");
    assert_eq!(gateway.metric("seawall_config_last_reload_success"), Some(1.0));
}

#[test]
fn an_upstream_that_moves_begins_with_a_closed_breaker() {
    let (dead, healthy) = (Upstream::replying(&[&answer("500 Oops", "", "")]), Upstream::fine());
    let keys = "retry = { attempts = 1 }\nbreaker = { consecutive = 2, open = \"30s\" }\n";
    let gateway = Start::before(&dead, keys).go();
    assert_eq!([500, 500, 503], [(); 3].map(|()| gateway.get("/api/x").status));
    gateway.rewrite(&Start::before(&healthy, keys));
    gateway.signal("HUP");
    eventually("the reload is told", || gateway.stderr().contains("configuration reloaded"));
    assert_eq!(gateway.get("/api/x").status, 200, "the new server has not failed");
}

#[test]
fn a_reload_says_what_only_a_restart_changes() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").go();
    let new = Start::before(&upstream, "cost = 2\n[log]\nformat = \"text\"").server("store = \"sqlite:other.db\"\nmax_body = \"5KiB\"");
    let file = gateway.rewrite(&new);
    let text = std::fs::read_to_string(&file).unwrap().replacen("127.0.0.1:0", "127.0.0.1:7399", 1);
    std::fs::write(&file, text).unwrap();
    let keys = ["server.listen", "server.store", "log.format"];
    let left = || gateway.look("/v1/status")["config"]["needs_restart"].clone();
    assert_eq!(left(), serde_json::json!([]));
    for path in ["/v1/config/reload?dry_run=1", "/v1/config/reload"] {
        let reply = gateway.admin("POST", path, "").json();
        assert_eq!((&reply["ok"], &reply["needs_restart"]), (&true.into(), &serde_json::json!(keys)), "{path}: {reply}");
    }
    assert_eq!(left(), serde_json::json!(keys), "whoever looks later sees it");
    gateway.signal("HUP");
    let told = format!("warning: {} changed in the file, and only a restart changes that here", keys.join(", "));
    eventually("it is told", || gateway.stderr().contains(&told));
    let event = gateway.look("/v1/events/recent")["items"][0].clone();
    assert_eq!((&event["name"], &event["severity"]), (&"config-reloaded".into(), &"warning".into()));
    assert!(event["detail"].as_str().unwrap().starts_with("server.listen, server.store"), "{event}");
    assert_eq!(gateway.post("/api/x", "", &"x".repeat(6000)).status, 413, "the rest is taken");
    assert_eq!(gateway.get("/api/x").status, 200, "it listens where it did");
    gateway.rewrite(&Start::before(&upstream, ""));
    gateway.admin("POST", "/v1/config/reload", "");
    assert_eq!(left(), serde_json::json!([]), "a file that says again what is in force needs none");
}

/// Two keys, of which a 429 spends one.
const SPENT: &str = r#"
[upstreams.api.auth]
inject = "header:X-Key"
keys = [{ id = "a", secret = "env:A" }, { id = "b", secret = "env:B" }]
[[upstreams.api.classify]]
when = { status = [429] }
as = "quota"
scope = "key"
wait = "retry-after"
"#;
const COOLING: &str = "seawall_key_cooling{upstream=\"api\",key=\"a\"}";

#[test]
fn a_reload_keeps_keys_cooling() {
    let upstream = Upstream::with(|turn| {
        let spent = turn.seen.all("x-key") == ["first-key-aaaa"];
        turn.send(if spent { answer("429 Slow Down", "Retry-After: 600\r\n", "") } else { OK.to_owned() });
    });
    let start =
        |keys: &str| Start::before(&upstream, &format!("{keys}{SPENT}")).secret("A", "first-key-aaaa").secret("B", "second-key-bbbb");
    let gateway = start("").go();
    for _ in 0..3 {
        assert_eq!(gateway.get("/api/x").status, 200);
    }
    assert_eq!(gateway.metric(COOLING), Some(1.0));
    let before = upstream.count();
    gateway.rewrite(&start("cost = 2\n"));
    gateway.signal("HUP");
    eventually("the reload is told", || gateway.stderr().contains("configuration reloaded"));
    assert_eq!(gateway.metric(COOLING), Some(1.0));
    assert_eq!(gateway.get("/api/x").status, 200);
    assert_eq!(upstream.count(), before + 1, "the spent key is not tried again");
}

#[test]
fn a_restart_forgets_neither_a_spent_key_nor_a_breaker_that_somebody_holds() {
    let upstream = Upstream::with(|turn| {
        let spent = turn.seen.all("x-key") == ["first-key-aaaa"];
        turn.send(if spent { answer("429 Slow Down", "Retry-After: 600\r\n", "") } else { OK.to_owned() });
    });
    let start = || {
        let held = "[upstreams.held]\nurl = \"http://127.0.0.1:1\"\n";
        Start::before(&upstream, &format!("{SPENT}{held}")).secret("A", "first-key-aaaa").secret("B", "second-key-bbbb")
    };
    let gateway = start().go();
    eventually("the first key was tried", || gateway.get("/api/x").status == 200 && gateway.metric(COOLING) == Some(1.0));
    gateway.admin("PUT", "/v1/breakers/held", r#"{"state":"open"}"#);
    let tried = |upstream: &Upstream| upstream.seen().iter().filter(|seen| seen.all("x-key") == ["first-key-aaaa"]).count();
    let before = tried(&upstream);
    let second = start().go_in(gateway.stop());
    let after = |gateway: &super::gateway::Gateway, how: &str| {
        assert_eq!(gateway.metric(COOLING), Some(1.0), "{how}");
        assert_eq!(gateway.get("/held/x").json()["code"], "circuit_open", "{how}");
        assert_eq!((gateway.get("/api/x").status, gateway.get("/api/x").status, tried(&upstream)), (200, 200, before), "{how}");
    };
    after(&second, "told to stop");
    second.admin("PUT", "/v1/breakers/held", r#"{"state":"auto"}"#);
    second.admin("PUT", "/v1/keys/api/b", r#"{"state":"cooling","until":"2099-01-01T00:00:00Z"}"#);
    // The time is nowhere else in the store.
    eventually("what changed is written", || second.wrote("40709088"));
    let third = start().go_in(second.kill());
    assert_eq!(third.metric(COOLING), Some(1.0));
    assert_eq!(third.get("/api/x").json()["code"], "keys_exhausted", "killed");
    assert_ne!(third.get("/held/x").json()["code"], "circuit_open", "it was let go");
}

#[test]
fn a_bad_file_changes_nothing() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, FAST).go();
    let bad =
        ["retry = { atempts = 3 }", "[upstreams.api.auth]\ninject = \"basic\"\nkeys = [{ id = \"a\", secret = \"env:NOT_THERE_AT_ALL\" }]"];
    for (number, keys) in bad.into_iter().enumerate() {
        gateway.rewrite(&Start::before(&upstream, keys));
        gateway.signal("HUP");
        eventually("the failure is told", || gateway.stderr().matches("stays as it is").count() == number + 1);
        assert_eq!(gateway.get("/api/x").status, 200);
        assert_eq!(gateway.metric("seawall_config_last_reload_success"), Some(0.0));
    }
    let told = gateway.stderr();
    assert!(told.contains("seawall.toml:7") && told.contains("atempts") && told.contains("attempts"), "{told}");
    assert!(told.contains("NOT_THERE_AT_ALL") && told.contains("upstreams.api.auth.keys[0].secret"), "{told}");
    assert_eq!(gateway.metric("seawall_config_reloads_total{result=\"failed\"}"), Some(2.0));
}

/// Starts the program with this policy; its exit code and what it says.
fn fails(policy: &str) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("seawall.toml");
    std::fs::write(&file, policy).unwrap();
    let ended = program().args(["serve", "-c"]).arg(&file).output().unwrap();
    assert!(ended.stdout.is_empty());
    (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
}

#[test]
fn a_start_that_cannot_work_fails_with_a_clear_word() {
    let free = "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[upstreams.api]\nurl = \"http://127.0.0.1:1\"\n";
    let (code, told) =
        fails(&format!("{free}[upstreams.api.auth]\ninject = \"basic\"\nkeys = [{{ id = \"a\", secret = \"env:NOT_THERE_AT_ALL\" }}]"));
    assert_eq!(code, Some(78), "{told}");
    assert!(told.contains("env:NOT_THERE_AT_ALL") && told.contains("not set"), "{told}");

    let (code, told) = fails(&format!("{free}colour = 1\n"));
    assert!(code == Some(78) && told.contains("seawall.toml:6") && told.contains("colour"), "{told}");

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    for key in ["listen", "admin"] {
        let (code, told) = fails(&free.replace(&format!("{key} = \"127.0.0.1:0\""), &format!("{key} = \"{at}\"")));
        assert!(code == Some(1) && told.contains(&at) && told.contains("in use"), "{code:?} {told}");
    }
}

#[test]
fn two_programs_never_share_a_port() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").go();
    let (code, told) =
        fails(&format!("[server]\nlisten = \"{}\"\nadmin = \"127.0.0.1:0\"\n[upstreams.api]\nurl = \"http://127.0.0.1:1\"\n", gateway.at));
    assert!(code == Some(1) && told.contains("in use"), "{code:?} {told}");
}

#[test]
fn a_reload_keeps_pauses_and_counts_what_is_in_flight() {
    let upstream = Upstream::with(|turn| match turn.number {
        0 => turn.pause(800).say(OK),
        _ => turn.say(answer("503 Busy", "Retry-After: 50\r\n", "")),
    });
    let rule = "[[upstreams.api.classify]]\nwhen = { status = [503] }\nas = \"transient\"\nscope = \"endpoint\"\nwait = \"retry-after\"\n";
    let start = |keys: &str| Start::before(&upstream, &format!("retry = {{ attempts = 1, retry_after_cap = \"1s\" }}\n{keys}{rule}"));
    let gateway = start("").go();
    let mut caller = gateway.caller();
    caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n");
    eventually("the call is upstream", || upstream.count() == 1);
    assert_eq!(gateway.get("/api/x").status, 503);
    // Now and then a call is the probe, and gets the upstream's own refusal.
    eventually("the endpoint is paused", || gateway.get_with("/api/x", "Seawall-Timeout-Ms: 100\r\n").outcome() == "paused");
    gateway.rewrite(&start("cost = 2\n"));
    gateway.signal("HUP");
    eventually("the reload is told", || gateway.stderr().contains("configuration reloaded"));
    assert_eq!(gateway.metric("seawall_in_flight{upstream=\"api\",pool=\"\"}"), Some(1.0));
    assert_eq!(gateway.look("/v1/pauses")["items"][0]["endpoint"], "default", "the pause goes on");
    assert_eq!(caller.reply().status, 200);
}

/// Sends one request over a new connection; `None` if the port is closed, otherwise whether it got a response.
fn answered(at: std::net::SocketAddr) -> Option<bool> {
    use std::io::{Read as _, Write as _};
    let mut stream = TcpStream::connect(at).ok()?;
    let mut reply = String::new();
    let sent = stream.write_all(b"GET /api/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let read = sent.and_then(|()| stream.read_to_string(&mut reply));
    Some(read.is_ok() && reply.starts_with("HTTP/1.1 200 ") && reply.ends_with("ok"))
}

#[test]
fn stopping_under_load_loses_no_request() {
    let upstream = Upstream::with(|turn| turn.pause(3).say(OK));
    let mut gateway = Start::before(&upstream, "").go();
    let (at, all) = (gateway.at, Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let all = Arc::clone(&all);
            let count = move |ok: &bool| {
                all.fetch_add(1, Ordering::SeqCst);
                !ok
            };
            std::thread::spawn(move || std::iter::from_fn(|| answered(at)).filter(count).count())
        })
        .collect();
    eventually("there is load", || all.load(Ordering::SeqCst) > 200);
    gateway.signal("TERM");
    let lost: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
    assert_eq!(gateway.ended(), Some(0));
    // The kernel may complete one more handshake between our last look and the closing of the port.
    assert!(lost <= 1, "{lost} of {all:?} requests were lost");
}

#[test]
fn the_admin_port_asks_for_its_token_where_it_has_one() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").server("admin_token = \"env:ADMIN\"").secret("ADMIN", "admin-token-canary").go();
    let ask = |path: &str, headers: &str| {
        let mut caller = Caller::connect(gateway.admin);
        caller.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")).reply()
    };
    assert_eq!(ask("/healthz", "").status, 200);
    let refused = ask("/metrics", "");
    assert_eq!((refused.status, refused.code().as_str()), (401, "token_required"));
    assert_eq!(ask("/metrics", "Authorization: Bearer admin-token-canar\r\n").status, 401);
    assert_eq!(ask("/metrics", "Authorization: Bearer admin-token-canary\r\n").status, 200);
}

#[test]
fn the_admin_port_answers_no_foreign_name() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").go();
    let status = |host: &str| Caller::connect(gateway.admin).send(format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n")).reply().status;
    assert_eq!(
        [status("localhost"), status("127.0.0.1:7330"), status("[::1]"), status("evil.example"), status("evil.example:7330")],
        [200, 200, 200, 403, 403]
    );
}

#[test]
fn a_reload_that_adds_a_key_keeps_the_others_cooldown() {
    let upstream = Upstream::with(|turn| {
        turn.send(answer("402 Pay", "", "pay"));
    });
    let auth = |more: &str| format!("[upstreams.api.auth]\ninject = \"header:x-key\"\nkeys = [{{ id = \"a\", secret = \"env:A\" }}{more}]");
    let gateway = Start::before(&upstream, &auth("")).secret("A", "key-a-0000").secret("B", "key-b-0000").go();
    assert_eq!(gateway.get("/api/x").code(), "keys_exhausted");
    gateway.rewrite(&Start::before(&upstream, &auth(", { id = \"b\", secret = \"env:B\" }")));
    gateway.signal("HUP");
    eventually("the new key is there", || gateway.metrics().contains("seawall_key_cooling{upstream=\"api\",key=\"b\"} 0"));
    assert!(gateway.metrics().contains("seawall_key_cooling{upstream=\"api\",key=\"a\"} 1"), "{}", gateway.metrics());
}

#[test]
fn a_log_that_nobody_reads_does_not_hold_the_end() {
    let upstream = Upstream::fine();
    let mut gateway = Start::before(&upstream, "").server("drain = \"1s\"").unread().go();
    for _ in 0..400 {
        assert_eq!(gateway.get("/api/x").status, 200);
    }
    gateway.signal("TERM");
    let watch = Watch::start();
    assert_eq!(gateway.ended(), Some(0));
    assert!(watch.ms() < 5000, "{}", watch.ms());
}
