//! `seawall check`: refusals and their messages, its report on a good file, and every warning.

use crate::dir::{CONTRACT, Dir, UPSTREAM};
use std::collections::BTreeSet;

/// Refused with exit 78: the message and the place are on stderr, and nothing is on stdout.
fn refused(config: impl AsRef<[u8]>, place: &str, message: &str) -> String {
    let run = Dir::with(config).run(["check"]).ends_with(78);
    assert!(run.err.contains(&format!("seawall.toml:{place}\n")), "at {place}:\n{}", run.err);
    assert!(run.err.contains(message), "{message}:\n{}", run.err);
    assert_eq!(run.out, "");
    run.err
}

/// As `refused`, for keys of the upstream; their first line is the file's third.
fn refused_key(keys: &str, place: &str, message: &str) {
    refused(format!("{UPSTREAM}{keys}\n"), place, message);
}

#[test]
fn a_key_that_does_not_exist_is_refused_with_the_nearest_that_does() {
    refused_key("retires = 3", "3:1", "`upstreams.a.retires`: an upstream has no key `retires`");
    refused_key("retires = 3", "3:1", "did you mean `retry`?");
    refused("[sever]\n", "1:2", "did you mean `server`?");
}

#[test]
fn a_missing_unit_is_refused_with_a_proposal() {
    refused_key("timeout = { total = \"30\" }", "3:21", "missing unit: write \"30s\" or \"30ms\"");
    refused_key("timeout = { total = 30 }", "3:21", "missing unit: write \"30s\"");
    refused_key("retry.budget = 20", "3:16", "missing unit: shares are written as \"20%\"");
    refused_key("retry.budget_floor = 5", "3:22", "missing unit: write \"5/s\"");
    refused("server.max_body = 10\n", "1:19", "missing unit: write \"10KiB\"");
}

#[test]
fn a_deadline_header_that_cannot_be_sent_is_refused() {
    refused_key("deadline_header = \"x left\"", "3:19", "`upstreams.a.deadline_header`: `x left` cannot be a header name");
    refused_key("deadline_header = \"\"", "3:19", "`` cannot be a header name");
    refused_key("deadline_header = \"x-left:\"", "3:19", "cannot be a header name");
    refused_key("deadline_header = \"Content-Length\"", "3:19", "`Content-Length` says how the request is sent");
    assert_eq!(Dir::with(format!("{UPSTREAM}deadline_header = \"X-Left\"\n")).run(["check"]).ends_with(0).err, "");
}

#[test]
fn an_inline_secret_is_refused_and_never_shown() {
    let ways = [
        "auth = { keys = [{ id = \"a\", secret = \"sk-canary\" }] }",
        "auth = { keys = [{ id = \"a\", secret = \"a canary, in words\" }] }",
        "auth = { keys = [\"sk-canary\"] }",
        "auth = { keys = [{ id = \"a\", secrte = \"sk-canary\" }] }",
        "api_key = \"sk-canary\"",
        "auth = { inject = \"header:Authorization: Bearer sk-canary\" }",
        "url = \"https://me:canary@a.test\"",
        "auth = { keys = [{ id = \"a\", secret = \"sk-canary",
        "auth = { keys = [{ id = \"a\", secret = 'canary' }] }",
        "auth.refresh = { kind = \"client-credentials\", token_url = \"https://a.test/t?x=canary\", client_id = \"canary\", client_secret = \"canary\" }",
    ];
    for way in ways {
        for color in ["never", "always"] {
            let run = Dir::with(format!("{UPSTREAM}{way}\n")).run(["check", "--color", color]).ends_with(78);
            assert!(!run.err.contains("canary") && !run.out.contains("canary"), "{way}:\n{}", run.err);
        }
    }
    refused_key(ways[0], "3:39", "`upstreams.a.auth.keys[0].secret`: inline secret");
    refused("server.store = \"postgres://me:canary@db/x\"\n", "1:16", "inline secret");
    refused("[upstreams.a]\nurl = \"https://me:canary@a.test\"\n", "2:7", "inline secret");
    refused("[callers.x]\ntoken = \"canary\"\n", "2:9", "inline secret");
}

