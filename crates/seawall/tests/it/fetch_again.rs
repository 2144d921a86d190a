//! A batch that is interrupted, killed or run again: finished rows stay finished, and no row is lost.

use super::dir::{Dir, finish};
use super::fetch::{by_id, letters, lines, urls};
use super::upstream::{OK, Turn, Upstream, answer};
use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The number of the requested row.
fn number(turn: &Turn) -> u64 {
    turn.seen.line().split(['/', ' ']).nth(2).unwrap().parse().unwrap()
}

#[test]
fn the_second_run_does_nothing() {
    let upstream = Upstream::fine();
    let dir = Dir::new();
    // A row that stands there twice is done twice.
    dir.write("in", format!("{0}{0}", urls(&upstream, 50)));
    for _ in 0..3 {
        dir.run(["fetch", "in", "-o", "out", "--resume"]).ends_with(0);
        assert_eq!((upstream.count(), lines(&dir.read("out")).len()), (100, 100));
    }
    dir.write("in", format!("{0}{0}http://{1}/new\n", urls(&upstream, 50), upstream.at));
    dir.run(["fetch", "in", "-o", "out", "--resume"]).ends_with(0);
    assert_eq!((upstream.count(), lines(&dir.read("out")).len()), (101, 101));
    dir.run(["fetch", "in", "-o", "out"]).ends_with(0);
    assert_eq!(upstream.count(), 202, "without --resume everything is new");
}

#[test]
fn the_dead_are_done_again_and_their_lines_and_letters_are_replaced() {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&mended);
    let upstream = Upstream::with(move |turn| {
        let broken = number(turn).is_multiple_of(10) && !seen.load(Ordering::SeqCst);
        turn.say(if broken { answer("410 Gone", "", "gone") } else { OK.to_owned() });
    });
    let dir = Dir::new();
    dir.write("in", format!("{}nonsense\n", urls(&upstream, 40)));
    dir.run(["fetch", "in", "-o", "out"]).ends_with(3);
    assert_eq!((upstream.count(), letters(&dir).len()), (40, 5));
    dir.run(["fetch", "in", "-o", "out", "--retry-dead"]).ends_with(3);
    assert_eq!((upstream.count(), letters(&dir).len(), by_id(&dir.read("out")).len()), (44, 5, 41));
    mended.store(true, Ordering::SeqCst);
    dir.write("in", format!("{}nonsense\nhttp://{}/99\n", urls(&upstream, 40), upstream.at));
    dir.run(["fetch", "in", "-o", "out", "--retry-dead"]).ends_with(3);
    assert_eq!(upstream.count(), 48, "only the dead");
    let found = by_id(&dir.read("out"));
    assert_eq!((found.len(), found.values().filter(|row| row["outcome"] == "success").count()), (41, 40));
    assert_eq!(letters(&dir).len(), 1, "the line that makes no request is all that is left");
    dir.run(["fetch", "in", "-o", "out", "--resume"]).ends_with(3);
    assert_eq!((upstream.count(), by_id(&dir.read("out")).len()), (49, 42));
}

#[test]
fn pages_go_on_from_the_last_checkpoint() {
    let broken = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&broken);
    let upstream = Upstream::with(move |turn| {
        let page: u32 = turn.seen.line().split("p=").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap();
        if page == 4 && seen.load(Ordering::SeqCst) {
            return turn.say(answer("400 Bad Request", "", "not now"));
        }
        let body = if page < 6 { format!("[{page}]") } else { "[]".to_owned() };
        turn.say(answer("200 OK", "Content-Type: application/json\r\n", &body));
    });
    let dir = Dir::new();
    dir.write("in", format!("http://{}/list\n", upstream.at));
    dir.run(["fetch", "in", "-o", "out", "--pages", "page:p=1"]).ends_with(3);
    assert_eq!((upstream.count(), lines(&dir.read("out")).len()), (4, 4));
    broken.store(false, Ordering::SeqCst);
    dir.run(["fetch", "in", "-o", "out", "--pages", "page:p=1", "--resume"]).ends_with(0);
    let pages: Vec<u64> = lines(&dir.read("out")).iter().map(|line| line["page"].as_u64().unwrap()).collect();
    assert_eq!((upstream.count(), pages), (7, vec![1, 2, 3, 4, 5, 6]));
    dir.run(["fetch", "in", "-o", "out", "--pages", "page:p=1", "--resume"]).ends_with(0);
    assert_eq!(upstream.count(), 7);
}

/// Pages of a list that has five; the requests with these numbers fail.
fn five_pages(failing: &'static [usize]) -> Upstream {
    Upstream::with(move |turn| {
        let page: u32 = turn.seen.line().split("p=").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap();
        if failing.contains(&turn.number) {
            return turn.say(answer("400 Bad Request", "", "not now"));
        }
        let body = if page < 6 { format!("[{page}]") } else { "[]".to_owned() };
        turn.say(answer("200 OK", "Content-Type: application/json\r\n", &body));
    })
}

/// The pages of each id, in the order of the output.
fn pages(dir: &Dir) -> BTreeMap<u64, Vec<u64>> {
    let mut found: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for line in lines(&dir.read("out")) {
        assert_eq!(line["outcome"], "success", "{line}");
        found.entry(line["id"].as_u64().unwrap()).or_default().push(line["page"].as_u64().unwrap());
    }
    found
}

