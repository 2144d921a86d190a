//! Unresolvable references of a configuration: `check` refuses what `serve` refuses, with the same words.

use super::dir::Dir;

const KEYS: &str = "inject = \"header:X-Key\"";

fn schedule(keys: &str) -> String {
    format!("[[schedules]]\nname = \"s\"\nupstream = \"a\"\nevery = \"5m\"\n{keys}\n")
}

/// Refused settings: keys of an upstream or tables behind it, and the place that the message names.
fn refused() -> Vec<(String, &'static str)> {
    let key = |secret: &str| format!("auth = {{ {KEYS}, keys = [{{ id = \"k\", secret = \"{secret}\" }}] }}");
    let oauth = |id: &str, secret: &str, token: &str| {
        let grant = "kind = \"refresh-token\", token_url = \"https://a.test/t\"";
        let secrets = format!("client_id = \"{id}\", client_secret = \"{secret}\", refresh_token = \"{token}\"");
        format!("auth = {{ inject = \"header:Authorization: Bearer {{secret}}\", refresh = {{ {grant}, {secrets} }} }}")
    };
    let rows = [
        (key("env:GONE"), "`upstreams.a.auth.keys[0].secret`: the secret env:GONE cannot be used: the variable is not set"),
        (key("file:gone"), "`upstreams.a.auth.keys[0].secret`: the secret file:gone cannot be used: No such file"),
        (key("file:empty"), "`upstreams.a.auth.keys[0].secret`: the secret file:empty cannot be used: it is empty"),
        (oauth("env:GONE", "env:HERE", "env:HERE"), "`upstreams.a.auth.refresh.client_id`: the secret env:GONE"),
        (oauth("env:HERE", "env:GONE", "env:HERE"), "`upstreams.a.auth.refresh.client_secret`: the secret env:GONE"),
        (oauth("env:HERE", "env:HERE", "env:GONE"), "`upstreams.a.auth.refresh.refresh_token`: the secret env:GONE"),
        ("[callers.c]\ntoken = \"env:GONE\"".to_owned(), "`callers.c.token`: the secret env:GONE"),
        ("[server]\nadmin_token = \"env:GONE\"".to_owned(), "`server.admin_token`: the secret env:GONE"),
        ("[server]\nwebhook_secret = \"env:GONE\"".to_owned(), "`server.webhook_secret`: the secret env:GONE"),
        ("[server]\nstore = \"env:GONE\"".to_owned(), "`server.store`: the secret env:GONE"),
        ("[server]\nstore = \"env:HERE\"".to_owned(), "`server.store`: "),
        ("[server]\nshared = \"env:GONE\"".to_owned(), "`server.shared`: the secret env:GONE"),
        ("[server]\nshared = \"env:HERE\"".to_owned(), "`server.shared`: "),
        ("[server]\ntls = { cert = \"cert.pem\", key = \"file:gone\" }".to_owned(), "`server.tls.key`: the secret file:gone"),
        ("[server]\ntls = { cert = \"gone\", key = \"env:HERE\" }".to_owned(), "`server.tls`: "),
        ("[server]\ntls = { cert = \"cert.pem\", key = \"env:HERE\" }".to_owned(), "`server.tls`: "),
        ("schema = \"gone.json\"".to_owned(), "`upstreams.a/default.schema`: the schema `gone.json` cannot be used"),
        ("schema = \"cert.pem\"".to_owned(), "`upstreams.a/default.schema`: the schema `cert.pem` cannot be used"),
        ("[[notify]]\nurl = \"env:GONE\"".to_owned(), "`notify[0].url`: the secret env:GONE"),
        ("[[notify]]\nurl = \"https://a.test\"\nsecret = \"env:GONE\"".to_owned(), "`notify[0].secret`: the secret env:GONE"),
        (schedule("request.path = \"/\"\ndeliver = \"env:GONE\""), "`schedules[0].deliver`: the secret env:GONE"),
        (
            schedule("request = { path = \"/\", headers = { X-Key = \"Bearer env:GONE\" } }"),
            "`schedules[0].request.headers.X-Key`: the secret env:GONE",
        ),
    ];
    rows.into()
}

