//! The fates of requests, in virtual time.

use super::*;
use seawall_core::time::Wall;
use std::collections::BTreeMap;

struct World {
    upstream: FlakyUpstream,
    now: Now,
}

impl World {
    fn new(script: &str, seed: u64) -> Self {
        let script = Script::load("test.toml", script.as_bytes()).unwrap_or_else(|invalid| panic!("{invalid}"));
        Self { upstream: FlakyUpstream::new(script, seed), now: Now { mono: Mono(0), wall: Wall(1_800_000_000_000) } }
    }

    fn at(&mut self, s: f64) -> &mut Self {
        let length = Nanos::from_secs_f64(s);
        self.now = Now { mono: Mono(length.0), wall: Wall(1_800_000_000_000) + length };
        self
    }

    fn send(&mut self, line: &str, headers: &[(&'static str, &'static str)]) -> RequestFate {
        let (method, target) = line.split_once(' ').unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers: Vec<httparse::Header<'_>> =
            headers.iter().map(|(name, value)| httparse::Header { name, value: value.as_bytes() }).collect();
        let body = b"grant_type=client_credentials";
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        self.upstream.decide(&RequestFacts { method, path, query, headers: &headers, body, ip }, self.now)
    }

    /// The fate of a plain GET, as a word.
    fn word(&mut self, target: &str) -> String {
        let fate = self.send(&format!("GET {target}"), &[]);
        fate.fault.map_or_else(|| fate.answer.status.to_string(), |fault| fault.word().to_owned())
    }
}

fn tally(world: &mut World, target: &str, count: usize) -> BTreeMap<String, usize> {
    let mut tally = BTreeMap::new();
    for _ in 0..count {
        *tally.entry(world.word(target)).or_default() += 1;
    }
    tally
}

const MIX: &str = r#"
[[routes]]
match = "GET /mix/**"
mix = { "200" = 90, "503" = 5, "reset-before" = 5 }
[[routes]]
match = "GET /other"
mix = { "200" = 1, "500" = 1 }
"#;

#[test]
fn a_seed_fixes_how_many_meet_what_whatever_other_routes_see() {
    let alone = tally(&mut World::new(MIX, 7), "/mix/a", 10_000);
    for (word, range) in [("200", 8900..9100), ("503", 430..570), ("reset-before", 430..570)] {
        assert!(range.contains(&alone[word]), "{alone:?}");
    }
    let mut disturbed = World::new(MIX, 7);
    tally(&mut disturbed, "/other", 333);
    assert_eq!(tally(&mut disturbed, "/mix/a", 10_000), alone);
    assert_ne!(tally(&mut World::new(MIX, 8), "/mix/a", 10_000), alone);
}

#[test]
fn latency_follows_its_distribution_and_its_slow_share() {
    let text = r#"
[[routes]]
match = "GET /exp"
latency = { exp = "20ms" }
[[routes]]
match = "GET /slow"
latency = { uniform = ["5ms", "50ms"] }
slow = { share = "1%", latency = "5s" }
"#;
    let mut world = World::new(text, 1);
    let mean = (0..5000).map(|_| world.send("GET /exp", &[]).wait.as_millis_f64()).sum::<f64>() / 5000.0;
    assert!((18.5..21.5).contains(&mean), "{mean}");
    let waits: Vec<u64> = (0..5000).map(|_| world.send("GET /slow", &[]).wait.as_millis()).collect();
    let slow = waits.iter().filter(|wait| **wait == 5000).count();
    assert!((30..75).contains(&slow), "{slow}");
    assert!(waits.iter().all(|wait| *wait == 5000 || (5..=50).contains(wait)));
}

#[test]
fn a_key_over_its_quota_is_refused_until_the_next_period() {
    let text = r#"
[[routes]]
match = "GET /**"
quota = { key = "query:key", limit = 2, per = "10s", error = "google" }
"#;
    let mut world = World::new(text, 1);
    let met: Vec<String> = (0..4).map(|_| world.word("/v?key=key-number-a")).collect();
    assert_eq!(met, ["200", "200", "403", "403"]);
    assert_eq!(world.word("/v?key=key-b"), "200");
    assert_eq!(world.at(10.0).word("/v?key=key-number-a"), "200");
    let stats = world.upstream.stats.json(&[], &crate::flaky::stats::SocketCounts::default());
    assert_eq!(stats["keys"][0], serde_json::json!({ "key": "…er-a", "total": 5, "refused": 2, "after_exhausted": 1 }));
    assert_eq!(stats["errors"]["google:quotaExceeded"], 2);
}

#[test]
fn a_key_may_have_a_limit_of_its_own() {
    let text = r#"
[[routes]]
match = "GET /**"
quota = { key = "query:key", limit = 3, limits = { "key-number-a" = 1 }, per = "10s", error = "google" }
"#;
    let mut world = World::new(text, 1);
    let mut met = |target| -> Vec<String> { (0..4).map(|_| world.word(target)).collect() };
    assert_eq!(met("/v?key=key-number-a"), ["200", "403", "403", "403"]);
    assert_eq!(met("/v?key=key-number-b"), ["200", "200", "200", "403"]);
}