#[test]
fn names_that_point_nowhere_are_refused() {
    refused_key("preset = \"gooogle\"", "3:10", "did you mean `google`?");
    refused_key("profile = \"payments\"", "3:11", "did you mean `payment`?");
    refused_key("pool = \"export\"", "3:8", "there is no pool `export`");
    refused("[server]\ndefault_upstream = \"b\"\n[upstreams.a]\nurl = \"https://a.test\"\n", "2:20", "there is no upstream `b`");
    refused_key(
        "auth = { reset = \"00:00 America/Los_Angles\", keys = [{ id = \"a\", secret = \"env:A\" }] }",
        "3:18",
        "did you mean \"America/Los_Angeles\"?",
    );
}

#[test]
fn contradictions_are_refused() {
    let endpoints = "endpoints = [{ name = \"x\", match = \"GET /a/**\" }, { name = \"y\", match = \"GET /a/b\" }]";
    refused_key(endpoints, "3:73", "never reached: endpoint `x` (GET /a/**) comes first");
    refused_key("timeout = { attempt = \"10s\", total = \"2s\" }", "3:23", "\"10s\" is longer than `total` = \"2s\"");
    refused_key("breaker = { open = \"10s\", open_max = \"2s\" }", "3:20", "\"10s\" is longer than `open_max` = \"2s\"");
    refused("[server]\nadmin = \"0.0.0.0:7330\"\n[upstreams.a]\nurl = \"https://a.test\"\n", "2:9", "`admin_token` is required");
    refused_key("cost = 1\ncost = 2", "4:1", "duplicate key");
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    refused_key("retry.factor = nan", "3:16", "NaN");
    refused_key("retry.factor = inf", "3:16", "must lie between 1 and");
    refused_key("retry.attempts = -1", "3:18", "must not be negative");
    refused_key("retry.base = \"-1s\"", "3:14", "not a duration");
    refused_key("retry.attempts = 0", "3:18", "must be at least 1");
    refused_key("timeout.total = \"0s\"", "3:17", "must be above zero");
    refused_key("limits = [{ name = \"x\", rate = \"0/s\" }]", "3:32", "must be above zero");
    refused_key("retry.attempts = 99999999999999999999999999999", "3:18", "must be at most 1000");
    refused_key("retry.budget = \"120%\"", "3:16", "between 0% and 100%");
    refused_key("retry.attempts = 1.5", "3:18", "expected a whole number, found a float");
}

#[test]
fn lengths_beyond_all_time_are_for_ever() {
    let config = format!(
        "{UPSTREAM}timeout.total = \"99999999999999999999999d\"\nretry = {{ base = \"999999999999h\", cap = \"999999999999h\" }}\n"
    );
    let run = Dir::with(config).run(["check", "--json"]).ends_with(0);
    assert_eq!(run.json()["valid"], true);
}

#[test]
fn whatever_the_bytes_are_they_are_refused_in_words() {
    refused("", "1:1", "there is no upstream");
    refused(b"x = \"\xff\"\n", "1:6", "not UTF-8");
    refused("x = \"\0\"\n", "1:6", "not valid TOML");
    refused("\0\0\0", "1:1", "not valid TOML");
    refused("[upstreams.a]\r\nurl = \"https://a.test\"\r\nretires = 1\r\n", "3:1", "did you mean `retry`?");
    refused("\u{feff}[upstreams.a]\nurl = \"https://a.test\"\nretires = 1\n", "3:1", "did you mean `retry`?");
    for deep in [
        "[".repeat(50_000),
        format!("x = {}", "[".repeat(50_000)),
        format!("x = {}", "{a=".repeat(50_000)),
        format!("a{} = 1", ".a".repeat(50_000)),
    ] {
        let run = Dir::with(deep).run(["check"]).ends_with(78);
        assert!(run.err.contains("not valid TOML"), "{}", &run.err[..run.err.len().min(500)]);
    }
}

#[test]
fn carriage_returns_and_a_byte_order_mark_are_no_problem_in_themselves() {
    for fine in ["\u{feff}[upstreams.a]\nurl = \"https://a.test\"\n", "[upstreams.a]\r\nurl = \"https://a.test\"\r\n"] {
        Dir::with(fine).run(["check"]).ends_with(0);
    }
}

