//! Retries a closure that fails now and then. `cargo run -p seawall-engine --example flaky_closure` against `seawall flaky --listen
//! 127.0.0.1:8080`.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod upstream;

use seawall_engine::{Policy, Record};
use upstream::get;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let policy = Policy::default().named("flaky").on_record(|record| {
        if let Record::Attempt(record) = record {
            let attempt = &record.attempt;
            println!("  attempt {}: {} → {} after {} ({})", attempt.number, attempt.status, attempt.decision, attempt.wait, attempt.reason);
        }
    });

    // Two failures of different kinds, then a success.
    let answer = policy.call(|_| get("/seq/closure/503,reset-before,200")).await;
    println!("healed: {}", answer.map(|text| text.len()).expect("the third attempt is good"));

    // A failure that a retry cannot fix.
    let failure = policy.call(|_| get("/status/404")).await.expect_err("404 is final");
    println!("final: {failure}");

    // A server that sends `Retry-After` is not asked earlier.
    let failure = policy.call(|_| get("/status/429:retry-after=120")).await.expect_err("two minutes are too long to hold a caller");
    println!("later: {failure}; come back in {:?}", failure.retry_after());
}
