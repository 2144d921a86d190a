//! Every console block of the manual, pasted page by page: the commands run in their order with the real program, and what the page
//! shows comes out. Each page has a network and processes of its own, so ports are those of the page.

use super::dir::Dir;
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Blocks that cannot run on a test machine are marked `text`: the number on each page, and the reason.
const EXCLUDED: &[(&str, usize, &str)] = &[
    ("README.md", 2, "builds and installs the program with cargo, and runs every test"),
    ("docs/reference/gateway.md", 1, "needs a certificate of the reader's own"),
    ("docs/reference/library.md", 1, "builds examples with cargo"),
    ("docs/how-to/connect-a-client.md", 2, "needs the packages `requests` and `openai` of Python"),
    ("docs/how-to/simulate-a-policy.md", 4, "takes minutes in a debug build"),
];

/// The time that one page may take, in seconds.
const PATIENCE: &str = "300";
/// Printed before the output of each command.
const MARK: char = '\u{1e}';

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A fenced block: what is behind the fence, and its lines.
struct Block {
    kind: String,
    lines: Vec<String>,
}

impl Block {
    /// Whether it has something to type.
    fn is_typed(&self) -> bool {
        matches!(self.kind.as_str(), "sh" | "bash" | "console")
    }

    /// Whether it would have, and is left out.
    fn is_excluded(&self) -> bool {
        self.kind == "text" && self.lines.iter().any(|line| line.starts_with("$ "))
    }
}

fn blocks(text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        match (line.strip_prefix("```"), is_open) {
            (Some(kind), false) => found.push(Block { kind: kind.trim().to_owned(), lines: Vec::new() }),
            (Some(_), true) => {}
            (None, true) => found.last_mut().unwrap().lines.push(line.to_owned()),
            (None, false) => continue,
        }
        is_open = is_open != line.starts_with("```");
    }
    found
}

/// One command, and the lines that the page shows of its output.
#[derive(Debug, Default)]
struct Typed {
    command: String,
    shown: Vec<String>,
}

/// The commands of a page. A line goes on behind `\`, and up to the end of a here-document.
fn typed(text: &str) -> Vec<Typed> {
    let mut found: Vec<Typed> = Vec::new();
    for block in blocks(text).into_iter().filter(Block::is_typed) {
        if block.kind != "console" {
            found.push(Typed { command: block.lines.join("\n"), shown: Vec::new() });
            continue;
        }
        let mut until: Option<String> = None;
        for line in block.lines {
            let goes_on = until.is_some() || found.last().is_some_and(|last| last.shown.is_empty() && last.command.ends_with('\\'));
            if goes_on {
                let last = found.last_mut().unwrap();
                last.command.push('\n');
                last.command.push_str(&line);
                until = until.filter(|end| *end != line);
            } else if let Some(command) = line.strip_prefix("$ ") {
                until = command.split_once("<<'").and_then(|(_, rest)| rest.split('\'').next()).map(str::to_owned);
                found.push(Typed { command: command.to_owned(), shown: Vec::new() });
            } else {
                found.last_mut().unwrap_or_else(|| panic!("output without a command: {line}")).shown.push(line);
            }
        }
    }
    found
}

/// The page as one script. It stops at the first command that fails, and waits for what it has started.
fn script(page: &[Typed]) -> String {
    let mut script = "exec 2>&1\nset -e\n".to_owned();
    for (number, typed) in page.iter().enumerate() {
        script.push_str(&format!("printf '\\n\\036%s\\n' {number}\n{}\n", typed.command));
    }
    script.push_str("wait\necho the page is over\n");
    script
}

