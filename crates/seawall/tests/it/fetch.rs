//! A batch from its user's view: lines in, lines out, and every row accounted for.

use super::caller::Caller;
use super::dir::{Dir, Run};
use super::flaky::Flaky;
use super::upstream::{OK, Upstream, answer};
use seawall_store::Store;
use seawall_store::dead::{Letter, LetterQuery};
use seawall_store::location::Location;
use seawall_store::page::PageWindow;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write as _;

/// The lines of a file, each as JSON.
pub(crate) fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Results by their id.
pub(crate) fn by_id(text: &str) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for line in lines(text) {
        let id = line["id"].as_str().map_or_else(|| line["id"].to_string(), str::to_owned);
        assert!(found.insert(id, line.clone()).is_none(), "two lines for one row: {line}");
    }
    found
}

/// Every dead letter that a run in this directory left.
pub(crate) fn letters(dir: &Dir) -> Vec<Letter> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&Location::Sqlite(dir.path("seawall.db"))).await.unwrap();
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = store.letters(LetterQuery::default(), PageWindow { after, limit: 500 }).await.unwrap();
            all.extend(page.entries);
            after = page.next;
            if after.is_none() {
                return all;
            }
        }
    })
}

pub(crate) fn urls(upstream: &Upstream, count: usize) -> String {
    (1..=count).map(|n| format!("http://{}/{n}\n", upstream.at)).collect()
}

fn fetch(dir: &Dir, arguments: &[&str]) -> Run {
    dir.run(["fetch"].iter().chain(arguments))
}

/// A run against an API that counts what each of two keys may have.
pub(crate) fn two_keys(flaky: &Flaky) -> Dir {
    let dir = Dir::with(format!(
        "[upstreams.api]\nurl = \"http://{}\"\npreset = \"google\"\nprofile = \"fetcher\"\n[upstreams.api.auth]\ninject = \"query:key\"\n\
         reset = \"00:00 America/Los_Angeles\"\nkeys = [{{ id = \"a\", secret = \"file:a\" }}, {{ id = \"b\", secret = \"file:b\" }}]\n",
        flaky.address
    ));
    dir.write("a", "key-number-aaaa");
    dir.write("b", "key-number-bbbb");
    dir
}

/// The API's view of its keys: its refusals, and the uses after a refusal.
pub(crate) fn spent(flaky: &Flaky) -> (Value, u64, u64) {
    let keys = flaky.stats()["keys"].clone();
    let sum = |name: &str| keys.as_array().unwrap().iter().map(|key| key[name].as_u64().unwrap()).sum();
    let (refused, after) = (sum("refused"), sum("after_exhausted"));
    (keys, refused, after)
}

fn json(body: &str) -> String {
    answer("200 OK", "Content-Type: application/json\r\n", body)
}

#[test]
fn each_line_gets_one_result_and_failures_heal() {
    let upstream = Upstream::with(|turn| match turn.number {
        0 | 1 => turn.say(answer("503 Service Unavailable", "", "later")),
        _ if turn.seen.line().starts_with("POST") => {
            turn.say(json(&format!("{{\"got\": {:?},\n\"x\": 1}}", String::from_utf8_lossy(&turn.seen.body))))
        }
        _ => turn.say(answer("200 OK", "Content-Type: application/octet-stream\r\n", "\u{0}plain")),
    });
    let dir = Dir::new();
    dir.write(
        "in.ndjson",
        format!(
            "# a comment\nhttp://{0}/a\n\n{{\"id\":\"b\",\"method\":\"post\",\"url\":\"http://{0}/b?x=1 2\",\"headers\":{{\"X-A\":\"1\",\"idempotency-key\":\"k\"}},\"body\":{{\"n\":1}}}}\n",
            upstream.at
        ),
    );
    let run = fetch(&dir, &["in.ndjson", "-H", "X-All: yes", "--concurrency", "1"]).ends_with(0);
    let found = by_id(&run.out);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert_eq!(
        (&found["2"]["status"], &found["2"]["body"], &found["2"]["outcome"]),
        (&200.into(), &"\u{0}plain".into(), &"success".into())
    );
    assert_eq!(found["b"]["body"]["got"], "{\"n\":1}");
    assert_eq!(found["b"]["url"], format!("http://{}/b?x=1%202", upstream.at));
    assert_eq!(found["2"]["attempts"].as_u64().unwrap() + found["b"]["attempts"].as_u64().unwrap(), 4);
    let post = upstream.seen().into_iter().find(|seen| seen.line().starts_with("POST /b?x=1%202 ")).unwrap();
    assert_eq!((post.all("x-a"), post.all("x-all"), post.all("content-type")), (vec!["1"], vec!["yes"], vec!["application/json"]));
    assert!(run.err.contains("2 succeeded"), "{}", run.err);
}

