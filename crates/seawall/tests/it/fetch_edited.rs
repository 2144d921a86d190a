//! Outputs that a batch finds: what another run left is not replaced, and a list that was edited keeps each id once.

use super::dir::{Dir, Run};
use super::fetch::{by_id, lines};
use super::upstream::{Turn, Upstream, answer};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

fn fetch(dir: &Dir, arguments: &[&str]) -> Run {
    dir.run(["fetch"].iter().chain(arguments))
}

fn json(body: &str) -> String {
    answer("200 OK", "Content-Type: application/json\r\n", body)
}

fn path(turn: &Turn) -> String {
    turn.seen.line().split(' ').nth(1).unwrap().to_owned()
}

/// Says what it was asked for.
fn echo() -> Upstream {
    Upstream::with(|turn| turn.say(json(&format!("\"{}\"", path(turn)))))
}

/// A list of paths, each a URL on a line of its own.
fn list(upstream: &Upstream, names: &[&str]) -> String {
    names.iter().map(|name| format!("http://{}/{name}\n", upstream.at)).collect()
}

/// The body of each id in the output; no id occurs twice.
fn bodies(dir: &Dir) -> Vec<(String, String)> {
    by_id(&dir.read("out")).into_iter().map(|(id, line)| (id, line["body"].as_str().unwrap_or("–").to_owned())).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(id, body)| ((*id).to_owned(), (*body).to_owned())).collect()
}