/// Runs it in a folder of its own, with loopback and nothing else.
fn run(page: &[Typed]) -> String {
    let dir = Dir::new();
    std::fs::create_dir(dir.path("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_seawall"), dir.path("bin/seawall")).unwrap();
    for folder in ["bench", "scenarios", "contrib"] {
        symlink(root().join(folder), dir.path(folder)).unwrap();
    }
    dir.write("page.sh", script(page));
    let is_root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let flags = if is_root { "-npf" } else { "-rnpf" };
    let path = format!("{}:{}", dir.path("bin").display(), std::env::var("PATH").unwrap());
    let output = Command::new("timeout")
        .args(["-k", "1", PATIENCE, "unshare", flags, "--kill-child", "bash", "-c", "ip link set lo up && exec bash page.sh"])
        .current_dir(dir.path(""))
        .env_clear()
        .env("PATH", path)
        .env("HOME", dir.path(""))
        .env("LANG", "C.UTF-8")
        .output()
        .expect("`unshare` of util-linux and `ip` of iproute2 are needed, as root or with user namespaces");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A line without what differs from run to run: times, durations, ids, fractions, numbers above 599, which are no statuses.
fn normal(line: &str) -> String {
    let mut out = String::new();
    let mut token = String::new();
    for character in without_times(line).chars().chain(['\0']) {
        if character.is_alphanumeric() || (character == '.' && !token.is_empty()) {
            token.push(character);
            continue;
        }
        if !token.is_empty() {
            let word = kind(&token, out.ends_with("seawall-"));
            out.push_str(&word);
            token.clear();
        }
        out.push(character);
    }
    out.trim_end_matches('\0').split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The placeholder for a word.
fn kind(token: &str, is_pseudonym: bool) -> String {
    let digits = token.trim_end_matches(char::is_alphabetic);
    let unit = &token[digits.len()..];
    let is_number = !digits.is_empty() && digits.chars().all(|digit| digit.is_ascii_digit() || digit == '.');
    let has_digit = token.contains(|digit: char| digit.is_ascii_digit());
    if (token.len() == 26 && has_digit) || (is_pseudonym && token.len() == 4) {
        "ID".to_owned()
    } else if is_number && matches!(unit, "ms" | "s" | "µs" | "ns") {
        "TIME".to_owned()
    } else if is_number && unit.is_empty() && (digits.contains('.') || digits.parse().is_ok_and(|number: u64| number > 599)) {
        "N".to_owned()
    } else {
        token.to_owned()
    }
}

/// Without `2026-11-15T23:00:48.597Z`.
fn without_times(line: &str) -> String {
    let is_time = |at: usize| {
        let shape = line.get(at..at + 11).map(|text| text.replace(|digit: char| digit.is_ascii_digit(), "9"));
        shape.as_deref() == Some("9999-99-99T")
    };
    let (mut out, mut rest) = (String::new(), 0);
    while let Some(character) = line[rest..].chars().next() {
        if is_time(rest) {
            out.push_str("TIME");
            rest += line[rest..].find('Z').map_or(line.len() - rest, |end| end + 1);
        } else {
            out.push(character);
            rest += character.len_utf8();
        }
    }
    out
}

/// Whether an output line matches the page's line; `…` in the page matches anything.
fn is_shown(shown: &str, line: &str) -> bool {
    let (shown, line) = (normal(shown), normal(line));
    let mut parts = shown.split('…').map(str::trim);
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut is_open = false;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        is_open = part.is_empty();
    }
    rest.is_empty() || is_open
}

/// The first line on the page that the run did not print.
fn difference(page: &[Typed], output: &str) -> Option<String> {
    for (number, typed) in page.iter().enumerate() {
        let Some((_, after)) = output.split_once(&format!("{MARK}{number}\n")) else {
            return Some(format!("`{}` was not reached", typed.command));
        };
        // A background server's output may come after the next command.
        let mut lines = after.lines();
        for shown in typed.shown.iter().filter(|shown| !shown.trim().is_empty() && !shown.starts_with("date: ") && *shown != "…") {
            if !lines.any(|line| is_shown(shown, line)) {
                return Some(format!("`{}` does not show\n  {shown}", typed.command));
            }
        }
    }
    (!output.ends_with("the page is over\n")).then(|| "the page does not end: a command failed, or a server was not stopped".to_owned())
}

fn pages() -> BTreeMap<String, String> {
    let names = super::docs::pages();
    names.into_iter().map(|name| (name.clone(), std::fs::read_to_string(root().join(&name)).unwrap())).collect()
}

#[test]
fn every_page_can_be_pasted_and_shows_what_comes_out() {
    let pages = pages();
    let pasted: Vec<(&str, Vec<Typed>)> = pages.iter().map(|(name, text)| (name.as_str(), typed(text))).collect();
    let differences: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = pasted
            .iter()
            .filter(|(_, page)| !page.is_empty())
            .map(|(name, page)| {
                scope.spawn(move || {
                    let output = run(page);
                    difference(page, &output).map(|what| format!("{name}: {what}\n\n{output}"))
                })
            })
            .collect();
        running.into_iter().filter_map(|page| page.join().unwrap()).collect()
    });
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

#[test]
fn blocks_that_are_not_run_are_counted_and_say_why() {
    let pages = pages();
    let count = |wanted: fn(&Block) -> bool| -> BTreeMap<&str, usize> {
        let counted = pages.iter().map(|(name, text)| (name.as_str(), blocks(text).iter().filter(|block| wanted(block)).count()));
        counted.filter(|(_, count)| *count > 0).collect()
    };
    let excluded: BTreeMap<&str, usize> = EXCLUDED.iter().map(|(name, count, _)| (*name, *count)).collect();
    assert_eq!(count(Block::is_excluded), excluded, "`text` blocks with commands, and the list of them");
    assert!(EXCLUDED.iter().all(|(_, _, reason)| reason.len() > 10));
}

#[test]
fn only_what_differs_from_run_to_run_may_differ() {
    for (shown, line) in [
        ("HTTP/1.1 200 OK", "HTTP/1.1 200 OK"),
        ("seawall-call: 01m7gq257m6vrp2172wybpvnj6", "seawall-call: 01m7rsn7vj7vhbwzkz5xmgf3m0"),
        ("via: 1.1 seawall-ecd7", "via: 1.1 seawall-c799"),
        ("3002 rows in 662.91ms: 3001 succeeded", "20000 rows in 5.36s: 19999 succeeded"),
        (r#"{"at":"2026-11-15T23:00:48.597Z","n":1}"#, r#"{"at":"2027-01-02T03:04:05Z","n":1}"#),
        ("seawall 0.1.0 …", "seawall 0.1.0 (b48eed3 2026-11-19)"),
        ("a … c", "a b c"),
    ] {
        assert!(is_shown(shown, line), "{shown}: {line}");
    }
    for (shown, line) in [
        ("HTTP/1.1 200 OK", "HTTP/1.1 503 Service Unavailable"),
        ("seawall-attempts: 4", "seawall-attempts: 5"),
        ("a … c", "a b c d"),
        ("state done", "state waiting"),
    ] {
        assert!(!is_shown(shown, line), "{shown}: {line}");
    }
}
