//! `seawall config`: a file to start from, the manual, the schema, the presets, and where every value came from.

use crate::dir::{CONTRACT, Dir, Run};
use serde_json::Value;

#[test]
fn init_writes_a_file_that_passes_check_and_never_overwrites() {
    let dir = Dir::new();
    let run = dir.run(["config", "init"]).ends_with(0);
    assert!(run.out.is_empty() && run.err.contains("wrote `seawall.toml`"), "{run:?}");
    dir.run(["check", "--strict"]).ends_with(0);
    dir.write("seawall.toml", "mine");
    let run = dir.run(["config", "init"]).ends_with(1);
    assert!(run.err.contains("error: `seawall.toml` exists already"), "{}", run.err);
    assert_eq!(dir.read("seawall.toml"), "mine");
    dir.run(["config", "init", "other.toml", "--quiet"]).ends_with(0);
    assert_eq!(dir.run(["config", "init", "-"]).ends_with(0).out, dir.read("other.toml"));
    dir.run(["config", "init", "no/such/folder.toml"]).ends_with(1);
}

#[test]
fn what_init_writes_leaves_every_policy_at_its_default() {
    let policy = |run: Run| -> Vec<(Value, Value)> {
        let rows = run.ends_with(0).json();
        rows.as_array().unwrap().iter().map(|row| (row["key"].clone(), row["value"].clone())).collect()
    };
    let starter = Dir::with(Dir::new().run(["config", "init", "-"]).out);
    let least = Dir::with("[upstreams.example]\nurl = \"https://api.example.com/v1\"\npreset = \"generic\"\n");
    let explain = ["config", "explain", "example", "--json"];
    assert_eq!(policy(starter.run(explain)), policy(least.run(explain)));
}

#[test]
fn a_plain_preset_is_free_of_warnings() {
    let presets = Dir::new().run(["config", "presets", "--json"]).ends_with(0).json();
    for preset in presets.as_array().unwrap() {
        let name = preset["name"].as_str().unwrap();
        let file = format!("[upstreams.a]\nurl = \"https://a.test\"\npreset = \"{name}\"\n");
        let run = Dir::with(file).run(["check", "--strict"]);
        assert_eq!(run.code, 0, "{name}: {}", run.out);
    }
}

#[test]
fn what_init_leaves_commented_out_is_valid_too() {
    let starter = Dir::new().run(["config", "init", "-"]).out;
    let code = |line: &str| line.contains(" = ") || line.starts_with('[');
    let all: String = starter
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if code(rest) && !rest.starts_with("A policy") => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    assert_ne!(all, starter);
    Dir::with(all).run(["check", "--elsewhere"]).ends_with(0);
}

fn manual() -> toml::Table {
    seawall_core::config::DEFAULT_TOML.parse().unwrap()
}

#[test]
fn the_manual_is_a_valid_file_and_so_is_what_it_has_in_comments() {
    let manual = Dir::new().run(["config", "init", "--full"]).ends_with(0).out;
    let run = Dir::with(&manual).run(["check", "--strict"]).ends_with(0);
    assert!(run.out.contains("example/default") && !manual.contains("[each."), "{run:?}\n{manual}");
    // Each table of it by itself, beside the upstream: what has a default is commented out with it.
    let mut tables: Vec<String> = Vec::new();
    for line in manual.lines().filter_map(|line| line.strip_prefix("# ")) {
        if line.starts_with('[') {
            tables.push(String::new());
        }
        let is_code = line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
        if let Some(table) = tables.last_mut().filter(|_| is_code) {
            table.push_str(&format!("{line}\n"));
        }
    }
    let fixed = |table: &&String| table.starts_with("[server]") || table.starts_with("[log]") || table.starts_with("[defaults");
    assert_eq!(tables.iter().filter(fixed).count(), 9, "{tables:#?}");
    for table in tables.iter().filter(fixed) {
        let text = table.replace("pool = \"NAME\"", "").replace("\nschema = ", "\n# ");
        Dir::with(format!("[upstreams.example]\nurl = \"https://a.test\"\n{text}")).run(["check", "--elsewhere"]).ends_with(0);
    }
}

#[test]
fn a_plain_profile_is_free_of_warnings() {
    for profile in manual()["profiles"].as_table().unwrap().keys() {
        Dir::with(format!("[upstreams.a]\nurl = \"https://a.test\"\nprofile = \"{profile}\"\n")).run(["check", "--strict"]).ends_with(0);
    }
    for timeout in ["attempt = \"5s\"", "total = \"30s\""] {
        let run = Dir::with(format!("[upstreams.a]\nurl = \"https://a.test\"\ntimeout = {{ {timeout} }}\n")).run(["check"]).ends_with(0);
        assert!(!run.out.contains("SW006") && !run.out.contains("SW013"), "{timeout}: {}", run.out);
    }
}