#[test]
fn large_files_are_refused_without_reading_them() {
    refused(vec![b'a'; 10_000_000], "1:1", "the file is larger than 1048576 bytes");
    let keys: String = (0..100_000).map(|i| format!("k{i}=1\n")).collect();
    let shown = refused(keys, "1:1", "problems found, the first 50 are shown");
    assert!(shown.len() < 100_000, "{}", shown.len());
}

#[test]
fn a_large_file_is_read_in_a_moment() {
    let callers: String = (0..25_000).map(|i| format!("[callers.c{i}]\ntoken = \"env:A{i}\"\n")).collect();
    let dir = Dir::with(format!("{callers}{UPSTREAM}cost = 7\n"));
    let text = dir.run(["config", "explain", "a"]).ends_with(0).out;
    assert!(text.lines().any(|line| line.starts_with("cost ") && line.ends_with("seawall.toml:50003")), "{text}");
}

#[test]
fn a_file_that_cannot_be_read_is_refused_by_name() {
    let dir = Dir::new();
    std::fs::create_dir(dir.path("folder")).unwrap();
    let run = dir.run(["check", "-c", "folder"]).ends_with(78);
    assert!(run.err.contains("error: cannot read `folder`: it is not a regular file"), "{}", run.err);
    let run = dir.run(["check", "-c", "nowhere.toml"]).ends_with(78);
    assert!(run.err.contains("cannot read `nowhere.toml`: No such file"), "{}", run.err);
    let run = dir.run(["check"]).ends_with(78);
    assert!(run.err.contains("looked for seawall.toml") && run.err.contains("hint: write one with `seawall config init`"), "{}", run.err);
}

#[test]
fn every_problem_is_told_at_once_in_the_order_of_the_file() {
    let run = Dir::with(format!("[log]\nformat = \"xml\"\n{UPSTREAM}retires = 1\npreset = \"nope\"\ntimeout.total = 3\n"))
        .run(["check"])
        .ends_with(78);
    let places: Vec<&str> = run.err.lines().filter_map(|line| line.trim().strip_prefix("--> seawall.toml:")).collect();
    assert_eq!(places, ["2:10", "5:1", "6:10", "7:17"]);
    assert!(run.err.ends_with("seawall.toml: 4 problems found\n"), "{}", run.err);
}

const QUESTIONS: &[&str] = &[
    "caller key",
    "cost",
    "burst",
    "sustained",
    "deadline",
    "downstream timeouts",
    "retry",
    "idempotency",
    "concurrency",
    "degraded answer",
    "overload answer",
    "breaker",
    "dashboard",
];

#[test]
fn the_contracts_example_is_valid_and_every_endpoint_answers_every_question() {
    let dir = Dir::with(CONTRACT);
    let text = dir.run(["check", "--elsewhere"]).ends_with(0).out;
    assert!(text.starts_with("seawall.toml is valid: 2 upstreams, 3 endpoints\n"), "{text}");
    let endpoints: Vec<&str> = text.split("\n\n").filter(|part| part.contains("  profile ")).collect();
    assert_eq!(endpoints.len(), 3, "{text}");
    for part in endpoints {
        for question in QUESTIONS.iter().chain(&["worst case", "amplification", "gives up"]) {
            assert!(part.lines().any(|line| line.contains(&format!(" {question} "))), "{question}:\n{part}");
        }
    }
    let json = dir.run(["check", "--json", "--elsewhere"]).ends_with(0).json();
    let search = &json["endpoints"][0];
    assert_eq!((search["upstream"].as_str(), search["endpoint"].as_str()), (Some("spotify"), Some("default")));
    let search = &json["endpoints"][1];
    assert_eq!((search["endpoint"].as_str(), search["match"].as_str()), (Some("search"), Some("GET /search")));
    for question in QUESTIONS {
        let item = &search["checklist"][question.replace(' ', "_")];
        assert!(item["answer"].is_string() && item["gap"].is_boolean(), "{question}: {item}");
    }
    assert_eq!(search["checklist"]["cost"]["answer"], "20 per call");
    assert_eq!(search["worst_case"]["attempts"], 6);
    assert!(search["worst_case"]["elapsed_ms"].as_u64().unwrap() <= 180_000);
    for outage in ["10s", "60s", "10m"] {
        let chance = search["gives_up"][outage].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&chance), "{outage}: {chance}");
    }
    assert_eq!(search["amplification"]["attempts"], 6.0);
    assert_eq!(search["breaker_trips"]["consecutive"], true);
}

