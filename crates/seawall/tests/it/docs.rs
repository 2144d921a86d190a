//! The manual against the program: every key, code and metric is described, and every command in it can be typed.

use crate::dir::Dir;
use seawall_core::lint;
use seawall_core::record::{Class, Code, Reason};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Fails with everything that the page lacks at once.
fn mentions(name: &str, words: impl IntoIterator<Item = String>) {
    let text = page(name);
    let missing: BTreeSet<String> = words.into_iter().filter(|word| !text.contains(&format!("`{word}`"))).collect();
    assert!(missing.is_empty(), "{name} does not mention {missing:#?}");
}

/// Names of properties anywhere in a JSON Schema.
fn keys(schema: &serde_json::Value, found: &mut BTreeSet<String>) {
    if let Some(properties) = schema.get("properties").and_then(|properties| properties.as_object()) {
        found.extend(properties.keys().cloned());
    }
    match schema {
        serde_json::Value::Object(members) => members.values().for_each(|member| keys(member, found)),
        serde_json::Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
        _ => {}
    }
}

#[test]
fn every_configuration_key_is_described() {
    let mut found = BTreeSet::new();
    keys(&Dir::new().run(["config", "schema"]).ends_with(0).json(), &mut found);
    assert!(found.len() > 60 && found.contains("replay_body"), "{found:?}");
    mentions("docs/reference/configuration.md", found);
}

#[test]
fn every_default_in_the_manual_is_the_programs() {
    let defaults: toml::Table = seawall_core::config::DEFAULT_TOML.parse().unwrap();
    let text = page("docs/reference/configuration.md");
    let mut section = "";
    let (mut compared, mut wrong) = (0, Vec::new());
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")) {
            section = heading.trim_matches('`');
        }
        let cells: Vec<&str> = line.split(" | ").collect();
        let ([key, _, said, ..], Some(table)) = (&cells[..], table(&defaults, section)) else { continue };
        let key = key.trim_start_matches("| ").trim_matches('`');
        if let (Some(value), Some(said)) = (table.get(key), said.strip_prefix('`').and_then(|said| said.strip_suffix('`'))) {
            compared += 1;
            if value.to_string() != said {
                wrong.push(format!("{section}.{key}: {said} instead of {value}"));
            }
        }
    }
    assert!(compared > 50, "{compared} defaults were compared");
    assert!(wrong.is_empty(), "docs/reference/configuration.md: {wrong:#?}");
}

/// The table of `default.toml` that a section of the page is about.
fn table<'t>(defaults: &'t toml::Table, section: &str) -> Option<&'t toml::Table> {
    match section {
        "server" | "log" => defaults.get(section)?.as_table(),
        "upstreams" => defaults.get("defaults")?.as_table(),
        "pools" => defaults.get("each")?.get("pool")?.as_table(),
        "limits" => defaults.get("each")?.get("limit")?.as_table(),
        "auth" | "fallback" => defaults.get("each")?.get(section)?.as_table(),
        _ => defaults.get("defaults")?.get(section)?.as_table(),
    }
}

#[test]
fn every_preset_is_described() {
    let shown = Dir::new().run(["config", "presets", "--json"]).ends_with(0).json();
    let names: Vec<String> = shown.as_array().unwrap().iter().map(|preset| preset["name"].as_str().unwrap().to_owned()).collect();
    assert!(names.len() > 10, "{shown}");
    mentions("docs/reference/configuration.md", names);
}

#[test]
fn every_code_is_described() {
    mentions("docs/reference/errors.md", Code::ALL.iter().map(|code| code.as_str().to_owned()));
}

#[test]
fn every_described_code_exists() {
    let text = page("docs/reference/errors.md");
    let rows = text.split("## Codes").nth(1).unwrap().lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let described: Vec<&str> = rows.filter(|word| *word != "code").collect();
    assert!(described.len() >= Code::ALL.len(), "{described:?}");
    let unknown: Vec<&&str> = described.iter().filter(|word| Code::from_word(word).is_none()).collect();
    assert!(unknown.is_empty(), "docs/reference/errors.md describes {unknown:?}, which nothing says");
}

/// The dashboard explains each reason in a sentence and gives each outcome a choice in its filter.
#[test]
fn the_dashboard_knows_every_reason_and_outcome() {
    let (words, calls) = (page("ui/src/words.ts"), page("ui/src/screens/calls.tsx"));
    let unexplained: Vec<&str> = Reason::WORDS.iter().copied().filter(|word| !words.contains(&format!("\n  {word}: \""))).collect();
    assert!(unexplained.is_empty(), "ui/src/words.ts does not explain {unexplained:?}");
    let outcomes =
        Class::WORDS.iter().copied().chain(["keys_exhausted", "keys_rejected", "paused", "circuit_open", "stream_cut", "cancelled"]);
    let unlisted: Vec<&str> = outcomes.filter(|word| !calls.contains(&format!("\"{word}\""))).collect();
    assert!(unlisted.is_empty(), "ui/src/screens/calls.tsx does not list {unlisted:?}");
}