#[test]
fn the_manual_is_toml_and_every_key_of_it_is_in_the_schema() {
    let schema = Dir::new().run(["config", "schema"]).ends_with(0).json();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let manual = manual();
    for table in ["server", "log", "defaults"] {
        holds(&schema["properties"][table], &manual[table], table);
    }
    for (name, profile) in manual["profiles"].as_table().unwrap() {
        holds(&schema["properties"]["defaults"], profile, name);
    }
    let upstream = &schema["properties"]["upstreams"]["additionalProperties"]["properties"];
    let repeated = [
        ("caller", &schema["properties"]["callers"]["additionalProperties"]),
        ("pool", &schema["properties"]["pools"]["additionalProperties"]),
        ("limit", &schema["properties"]["limits"]["items"]),
        ("auth", &upstream["auth"]),
        ("refresh", &upstream["auth"]["properties"]["refresh"]),
        ("fallback", &upstream["fallback"]),
        ("schedule", &schema["properties"]["schedules"]["items"]),
        ("request", &schema["properties"]["schedules"]["items"]["properties"]["request"]),
        ("notify", &schema["properties"]["notify"]["items"]),
    ];
    for (name, shape) in repeated {
        holds(shape, &manual["each"][name], name);
    }
    assert_eq!(manual["each"].as_table().unwrap().len(), repeated.len());
}

/// Every key of the manual's table is a property of the schema's, all the way down.
fn holds(schema: &Value, manual: &toml::Value, path: &str) {
    for (name, value) in manual.as_table().unwrap() {
        let here = format!("{path}.{name}");
        let property = schema["properties"].get(name).unwrap_or_else(|| panic!("{here} is not in the schema"));
        if value.is_table() && property.get("properties").is_some() {
            holds(property, value, &here);
        }
    }
}

#[test]
fn every_key_of_the_schema_is_in_the_manual_at_least_in_a_comment() {
    fn names(schema: &Value, found: &mut Vec<String>) {
        if let Some(properties) = schema["properties"].as_object() {
            found.extend(properties.keys().cloned());
            properties.values().for_each(|inner| names(inner, found));
        }
        for inner in ["items", "additionalProperties"] {
            if let Some(inner) = schema.get(inner).filter(|inner| inner.is_object()) {
                names(inner, found);
            }
        }
    }
    let dir = Dir::new();
    let mut found = Vec::new();
    names(&dir.run(["config", "schema"]).json(), &mut found);
    let manual = dir.run(["config", "init", "--full"]).out;
    let words: Vec<&str> = manual.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let missing: Vec<&String> = found.iter().filter(|name| !words.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "not in the manual: {missing:?}");
}

#[test]
fn presets_are_listed_printed_and_usable() {
    let dir = Dir::new();
    let rows = dir.run(["config", "presets", "--json"]).ends_with(0).json();
    let names: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert!(names.len() >= 17, "{names:?}");
    let listed = dir.run(["config", "presets"]).ends_with(0).out;
    for name in &names {
        assert!(listed.lines().any(|line| line.starts_with(name)), "{name}:\n{listed}");
        let text = dir.run(["config", "presets", name]).ends_with(0).out;
        assert!(text.parse::<toml::Table>().is_ok(), "{name}");
        dir.write("seawall.toml", format!("[upstreams.a]\nurl = \"https://a.test\"\npreset = \"{name}\"\n"));
        dir.run(["check"]).ends_with(0);
    }
    assert!(dir.run(["config", "presets", "gogle"]).ends_with(2).err.contains("there is no preset `gogle`"));
}

#[test]
fn explain_tells_where_every_value_came_from() {
    let dir = Dir::with(
        "[defaults]\nretry.attempts = 7\n[upstreams.a]\nurl = \"https://a.test\"\nprofile = \"fetcher\"\npreset = \"google\"\ncost = 3\n[[upstreams.a.endpoints]]\nname = \"x\"\nmatch = \"GET /x\"\ncost = 9\n",
    );
    let rows = dir.run(["config", "explain", "a/x", "--json"]).ends_with(0).json();
    let row = |key: &str| {
        let row = rows.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("{key}: {rows}"));
        (row["value"].as_str().unwrap().to_owned(), row["origin"].as_str().unwrap().to_owned())
    };
    let is = |key: &str, value: &str, origin: &str| assert_eq!(row(key), (value.to_owned(), origin.to_owned()), "{key}");
    is("cost", "9", "seawall.toml:11");
    is("profile", "\"fetcher\"", "seawall.toml:5");
    is("timeout.total", "\"3m\"", "profile fetcher");
    is("retry.factor", "2.0", "default");
    is("on_exhausted", "\"return\"", "default");
    // The upstream's profile is laid over the keys of [defaults].
    is("retry.attempts", "6", "profile fetcher");
    assert_eq!(row("classify[0]").1, "preset");
    let text = dir.run(["config", "explain", "a"]).ends_with(0).out;
    assert!(text.lines().any(|line| line.starts_with("cost ") && line.ends_with("seawall.toml:7")), "{text}");
    assert!(dir.run(["config", "explain", "b"]).ends_with(2).err.contains("there is no upstream `b`"));
    assert!(dir.run(["config", "explain", "a/y"]).ends_with(2).err.contains("has no endpoint `y`"));
}

#[test]
fn the_contracts_example_explains_itself() {
    let dir = Dir::with(CONTRACT);
    let text = dir.run(["config", "explain", "youtube/search"]).ends_with(0).out;
    for (key, value) in [
        ("cost", "20"),
        ("breaker.probes", "1"),
        ("cache.stale_if_error", "1h"),
        ("schema", "video.schema.json"),
        ("deadline_header", "x-request-timeout-ms"),
    ] {
        assert!(text.lines().any(|line| line.starts_with(&format!("{key} ")) && line.contains(value)), "{key}:\n{text}");
    }
}