#[test]
fn the_layers_of_the_amplification_can_be_given() {
    let dir = Dir::with(UPSTREAM);
    let json = dir.run(["check", "--json", "--layers", "3"]).ends_with(0).json();
    assert_eq!(json["endpoints"][0]["amplification"]["attempts"], 125.0);
    dir.run(["check", "--layers", "11"]).ends_with(2);
    for load in ["nan", "0", "-1", "inf"] {
        dir.run(["check", &format!("--load={load}")]).ends_with(2);
    }
}

/// For each warning, keys of an upstream that cause it.
const WARNED: &[(&str, &str)] = &[
    ("SW001", "timeout = { attempt = \"30s\", total = \"31s\" }"),
    ("SW002", "retry.base = \"1ms\""),
    ("SW003", "retry.cap = \"2h\""),
    ("SW004", "breaker = { consecutive = 0, min_calls = 1000 }\nlimits = [{ name = \"x\", rate = \"1/m\" }]"),
    ("SW005", "retry.unsafe = \"always\""),
    ("SW006", "retry.retry_after_cap = \"2h\""),
    ("SW007", "auth = { keys = [{ id = \"a\", secret = \"env:A\", group = \"g\" }, { id = \"b\", secret = \"env:B\", group = \"g\" }] }"),
    ("SW008", "auth = { keys = [{ id = \"a\", secret = \"env:NOT_SET\" }] }"),
    ("SW009", "[server]\nadmin = \"0.0.0.0:1\"\nadmin_token = \"env:T\""),
    ("SW010", "retry.budget = \"100%\""),
    (
        "SW011",
        "[[schedules]]\nname = \"s\"\nupstream = \"a\"\nrequest.path = \"/\"\nevery = \"5m\"\nsubjects = [\"x\", \"y\"]\nspread = \"0%\"",
    ),
    ("SW012", "retry.backoff = \"exponential\""),
    ("SW013", "breaker.slow = \"60s\""),
    ("SW014", "[upstreams.b]\nurl = \"http://127.0.0.1:7329/a\""),
    ("SW015", "[upstreams.b]\nurl = \"http://b.test\"\nauth = { keys = [{ id = \"a\", secret = \"env:A\" }] }"),
    ("SW016", "auth = { keys = [{ id = \"a\", secret = \"env:A\" }] }"),
    ("SW017", "breaker.window = \"1s\""),
    ("SW018", "pool = \"p\"\n[pools.p]\nconcurrent = 1\nqueue = 5\nqueue_timeout = \"10m\""),
    ("SW019", "dead_letter.from = []"),
    ("SW020", "schema = \"nowhere.json\""),
    ("SW021", "retry = { base = \"20s\", cap = \"10s\" }"),
    ("SW022", "cost = 20\nlimits = [{ name = \"qps\", rate = \"50/s\", burst = 10 }]"),
    ("SW023", "breaker.max_wait = \"0s\""),
    ("SW024", "auth = { max_wait = \"0s\", keys = [{ id = \"a\", secret = \"env:A\" }] }"),
    ("SW025", "breaker = { open = \"5s\", open_max = \"1m\" }"),
    ("SW026", "retry = { budget = \"0%\", budget_floor = \"0/s\" }"),
];

#[test]
fn every_warning_can_be_brought_about_and_is_explained() {
    for (code, keys) in WARNED {
        let dir = Dir::with(format!("{UPSTREAM}{keys}\n"));
        let json = dir.run(["check", "--json", "--elsewhere"]).ends_with(0).json();
        let codes: Vec<&str> = json["warnings"].as_array().unwrap().iter().map(|warning| warning["code"].as_str().unwrap()).collect();
        assert!(codes.contains(code), "{code} is not among {codes:?}");
        let text = dir.run(["check", "--strict", "--elsewhere"]).ends_with(4).out;
        assert!(text.lines().any(|line| line.starts_with(&format!("{code} "))), "{text}");
        let said = dir.run(["check", "--explain", &code.to_lowercase()]).ends_with(0).out;
        assert!(said.starts_with(&format!("{code}: ")) && said.lines().count() >= 3, "{said}");
    }
}

