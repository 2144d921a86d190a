//! A configuration file of arbitrary bytes: read or refused with every problem placed inside it, never a panic; what is
//! read can be checked, explained and calculated with.

#![no_main]

use libfuzzer_sys::fuzz_target;
use seawall_core::config::checklist::checklist;
use seawall_core::config::place::SecretRef;
use seawall_core::config::{self, Config, explain};
use seawall_core::lint::{self, Surroundings};
use seawall_core::sim::downtime;
use seawall_core::time::Nanos;
use seawall_core::{calc, call};

/// A machine on which nothing exists, so that every warning about what is missing is given.
struct Nowhere;

impl Surroundings for Nowhere {
    fn has_secret(&self, _: &SecretRef) -> bool {
        false
    }

    fn has_file(&self, _: &str) -> bool {
        false
    }
}

fn look_into(config: &Config) {
    for warning in lint::warnings(config, &Nowhere) {
        assert!(lint::CODES.iter().any(|(code, _, _)| *code == warning.code), "{warning:?}");
    }
    for upstream in &config.upstreams {
        assert!(!upstream.endpoints.is_empty(), "the last endpoint takes what no other does");
        for endpoint in &upstream.endpoints {
            assert!(!checklist(config, upstream, endpoint).is_empty());
            assert!(!explain::endpoint(upstream, endpoint).is_empty());
            let policy = &endpoint.policy;
            let worst = calc::worst_case(policy);
            assert!(worst.elapsed <= policy.timeout.total && worst.attempts_that_fit <= policy.retry.attempts);
            let chance = downtime::gives_up(config, (upstream, endpoint), 1.0, &[Nanos::from_secs(1)])[0];
            assert!((0.0..=1.0).contains(&chance), "{chance}");
            assert!(calc::amplification(&policy.retry, 3, 100.0).budgeted >= 1.0);
            calc::trips(&policy.breaker, &config.limits, policy.timeout.attempt);
            call::CallPlan::new(config, upstream, endpoint);
            call::EndpointCells::new(config, upstream, policy);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    match config::load("fuzz.toml", data) {
        Ok(config) => look_into(&config),
        Err(invalid) => {
            assert!(!invalid.problems().is_empty(), "a refusal says why");
            for problem in invalid.problems() {
                let (line, column) = invalid.position(problem);
                assert!(line >= 1 && column >= 1 && !problem.message.is_empty());
            }
            let plain = invalid.render(false);
            assert!(plain.contains("fuzz.toml") && plain.contains(" found"));
            let _ = invalid.render(true);
        }
    }
});
