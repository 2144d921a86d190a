//! A batch that is interrupted, killed or run again: what is done stays done, and nothing is lost.

use super::dir::{Dir, finish};
use super::fetch::{by_id, letters, lines, urls};
use super::upstream::{OK, Turn, Upstream, answer};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the n-th row asks for.
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