#[test]
fn equal_rows_go_on_from_their_own_pages() {
    let all: Vec<u64> = (1..=6).collect();
    for (added, first_id) in [("", 1), ("nonsense\n", 2)] {
        // The first row ends after two pages, the second after three, and the third is done.
        let upstream = five_pages(&[2, 6]);
        let dir = Dir::new();
        let list = format!("http://{}/list\n", upstream.at).repeat(3);
        dir.write("in", &list);
        let run = ["fetch", "in", "-o", "out", "--concurrency", "1", "--pages", "page:p=1"];
        dir.run(run).ends_with(3);
        assert_eq!((upstream.count(), letters(&dir).len()), (13, 2));
        dir.write("in", format!("{added}{list}"));
        dir.run(run.into_iter().chain(["--resume"])).ends_with(if added.is_empty() { 0 } else { 3 });
        let whole = dir.read("out");
        dir.write("out", whole.lines().filter(|line| line.contains("success")).map(|line| format!("{line}\n")).collect::<String>());
        let expected: BTreeMap<u64, Vec<u64>> = (first_id..first_id + 3).map(|id| (id, all.clone())).collect();
        let mut found = pages(&dir);
        found.values_mut().for_each(|pages| pages.sort_unstable());
        assert_eq!((found, upstream.count()), (expected, 20), "each page once");
        assert_eq!(letters(&dir).len(), usize::from(!added.is_empty()));
    }
}

#[test]
fn a_row_that_has_only_pages_keeps_them_under_its_new_line() {
    let upstream = five_pages(&[2]);
    let dir = Dir::new();
    let run = ["fetch", "in", "-o", "out", "--concurrency", "1", "--pages", "page:p=1"];
    dir.write("in", format!("http://{}/list\n", upstream.at));
    dir.run(run).ends_with(3);
    dir.write("in", format!("http://{0}/other\nhttp://{0}/list\n", upstream.at));
    dir.run(run.into_iter().chain(["--resume"])).ends_with(0);
    let all: Vec<u64> = (1..=6).collect();
    assert_eq!((pages(&dir), upstream.count()), (BTreeMap::from([(1, all.clone()), (2, all)]), 13));
}

#[test]
fn of_equal_rows_the_dead_one_is_done_again() {
    let upstream = Upstream::with(|turn| match turn.number {
        0 => turn.say(answer("410 Gone", "", "")),
        // Late enough that the first row is in the journal already.
        _ => turn.pause(300).say(OK),
    });
    let dir = Dir::new();
    dir.write("in", format!("http://{}/1\n", upstream.at).repeat(2));
    dir.run(["fetch", "in", "-o", "out", "--concurrency", "1"]).ends_with(3);
    assert_eq!((upstream.count(), letters(&dir).len()), (2, 1));
    dir.run(["fetch", "in", "-o", "out", "--retry-dead"]).ends_with(0);
    let found = by_id(&dir.read("out"));
    assert_eq!((upstream.count(), letters(&dir).len(), found.len(), &found["1"]["outcome"]), (3, 0, 2, &"success".into()));
}

#[test]
fn an_interrupt_finishes_what_is_in_flight_and_says_how_to_go_on() {
    let upstream = Upstream::with(|turn| turn.pause(30).say(OK));
    let dir = Dir::new();
    dir.write("in", urls(&upstream, 400));
    let mut command = dir.command(["fetch", "in", "-o", "out", "--concurrency", "4", "-H", "Authorization: Bearer hidden"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while upstream.count() < 20 {
        std::thread::sleep(Duration::from_millis(2));
    }
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let ended = child.wait_with_output().unwrap();
    let err = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{err}");
    assert!(err.contains("fetch in -o out --concurrency 4") && err.contains("--resume") && !err.contains("hidden"), "{err}");
    assert_eq!(lines(&dir.read("out")).len(), upstream.count(), "what was sent was written");
    finish(dir.command(["fetch", "in", "-o", "out", "--concurrency", "4", "--resume"])).ends_with(0);
    assert_eq!((upstream.count(), by_id(&dir.read("out")).len()), (400, 400));
}

#[test]
fn whatever_a_kill_cuts_off_every_row_comes_out_once() {
    let upstream = Upstream::with(|turn| {
        let missing = number(turn).is_multiple_of(100);
        turn.say(if missing { answer("404 Not Found", "", "") } else { OK.to_owned() });
    });
    let dir = Dir::new();
    dir.write("in", urls(&upstream, 2000));
    for kill in 0..10 {
        let before = upstream.count();
        let mut child = dir.command(["fetch", "in", "-o", "out", "--resume", "--concurrency", "8"]).stderr(Stdio::null()).spawn().unwrap();
        // Not the same moment twice, and late enough that something was done.
        while upstream.count() < before + 60 + kill * 17 && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(300 + 370 * u64::try_from(kill).unwrap()));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    dir.run(["fetch", "in", "-o", "out", "--resume", "--concurrency", "8"]).ends_with(3);
    let found = by_id(&dir.read("out"));
    let good = found.values().filter(|row| row["outcome"] == "success").count();
    let dead: Vec<String> = letters(&dir).into_iter().map(|kept| kept.letter.url).collect();
    assert_eq!((found.len(), good, dead.len()), (2000, 1980, 20), "in = out + dead");
    let before = upstream.count();
    let run = dir.run(["fetch", "in", "-o", "out", "--resume"]).ends_with(3);
    assert!(run.err.contains("1980 rows were done by an earlier run"), "{}", run.err);
    assert_eq!(
        (upstream.count() - before, by_id(&dir.read("out")).len(), letters(&dir).len()),
        (20, 2000, 20),
        "only the dead are tried again"
    );
}
