//! The story: its acts, the upstream's behaviour in each, and the policy that handles it.

use seawall_core::time::Nanos;
use std::net::SocketAddr;

/// The demo's keys. They protect nothing: the upstream only counts them.
pub(super) const SECRETS: [(&str, &str); 2] = [("DEMO_KEY_A", "demo-key-aaaa-1111"), ("DEMO_KEY_B", "demo-key-bbbb-2222")];
/// The naive client's only key.
pub(super) const ONE_KEY: &str = "demo-key-only-0000";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Act {
    pub name: &'static str,
    /// The start of the act, as a share of the story.
    pub from: f64,
    pub caption: &'static str,
}

pub(super) const ACTS: [Act; 6] = [
    Act { name: "calm", from: 0.0, caption: "a little noise, as on any day" },
    Act { name: "5xx burst", from: 0.16, caption: "one request in twenty fails: backoff with jitter" },
    Act { name: "slow", from: 0.36, caption: "some answers never come: the attempt ends after a second, then another try" },
    Act { name: "quota", from: 0.52, caption: "the first key runs out of quota: the second takes over at once" },
    Act { name: "outage", from: OUTAGE.0, caption: "nothing answers: the breaker opens, and calls wait while probes ask" },
    Act {
        name: "recovery",
        from: OUTAGE.0 + OUTAGE.1,
        caption: "a probe succeeds, the breaker closes, and the calls that waited go through",
    },
];

/// The start and the length of the outage, as shares of the story.
const OUTAGE: (f64, f64) = (0.68, 0.04);

#[derive(Clone, Copy, Debug)]
pub(super) struct DemoStory {
    pub length: Nanos,
    /// Calls per second, each sent both ways.
    pub rate: f64,
}

impl DemoStory {
    pub(super) const fn new(length: Nanos) -> Self {
        Self { length, rate: 60.0 }
    }

    pub(super) fn act(&self, at: Nanos) -> Act {
        let share = at.as_secs_f64() / self.length.as_secs_f64();
        ACTS.into_iter().rev().find(|act| act.from <= share).unwrap_or(ACTS[0])
    }

    fn at(&self, share: f64) -> String {
        format!("{}ms", self.length.scale(share).as_millis())
    }

    /// The upstream's script, in the format of `seawall flaky`. A single key is out of quota for the end of the fourth act. The gateway's
    /// keys take turns: the first has a smaller quota and runs out in that act, and the second has enough left for both.
    pub(super) fn script(&self) -> String {
        let calls = self.rate * self.length.as_secs_f64();
        let (quota, first) = (calls * 0.596, calls * 0.555 / 2.0);
        format!(
            r#"
[[routes]]
name = "videos"
match = "GET /v3/**"
mix = {{ "200" = 997, "503" = 3 }}
latency = {{ exp = "12ms" }}
quota = {{ key = "query:key", limit = {quota:.0}, limits = {{ "{key}" = {first:.0} }}, per = "{period}", error = "google:quotaExceeded" }}

[[timeline]]
at = "{burst}"
for = "{burst_for}"
route = "videos"
mix = {{ "200" = 950, "503" = 28, "502" = 14, "reset-before" = 8 }}

[[timeline]]
at = "{slow}"
for = "{slow_for}"
route = "videos"
mix = {{ "200" = 975, "hang" = 25 }}
latency = {{ exp = "60ms" }}

[[timeline]]
at = "{outage}"
for = "{outage_for}"
route = "videos"
mix = {{ "reset-before" = 1 }}
"#,
            key = SECRETS[0].1,
            period = self.at(0.6),
            burst = self.at(0.16),
            burst_for = self.at(0.2),
            slow = self.at(0.36),
            slow_for = self.at(0.16),
            outage = self.at(OUTAGE.0),
            outage_for = self.at(OUTAGE.1),
        )
    }

    /// The gateway's policy: a preset, a timeout that fits an upstream of twenty milliseconds, keys, and defaults for the rest.
    pub(super) fn policy(&self, upstream: SocketAddr) -> String {
        format!(
            r#"[server]
listen = "127.0.0.1:0"
admin = "127.0.0.1:0"

[upstreams.youtube]
url = "http://{upstream}/v3"
preset = "google"
timeout.attempt = "1s"

[upstreams.youtube.auth]
inject = "query:key"
keys = [{{ id = "a", secret = "env:DEMO_KEY_A" }}, {{ id = "b", secret = "env:DEMO_KEY_B" }}]
"#
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_and_policy_are_valid_for_any_length() {
        for seconds in [8, 20, 75, 600] {
            let story = DemoStory::new(Nanos::from_secs(seconds));
            crate::flaky::Script::load("script", story.script().as_bytes()).unwrap();
            seawall_core::config::load("policy", story.policy("127.0.0.1:1".parse().unwrap()).as_bytes()).unwrap();
        }
    }

    #[test]
    fn acts_follow_each_other() {
        let story = DemoStory::new(Nanos::from_secs(100));
        let names: Vec<&str> = [0, 20, 40, 60, 69, 99].map(|second| story.act(Nanos::from_secs(second)).name).to_vec();
        assert_eq!(names, ["calm", "5xx burst", "slow", "quota", "outage", "recovery"]);
    }
}
