//! Upstreams that repeat the credential they were sent: it is shown to no one else, and not kept.

use super::caller::eventually;
use super::gateway::{Gateway, Start};
use super::upstream::{OK, Upstream, answer};
use serde_json::json;

const QUERY: &str = "sparrow/in+a&query=1111";
const ENCODED: &str = "sparrow%2Fin%2Ba%26query%3D1111";
const HEADER: &str = "sparrow-in-the-middle-2222";
const BASIC: &str = "user:sparrow-as-basic-4444";
const TOKEN: &str = "sparrow-as-token-5555";

/// Everything that the program shows or keeps.
fn told(gateway: &Gateway) -> String {
    let places = ["/v1/jobs", "/v1/dead-letters", "/v1/dead-letters/export", "/v1/calls", "/v1/events/recent", "/v1/errors", "/v1/issues"];
    let mut told: Vec<String> = places.iter().map(|place| gateway.admin("GET", place, "").text()).collect();
    for list in ["/v1/jobs", "/v1/dead-letters"] {
        for item in gateway.look(list)["items"].as_array().unwrap() {
            told.push(gateway.look(&format!("{list}/{}", item["id"].as_str().unwrap())).to_string());
        }
    }
    told.extend([gateway.stdout(), gateway.stderr(), gateway.metrics()]);
    for file in std::fs::read_dir(gateway.directory()).unwrap() {
        told.push(String::from_utf8_lossy(&std::fs::read(file.unwrap().path()).unwrap()).into_owned());
    }
    told.join("\n")
}

fn assert_unseen(told: &str) {
    for piece in ["sparrow", "dXNlcjpz", "in%2Ba", "in+a&", "in-the-mi", "as-basic-4", "as-token-5"] {
        let at = told.find(piece);
        assert_eq!(at.map(|at| String::from_utf8_lossy(&told.as_bytes()[at.saturating_sub(120)..(at + 80).min(told.len())])), None);
    }
}

/// One upstream for each way to send a credential. They say `body`, made of the credential in two forms.
fn policy(upstream: &Upstream) -> String {
    let ways = [
        "inject = \"query:key\"\nkeys = [{ id = \"a\", secret = \"env:QUERY\" }]".to_owned(),
        "inject = \"header:X-Auth: token={secret}, v=1\"\nkeys = [{ id = \"a\", secret = \"env:HEADER\" }]".to_owned(),
        "inject = \"basic\"\nkeys = [{ id = \"a\", secret = \"env:BASIC\" }]".to_owned(),
        format!(
            "inject = \"header:Authorization: Bearer {{secret}}\"\nrefresh = {{ kind = \"client-credentials\", token_url = \"http://{}/token\", client_id = \"env:ID\", client_secret = \"env:ID\" }}",
            upstream.at
        ),
    ];
    let upstreams = ways.iter().enumerate().map(|(i, auth)| {
        format!("[upstreams.up{i}]\nurl = \"http://{}/{i}\"\nretry = {{ attempts = 1 }}\ndead_letter = {{ from = [\"jobs\", \"gateway\"] }}\n[upstreams.up{i}.auth]\n{auth}\n", upstream.at)
    });
    upstreams.collect()
}

fn start(upstream: &Upstream) -> Gateway {
    let secrets = [("QUERY", QUERY), ("HEADER", HEADER), ("BASIC", BASIC), ("ID", "client-of-ours")];
    let start = Start::with(&policy(upstream)).server("allow_private = [\"127.0.0.0/8\"]");
    secrets.iter().fold(start, |start, (name, value)| start.secret(name, value)).go()
}

/// The credential of each upstream, raw and in another form.
fn forms(line: &str) -> [&'static str; 2] {
    match line.split(' ').nth(1).unwrap_or("").as_bytes().get(1) {
        Some(b'0') => [QUERY, ENCODED],
        Some(b'1') => [HEADER, "sparrow\\u002din-the-middle-2222"],
        Some(b'2') => [BASIC, "dXNlcjpzcGFycm93LWFzLWJhc2ljLTQ0NDQ="],
        _ => [TOKEN, "sparrow%2Das%2Dtoken%2D5555"],
    }
}

