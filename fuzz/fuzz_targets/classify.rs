//! Arbitrary statuses, headers and bodies against every preset.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use seawall_core::classify::presets::Preset;
use seawall_core::classify::{ObservedResult, RuleSet, diagnostic, fingerprint};
use seawall_core::record::ErrorKind;
use seawall_core::time::{Nanos, Wall};

static SETS: LazyLock<Vec<RuleSet>> = LazyLock::new(|| {
    let generic = Preset::named("generic").expect("the generic preset is shipped").rules().expect("it reads");
    let with_generic = |preset: &Preset| {
        let mut rules = preset.rules().expect("every preset reads");
        rules.extend(generic.clone());
        RuleSet::new(rules)
    };
    Preset::all().iter().map(with_generic).collect()
});

/// Statuses that rules look closely at, so that bytes are not spent on finding them.
const STATUSES: &[u16] = &[200, 400, 401, 402, 403, 404, 409, 429, 500, 503, 504, 529, 0, 99, 600, 999, 1000, u16::MAX];
const METHODS: &[&str] = &["GET", "POST", "get", ""];

// A first byte for the result, a second for the method, a line `name: value` for each header, an empty line, the body.
fuzz_target!(|data: &[u8]| {
    let [result, method, rest @ ..] = data else { return };
    let result = match ErrorKind::ALL.get(usize::from(*result)) {
        Some(kind) => Err(*kind),
        None => Ok(STATUSES[usize::from(*result) % STATUSES.len()]),
    };
    let (head, body) = match rest.windows(2).position(|pair| pair == b"\n\n") {
        Some(at) => (&rest[..at], &rest[at + 2..]),
        None => (&[][..], rest),
    };
    let line = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b':')?;
        Some((String::from_utf8_lossy(&line[..at]).into_owned(), line[at + 1..].to_vec()))
    };
    let headers: Vec<(String, Vec<u8>)> = head.split(|byte| *byte == b'\n').filter_map(line).collect();
    let seen =
        ObservedResult { method: METHODS[usize::from(*method) % METHODS.len()], result, headers: &headers, body, latency: Nanos::ZERO };
    let now = Wall(1_768_478_400_000);
    for set in SETS.iter() {
        let verdict = set.classify(&seen, now);
        if !set.needs_body(seen.method, result) {
            assert_eq!(verdict, set.classify(&ObservedResult { body: b"", ..seen }, now));
        }
    }
    let said = diagnostic(body, "");
    assert!(said.chars().count() <= 300 && !said.chars().any(char::is_control));
    let _ = fingerprint("upstream", result, body);
});