/// A run that was killed with at least this many bytes in the output.
fn killed(dir: &Dir, upstream: &Upstream, bytes: u64) -> String {
    let mut child = dir.command(["fetch", "in", "-o", "out", "--concurrency", "4"]).stderr(Stdio::null()).spawn().unwrap();
    while std::fs::metadata(dir.path("out")).map_or(0, |found| found.len()) < bytes {
        assert!(upstream.count() < 4000, "nothing was written");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    dir.read("out")
}

#[test]
fn an_output_that_has_not_finished_is_not_replaced() {
    let upstream = Upstream::with(|turn| turn.pause(3).say(json("1")));
    let dir = Dir::new();
    dir.write("in", super::fetch::urls(&upstream, 4000));
    let left = killed(&dir, &upstream, 1);
    let run = fetch(&dir, &["in", "-o", "out"]).ends_with(2);
    assert!(run.err.contains("has not finished") && run.err.contains("--resume") && run.err.contains("--overwrite"), "{}", run.err);
    dir.write("other", super::fetch::urls(&upstream, 1));
    for arguments in [&["other", "-o", "out"][..], &["other", "-o", "./out", "--resume"]] {
        let run = fetch(&dir, arguments).ends_with(2);
        assert!(run.err.contains("another run, which has not finished") && run.err.contains("--overwrite"), "{}", run.err);
        assert!(run.err.contains("fetch in -o out --concurrency 4 --resume"), "{}", run.err);
    }
    assert_eq!(dir.read("out"), left, "not a byte of it has changed");
    fetch(&dir, &["other", "-o", "out", "--overwrite"]).ends_with(0);
    assert_eq!(lines(&dir.read("out")).len(), 1);
    let run = fetch(&dir, &["in", "-o", "out", "--resume"]).ends_with(2);
    assert!(run.err.contains("the output of another run"), "{}", run.err);
    fetch(&dir, &["other", "-o", "out"]).ends_with(0);
}

#[test]
fn a_file_that_no_run_wrote_is_not_replaced() {
    let upstream = echo();
    let dir = Dir::new();
    dir.write("in", list(&upstream, &["a"]));
    dir.write("out", "the only copy\n");
    for more in [&[][..], &["--resume"]] {
        let run = dir.run(["fetch", "in", "-o", "out"].iter().chain(more)).ends_with(2);
        assert!(run.err.contains("no journal says what is in it") && run.err.contains("--overwrite"), "{}", run.err);
    }
    assert_eq!((dir.read("out").as_str(), upstream.count()), ("the only copy\n", 0));
    fetch(&dir, &["in", "-o", "out", "--overwrite"]).ends_with(0);
    fetch(&dir, &["in", "-o", "out"]).ends_with(0);
    fetch(&dir, &["in", "-o", "/dev/null"]).ends_with(0);
    fetch(&dir, &["in", "-o", "/dev/null"]).ends_with(0);
    assert_eq!(bodies(&dir), pairs(&[("1", "/a")]));
}

#[test]
fn a_file_that_is_not_the_runs_is_neither_deleted_nor_replaced() {
    let upstream = echo();
    let dir = Dir::new();
    dir.write("in", format!("{}nonsense\n", list(&upstream, &["a"])));
    dir.write("notes", "mine\n");
    std::fs::create_dir(dir.path("records")).unwrap();
    dir.write("records/1.json", "mine too\n");
    for (arguments, file) in [(["--quarantine", "notes"], "notes"), (["--output-dir", "records"], "records/1.json")] {
        let before = dir.read(file);
        for again in [&[][..], &["--resume"]] {
            let run = fetch(&dir, &[&["in"], &arguments[..], again].concat()).ends_with(2);
            assert!(run.err.contains("no journal says what is in it") && run.err.contains("--overwrite"), "{}", run.err);
        }
        assert_eq!(dir.read(file), before);
        fetch(&dir, &[&["in"], &arguments[..], &["--overwrite"]].concat()).ends_with(3);
    }
    assert_eq!((lines(&dir.read("notes")).len(), dir.read("records/1.json").as_str()), (1, "\"/a\""));
    let run = fetch(&dir, &["in", "-o", "out", "--quarantine", "notes"]).ends_with(2);
    assert!(run.err.contains("`notes` is the quarantine file of another run"), "{}", run.err);
    for again in ["--resume", "--overwrite"] {
        fetch(&dir, &["in", "--output-dir", "records", again]).ends_with(3);
    }
    fetch(&dir, &["in", "--output-dir", "records"]).ends_with(3);
    assert_eq!(lines(&dir.read("records/quarantine.ndjson")).len(), 1);
    dir.write("in", list(&upstream, &["a"]));
    fetch(&dir, &["in", "--output-dir", "records"]).ends_with(0);
    assert!(!dir.path("records/quarantine.ndjson").exists(), "what the run before left there is its own");
}

#[test]
fn each_pipe_has_a_quarantine_of_its_own() {
    let upstream = echo();
    let dir = Dir::new();
    let run = |text: &str, code| {
        dir.write("stdin", text);
        let mut command = dir.command(["fetch"]);
        command.stdin(std::fs::File::open(dir.path("stdin")).unwrap());
        super::dir::finish(command).ends_with(code).err
    };
    assert!(run("first\n", 3).contains("in quarantine: quarantine.ndjson"));
    run(&list(&upstream, &["a"]), 0);
    assert!(run("second\n", 3).contains("in quarantine: quarantine-2.ndjson"));
    assert_eq!(
        (lines(&dir.read("quarantine.ndjson"))[0]["body"].as_str(), lines(&dir.read("quarantine-2.ndjson")).len()),
        (Some("first"), 1)
    );
    // A run that has a journal finds its own again.
    dir.write("in", "third\n");
    for _ in 0..2 {
        let run = fetch(&dir, &["in"]).ends_with(3);
        assert!(run.err.contains("quarantine-3.ndjson"), "{}", run.err);
    }
}

#[test]
fn an_output_that_is_mended_stays_where_it_is_and_what_it_is() {
    use std::os::unix::fs::PermissionsExt as _;
    let upstream = echo();
    let dir = Dir::new();
    let mode = |name: &str| std::fs::symlink_metadata(dir.path(name)).unwrap().permissions().mode() & 0o777;
    dir.write("in", format!("{}nonsense\n", list(&upstream, &["a"])));
    dir.write("real", "");
    std::fs::set_permissions(dir.path("real"), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(dir.path("real"), dir.path("out")).unwrap();
    fetch(&dir, &["in", "-o", "out"]).ends_with(3);
    dir.write("out.part", "mine\n");
    dir.write("in", list(&upstream, &["a", "b"]));
    fetch(&dir, &["in", "-o", "out", "--resume"]).ends_with(0);
    assert_eq!(bodies(&dir), pairs(&[("1", "/a"), ("2", "/b")]));
    assert_eq!(dir.read("real"), dir.read("out"));
    assert!(std::fs::symlink_metadata(dir.path("out")).unwrap().is_symlink());
    assert_eq!((mode("real"), dir.read("out.part").as_str()), (0o600, "mine\n"));
    let hidden =
        std::fs::read_dir(dir.path("")).unwrap().filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
    assert_eq!(hidden.count(), 0, "nothing is left beside it");
}

#[test]
fn rows_without_ids_keep_their_results_under_their_new_lines() {
    let upstream = echo();
    let dir = Dir::new();
    let run = |names: &[&str]| {
        dir.write("in", list(&upstream, names));
        fetch(&dir, &["in", "-o", "out", "--resume"]).ends_with(0);
        (upstream.count(), bodies(&dir))
    };
    assert_eq!(run(&["a", "b", "c"]), (3, pairs(&[("1", "/a"), ("2", "/b"), ("3", "/c")])));
    assert_eq!(run(&["x", "a", "b", "c"]), (4, pairs(&[("1", "/x"), ("2", "/a"), ("3", "/b"), ("4", "/c")])), "one was inserted");
    assert_eq!(run(&["x", "b", "c", "d"]), (5, pairs(&[("1", "/x"), ("2", "/b"), ("3", "/c"), ("4", "/d")])), "one left, one came");
    assert_eq!(run(&["x", "b2", "c", "d"]), (6, pairs(&[("1", "/x"), ("2", "/b2"), ("3", "/c"), ("4", "/d")])), "one was mended");
    assert_eq!(run(&["d", "c", "b2", "x"]), (6, pairs(&[("1", "/d"), ("2", "/c"), ("3", "/b2"), ("4", "/x")])), "all changed places");
    assert_eq!(run(&["d", "c"]), (6, pairs(&[("1", "/d"), ("2", "/c"), ("3", "/b2"), ("4", "/x")])), "what is done stays");
    assert_eq!(run(&["d", "c", "e", "f"]), (8, pairs(&[("1", "/d"), ("2", "/c"), ("3", "/e"), ("4", "/f")])), "until its id is another's");
    assert_eq!(run(&["d", "c", "e", "f"]).0, 8);
}

#[test]
fn a_row_with_an_id_takes_the_place_of_the_one_before() {
    let upstream = echo();
    let dir = Dir::new();
    let run = |rows: &[(&str, &str)]| {
        let row = |(id, path): &(&str, &str)| format!("{{\"id\":{id},\"url\":\"http://{}/{path}\"}}\n", upstream.at);
        dir.write("in", rows.iter().map(row).collect::<String>());
        fetch(&dir, &["in", "-o", "out", "--resume"]).ends_with(0);
        (upstream.count(), bodies(&dir))
    };
    run(&[("\"a\"", "1"), ("2", "2"), ("\"c,d\"", "3")]);
    let mended = run(&[("\"a\"", "1"), ("2", "22"), ("\"c,d\"", "33")]);
    assert_eq!(mended, (5, pairs(&[("2", "/22"), ("a", "/1"), ("c,d", "/33")])));
    assert_eq!(run(&[("\"c,d\"", "33"), ("\"a\"", "1")]), (5, pairs(&[("2", "/22"), ("a", "/1"), ("c,d", "/33")])));
    assert_eq!(run(&[("\"c,d\"", "33"), ("\"a\"", "1"), ("2", "2")]), (6, pairs(&[("2", "/2"), ("a", "/1"), ("c,d", "/33")])));
}

#[test]
fn the_dead_of_an_unfinished_run_do_not_finish_it() {
    let upstream = Upstream::with(|turn| turn.pause(3).say(json("1")));
    let dir = Dir::new();
    dir.write("in", super::fetch::urls(&upstream, 4000));
    killed(&dir, &upstream, 60_000);
    let run = fetch(&dir, &["in", "-o", "out", "--retry-dead"]).ends_with(0);
    let left = dir.read("out");
    let undone = 4000 - lines(&left).len();
    assert!(undone < 4000 && undone > 0 && run.err.contains(&format!("{undone} rows have not ended: `--resume` does them")), "{}", run.err);
    let run = fetch(&dir, &["in", "-o", "out"]).ends_with(2);
    assert!(run.err.contains("has not finished"), "{}", run.err);
    dir.write("other", "");
    let run = fetch(&dir, &["other", "-o", "out"]).ends_with(2);
    assert!(!run.err.contains("--retry-dead"), "{}", run.err);
    assert_eq!(dir.read("out"), left);
    fetch(&dir, &["in", "-o", "out", "--resume", "--concurrency", "256"]).ends_with(0);
    fetch(&dir, &["in", "-o", "out", "--retry-dead"]).ends_with(0);
    assert_eq!(by_id(&dir.read("out")).len(), 4000);
    dir.write("in", super::fetch::urls(&upstream, 1));
    fetch(&dir, &["in", "-o", "out"]).ends_with(0);
}

#[test]
fn results_stay_until_their_replacements_are_fetched() {
    let upstream = echo();
    let dir = Dir::new();
    let run = |rows: &str, again: &str| {
        dir.write("in", rows.replace("http://", &format!("http://{}/", upstream.at)));
        fetch(&dir, &["in", "-o", "out", again]).ends_with(0);
        bodies(&dir)
    };
    let (seven, eight) = ("{\"id\":\"r\",\"url\":\"http://7\"}\n", "{\"id\":\"r\",\"url\":\"http://8\"}\n");
    run(&format!("{seven}http://a\nhttp://b\n"), "--resume");
    assert_eq!(run(&format!("{eight}http://a\nhttp://x\n"), "--retry-dead"), pairs(&[("2", "/a"), ("3", "/b"), ("r", "/7")]));
    assert_eq!(run(&format!("{eight}http://x\nhttp://a\n"), "--retry-dead"), pairs(&[("3", "/a"), ("r", "/7")]), "each id once");
    assert_eq!(upstream.count(), 3);
    assert_eq!(run(&format!("{eight}http://x\nhttp://a\n"), "--resume"), pairs(&[("2", "/x"), ("3", "/a"), ("r", "/8")]));
    assert_eq!(upstream.count(), 5);
}

#[test]
fn pages_and_dead_rows_of_an_edited_list_are_kept_apart() {
    let upstream = Upstream::with(|turn| {
        let path = path(turn);
        let (name, page) = path.split_once("?p=").unwrap();
        match (name, page) {
            ("/dead", _) => turn.say(answer("410 Gone", "", "")),
            (_, "1" | "2") => turn.say(json(&format!("[\"{name}{page}\"]"))),
            _ => turn.say(json("[]")),
        }
    });
    let dir = Dir::new();
    let run = |names: &[&str], code| {
        dir.write("in", list(&upstream, names));
        fetch(&dir, &["in", "-o", "out", "--resume", "--pages", "page:p=1", "--items", ""]).ends_with(code);
        let item = |line: &Value| format!("{} {}", line["id"], line["body"].as_str().or(line["outcome"].as_str()).unwrap());
        let mut found: Vec<String> = lines(&dir.read("out")).iter().map(item).collect();
        found.sort_unstable();
        found
    };
    assert_eq!(run(&["a", "dead", "b"], 3), ["1 /a1", "1 /a2", "2 permanent", "3 /b1", "3 /b2"]);
    assert_eq!(run(&["b", "c", "a"], 0), ["1 /b1", "1 /b2", "2 /c1", "2 /c2", "3 /a1", "3 /a2"]);
}

#[test]
fn files_that_are_called_by_lines_are_not_given_to_other_rows() {
    let upstream = echo();
    let dir = Dir::new();
    dir.write("in", list(&upstream, &["a", "b"]));
    fetch(&dir, &["in", "-o", "out", "--output-dir", "d", "--resume"]).ends_with(0);
    dir.write("in", list(&upstream, &["x", "a", "b"]));
    let run = fetch(&dir, &["in", "-o", "out", "--output-dir", "d", "--resume"]).ends_with(2);
    assert!(run.err.contains("their files are called by them") && run.err.contains("--overwrite"), "{}", run.err);
    assert_eq!((dir.read("d/1.json").as_str(), dir.read("d/2.json").as_str(), upstream.count()), ("\"/a\"", "\"/b\"", 2));
}

#[test]
fn a_list_from_a_pipe_cannot_be_edited() {
    let upstream = echo();
    let dir = Dir::new();
    let run = |names: &[&str], code| {
        dir.write("in", list(&upstream, names));
        let mut command = std::process::Command::new("sh");
        let program = env!("CARGO_BIN_EXE_seawall");
        command.args(["-c", &format!("cat in | {program} fetch - -o out --resume")]).current_dir(dir.path("")).stdin(Stdio::null());
        super::dir::finish(command).ends_with(code)
    };
    run(&["a", "b"], 0);
    run(&["a", "b", "c"], 0);
    let refused = run(&["x", "a", "b", "c"], 2);
    assert!(refused.err.contains("write it to a file"), "{}", refused.err);
    assert_eq!(bodies(&dir), pairs(&[("1", "/a"), ("2", "/b"), ("3", "/c")]));
}

#[test]
fn the_last_item_says_where_the_next_page_begins() {
    let upstream = Upstream::with(|turn| {
        let path = path(turn);
        let after: u64 = path.split("after=").nth(1).map_or(0, |text| text.parse().unwrap());
        let items: Vec<String> = (after + 1..(after + 3).min(6)).map(|id| format!("{{\"id\":{id}}}")).collect();
        turn.say(json(&format!("{{\"data\":[{}]}}", items.join(","))));
    });
    let dir = Dir::new();
    dir.write("in", list(&upstream, &["list?limit=2"]));
    let run = fetch(&dir, &["in", "--pages", "next:/data/-/id,after", "--items", "/data"]).ends_with(0);
    let found: Vec<u64> = lines(&run.out).iter().map(|line| line["body"]["id"].as_u64().unwrap()).collect();
    assert_eq!((found, upstream.count()), (vec![1, 2, 3, 4, 5], 4), "an empty page is the last one");
    for (pages, why) in
        [("next:/data/-/id", "name the parameter"), ("next:/data/-/key,after", "has no `/key`"), ("next:/rows/-/id,after", "no list")]
    {
        let run = fetch(&dir, &["in", "--pages", pages]).ends_with(3);
        assert!(run.out.contains("bad_page") && run.out.contains(why), "{}", run.out);
    }
}