fn dir(keys: &str) -> Dir {
    let dir = Dir::with(format!("[upstreams.a]\nurl = \"https://a.test\"\n{keys}\n"));
    dir.write("empty", "");
    dir.write("cert.pem", "no certificate");
    dir
}

fn run(dir: &Dir, words: &[&str]) -> super::dir::Run {
    let mut command = dir.command(words);
    command.env("HERE", "somewhere").env_remove("GONE");
    super::dir::finish(command)
}

#[test]
fn check_and_serve_refuse_the_same_references_in_the_same_words() {
    for (keys, told) in refused() {
        let dir = dir(&keys);
        let (checked, served) = (run(&dir, &["check"]).ends_with(78), run(&dir, &["serve"]).ends_with(78));
        assert!(checked.err.contains(told), "{keys}: {}", checked.err);
        assert_eq!(checked.err, served.err, "{keys}");
        let problem = &run(&dir, &["check", "--json"]).ends_with(78).json()["problems"][0];
        let shown = format!("`{}`: {}", problem["path"].as_str().unwrap(), problem["message"].as_str().unwrap());
        assert!(shown.contains(told), "{keys}: {shown}");
    }
}

#[test]
fn all_secrets_that_are_missing_are_named_at_once() {
    let keys = "[server]\nadmin_token = \"env:GONE\"\nstore = \"env:GONE\"\n[callers.c]\ntoken = \"env:GONE\"\n";
    let told = run(&dir(keys), &["check"]).ends_with(78).err;
    assert!(["`server.admin_token`", "`server.store`", "`callers.c.token`"].iter().all(|place| told.contains(place)), "{told}");
}

#[test]
fn what_is_missing_elsewhere_is_a_warning() {
    for (keys, told) in refused().into_iter().filter(|(_, told)| told.contains("GONE")) {
        let shown = run(&dir(&keys), &["check", "--elsewhere"]).ends_with(0).out;
        let place = told.split('`').nth(1).unwrap();
        assert!(shown.contains(&format!("SW008 {place}")), "{keys}: {shown}");
    }
}

#[test]
fn what_is_there_and_cannot_be_used_is_refused_elsewhere_too() {
    let unusable = [
        "schema = \"cert.pem\"".to_owned(),
        "[callers.c]\ntoken = \"file:empty\"".to_owned(),
        "[server]\ntls = { cert = \"cert.pem\", key = \"file:empty\" }".to_owned(),
        "[server]\ntls = { cert = \"cert.pem\", key = \"env:HERE\" }".to_owned(),
        "[server]\nshared = \"env:HERE\"".to_owned(),
        "[server]\nstore = \"env:HERE\"".to_owned(),
        // A missing reference beside it hides nothing.
        "[server]\nadmin_token = \"env:GONE\"\n[[upstreams.a.endpoints]]\nname = \"x\"\nmatch = \"GET /x\"\nschema = \"cert.pem\""
            .to_owned(),
    ];
    for keys in unusable {
        let dir = dir(&keys);
        let told = run(&dir, &["check", "--elsewhere"]).ends_with(78).err;
        assert!(!told.contains("GONE"), "{keys}: {told}");
    }
    let absent = [
        "schema = \"gone.json\"",
        "[server]\ntls = { cert = \"cert.pem\", key = \"file:gone\" }",
        "[server]\ntls = { cert = \"gone\", key = \"env:HERE\" }",
    ];
    for keys in absent {
        run(&dir(keys), &["check", "--elsewhere"]).ends_with(0);
    }
}

#[test]
fn a_secret_in_the_path_of_a_schedule_is_refused_and_not_shown() {
    for query in ["api_key=sparrow", "page=1&access_token=sparrow", "a=b;sig=sparrow", "api%5Fkey=sparrow", "key=env:SPARROW"] {
        let dir = dir(&schedule(&format!("request.path = \"/x?{query}\"")));
        for command in ["check", "serve"] {
            let told = run(&dir, &[command]).ends_with(78).err;
            assert!(told.contains("schedules[0].request.path") && told.contains("inline secret"), "{query}: {told}");
            assert!(!told.contains("sparrow"), "{told}");
        }
    }
    for open in ["/x?page_token=1&idempotency_key=2", "/x?key={subject}", "/x?token="] {
        run(&dir(&schedule(&format!("request.path = \"{open}\""))), &["check"]).ends_with(0);
    }
}
