//! Golden responses of real APIs: for each preset the classification by its rules, near misses included.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use seawall_core::classify::presets::Preset;
use seawall_core::classify::{Classification, Hint, ObservedResult, Rule, RuleSet};
use seawall_core::record::{AttemptStatus, ErrorKind};
use seawall_core::time::{Nanos, Wall};
use serde::Deserialize;

/// 2026-01-15T12:00:00Z.
const NOW: Wall = Wall(1_768_478_400_000);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cases {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default = "get")]
    method: String,
    status: Option<u16>,
    error: Option<String>,
    #[serde(default)]
    headers: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    body: String,
    expect: Expect,
}

fn get() -> String {
    "GET".to_owned()
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Expect {
    #[serde(rename = "as")]
    class: String,
    scope: String,
    wait: String,
    rule: Option<String>,
    #[serde(default)]
    unnamed: bool,
    unprocessed: Option<bool>,
}

impl Case {
    fn result(&self) -> Result<u16, ErrorKind> {
        match &self.error {
            Some(word) => Err(ErrorKind::from_word(word).unwrap()),
            None => Ok(self.status.unwrap()),
        }
    }

    fn seen<'a>(&'a self, headers: &'a Vec<(&'a String, &'a String)>) -> ObservedResult<'a> {
        ObservedResult { method: &self.method, result: self.result(), headers, body: self.body.as_bytes(), latency: Nanos::ZERO }
    }
}

fn cases(preset: &str) -> Vec<Case> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/presets").join(preset).join("cases.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    toml::from_str::<Cases>(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())).case
}

/// The preset's rules followed by the generic ones, as an upstream with this preset has them.
fn rule_set(preset: &Preset) -> (RuleSet, usize) {
    let mut rules = preset.rules().unwrap();
    let own = rules.len();
    if preset.name != "generic" {
        rules.extend(Preset::named("generic").unwrap().rules().unwrap());
    }
    (RuleSet::new(rules), own)
}

fn wait(verdict: &Classification) -> String {
    match verdict.wait {
        Hint::None => "none".to_owned(),
        Hint::Backoff => "backoff".to_owned(),
        Hint::After(length) => format!("after {}s", length.as_secs_f64()),
        Hint::UntilReset if verdict.skew == Nanos::ZERO => "until-reset".to_owned(),
        Hint::UntilReset => format!("until-reset +{}", verdict.skew),
        Hint::Until(at) => format!("until {}", jiff::Timestamp::from_millisecond(at.0).unwrap()),
    }
}

fn found(set: &RuleSet, verdict: &Classification, expect: &Expect) -> Expect {
    let rule: Option<&Rule> = verdict.rule.map(|at| &set.rules()[usize::from(at)]);
    Expect {
        class: verdict.class.to_string(),
        scope: verdict.scope.to_string(),
        wait: wait(verdict),
        rule: rule.map(|rule| rule.name.clone()),
        unnamed: !verdict.named,
        unprocessed: expect.unprocessed.map(|_| verdict.unprocessed),
    }
}

#[test]
fn every_answer_is_what_its_fixture_says() {
    let mut wrong = String::new();
    for preset in Preset::all() {
        let (set, _) = rule_set(preset);
        for case in cases(preset.name) {
            let headers = case.headers.iter().collect();
            let verdict = set.classify(&case.seen(&headers), NOW);
            let found = found(&set, &verdict, &case.expect);
            if found != case.expect {
                writeln!(wrong, "{}: {}\n  expected {:?}\n  found    {found:?}", preset.name, case.name, case.expect).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn every_rule_has_an_answer_and_every_preset_a_near_miss() {
    for preset in Preset::all() {
        let (set, own) = rule_set(preset);
        let mut hit = BTreeSet::new();
        let mut missed = 0;
        for case in cases(preset.name) {
            let headers = case.headers.iter().collect();
            match set.classify(&case.seen(&headers), NOW).rule.map(usize::from).filter(|&at| at < own) {
                Some(at) => {
                    hit.insert(at);
                }
                None => missed += 1,
            }
        }
        let without: Vec<&str> = (0..own).filter(|at| !hit.contains(at)).map(|at| set.rules()[at].name.as_str()).collect();
        assert!(without.is_empty(), "{}: no answer for {without:?}", preset.name);
        assert!(missed > 0, "{}: no near miss", preset.name);
    }
}

#[test]
fn a_body_that_was_not_asked_for_changes_nothing() {
    for preset in Preset::all() {
        let (set, _) = rule_set(preset);
        for case in cases(preset.name) {
            let headers = case.headers.iter().collect();
            let seen = case.seen(&headers);
            if !set.needs_body(seen.method, seen.result) {
                let without = ObservedResult { body: b"", ..seen };
                assert_eq!(set.classify(&seen, NOW), set.classify(&without, NOW), "{}: {}", preset.name, case.name);
            }
        }
    }
}

#[test]
fn a_preset_that_only_names_failures_leaves_plain_successes_alone() {
    for preset in Preset::all() {
        let (set, _) = rule_set(preset);
        for status in [200, 204, 304] {
            let seen = ObservedResult { method: "GET", result: Ok(status), headers: &(), body: b"", latency: Nanos::ZERO };
            let verdict = set.classify(&seen, NOW);
            assert_eq!((verdict.class.as_str(), verdict.rule), ("success", None), "{} {}", preset.name, AttemptStatus::Http(status));
        }
    }
}