#[test]
fn what_fails_for_good_is_a_dead_letter_with_the_upstreams_words() {
    let upstream = Upstream::with(|turn| {
        let missing = turn.seen.line().starts_with("GET /2 ");
        turn.say(if missing { answer("404 Not Found", "", "no such thing") } else { OK.to_owned() });
    });
    let dir = Dir::new();
    dir.write("in", urls(&upstream, 3));
    let run = fetch(&dir, &["in", "-o", "out"]).ends_with(3);
    let found = by_id(&dir.read("out"));
    let error = &found["2"]["error"];
    assert_eq!((&found["2"]["outcome"], &error["class"], &error["code"]), (&"permanent".into(), &"permanent".into(), &"404".into()));
    assert_eq!((&error["detail"], upstream.count()), (&"no such thing".into(), 3));
    let letters = letters(&dir);
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letters[0].letter.detail.as_str(), letters[0].letter.door.as_str(), letters[0].letter.attempts),
        ("no such thing", "batch", 1)
    );
    assert!(run.err.contains("1 permanent 404"), "{}", run.err);
}

#[test]
fn bad_lines_are_named_and_never_end_the_run() {
    let upstream = Upstream::fine();
    let dir = Dir::new();
    let mut input = format!("not a url\n{{\"url\":\nhttp://{0}/ok\n{{\"x\":1}}\nhttp://{0}/\u{0}\n", upstream.at).into_bytes();
    input.extend_from_slice(b"\xff\xfe\n");
    input.extend_from_slice(format!("{{\"url\":\"http://{}/\",\"headers\":{{\"Host\":\"x\"}}}}\n", upstream.at).as_bytes());
    dir.write("in", input);
    let run = fetch(&dir, &["in", "-o", "out"]).ends_with(3);
    let found = by_id(&dir.read("out"));
    assert_eq!(found.len(), 7);
    assert_eq!((upstream.count(), &found["3"]["outcome"]), (1, &"success".into()));
    for (line, why) in [
        (1, "not a URL"),
        (2, "not a JSON object"),
        (4, "neither `url` nor `path`"),
        (5, "NUL"),
        (6, "not UTF-8"),
        (7, "`Host` is not yours to set"),
    ] {
        assert!(run.err.contains(&format!("line {line}: ")), "{}", run.err);
        assert!(found[&line.to_string()]["error"]["detail"].as_str().unwrap().contains(why), "{line}: {found:#?}");
    }
    assert_eq!((lines(&dir.read("out.quarantine.ndjson")).len(), letters(&dir).len()), (6, 6));
}

