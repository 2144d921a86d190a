//! A background worker: it waits where a caller would be refused, and gives up only on permanent failures, which it puts aside with their
//! reason. `cargo run -p seawall-engine --example pipeline_worker` against `seawall flaky --listen 127.0.0.1:8080`.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod upstream;

use seawall_engine::{Class, Policy};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let text = "[defaults]\nprofile = \"pipeline\"\nretry = { base = \"100ms\", cap = \"1s\" }\nbreaker = { consecutive = 3, open = \"1s\" }\n\
                limits = [{ name = \"polite\", rate = \"20/s\", burst = 5 }]";
    let policy = Policy::from_toml(text).expect("the text is valid");
    let items = ["200", "500,500,200", "422", "503,503,503,200", "malformed-json", "429:retry-after=1,200", "500"];
    let mut quarantine = Vec::new();
    for (number, item) in items.iter().enumerate() {
        let path = format!("/seq/item-{number}/{item}");
        let call = policy.request().patient().deadline(Duration::from_secs(60)).call(|_| async {
            let text = upstream::get(&path).await?;
            // A body that is not JSON counts as a failure, whatever its status.
            serde_json::from_str::<serde_json::Value>(&text).map_err(|error| upstream::Bad::Nothing(error.into()))
        });
        match call.await {
            Ok(_) => println!("item {number}: done"),
            Err(failure) => {
                println!("item {number}: quarantined, {failure}");
                quarantine.push((number, failure.class(), failure.reason()));
            }
        }
    }
    let permanent = quarantine.iter().filter(|(_, class, _)| *class == Some(Class::Permanent)).count();
    println!("{} done, {} in quarantine, {permanent} of them for good", items.len() - quarantine.len(), quarantine.len());
    println!("{}", policy.metrics().lines().filter(|line| line.starts_with("seawall_calls_total{")).collect::<Vec<_>>().join("\n"));
}
