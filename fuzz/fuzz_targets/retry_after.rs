//! Every way in which a server says how long to wait: a wait is never nothing, never longer than the cap.

#![no_main]

use libfuzzer_sys::fuzz_target;
use seawall_core::classify::Unit;
use seawall_core::classify::retry_after::{WAIT_CAP, asked, rate_limit, retry_after};
use seawall_core::time::{Nanos, Wall};
use seawall_core::units::length;

const FIELDS: &[&str] =
    &["retry-after", "ratelimit", "ratelimit-remaining", "ratelimit-reset", "x-ratelimit-remaining", "x-ratelimit-reset"];

fn check(wait: Option<Nanos>) {
    if let Some(wait) = wait {
        assert!(wait > Nanos::ZERO && wait <= WAIT_CAP, "{wait:?}");
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((clock, fields)) = data.split_first_chunk::<8>() else { return };
    let now = Wall(i64::from_le_bytes(*clock));
    let values: Vec<&[u8]> = fields.split(|byte| *byte == b'\n').collect();
    let headers: Vec<(&str, &[u8])> = FIELDS.iter().copied().zip(values.iter().copied()).collect();
    for now in [now, Wall(1_768_478_400_000)] {
        check(retry_after(&headers, now));
        check(asked(&headers, now));
        for text in values.iter().filter_map(|value| std::str::from_utf8(value).ok()) {
            for unit in Unit::ALL {
                check(unit.read(text, now));
            }
            check(rate_limit(text));
            let _ = length(text);
        }
    }
});