#[test]
fn no_warning_is_missing_from_this_list_and_none_is_named_twice() {
    let unknown = Dir::new().run(["check", "--explain", "SW999"]).ends_with(2).err;
    let listed: Vec<&str> = unknown
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| word.len() == 5 && word.starts_with("SW"))
        .filter(|word| *word != "SW999")
        .collect();
    let unique: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(unique.len(), listed.len(), "{listed:?}");
    assert_eq!(listed, WARNED.iter().map(|(code, _)| *code).collect::<Vec<_>>());
}

#[test]
fn calls_that_are_refused_although_they_could_wait_are_warned_of_unless_a_profile_or_a_fallback_says_so() {
    let codes = |keys: &str| {
        let json = Dir::with(format!("{UPSTREAM}{keys}\n")).run(["check", "--json"]).json();
        let codes = json["warnings"].as_array().unwrap().iter().map(|warning| warning["code"].as_str().unwrap().to_owned());
        codes.collect::<Vec<_>>()
    };
    for keys in ["waiting = 0", "breaker = { open = \"20s\", open_max = \"20s\" }", "timeout = { attempt = \"50ms\", total = \"200ms\" }"] {
        assert!(codes(keys).contains(&"SW023".to_owned()), "{keys}: {:?}", codes(keys));
    }
    for keys in [
        "profile = \"internal\"",
        "profile = \"fetcher\"",
        "breaker.max_wait = \"0s\"\nfallback = { status = 200, body = \"[]\" }",
        "breaker = { open = \"20s\", open_max = \"20s\", max_wait = \"30s\" }",
        "breaker = { mode = \"shadow\", max_wait = \"0s\" }",
    ] {
        assert!(!codes(keys).iter().any(|code| ["SW023", "SW025"].contains(&code.as_str())), "{keys}: {:?}", codes(keys));
    }
}

#[test]
fn the_outages_of_the_chances_and_their_load_can_be_given() {
    let dir = Dir::with(format!("{UPSTREAM}breaker.max_wait = \"1s\"\n"));
    let chances = |load: &str| {
        dir.run(["check", "--json", "--outage", "2s", "--outage", "1m", "--load", load]).json()["endpoints"][0]["gives_up"].clone()
    };
    let busy = chances("50");
    let names: Vec<&String> = busy.as_object().unwrap().keys().collect();
    assert_eq!(names, ["2s", "1m"]);
    assert!(busy["2s"].as_f64().unwrap() < busy["1m"].as_f64().unwrap(), "{busy}");
    assert_eq!(busy, chances("50"), "the same file gives the same numbers");
    assert_ne!(busy, chances("2"));
    dir.run(["check", "--outage", "0s"]).ends_with(2);
    let text = dir.run(["check", "--outage", "2s"]).out;
    assert!(text.lines().any(|line| line.contains(" gives up ") && line.contains("of an outage of 2s at 100 calls/s")), "{text}");
}

#[test]
fn a_warning_says_where_the_value_was_written() {
    let json = Dir::with(format!("{UPSTREAM}retry.unsafe = \"always\"\n")).run(["check", "--json"]).json();
    assert_eq!(json["warnings"][0]["origin"], "seawall.toml:3");
    assert_eq!(json["warnings"][0]["subject"], "a/default");
}

#[test]
fn strict_is_content_with_a_file_without_warnings() {
    let run = Dir::with(UPSTREAM).run(["check", "--strict"]).ends_with(0);
    assert!(run.out.ends_with("no warnings\n"), "{}", run.out);
}

#[test]
fn secrets_that_are_there_are_not_warned_about() {
    let dir = Dir::with(format!(
        "{UPSTREAM}auth = {{ keys = [{{ id = \"a\", secret = \"env:KEY_A\" }}, {{ id = \"b\", secret = \"file:b.key\" }}] }}\n"
    ));
    dir.write("b.key", "canary-b");
    let mut command = dir.command(["check"]);
    command.env("KEY_A", "canary-a");
    let run = crate::dir::finish(command).ends_with(0);
    assert!(!run.out.contains("SW008") && !run.out.contains("canary"), "{}", run.out);
}
