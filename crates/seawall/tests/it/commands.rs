//! Commands that talk to a running Seawall: their arguments, their output, and their errors.

use super::admin_hands::run;
use super::caller::eventually;
use super::dir::{Dir, UPSTREAM};
use super::gateway::{Start, program};
use super::replays::{die, gets};
use super::upstream::{Upstream, answer};
use serde_json::{Value, json};

#[test]
fn whatever_is_not_a_seawall_is_called_so() {
    let hello = answer("200 OK", "Content-Type: application/json\r\n", "{\"message\":\"hello\"}");
    let stranger = Upstream::with(move |turn| turn.send(&hello).close());
    let submit = ["jobs", "submit", "--upstream", "api"];
    for arguments in
        [&["jobs", "list"][..], &["jobs", "show", "x"], &submit, &["dlq", "list"], &["dlq", "discard", "x"], &["keys"], &["breakers"]]
    {
        let output = program().args(arguments).args(["--admin", &format!("http://{}", stranger.at)]).output().unwrap();
        let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!((output.status.code(), out.as_str()), (Some(10), ""), "{arguments:?}: {err}");
        assert!(err.contains("is not a Seawall"), "{arguments:?}: {err}");
    }
}

#[test]
fn a_job_is_described_in_full_on_a_command_line() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").server("allow_private = [\"127.0.0.0/8\"]").go();
    let callback = format!("http://{}/hook", upstream.at);
    let when = ["--run-at", "2099-01-31T12:00:00Z", "--expires-at", "2099-02-01T12:00:00Z"];
    let rest = ["--priority", "-7", "--correlation-id", "corr", "--tenant", "acme", "--callback", &callback];
    let (code, out, err) = run(&gateway, &[&["jobs", "submit", "--upstream", "api", "--path", "/x"][..], &when, &rest].concat());
    assert_eq!(code, 0, "{err}");
    let id = serde_json::from_str::<Value>(&out).unwrap()["id"].as_str().unwrap().to_owned();
    let job = gateway.look(&format!("/v1/jobs/{id}"));
    let expected = json!({ "state": "waiting", "run_at": "2099-01-31T12:00:00.000Z", "expires_at": "2099-02-01T12:00:00.000Z",
        "priority": -7, "correlation_id": "corr", "tenant": "acme", "callback": callback });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&job[name], value, "{name}");
    }
    assert!(run(&gateway, &["jobs", "list", "--correlation-id", "corr"]).1.contains(&id));
    assert!(!run(&gateway, &["jobs", "list", "--correlation-id", "other"]).1.contains(&id));
    let (code, out, err) = run(&gateway, &["jobs", "submit", "--url", &callback, "--delay", "1h"]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["state"], "waiting");
    assert_eq!(run(&gateway, &["jobs", "submit", "--url", &callback, "--upstream", "api"]).0, 2);
}

#[test]
fn letters_leave_by_one_command_and_come_back_by_another() {
    let upstream = Upstream::replying(&[&answer("503 No", "", "")]);
    let start = || Start::before(&upstream, "retry = { attempts = 1 }\nbreaker = { mode = \"off\" }").go();
    let (here, there) = (start(), start());
    die(&here, &gets(2));
    let exported = run(&here, &["dlq", "export"]).1;
    assert_eq!(exported.lines().count(), 2);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("letters.ndjson");
    std::fs::write(&file, format!("{exported}no letter\n")).unwrap();
    let (code, out, err) = run(&there, &["dlq", "import", file.to_str().unwrap()]);
    assert_eq!((code, out.lines().count()), (1, 3), "{out}{err}");
    assert!(out.contains("this is no dead letter"), "{out}");
    assert_eq!(there.look("/v1/dead-letters")["items"].as_array().unwrap().len(), 2);
    std::fs::write(&file, exported).unwrap();
    assert_eq!(run(&there, &["dlq", "import", file.to_str().unwrap()]).0, 0, "what is there already stays");
}

#[test]
fn one_letter_that_is_not_there_keeps_no_other_from_being_discarded() {
    let upstream = Upstream::replying(&[&answer("503 No", "", "")]);
    let gateway = Start::before(&upstream, "retry = { attempts = 1 }\nbreaker = { mode = \"off\" }").go();
    die(&gateway, &gets(2));
    let items = || gateway.look("/v1/dead-letters")["items"].as_array().unwrap().clone();
    let ids: Vec<String> = items().iter().map(|letter| letter["id"].as_str().unwrap().to_owned()).collect();
    let (code, _, err) = run(&gateway, &["dlq", "discard", &ids[0], "nothing", &ids[1]]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("nothing: there is no such dead letter") && err.contains(&format!("discarded {}", ids[1])), "{err}");
    eventually("both are gone", || items().is_empty());
}

#[test]
fn the_gateways_own_port_is_told_from_its_admin_port() {
    let upstream = Upstream::fine();
    for server in ["", "default_upstream = \"api\""] {
        let gateway = Start::before(&upstream, "").server(server).go();
        for arguments in [&["jobs", "list"][..], &["keys"], &["dlq", "discard", "x"], &["breakers"]] {
            let output = program().args(arguments).args(["--admin", &format!("http://{}", gateway.at)]).output().unwrap();
            let err = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(10), "{arguments:?}: {err}");
            assert!(err.contains(&format!("http://{} is the gateway itself, not its admin port", gateway.at)), "{err}");
            assert!(err.contains("[server] admin") && err.contains("http://127.0.0.1:7330"), "{err}");
        }
    }
}

#[test]
fn the_configuration_beside_it_says_where_the_admin_port_is() {
    let upstream = Upstream::fine();
    let gateway = Start::before(&upstream, "").go();
    let here = Dir::with(format!("[server]\nlisten = \"{}\"\nadmin = \"127.0.0.1:7999\"\n{UPSTREAM}", gateway.at));
    let run = here.run(["keys", "--admin", &format!("http://{}", gateway.at)]).ends_with(10);
    assert!(run.err.contains("--admin http://127.0.0.1:7999"), "{}", run.err);
}

#[test]
fn a_replay_that_sends_nothing_says_so_and_how_to_insist() {
    let upstream = Upstream::replying(&[&answer("500 No", "", "broken")]);
    let gateway = Start::before(&upstream, "retry = { attempts = 1 }\nbreaker = { mode = \"off\" }").go();
    let ids = die(&gateway, &[json!({ "upstream": "api", "method": "POST", "path": "/pay", "body": "{}" })]);
    let (code, out, err) = run(&gateway, &["dlq", "replay", &ids[0]]);
    assert!(code == 1 && err.contains("nothing is replayed: it may have been executed") && err.contains("--force"), "{code} {err}");
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["held_back"][0]["id"], ids[0]);
    let (code, _, err) = run(&gateway, &["dlq", "replay", "--upstream", "nobody"]);
    assert!(code == 1 && err.contains("no dead letter matches") && !err.contains("--force"), "{code} {err}");
    let (code, _, err) = run(&gateway, &["dlq", "replay", "01m7h3bw25ff2qnb9nag25qvd6"]);
    assert!(code == 1 && err.contains("there is no such dead letter") && !err.contains("--force"), "{code} {err}");
    assert_eq!(run(&gateway, &["dlq", "replay", &ids[0], "--force"]).0, 0);
}