#[test]
fn every_warning_is_described() {
    mentions("docs/reference/check.md", lint::CODES.iter().map(|(code, ..)| (*code).to_owned()));
}

/// The metrics of a running gateway's admin port.
pub(crate) fn scraped() -> String {
    let dir = Dir::with(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
         [upstreams.a]\nurl = \"http://127.0.0.1:1\"\n\
         [upstreams.a.auth]\nkeys = [{ id = \"k\", secret = \"file:key\" }]\n",
    );
    dir.write("key", "not-a-real-key");
    let mut child = dir.command(["serve", "--threads", "1"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut banner = BufReader::new(child.stderr.take().unwrap()).lines();
    let admin = banner.find_map(|line| Some(line.unwrap().split_once("admin     http://")?.1.split(' ').next()?.to_owned())).unwrap();
    let mut stream = TcpStream::connect(admin).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    text
}

#[test]
fn every_metric_is_described() {
    let text = scraped();
    let names: Vec<String> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert!(names.len() > 10, "{text}");
    mentions("docs/reference/metrics.md", names);
}

/// The manual: the README, and every page below `docs`.
pub(crate) fn pages() -> Vec<String> {
    let mut names = vec!["README.md".to_owned()];
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let name = format!("{folder}/{}", entry.unwrap().file_name().into_string().unwrap());
            if root().join(&name).is_dir() {
                folders.push(name);
            } else if name.ends_with(".md") {
                names.push(name);
            }
        }
    }
    assert!(names.len() > 20, "the manual was found: {names:?}");
    names.sort();
    names
}

/// Lines of fenced blocks that call the program, continuation lines joined, as the arguments they pass.
fn commands(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let mut fenced = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            let line = line.trim_start().trim_start_matches("$ ");
            let typed = line.strip_prefix("seawall ").or_else(|| line.strip_prefix("cargo run --release -- "));
            // A banner begins with the version; that is not a command.
            found.extend(typed.filter(|rest| !rest.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned));
        }
    }
    found
}

/// The help of the innermost command that the words name, and the words that are left.
fn help<'w>(known: &mut BTreeMap<String, String>, words: &[&'w str]) -> (String, Vec<&'w str>) {
    let mut path: Vec<&str> = Vec::new();
    let mut text = ask(known, &path);
    let mut rest = words.iter().copied().peekable();
    while let Some(word) = rest.next_if(|word| text.lines().any(|line| line.starts_with(&format!("  {word} ")))) {
        path.push(word);
        text = ask(known, &path);
    }
    assert!(!path.is_empty() || words.iter().any(|word| word.starts_with("--")), "no such command: {words:?}");
    (text, rest.collect())
}

fn ask(known: &mut BTreeMap<String, String>, path: &[&str]) -> String {
    let asked = || Dir::new().run(path.iter().chain(&["--help"])).ends_with(0).out;
    known.entry(path.join(" ")).or_insert_with(asked).clone()
}

#[test]
fn every_command_in_the_manual_exists() {
    let mut known = BTreeMap::new();
    let mut count = 0;
    for name in pages() {
        for command in commands(&page(&name)) {
            count += 1;
            let words: Vec<&str> = command.split(['|', '>', '#', '&', ';']).next().unwrap().split_whitespace().collect();
            let (text, rest) = help(&mut known, &words);
            for flag in rest.iter().filter(|word| word.starts_with('-')) {
                let flag = flag.split('=').next().unwrap();
                let offered = text.split([' ', ',', '=', '[', '\n']).any(|word| word == flag);
                assert!(offered, "{name}: `seawall {command}` has no {flag}");
            }
        }
    }
    assert!(count > 20, "{count}");
}

