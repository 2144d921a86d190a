//! Two programs, one limit: each has policies of its own, and Redis has what they share. `cargo run -p seawall-engine
//! --example shared_limits -- 127.0.0.1:8080 redis://127.0.0.1` against `seawall flaky --listen 127.0.0.1:8080`.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod upstream;

use seawall_engine::{Policies, Policy};
use std::time::Duration;
use upstream::get;

/// One program: it sends as many requests as it can for two seconds.
async fn program(policy: Policy) -> (u32, u32) {
    let (mut good, mut refused) = (0, 0);
    let until = tokio::time::Instant::now() + Duration::from_secs(2);
    while tokio::time::Instant::now() < until {
        match policy.call(|_| get("/shared")).await {
            Ok(_) => good += 1,
            Err(_) => refused += 1,
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (good, refused)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let redis = std::env::args().nth(2).unwrap_or_else(|| "redis://127.0.0.1".to_owned());
    let text = format!(
        "[server]\nshared = \"{redis}\"\n[upstreams.partner]\nurl = \"http://partner.test\"\nretry = {{ attempts = 1 }}\n\
         limits = [{{ name = \"contract\", rate = \"20/s\", burst = 1 }}]\n"
    );
    let policies = [(); 2].map(|()| Policies::from_toml(&text).expect("a policy of ours"));
    // The connection is made in the background; until then each program would use its own share.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let [one, two] = policies.each_ref().map(|policies| policies.get("partner").expect("it is in the text"));
    let (one, two) = tokio::join!(program(one), program(two));
    println!("one program: {} sent, {} refused", one.0, one.1);
    println!("the other: {} sent, {} refused", two.0, two.1);
    println!("together {} in two seconds, of 20 a second", one.0 + two.0);
}