#[test]
fn a_failure_that_repeats_a_credential_is_kept_without_it() {
    let upstream = Upstream::with(|turn| {
        let [raw, encoded] = forms(turn.seen.line());
        let line = turn.seen.line().to_owned();
        if line.contains("/token ") {
            turn.say(answer("200 OK", "", &json!({ "access_token": TOKEN, "expires_in": 600 }).to_string()));
        } else if line.contains("/cut") {
            // A cut at 2 000 bytes, or at any other of a power of two near it, goes through one of these.
            let body = format!("no: {}{raw} {encoded} {}", "x".repeat(1986), format!("{raw} ").repeat(400));
            turn.say(answer("404 No", "", &body));
        } else if line.contains("/binary") {
            let mut said = format!("HTTP/1.1 404 No\r\nContent-Length: {}\r\n\r\n", raw.len() + encoded.len() + 5).into_bytes();
            said.extend([b"\xff\xfe ", raw.as_bytes(), b"\xff\x80", encoded.as_bytes()].concat());
            turn.say(said);
        } else if line.contains("/strange") {
            turn.say(answer("418 Teapot", "", &json!({ "error": { "message": format!("not {raw} nor {encoded}") } }).to_string()));
        } else {
            turn.say(answer("401 Who", "X-Echo: none\r\n", &format!("{{\"message\":\"{raw} and {encoded} are not valid\"}}")));
        }
    });
    let gateway = start(&upstream);
    for i in 0..4 {
        for path in ["cut", "binary", "strange"] {
            gateway.get(&format!("/up{i}/{path}"));
            let job = json!({ "upstream": format!("up{i}"), "path": format!("/{path}") });
            assert_eq!(gateway.admin("POST", "/v1/jobs", &job.to_string()).status, 202);
        }
    }
    let letters = || gateway.look("/v1/dead-letters?limit=100")["items"].as_array().unwrap().len();
    eventually("each left two letters", || letters() == 24);
    for i in 0..4 {
        gateway.get(&format!("/up{i}/refused"));
    }
    eventually("each left one more", || letters() == 28);
    let told = told(&gateway);
    assert_unseen(&told);
    assert!(told.contains("are not valid"), "the rest is kept");
}

#[test]
fn a_result_that_repeats_a_credential_is_kept_and_called_back_without_it() {
    let upstream = Upstream::with(|turn| {
        let [raw, encoded] = forms(turn.seen.line());
        if turn.seen.line().contains("/token ") {
            return turn.say(answer("200 OK", "", &json!({ "access_token": TOKEN, "expires_in": 600 }).to_string()));
        }
        turn.say(answer("200 OK", &format!("X-Echo: {encoded}\r\n"), &format!("fine with {raw} and {encoded}.")));
    });
    let receiver = Upstream::fine();
    let gateway = start(&upstream);
    for i in 0..4 {
        let headers = format!("Prefer: respond-async\r\nSeawall-Callback: http://{}/hook\r\nIdempotency-Key: k{i}\r\n", receiver.at);
        let id = gateway.get_with(&format!("/up{i}/x"), &headers).json()["id"].as_str().unwrap().to_owned();
        eventually("its receiver hears of it", || receiver.count() == i + 1);
        let own = gateway.get(&format!("/-/jobs/{id}")).json()["response"].to_string();
        assert!(own.contains("fine with …"), "{own}");
        assert_unseen(&own);
        assert_eq!(gateway.post(&format!("/up{i}/y"), &format!("Idempotency-Key: sync{i}\r\n"), "{}").status, 200);
    }
    assert_unseen(&told(&gateway));
    for seen in receiver.seen() {
        assert_unseen(&seen.text());
    }
}

