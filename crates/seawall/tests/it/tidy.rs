//! The rules of the house style for sources, as far as a program can check them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

struct Source {
    /// Relative to the root.
    path: String,
    text: String,
}

impl Source {
    fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs") || self.path.ends_with("/stories.rs")
    }

    /// The lines before the file's own test module.
    fn product(&self) -> &str {
        self.text.split("#[cfg(test)]\nmod tests").next().unwrap_or(&self.text)
    }
}

fn sources() -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                found.push(Source { path: relative, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    assert!(found.len() > 50, "the sources were found");
    found
}

/// Fails with every offender at once.
#[expect(clippy::needless_pass_by_value, reason = "callers build the list for this")]
fn none(rule: &str, offenders: Vec<String>) {
    assert!(offenders.is_empty(), "{rule}:\n  {}", offenders.join("\n  "));
}

#[test]
fn every_file_opens_by_saying_what_it_owns() {
    let offenders = sources().into_iter().filter(|source| !source.text.starts_with("//! ")).map(|source| source.path);
    none("a file's first line is `//! ` and says what it owns", offenders.collect());
}

#[test]
fn no_file_outgrows_its_purpose() {
    let long = sources().into_iter().filter(|source| !source.is_test()).filter(|source| source.text.lines().count() > 600);
    none("files have at most 600 lines", long.map(|source| format!("{} has {}", source.path, source.text.lines().count())).collect());
    let mut lengths: Vec<usize> = sources().iter().filter(|source| !source.is_test()).map(|source| source.text.lines().count()).collect();
    lengths.sort_unstable();
    let (median, ninetieth) = (lengths[lengths.len() / 2], lengths[lengths.len() * 9 / 10]);
    assert!(median <= 220 && ninetieth <= 400, "median {median} ≤ 220, ninth decile {ninetieth} ≤ 400");
}

#[test]
fn the_core_reads_no_clock_and_shares_no_chance() {
    const BANNED: &[&str] = &[
        "Instant::now",
        "SystemTime::now",
        "rand::random",
        "thread_rng",
        "rand::rng(",
        "std::net::Tcp",
        "std::net::Udp",
        "std::thread",
        "std::fs",
        "std::env",
        "HashMap",
        "HashSet",
    ];
    let mut offenders = Vec::new();
    for source in sources().iter().filter(|source| source.path.starts_with("crates/seawall-core/src") && !source.is_test()) {
        for word in BANNED.iter().filter(|word| source.product().contains(**word)) {
            offenders.push(format!("{}: {word}", source.path));
        }
    }
    none("the core is told the time and handed its randomness", offenders);
}

#[test]
fn clocks_are_read_in_one_file() {
    let readers =
        sources().into_iter().filter(|source| source.path.contains("/src/") && source.path != "crates/seawall-engine/src/clock.rs");
    let offenders = readers.filter(|source| {
        ["Instant::now", "SystemTime::now", "clock_gettime"].into_iter().any(|reading| source.product().contains(reading))
    });
    none("only the engine's clock.rs reads clocks", offenders.map(|source| source.path).collect());
}

#[test]
fn the_environment_is_read_in_one_file() {
    let readers = sources().into_iter().filter(|source| source.path.contains("/src/") && source.path != "crates/seawall/src/setup.rs");
    let offenders = readers.filter(|source| source.product().contains("env::var"));
    none("only the binary's setup.rs reads the environment", offenders.map(|source| source.path).collect());
}

#[test]
fn crates_depend_on_each_other_in_one_direction() {
    let allowed: &[(&str, &[&str])] = &[
        ("seawall-core", &[]),
        ("seawall-http", &["seawall-core"]),
        ("seawall-engine", &["seawall-core", "seawall-http"]),
        ("seawall-store", &["seawall-core"]),
        ("seawall-server", &["seawall-core", "seawall-http", "seawall-engine", "seawall-store"]),
        ("seawall", &["seawall-core", "seawall-http", "seawall-engine", "seawall-store", "seawall-server"]),
    ];
    let mut offenders = Vec::new();
    for (name, edges) in allowed {
        let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        let own = manifest.lines().filter_map(|line| line.strip_prefix("seawall-")).filter_map(|line| line.split(['.', ' ']).next());
        for edge in own.map(|edge| format!("seawall-{edge}")) {
            if !edges.contains(&edge.as_str()) {
                offenders.push(format!("{name} → {edge}"));
            }
        }
    }
    none("core ← http ← engine ← server ← seawall, core ← store ← server", offenders);
}

/// The modules of a crate's root, each with the modules that it uses.
fn module_graph(name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let root = format!("crates/{name}/src/");
    let mut texts: BTreeMap<String, String> = BTreeMap::new();
    for source in sources().iter().filter(|source| source.path.starts_with(&root) && !source.is_test()) {
        let module = source.path[root.len()..].split('/').next().unwrap().trim_end_matches(".rs").to_owned();
        // In a file of the root, `super` is the crate.
        let is_top = !source.path[root.len()..].contains('/');
        let text = if is_top { source.product().replace("super::", "crate::") } else { source.product().to_owned() };
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        texts.entry(module).or_default().push_str(&code.collect::<Vec<_>>().join("\n"));
    }
    for root in ["lib", "main"] {
        texts.remove(root);
    }
    let uses = |text: &str| -> BTreeSet<String> {
        let after = text.split("crate::").skip(1);
        let named = after.flat_map(|rest| match rest.strip_prefix('{') {
            Some(list) => top_names(list),
            None => vec![rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned()],
        });
        named.filter(|name| texts.contains_key(name)).collect()
    };
    texts.iter().map(|(module, text)| (module.clone(), uses(text).into_iter().filter(|used| used != module).collect())).collect()
}

/// The first names of `a::b, c::{d, e}, f}`.
fn top_names(list: &str) -> Vec<String> {
    let (mut depth, mut names, mut name) = (0_i32, Vec::new(), String::new());
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(std::mem::take(&mut name)),
            c if depth == 0 && !c.is_whitespace() => name.push(c),
            _ => {}
        }
    }
    names.push(name);
    names.iter().map(|name| name.split("::").next().unwrap().to_owned()).collect()
}