#[test]
fn a_rate_says_when_its_period_ends() {
    let text = "[[routes]]\nmatch = \"GET /**\"\nrate = { limit = \"2/10s\", by = \"ip\" }\n";
    let mut world = World::new(text, 1);
    world.at(3.5);
    assert_eq!([world.word("/"), world.word("/")], ["200", "200"]);
    let refused = world.send("GET /", &[]);
    assert_eq!((refused.answer.status, refused.answer.extra.as_str()), (429, "retry-after: 7\r\n"));
    assert_eq!(world.at(10.0).word("/"), "200");
}

#[test]
fn the_timeline_lays_over_routes_and_goes_again() {
    let text = r#"
[[routes]]
name = "a"
match = "GET /a"
latency = "10ms"
[[routes]]
match = "GET /b"
[[timeline]]
at = "10s"
for = "5s"
every = "60s"
route = "a"
mix = { "503" = 1 }
retry_after = "3"
[[timeline]]
at = "12s"
for = "1s"
mix = { "reset-before" = 1 }
"#;
    let mut world = World::new(text, 1);
    let mut seen = |s: f64| {
        world.at(s);
        format!("{} {}", world.word("/a"), world.word("/b"))
    };
    let moments = [9.9, 10.0, 12.5, 13.0, 15.0, 70.0, 75.0];
    let expected = ["200 200", "503 200", "reset-before reset-before", "503 200", "200 200", "503 200", "200 200"];
    assert_eq!(moments.map(&mut seen), expected);
    let limited = world.at(11.0).send("GET /a", &[]);
    assert_eq!((limited.answer.extra.as_str(), limited.wait), ("retry-after: 3\r\n", Nanos::from_millis(10)));
}

#[test]
fn a_capacity_refuses_what_it_cannot_queue_and_dips_on_the_timeline() {
    let text = r#"
[[routes]]
match = "GET /**"
capacity = { workers = 2, service = "1s", queue = 1 }
[[timeline]]
at = "10s"
for = "5s"
workers = 1
"#;
    let mut world = World::new(text, 1);
    assert_eq!((0..4).map(|_| world.word("/")).collect::<Vec<_>>(), ["200", "200", "200", "503"]);
    world.at(10.0);
    let first = world.send("GET /", &[]).work.unwrap();
    let second = world.send("GET /", &[]).work.unwrap();
    assert_eq!(world.word("/"), "503");
    let seconds = |s: u64| Mono(Nanos::from_secs(s).0);
    assert_eq!(world.upstream.due(first, seconds(10)), Due::AskAgain(seconds(11)));
    assert_eq!(world.upstream.due(second, seconds(10)), Due::AskAgain(seconds(12)));
    assert_eq!(world.upstream.due(second, seconds(12)), Due::Finished);
}

#[test]
fn tokens_are_issued_counted_and_expire() {
    let text = r#"
[[routes]]
match = "GET /me"
token = { url = "/token", expires = "5s" }
"#;
    let mut world = World::new(text, 1);
    assert_eq!(world.word("/me"), "401");
    let PlannedBody::Bytes(issued) = world.send("POST /token", &[]).answer.body else { panic!("a token") };
    let issued: serde_json::Value = serde_json::from_slice(&issued).unwrap();
    let bearer: &'static str = format!("Bearer {}", issued["access_token"].as_str().unwrap()).leak();
    assert_eq!(world.at(4.9).send("GET /me", &[("Authorization", bearer)]).answer.status, 200);
    assert_eq!(world.at(5.0).send("GET /me", &[("Authorization", bearer)]).answer.status, 401);
    assert_eq!((world.upstream.stats.token_requests, world.upstream.stats.unauthorized), (1, 2));
}

#[test]
fn sequences_answer_by_id_and_repeat_their_last_entry() {
    let mut world = World::new("", 1);
    let path: Vec<String> = (0..4).map(|_| world.word("/seq/one/503,hang,200")).collect();
    assert_eq!(path, ["503", "hang", "200", "200"]);
    assert_eq!(world.word("/seq/two/503,200"), "503");
    let header = [("X-Flaky", "429:retry-after=2,200")];
    let first = world.send("GET /x", &header);
    assert_eq!((first.answer.status, first.answer.extra.as_str()), (429, "retry-after: 2\r\n"));
    assert_eq!(world.send("GET /x", &header).answer.status, 200);
    assert_eq!(world.send("GET /y", &header).answer.status, 429);
    assert_eq!(world.word("/seq/three/nonsense"), "400");
    world.upstream.reset(world.now.mono);
    assert_eq!(world.word("/seq/one/503,hang,200"), "503");
}

#[test]
fn idempotency_keys_are_counted() {
    let mut world = World::new("", 1);
    for _ in 0..2 {
        world.send("POST /pay", &[("Idempotency-Key", "\"k1\"")]);
    }
    let stats = world.upstream.stats.json(&[], &crate::flaky::stats::SocketCounts::default());
    assert_eq!(stats["idempotency_keys"]["k1"], 2);
}