#[test]
fn a_header_of_the_injected_name_is_replaced_and_not_sent_beside_ours() {
    let upstream = Upstream::fine();
    let auth = "[upstreams.api.auth]\ninject = \"header:X-Key\"\nkeys = [{ id = \"a\", secret = \"env:KEY\" }]";
    let gateway = Start::before(&upstream, auth).secret("KEY", "ours-ours-ours").go();
    let headers = json!({ "X-Key": "mine-1", "x_key": "mine-2", "Authorization": "Bearer mine-3" });
    let job = json!({ "upstream": "api", "path": "/x", "headers": headers });
    assert_eq!(gateway.admin("POST", "/v1/jobs", &job.to_string()).status, 202);
    eventually("it is sent", || upstream.count() == 1);
    let seen = upstream.seen().pop().unwrap();
    assert_eq!(seen.all("x-key"), ["ours-ours-ours"]);
    assert!(!seen.text().contains("mine-"), "{}", seen.text());
}

#[test]
fn a_rejected_file_shows_no_secret_that_stands_in_it() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").go();
    let bad = "[upstreams.api.auth]\ninject = \"header:X-Key\"\nkeys = [{ id = \"a\", secret = \"sparrow-inline-6666\" }]\n\
               [[schedules]]\nname = \"s\"\nupstream = \"api\"\nevery = \"5m\"\nrequest = { method = \"GET\", path = \"/\", headers = { Authorization = \"Bearer sparrow-inline-7777\" } }";
    gateway.rewrite(&Start::before(&upstream, bad));
    assert_eq!(gateway.admin("POST", "/v1/config/reload", "").status, 422);
    let shown = gateway.look("/v1/config").to_string();
    assert!(!shown.contains("sparrow") && shown.contains("upstreams.api.auth"), "{shown}");
}

/// Query keys that come back in links: 20.
#[test]
fn links_of_a_response_lose_the_injected_parameter() {
    let upstream = Upstream::with(|turn| {
        let link = format!("http://h/x?a=1&key={ENCODED}");
        let headers = format!(
            "Location: {link}\r\nContent-Location: /x?key={ENCODED}&b=2\r\nLink: <{link}&p=2>; rel=\"next\"\r\nRefresh: 5; url=/x?key={ENCODED}\r\nX-Asked: /x?key={ENCODED}\r\nX-Return: %2Fx%3Fkey%3Dsparrow%252Fin%252Ba%2526query%253D1111\r\nCache-Control: max-age=60\r\n"
        );
        turn.say(answer("301 Moved", &headers, ""));
    });
    let policy =
        "cache = { ttl = \"1m\" }\n[upstreams.api.auth]\ninject = \"query:key\"\nkeys = [{ id = \"a\", secret = \"env:QUERY\" }]\n";
    let plain = format!(
        "[upstreams.plain]\nurl = \"http://{}\"\n[upstreams.plain.auth]\ninject = \"query:key\"\nkeys = [{{ id = \"a\", secret = \"env:QUERY\" }}]\n",
        upstream.at
    );
    let gateway = Start::before(&upstream, &format!("{policy}{plain}")).secret("QUERY", QUERY).go();
    for path in ["/plain/x", "/api/x", "/api/x"] {
        let reply = gateway.get(path);
        assert_eq!(reply.status, 301);
        assert_eq!(reply.header("location"), Some("http://h/x?a=1"));
        let prefix = path.trim_end_matches("/x");
        assert_eq!(reply.header("content-location"), Some(format!("{prefix}/x?b=2").as_str()));
        assert_eq!(reply.header("link"), Some("<http://h/x?a=1&p=2>; rel=\"next\""));
        assert_eq!(reply.header("refresh"), Some(format!("5; url={prefix}/x").as_str()));
        assert_eq!(reply.header("x-asked"), Some("/x?key=[redacted]"));
        assert_unseen(&format!("{reply:?}"));
    }
    assert_eq!(upstream.count(), 2, "the second of the two was cached");
}