/// Whether `from` uses itself by way of others.
fn is_in_cycle(graph: &BTreeMap<String, BTreeSet<String>>, from: &str) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for used in &graph[module] {
            if used == from {
                return true;
            }
            if seen.insert(used.as_str()) {
                next.push(used);
            }
        }
    }
    false
}

#[test]
fn modules_do_not_use_each_other_in_circles() {
    for name in ["seawall", "seawall-core", "seawall-engine", "seawall-http", "seawall-server", "seawall-store"] {
        let graph = module_graph(name);
        assert!(graph.len() > 8 && graph.values().any(|used| used.len() > 3), "the modules of {name} were found: {graph:?}");
        none(&format!("modules of {name} in a cycle"), graph.keys().filter(|module| is_in_cycle(&graph, module)).cloned().collect());
    }
}

#[test]
fn doors_do_not_import_doors() {
    const DOORS: &[&str] = &["check", "config", "demo", "explain", "fetch", "flaky", "remote", "serve", "sim"];
    // The demo is made of the server and another door.
    const MADE_OF: &[(&str, &str)] = &[("demo", "flaky")];
    let mut offenders = Vec::new();
    for door in DOORS {
        let own = |path: &str| path == format!("crates/seawall/src/{door}.rs") || path.starts_with(&format!("crates/seawall/src/{door}/"));
        for source in sources().iter().filter(|source| own(&source.path)) {
            let imported = |other: &str| {
                let used = source.text.contains(&format!("crate::{other}")) || source.text.contains(&format!("use crate::{{{other}"));
                used && other != *door && !MADE_OF.contains(&(door, other))
            };
            for other in DOORS.iter().filter(|other| imported(other)) {
                offenders.push(format!("{} → {other}", source.path));
            }
        }
    }
    none("a door knows the core and the setup, not its neighbours", offenders);
}

#[test]
fn nothing_is_left_for_later() {
    let words = ["todo!", "unimplemented!", "FIXME", "TODO", "// XXX", "#[ignore"];
    let mut offenders = Vec::new();
    for source in sources().iter().filter(|source| !source.path.ends_with("tidy.rs")) {
        for (number, line) in source.text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                offenders.push(format!("{}:{}: {}", source.path, number + 1, line.trim()));
            }
        }
    }
    none("what is named is finished", offenders);
}

#[test]
fn tests_are_sentences() {
    let mut offenders = Vec::new();
    for source in sources() {
        let names = source.text.lines().filter_map(|line| line.trim().strip_prefix("fn test_"));
        offenders.extend(names.map(|name| format!("{}: test_{name}", source.path)));
    }
    none("a test's name says what holds", offenders);
}

#[test]
fn benchmarks_are_locked_to_what_the_crates_need() {
    let read = |path: PathBuf| -> toml::Table { fs::read_to_string(path).unwrap().parse().unwrap() };
    let mut offenders = Vec::new();
    let locks = fs::read_dir(root().join("bench")).unwrap().map(|entry| entry.unwrap().path().join("Cargo.lock"));
    for lock in locks.filter(|lock| lock.is_file()) {
        let locked = read(lock.clone());
        for package in locked["package"].as_array().unwrap() {
            let name = package["name"].as_str().unwrap();
            let manifest = root().join("crates").join(name).join("Cargo.toml");
            if package.get("source").is_some() || !manifest.is_file() {
                continue;
            }
            let known = |wanted: &str| {
                package["dependencies"].as_array().unwrap().iter().any(|one| one.as_str().unwrap().split(' ').next() == Some(wanted))
            };
            let needed = read(manifest);
            let missing = needed["dependencies"].as_table().unwrap().keys().filter(|needed| !known(needed));
            offenders.extend(missing.map(|missing| format!("{}: {name} needs {missing}", lock.display())));
        }
    }
    none("a benchmark's lock file moves with the crates it measures: build it once and commit", offenders);
}