#[test]
fn answers_that_do_not_fit_go_into_quarantine_with_what_is_wrong() {
    let upstream = Upstream::with(|turn| {
        let path = turn.seen.line().to_owned();
        turn.say(match path.as_str() {
            line if line.starts_with("GET /1 ") => json("{\"id\":1}"),
            line if line.starts_with("GET /2 ") => json("{\"id\":\"x\"}"),
            line if line.starts_with("GET /3 ") => json("{\"id\":"),
            _ => json(&format!("{{\"id\":1,\"pad\":\"{}\"}}", "x".repeat(2000))),
        });
    });
    let dir = Dir::new();
    dir.write("in", urls(&upstream, 4));
    dir.write("schema.json", r#"{"properties":{"id":{"type":"integer"}}}"#);
    let run = fetch(&dir, &["in", "-o", "out", "--schema", "schema.json", "--max-body", "1KiB"]).ends_with(3);
    let codes: Vec<String> = by_id(&dir.read("out")).values().map(|row| row["error"]["code"].to_string()).collect();
    assert_eq!(codes, ["null", "\"schema\"", "\"malformed\"", "\"too_large\""]);
    let quarantined = by_id(&dir.read("out.quarantine.ndjson"));
    assert!(quarantined["2"]["detail"].as_str().unwrap().starts_with("/id: "), "{quarantined:#?}");
    assert_eq!(quarantined["3"]["body"], "{\"id\":");
    assert_eq!((letters(&dir).len(), upstream.count()), (3, 4), "never retried");
    assert!(run.err.contains("3 rows are in quarantine: out.quarantine.ndjson"), "{}", run.err);
}

#[test]
fn a_key_that_is_not_accepted_stops_the_run_and_is_named() {
    let upstream = Upstream::replying(&[&answer("401 Unauthorized", "", "{}")]);
    let dir = Dir::with(format!(
        "[upstreams.api]\nurl = \"http://{}/v1\"\n[upstreams.api.auth]\ninject = \"header:x-key\"\nkeys = [{{ id = \"k\", secret = \"file:key\" }}]\n",
        upstream.at
    ));
    dir.write("key", "0123456789abcdef");
    dir.write("in", (0..500).map(|n| format!("/{n}\n")).collect::<String>());
    let run = fetch(&dir, &["in", "-o", "out", "--upstream", "api", "--concurrency", "2"]).ends_with(5);
    assert!(run.err.contains("upstream `api` does not accept the key …cdef") && run.err.contains("--resume"), "{}", run.err);
    assert!(!run.err.contains("0123456789") && !dir.read("out").contains("0123456789"));
    assert!(upstream.count() <= 4, "{}", upstream.count());
    assert_eq!(upstream.seen()[0].all("x-key"), ["0123456789abcdef"]);
    assert!(upstream.seen()[0].line().starts_with("GET /v1/"));
}

#[test]
fn a_drained_key_rests_while_the_run_ends_on_the_other() {
    let (flaky, _folder) = Flaky::scripted(
        "[[routes]]\nmatch = \"GET /**\"\nquota = { key = \"query:key\", limit = 150, per = \"1h\", error = \"google\" }\n",
    );
    let dir = two_keys(&flaky);
    // Keys take turns, but another client has used one of them before.
    let mut other = Caller::connect(flaky.address.parse().unwrap());
    for _ in 0..60 {
        assert_eq!(other.send("GET /items/x?key=key-number-aaaa HTTP/1.1\r\nHost: x\r\n\r\n").reply().status, 200);
    }
    dir.write("in", (0..230).map(|n| format!("/items/{n}\n")).collect::<String>());
    fetch(&dir, &["in", "-o", "out", "--upstream", "api", "--concurrency", "1"]).ends_with(0);
    assert_eq!(by_id(&dir.read("out")).len(), 230);
    let (keys, refused, after) = spent(&flaky);
    assert_eq!((refused, after), (1, 0), "one refusal found it out, and the key was left alone: {keys}");
}

#[test]
fn pages_are_followed_to_their_end_and_split_into_items() {
    let upstream = Upstream::with(|turn| {
        let line = turn.seen.line().to_owned();
        let page: u32 = line.split("p=").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(1);
        let link = if page < 3 { format!("Link: </list?p={}>; rel=\"next\"\r\n", page + 1) } else { String::new() };
        if turn.number == 1 {
            return turn.say(answer("503 Service Unavailable", "", ""));
        }
        turn.say(answer("200 OK", &format!("Content-Type: application/json\r\n{link}"), &format!("{{\"data\":[{page}0,{page}1]}}")));
    });
    let dir = Dir::new();
    dir.write("in", format!("http://{}/list\n", upstream.at));
    let run = fetch(&dir, &["in", "--pages", "link", "--items", "/data"]).ends_with(0);
    let found: Vec<String> = lines(&run.out).iter().map(|line| format!("{}.{}={}", line["page"], line["item"], line["body"])).collect();
    assert_eq!(found, ["1.0=10", "1.1=11", "2.0=20", "2.1=21", "3.0=30", "3.1=31"]);
    assert_eq!(upstream.count(), 4);
}

#[test]
fn csv_fills_a_template_from_a_compressed_file() {
    let upstream = Upstream::fine();
    let dir = Dir::new();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"name,id\n\"a, \"\"b\"\"\",1/2\nc,\n").unwrap();
    dir.write("in.csv.gz", gzip.finish().unwrap());
    let template = format!("http://{}/x/{{id}}?n={{name}}", upstream.at);
    let run = fetch(&dir, &["in.csv.gz", "--url", &template]).ends_with(3);
    assert_eq!(upstream.seen()[0].line(), "GET /x/1%2F2?n=a%2C%20%22b%22 HTTP/1.1");
    assert_eq!((upstream.count(), &by_id(&run.out)["1/2"]["body"]), (1, &"ok".into()));
    assert!(run.err.contains("line 3: it has no `id`"), "{}", run.err);
}