#[test]
fn responses_without_a_credential_go_on_as_they_came() {
    let upstream = Upstream::replying(&[&answer("302 Found", "LOCATION: /y?a=1&keys=2#key=3\r\nX-Plain: key=4\r\n", "key=5"), OK]);
    let auth = "rewrite_links = false\n[upstreams.api.auth]\ninject = \"query:key\"\nkeys = [{ id = \"a\", secret = \"env:QUERY\" }]\n";
    let gateway = Start::before(&upstream, auth).secret("QUERY", QUERY).go();
    let reply = gateway.get("/api/x");
    assert_eq!(reply.header("location"), Some("/y?a=1&keys=2#key=3"));
    assert_eq!((reply.header("x-plain"), reply.text().as_str()), (Some("key=4"), "key=5"));
}

#[test]
fn a_finished_job_keeps_no_credential_of_its_caller_and_its_letter_can_still_be_replayed() {
    let upstream = Upstream::replying(&[&answer("503 Later", "", "later"), OK]);
    let gateway = Start::before(&upstream, "retry = { attempts = 1 }").go();
    let headers = json!({ "X-Auth-Token": "sparrow-token", "Accept": "a" });
    let job = json!({ "upstream": "api", "path": "/x?sig=sparrow-sig", "headers": headers });
    let id = gateway.admin("POST", "/v1/jobs", &job.to_string()).json()["id"].as_str().unwrap().to_owned();
    eventually("it is given up", || gateway.look("/v1/dead-letters")["items"].as_array().unwrap().len() == 1);
    assert_eq!(gateway.admin("POST", "/v1/dead-letters/replay", &json!({ "ids": [id] }).to_string()).status, 202);
    eventually("it is replayed", || upstream.count() == 2);
    for seen in upstream.seen() {
        assert_eq!((seen.all("x-auth-token"), seen.line()), (vec!["sparrow-token"], "GET /x?sig=sparrow-sig HTTP/1.1"));
    }
    let is_over = |job: &serde_json::Value| ["done", "dead"].contains(&job["state"].as_str().unwrap());
    eventually("both are over", || gateway.look("/v1/jobs")["items"].as_array().unwrap().iter().all(is_over));
    let jobs = gateway.look("/v1/jobs")["items"].as_array().unwrap().clone();
    assert_eq!(jobs.len(), 2);
    let kept = kept(&gateway.stop());
    assert_eq!(kept.len(), 2);
    for request in kept {
        assert_eq!(request.path, "/x?sig=[redacted]");
        assert!(request.headers.contains(&("x-auth-token".to_owned(), "[redacted]".to_owned())), "{request:?}");
    }
}

/// The requests of all jobs, as the store has them.
fn kept(directory: &tempfile::TempDir) -> Vec<seawall_store::job::JobRequest> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let location = seawall_store::location::Location::Sqlite(directory.path().join("seawall.db"));
        let store = seawall_store::Store::open(&location).await.unwrap();
        let all = seawall_store::page::PageWindow { after: None, limit: 10 };
        store.jobs(seawall_store::job::JobFilter::default(), all).await.unwrap().entries.into_iter().map(|job| job.request).collect()
    })
}

#[test]
fn a_reason_phrase_that_repeats_a_credential_is_replaced() {
    let upstream = Upstream::with(|turn| {
        let key = turn.seen.all("x-key").join("");
        turn.say(format!("HTTP/1.1 400 no {key}\r\nContent-Length: 0\r\n\r\n"));
    });
    let auth = "auth = { inject = \"header:X-Key\", keys = [{ id = \"a\", secret = \"env:HEADER\" }] }\n";
    let gateway = Start::before(&upstream, auth).secret("HEADER", HEADER).go();
    let mut caller = gateway.caller();
    let reply = caller.send("GET /api/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").rest();
    let reply = String::from_utf8(reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 400 Bad Request\r\n") && !reply.contains(HEADER), "{reply}");
}
