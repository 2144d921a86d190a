//! The options of a batch, one by one.

use super::dir::{Dir, Run, finish};
use super::fetch::{by_id, letters, lines, spent, two_keys, urls};
use super::flaky::Flaky;
use super::upstream::{OK, Turn, Upstream, answer};
use serde_json::Value;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

fn fetch(dir: &Dir, arguments: &[&str]) -> Run {
    dir.run(["fetch"].iter().chain(arguments))
}

/// The value of a query parameter.
fn parameter(turn: &Turn, name: &str) -> Option<u64> {
    let query = turn.seen.line().split(['?', ' ']).nth(2)?.to_owned();
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

fn json(body: &str) -> String {
    answer("200 OK", "Content-Type: application/json\r\n", body)
}

/// The program with this on its standard input.
fn fed(dir: &Dir, arguments: &[&str], input: &[u8]) -> Run {
    dir.write("stdin", input);
    let mut command = dir.command(["fetch"].iter().chain(arguments));
    command.stdin(std::fs::File::open(dir.path("stdin")).unwrap());
    finish(command)
}

#[test]
fn a_rate_is_never_exceeded() {
    let upstream = Upstream::fine();
    let dir = Dir::new();
    dir.write("in", urls(&upstream, 23));
    let run = fetch(&dir, &["in", "-o", "out", "--rate", "20/s"]).ends_with(0);
    // Two at once, and more than twenty at twenty a second: over a second, and a slow machine only makes it longer.
    let took = run.err.split("23 rows in ").nth(1).and_then(|rest| rest.split(':').next()).unwrap_or_default();
    assert!(took.ends_with('s') && !took.ends_with("ms"), "{}", run.err);
    assert_eq!(upstream.count(), 23);
    assert!(fetch(&dir, &["in", "--rate", "0/s"]).ends_with(2).err.contains("a rate of nothing fetches nothing"));
}

#[test]
fn the_log_has_a_line_for_each_attempt_and_each_row() {
    let upstream = Upstream::replying(&[&answer("503 Service Unavailable", "", ""), OK]);
    let dir = Dir::new();
    dir.write("in", urls(&upstream, 3));
    fetch(&dir, &["in", "-o", "out", "--concurrency", "1", "--log", "log"]).ends_with(0);
    let log = lines(&dir.read("log"));
    let of = |event: &str| log.iter().filter(|line| line["event"] == event).collect::<Vec<&Value>>();
    let attempts: Vec<&str> = of("attempt").iter().map(|line| line["decision"].as_str().unwrap()).collect();
    assert_eq!((attempts.len(), attempts.iter().filter(|decision| **decision == "retry").count()), (4, 1), "{log:#?}");
    assert_eq!(of("call").len(), 3);
    assert!(log.iter().all(|line| line["caller"] == "fetch"));
}

#[test]
fn the_summary_counts_every_send() {
    // Every third request on a connection finds it closed.
    let upstream = Upstream::with(|turn| match turn.number % 3 {
        2 => turn.close(),
        _ => turn.say(OK),
    });
    let dir = Dir::new();
    dir.write("in", urls(&upstream, 30));
    let run = fetch(&dir, &["in", "-o", "out", "--concurrency", "1"]).ends_with(0);
    let recorded: u64 = lines(&dir.read("out")).iter().map(|line| line["attempts"].as_u64().unwrap()).sum();
    assert!(upstream.count() > 40 && run.err.contains(&format!("; {} attempts, ", upstream.count())), "{}: {}", upstream.count(), run.err);
    assert_eq!(recorded, u64::try_from(upstream.count()).unwrap());
}

#[test]
fn a_terminal_shows_how_far_it_is() {
    let upstream = Upstream::with(|turn| turn.pause(60).say(OK));
    let dir = Dir::new();
    dir.write("in", urls(&upstream, 40));
    let program = format!("{} fetch in -o out --concurrency 2", env!("CARGO_BIN_EXE_seawall"));
    let mut command = Command::new("script");
    command.args(["-qec", &program, "/dev/null"]).current_dir(dir.path("")).env("TERM", "xterm").stdin(Stdio::null());
    let shown = command.output().expect("`script` of util-linux is needed to have a terminal");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    for part in ["/40", " ok, 0 retries, 0 dead, 2 in flight", "eta", "40 succeeded"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let plain = fetch(&dir, &["in", "-o", "out", "--concurrency", "64"]).ends_with(0);
    assert!(!plain.err.contains("eta") && !plain.err.contains('\u{1b}'), "{}", plain.err);
}

#[test]
fn offsets_are_counted_until_a_page_has_fewer_items() {
    let upstream = Upstream::with(|turn| {
        let from = parameter(turn, "from").unwrap();
        let items: Vec<u64> = (from..(from + 3).min(7)).collect();
        turn.say(json(&format!("{{\"items\":{items:?}}}")));
    });
    let dir = Dir::new();
    dir.write("in", format!("http://{}/list?q=1\n", upstream.at));
    let run = fetch(&dir, &["in", "--pages", "offset:from,3", "--items", "/items"]).ends_with(0);
    let found: Vec<u64> = lines(&run.out).iter().map(|line| line["body"].as_u64().unwrap()).collect();
    assert_eq!((found, upstream.count()), ((0..7).collect(), 3));
    assert!(upstream.seen().iter().all(|seen| seen.line().starts_with("GET /list?q=1&from=")));
}

#[test]
fn the_next_page_is_where_the_answer_says() {
    let upstream = Upstream::with(|turn| {
        let page = parameter(turn, "p").unwrap_or(1);
        let next = if page < 3 { format!("\"/list?p={}\"", page + 1) } else { "null".to_owned() };
        turn.say(json(&format!("{{\"meta\":{{\"next\":{next}}},\"data\":[{page}]}}")));
    });
    let dir = Dir::new();
    dir.write("in", format!("http://{}/list\n", upstream.at));
    let run = fetch(&dir, &["in", "--pages", "next:/meta/next", "--items", "/data"]).ends_with(0);
    let found: Vec<u64> = lines(&run.out).iter().map(|line| line["body"].as_u64().unwrap()).collect();
    assert_eq!((found, upstream.count()), (vec![1, 2, 3], 3));
}

#[test]
fn the_word_for_the_next_page_may_be_a_parameter() {
    let upstream = Upstream::with(|turn| {
        let token = parameter(turn, "pageToken").unwrap_or(0);
        let next = if token < 20 { format!(",\"nextPageToken\":\"{}\"", token + 10) } else { String::new() };
        turn.say(json(&format!("{{\"items\":[{token}]{next}}}")));
    });
    let dir = Dir::new();
    dir.write("in", format!("http://{}/list?part=id\n", upstream.at));
    let run = fetch(&dir, &["in", "--pages", "next:/nextPageToken,pageToken", "--items", "/items"]).ends_with(0);
    let found: Vec<u64> = lines(&run.out).iter().map(|line| line["body"].as_u64().unwrap()).collect();
    assert_eq!((found, upstream.count()), (vec![0, 10, 20], 3));
}

#[test]
fn a_next_page_on_another_origin_is_not_followed() {
    let elsewhere = Upstream::fine();
    let next = format!("Content-Type: application/json\r\nLink: <http://{}/2>; rel=\"next\"\r\n", elsewhere.at);
    let upstream = Upstream::with(move |turn| turn.say(answer("200 OK", &next, "[1]")));
    let dir = Dir::new();
    dir.write("in", format!("http://{}/1\n", upstream.at));
    let run = fetch(&dir, &["in", "--pages", "link"]).ends_with(3);
    assert!(run.out.contains("bad_page") && run.out.contains("somewhere else"), "{}", run.out);
    assert_eq!((upstream.count(), elsewhere.count()), (1, 0));
}

#[test]
fn pages_that_go_in_a_circle_end_the_row() {
    let upstream = Upstream::with(|turn| {
        assert!(turn.number < 100, "it goes on and on");
        let next = if turn.seen.line().contains("p=a") { "b" } else { "a" };
        turn.say(json(&format!("{{\"next\":\"/list?p={next}\"}}")));
    });
    let dir = Dir::new();
    dir.write("in", format!("http://{}/list?p=a\n", upstream.at));
    let run = fetch(&dir, &["in", "--pages", "next:/next"]).ends_with(3);
    assert!(run.out.contains("bad_page") && run.out.contains("go in a circle"), "{}", run.out);
    assert_eq!(upstream.count(), 3);
}

#[test]
fn a_pointer_that_no_page_has_is_named() {
    let upstream = Upstream::with(|turn| {
        let next = if turn.seen.line().contains("/many ") { ",\"next\":\"2\"" } else { "" };
        turn.say(json(&format!("{{\"data\":[1]{next}}}")));
    });
    let dir = Dir::new();
    let run = |rows: &[&str], pages: &str| {
        dir.write("in", rows.iter().map(|row| format!("http://{}/{row}\n", upstream.at)).collect::<String>());
        fetch(&dir, &["in", "--pages", pages]).ends_with(0).err
    };
    let said = run(&["many", "one"], "next:/nothing,after");
    assert!(said.contains("no answer has `/nothing`, so 2 rows ended after page 1"), "{said}");
    let said = run(&["many", "one"], "next:/next,after");
    assert!(!said.contains("no answer"), "a list of one page needs no next one: {said}");
}

#[test]
fn a_next_page_stays_below_the_base_path() {
    let upstream = Upstream::with(|turn| {
        let next = match turn.seen.line().split(' ').nth(1).unwrap() {
            "/v1/out" => "\"/v10/secret?p=2\"",
            "/v1/base" | "/v1" => "\"/v1?page=2\"",
            _ => "null",
        };
        turn.say(json(&format!("{{\"next\":{next}}}")));
    });
    let dir = Dir::with(format!("[upstreams.a]\nurl = \"http://{}/v1\"\n", upstream.at));
    let run = |row: &str, code| {
        dir.write("in", format!("http://{}{row}\n", upstream.at));
        let run = fetch(&dir, &["in", "--pages", "next:/next"]).ends_with(code);
        let urls: Vec<String> = lines(&run.out).iter().map(|line| line["url"].as_str().unwrap().to_owned()).collect();
        let asked: Vec<String> = upstream.seen().iter().map(|seen| seen.line().split(' ').nth(1).unwrap().to_owned()).collect();
        (run.out, urls.last().unwrap().clone(), asked)
    };
    let (out, _, asked) = run("/v1/out", 3);
    assert!(out.contains("bad_page") && out.contains("not below /v1"), "{out}");
    assert_eq!(asked, ["/v1/out"]);
    let (_, last, asked) = run("/v1/base", 0);
    assert_eq!((last, &asked[1..]), (format!("http://{}/v1?page=2", upstream.at), &["/v1/base".to_owned(), "/v1?page=2".to_owned()][..]));
    let (.., asked) = run("/v1", 0);
    assert_eq!(asked[3..], ["/v1", "/v1?page=2"], "a row may ask for the base path itself");
}

#[test]
fn standard_input_may_be_compressed() {
    let upstream = Upstream::fine();
    let dir = Dir::new();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(urls(&upstream, 300).as_bytes()).unwrap();
    let run = fed(&dir, &["-"], &gzip.finish().unwrap()).ends_with(0);
    assert_eq!((upstream.count(), by_id(&run.out).len()), (300, 300));
    assert_eq!(letters(&dir).len(), 0);
}

#[test]
fn rows_of_a_slow_pipe_are_sent_as_they_come() {
    let upstream = Upstream::fine();
    let dir = Dir::new();
    let mut command = dir.command(["fetch"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for row in 1..=3 {
        writeln!(input, "http://{}/{row}", upstream.at).unwrap();
        let mut patience = 4000;
        while upstream.count() < row {
            assert!(patience > 0, "row {row} waits for the next one");
            patience -= 1;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    drop(input);
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), by_id(&String::from_utf8(ended.stdout).unwrap()).len()), (Some(0), 3));
}

#[test]
fn a_line_that_is_too_long_is_named_and_left_out() {
    let upstream = Upstream::fine();
    let dir = Dir::new();
    let url = |name: &str| format!("http://{}/{name}\n", upstream.at);
    dir.write("in", format!("{}{}{}", url("a"), url(&"x".repeat(17 << 20)), url("b")));
    let run = fetch(&dir, &["in", "-o", "out"]).ends_with(3);
    assert!(run.err.contains("line 2: the line is longer than 16 MiB"), "{}", run.err);
    let found = by_id(&dir.read("out"));
    let outcomes: Vec<&str> = ["1", "2", "3"].iter().map(|id| found[*id]["outcome"].as_str().unwrap()).collect();
    assert_eq!((outcomes, upstream.count(), letters(&dir).len()), (vec!["success", "permanent", "success"], 2, 1));
}

#[test]
fn a_line_that_was_mended_is_all_that_is_done_again() {
    let upstream = Upstream::fine();
    let dir = Dir::new();
    let good = urls(&upstream, 300);
    dir.write("in", format!("nonsense\n{good}"));
    fetch(&dir, &["in", "-o", "out"]).ends_with(3);
    assert_eq!(upstream.count(), 300);
    dir.write("in", format!("http://{}/mended\n{good}", upstream.at));
    let run = fetch(&dir, &["in", "-o", "out", "--resume"]).ends_with(0);
    assert!(run.err.contains("300 rows were done by an earlier run"), "{}", run.err);
    assert_eq!((upstream.count(), by_id(&dir.read("out")).len()), (301, 301));
}

#[test]
fn a_list_in_another_order_is_not_done_again() {
    let upstream = Upstream::fine();
    let dir = Dir::new();
    let list =
        |numbers: Vec<u64>| numbers.iter().map(|n| format!("{{\"id\":{n},\"url\":\"http://{}/{n}\"}}\n", upstream.at)).collect::<String>();
    dir.write("in", list((1..=400).collect()));
    fetch(&dir, &["in", "-o", "out"]).ends_with(0);
    dir.write("in", list((2..=401).rev().collect()));
    for _ in 0..2 {
        fetch(&dir, &["in", "-o", "out", "--resume"]).ends_with(0);
        assert_eq!((upstream.count(), by_id(&dir.read("out")).len()), (401, 401), "only the one that is new");
    }
}

#[test]
fn when_every_key_rests_for_longer_than_an_outage_may_take_the_rest_is_kept() {
    let (flaky, _folder) =
        Flaky::scripted("[[routes]]\nmatch = \"GET /**\"\nquota = { key = \"query:key\", limit = 20, per = \"1h\", error = \"google\" }\n");
    let dir = two_keys(&flaky);
    dir.write("in", (0..60).map(|n| format!("/items/{n}\n")).collect::<String>());
    fetch(&dir, &["in", "-o", "out", "--upstream", "api", "--concurrency", "1", "--max-outage", "1ms"]).ends_with(3);
    let found = by_id(&dir.read("out"));
    let good = found.values().filter(|row| row["outcome"] == "success").count();
    assert_eq!((found.len(), good, letters(&dir).len()), (60, 40, 20), "in = out + dead");
    let (keys, _, after) = spent(&flaky);
    assert_eq!(after, 0, "no request on a key that rests: {keys}");
}