#[test]
fn ordered_results_are_in_the_order_of_the_input() {
    let upstream = Upstream::with(|turn| {
        let n: u64 = turn.seen.line().split(['/', ' ']).nth(2).unwrap().parse().unwrap();
        turn.pause((7 * n) % 20).say(OK);
    });
    let dir = Dir::new();
    dir.write("in", format!("bad\n{}", urls(&upstream, 60)));
    let run = fetch(&dir, &["in", "--ordered", "--concurrency", "16"]).ends_with(3);
    let ids: Vec<u64> = lines(&run.out).iter().map(|line| line["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, (1..=61).collect::<Vec<u64>>());
}

#[test]
fn records_may_be_files_and_bodies_may_stand_alone() {
    let upstream = Upstream::replying(&[&json("{\"a\":\n1}")]);
    let dir = Dir::new();
    dir.write("in", format!("{{\"id\":\"../../x\",\"url\":\"http://{}/\"}}\n", upstream.at));
    let run = fetch(&dir, &["in", "--output-dir", "records"]).ends_with(0);
    let name = lines(&run.out)[0]["file"].as_str().unwrap().to_owned();
    assert_eq!(dir.read(&format!("records/{name}")), "{\"a\":\n1}");
    assert_eq!(fetch(&dir, &["in", "--body-only"]).ends_with(0).out, "{\"a\": 1}\n");
}

#[test]
fn a_slow_host_never_blocks_the_rest() {
    let slow = Upstream::with(|turn| turn.pause(400).say(OK));
    let fast = Upstream::fine();
    let dir = Dir::new();
    dir.write("in", format!("{}{}", urls(&slow, 12), urls(&fast, 100)));
    let run = fetch(&dir, &["in", "--concurrency", "4"]).ends_with(0);
    let found = lines(&run.out);
    let is_slow = |line: &Value| line["url"].as_str().unwrap().contains(&slow.at.to_string());
    let last_fast = found.iter().rposition(|line| !is_slow(line)).unwrap();
    let slow_before = found[..last_fast].iter().filter(|line| is_slow(line)).count();
    assert!(found.len() == 112 && slow_before < 6, "{slow_before} of the slow host's rows came before the last of the others");
}

#[test]
fn a_host_that_stays_away_is_given_up_and_the_rest_goes_on() {
    let down = Upstream::with(|turn| turn.say(answer("503 Service Unavailable", "", "")));
    let up = Upstream::fine();
    let dir = Dir::with(format!(
        "[server]\nallow_private = [\"127.0.0.0/8\"]\n[upstreams.down]\nurl = \"http://{}\"\nretry = {{ attempts = 3, base = \"10ms\", cap = \"20ms\" }}\n\
         breaker = {{ per = \"upstream\", consecutive = 3, open = \"300ms\", open_max = \"300ms\", probes = 1 }}\n",
        down.at
    ));
    dir.write("in", format!("{}{}", urls(&down, 300), urls(&up, 50)));
    fetch(&dir, &["in", "-o", "out", "--max-outage", "1s", "--report", "report.html"]).ends_with(3);
    let found = lines(&dir.read("out"));
    let of = |outcome: &str| found.iter().filter(|line| line["outcome"] == outcome).count();
    assert_eq!((found.len(), of("success")), (350, 50));
    assert!(of("circuit_open") > 250 && down.count() < 100, "{} {}", of("circuit_open"), down.count());
    assert_eq!(letters(&dir).len(), 300);
    let report = dir.read("report.html");
    assert!(report.contains("<svg") && report.contains("circuit_open") && !report.contains("src="));
}

#[test]
fn a_private_address_is_refused_at_once_and_the_setting_is_named() {
    let upstream = Upstream::fine();
    let dir = Dir::with("[upstreams.a]\nurl = \"https://a.test\"\n");
    dir.write("in", urls(&upstream, 2));
    let run = fetch(&dir, &["in", "-o", "out"]).ends_with(3);
    for row in lines(&dir.read("out")) {
        let error = &row["error"];
        assert_eq!((&row["attempts"], &error["class"], &error["code"]), (&1.into(), &"permanent".into(), &"connect".into()));
        assert_eq!(error["detail"], "where it leads is not a public address, and `allow_private` does not list it");
    }
    let letters = letters(&dir);
    assert!(letters.len() == 2 && letters.iter().all(|letter| letter.letter.detail.contains("`allow_private`")), "{letters:?}");
    assert!(run.err.contains("2 rows lead to addresses that are not public: `[server] allow_private`"), "{}", run.err);
    assert!(run.err.contains("2 attempts, 0 retries") && upstream.count() == 0, "{}", run.err);
}

#[test]
fn rows_that_share_an_id_do_not_share_a_file() {
    let upstream = Upstream::with(|turn| {
        let body = turn.seen.line().split(' ').nth(1).unwrap_or_default().to_owned();
        turn.say(answer("200 OK", "Content-Type: text/plain\r\n", &body));
    });
    let dir = Dir::new();
    let long = "x".repeat(3000);
    dir.write("in.csv", format!("id,n\na,1\n../a,2\na,3\n,4\n..,5\n{long},6\n"));
    let template = format!("http://{}/{{n}}", upstream.at);
    let arguments = ["in.csv", "--url", &template, "--output-dir", "records", "-o", "out"];
    let run = fetch(&dir, &arguments).ends_with(0);
    let names: BTreeMap<String, String> = lines(&dir.read("out"))
        .iter()
        .map(|row| (row["url"].as_str().unwrap().rsplit('/').next().unwrap().to_owned(), row["file"].as_str().unwrap().to_owned()))
        .collect();
    let shown: Vec<&str> = names.values().take(5).map(String::as_str).collect();
    assert_eq!(shown, ["a.txt", "_..%2Fa.txt", "a~4.txt", "5.txt", "_...txt"]);
    for (n, name) in &names {
        assert_eq!(dir.read(&format!("records/{name}")), format!("/{n}"));
    }
    assert_eq!(std::fs::read_dir(dir.path("records")).unwrap().count(), 6);
    assert!(run.err.contains("1 row with the id of an earlier one: the names of their files end in `~LINE`"), "{}", run.err);
    let again = fetch(&dir, &[&arguments[..], &["--resume"]].concat()).ends_with(0);
    assert!(again.err.contains("0 rows in ") && again.err.contains("6 rows were done by an earlier run"), "{}", again.err);
}

#[test]
fn one_of_something_is_not_many() {
    let (upstream, dir) = (Upstream::fine(), Dir::new());
    dir.write("in", urls(&upstream, 1));
    let run = fetch(&dir, &["in"]).ends_with(0);
    assert!(run.err.starts_with("1 row in ") && run.err.contains("1 attempt, 0 retries healed 0 rows"), "{}", run.err);
}