/// Pages for people who read the sources.
const PROJECT: &[&str] = &["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "bench/RESULTS.md", "ui/README.md"];

/// The anchors of a page's headings, as forges make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fenced = fenced != line.starts_with("```");
        if let Some(heading) = line.strip_prefix('#').filter(|_| !fenced) {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            found.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    found
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for name in pages().into_iter().chain(PROJECT.iter().map(|name| (*name).to_owned())) {
        let folder = root().join(&name).parent().unwrap().to_owned();
        let text = page(&name);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let other = if file.is_empty() { text.clone() } else { fs::read_to_string(folder.join(file)).unwrap_or_default() };
            let is_there = file.is_empty() || folder.join(file).exists();
            if !is_there || !(anchor.is_empty() || anchors(&other).contains(anchor)) {
                broken.push(format!("{name} links to {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The commands below `path`, itself included, each with its help.
fn walk(known: &mut BTreeMap<String, String>, path: &mut Vec<String>) {
    let words: Vec<&str> = path.iter().map(String::as_str).collect();
    let text = ask(known, &words);
    let listed = text.split("Commands:\n").nth(1).unwrap_or_default().split("\n\n").next().unwrap();
    for line in listed.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
        let name = line.split_whitespace().next().unwrap();
        if name != "help" {
            path.push(name.to_owned());
            walk(known, path);
            path.pop();
        }
    }
}

#[test]
fn every_command_and_option_is_described() {
    let mut known = BTreeMap::new();
    walk(&mut known, &mut Vec::new());
    assert!(known.len() > 25, "{:?}", known.keys());
    let text = page("docs/reference/commands.md");
    let mut missing = Vec::new();
    for (name, help) in known.iter().filter(|(name, _)| !name.is_empty()) {
        let Some(row) = text.lines().find(|line| line.starts_with(&format!("| `{name}`"))) else {
            missing.push(name.clone());
            continue;
        };
        let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
        let options = lines.filter_map(|line| line.split([' ', ',', '=']).find(|word| word.starts_with("--")));
        const COMMON: &[&str] = &["--color", "--quiet", "--verbose", "--help", "--config", "--admin", "--json"];
        let unnamed = options.filter(|option| !COMMON.contains(option) && !row.contains(&format!("`{option}`")));
        missing.extend(unnamed.map(|option| format!("{name} {option}")));
    }
    assert!(missing.is_empty(), "docs/reference/commands.md does not describe {missing:#?}");
}

#[test]
fn every_page_is_of_one_kind() {
    const TOP: &[&str] = &["README.md", "docs/README.md", "docs/tutorial.md", "docs/production.md"];
    const KINDS: &[&str] = &["docs/how-to/", "docs/reference/", "docs/explanation/", "docs/decisions/"];
    let offenders: Vec<String> = pages()
        .into_iter()
        .filter(|name| {
            !TOP.contains(&name.as_str()) && !KINDS.iter().any(|kind| name.strip_prefix(kind).is_some_and(|rest| !rest.contains('/')))
        })
        .collect();
    assert!(offenders.is_empty(), "a page is a tutorial, a how-to, a reference, an explanation or a decision: {offenders:?}");
}

#[test]
fn the_index_leads_to_every_page() {
    let index = page("docs/README.md");
    let folder = |name: &str| name.starts_with("docs/") && name != "docs/README.md" && !name.starts_with("docs/decisions/");
    let missing: Vec<String> = pages().into_iter().filter(|name| folder(name) && !index.contains(&format!("]({})", &name[5..]))).collect();
    assert!(missing.is_empty(), "docs/README.md does not link to {missing:?}");
}

#[test]
fn decisions_say_context_decision_and_consequences() {
    let decisions: Vec<String> = pages().into_iter().filter(|name| name.starts_with("docs/decisions/")).collect();
    for (number, name) in decisions.iter().enumerate() {
        let text = page(name);
        assert!(name.starts_with(&format!("docs/decisions/{:04}-", number + 1)), "decisions are numbered without gaps: {name}");
        assert!(text.starts_with(&format!("# {}. ", number + 1)), "{name} begins with its number and title");
        let parts = ["**Context.**", "**Decision.**", "**Consequences.**"].map(|part| text.find(part));
        assert!(parts.iter().all(Option::is_some) && parts.is_sorted(), "{name}: context, decision, consequences");
        assert!(text.lines().count() <= 20, "{name} is longer than a page of a notebook");
    }
}

#[test]
fn measurements_are_written_down_in_one_place() {
    let mut offenders = Vec::new();
    for name in pages().into_iter().chain(["ARCHITECTURE.md".to_owned(), "CONTRIBUTING.md".to_owned()]) {
        let mut fenced = false;
        for (number, line) in page(&name).lines().enumerate() {
            fenced = fenced != line.starts_with("```");
            let is_dated =
                line.contains("2026-") || ["the same day", "later that day", "that evening"].iter().any(|words| line.contains(words));
            if is_dated && !fenced {
                offenders.push(format!("{name}:{}: {line}", number + 1));
            }
        }
    }
    assert!(offenders.is_empty(), "dated figures belong into bench/RESULTS.md: {offenders:#?}");
}

#[test]
fn the_map_of_the_sources_fits_into_one_sitting() {
    let lines = page("ARCHITECTURE.md").lines().count();
    assert!(lines <= 200, "ARCHITECTURE.md has {lines} lines, 200 at most");
}

#[test]
fn recipes_name_files_that_exist() {
    let mut missing = Vec::new();
    let mut count = 0;
    for name in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = page(name);
        for word in text.split('`').skip(1).step_by(2).filter(|word| word.contains('/') && !word.contains([' ', '\n', '…'])) {
            let path = match word.split('/').next().unwrap() {
                folder if folder.starts_with("seawall") => format!("crates/{word}"),
                "crates" | "bench" | "docs" | "fuzz" | "ui" => word.to_owned(),
                _ => continue,
            };
            // `NAME` is the reader's own.
            let path = path
                .split("NAME")
                .next()
                .unwrap()
                .rsplit_once('/')
                .filter(|_| path.contains("NAME"))
                .map_or(path.as_str(), |(folder, _)| folder);
            count += 1;
            if !root().join(path).exists() {
                missing.push(format!("{name}: {word}"));
            }
        }
    }
    assert!(count > 40, "{count} paths were found");
    assert!(missing.is_empty(), "pages name files that do not exist: {missing:#?}");
}
