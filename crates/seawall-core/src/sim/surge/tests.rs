//! Tests of the surge: calls add up, protected endpoints keep their traffic, and the verdict names missing protection.

use super::*;
use crate::config;

const ENDPOINTS: &str = "
[[upstreams.api.endpoints]]
name = \"export\"
match = \"GET /export\"
EXPORT
[[upstreams.api.endpoints]]
name = \"search\"
match = \"GET /search\"
[[upstreams.api.endpoints]]
name = \"item\"
match = \"GET /items/*\"
";

/// An upstream with three endpoints: `head` goes before them, `export` into the first of them.
fn policy(head: &str, export: &str) -> Config {
    let text = format!(
        "{head}\n[defaults]\ntimeout = {{ connect = \"1s\", attempt = \"2s\", total = \"10s\" }}\n[upstreams.api]\nurl = \"https://api.test\"\n"
    );
    let text = text + &ENDPOINTS.replace("EXPORT", export);
    config::load("surge.toml", text.as_bytes()).unwrap_or_else(|invalid| panic!("{invalid}"))
}

fn surge(policy: &Config) -> SurgeResult {
    run(&SurgeCase { surge_s: 60, rate: Some(20.0), ..SurgeCase::new(1, policy) })
}

fn row<'a>(found: &'a SurgeResult, endpoint: &str, phase: Phase) -> &'a SurgeRow {
    found.rows.iter().find(|row| row.endpoint == endpoint && row.phase == phase).unwrap()
}

const POOL: &str = "[pools.export]\nconcurrent = 4\nqueue = 8";

#[test]
fn every_call_is_admitted_or_refused_and_ends_once() {
    for (head, export) in [("", ""), (POOL, "pool = \"export\""), ("", "limits = [ { name = \"qps\", rate = \"30/s\" } ]")] {
        let found = surge(&policy(head, export));
        for track in &found.tracks {
            for point in &track.points {
                assert_eq!(point.offered, point.admitted + point.refused.iter().sum::<f64>(), "{} with {export:?}", track.endpoint);
            }
        }
        assert!(found.rows.iter().all(|row| row.succeeded <= row.admitted));
        let offered: f64 = found.rows.iter().map(|row| row.offered).sum();
        let expected = 3.0 * 20.0 * 180.0 + 9.0 * 20.0 * 60.0;
        assert!((offered - expected).abs() < 0.05 * expected, "{offered}");
    }
}

#[test]
fn a_pool_or_a_limit_protects_the_rest() {
    let limit = "limits = [ { name = \"qps\", key = \"endpoint\", rate = \"40/s\" } ]";
    for (head, export, name) in [(POOL, "pool = \"export\"", "pool export"), ("", limit, "limit qps")] {
        let found = surge(&policy(head, export));
        let others = found.verdict.others.as_ref().unwrap();
        assert!(others.are_protected() && others.endpoints == 2, "{}", found.verdict);
        assert_eq!(found.verdict.refused_by.as_ref().unwrap().0, name);
        assert!(found.verdict.to_string().starts_with(name), "{}", found.verdict);
    }
}

#[test]
fn without_either_the_rest_suffers_and_the_verdict_says_what_would_help() {
    let found = surge(&policy("", "breaker.mode = \"off\""));
    let others = found.verdict.others.as_ref().unwrap();
    assert!(!others.are_protected() && others.success_during < 0.8, "{}", found.verdict);
    let text = found.verdict.to_string();
    assert!(text.contains("did not protect") || text.contains("nothing protected"), "{text}");
    assert!(text.contains("rate = \"40/s\"") && found.verdict.advice.as_ref().unwrap().others.are_protected(), "{text}");
}

#[test]
fn a_limit_that_the_rest_shares_is_named_as_what_harms_it() {
    let head = "[[limits]]\nname = \"everyone\"\nrate = \"100/s\"\nburst = 10";
    let found = surge(&policy(head, ""));
    let others = found.verdict.others.as_ref().unwrap();
    assert_eq!(others.lost_to.as_deref(), Some("limit everyone"), "{}", found.verdict);
    assert!(row(&found, "api/search", Phase::During).refused[Layer::Limit as usize] > 0.0);
    assert_eq!(row(&found, "api/search", Phase::Before).refused[Layer::Limit as usize], 0.0);
}

#[test]
fn a_pool_never_holds_more_than_its_slots() {
    let found = surge(&policy(POOL, "pool = \"export\""));
    assert_eq!(row(&found, "api/export", Phase::During).in_flight_max, 4.0);
    // Slots turn over four at a time in a tenth of a second: queued calls are granted, not starved.
    let admitted = row(&found, "api/export", Phase::During).admitted / 60.0;
    assert!((35.0..42.0).contains(&admitted), "{admitted}");
}

#[test]
fn an_upstream_of_its_own_is_protection_enough() {
    let text = "[upstreams.a]\nurl = \"https://a.test\"\n[upstreams.b]\nurl = \"https://b.test\"\n";
    let config = config::load("surge.toml", text.as_bytes()).unwrap();
    let found = run(&SurgeCase { surge_s: 30, factor: 30.0, ..SurgeCase::new(1, &config) });
    assert_eq!(found.tracks.iter().map(|track| track.endpoint.as_str()).collect::<Vec<_>>(), ["a/default", "b/default"]);
    assert!(found.verdict.others.as_ref().unwrap().are_protected(), "{}", found.verdict);
}

#[test]
fn endpoints_of_an_upstream_share_its_breaker_only_where_they_are_told_to() {
    let refused = |per: &str| {
        let head = format!("[defaults.breaker]\nper = \"{per}\"\nconsecutive = 0\nfailure_rate = \"20%\"\nmax_wait = \"0s\"");
        let found = surge(&policy(&head, "timeout = { connect = \"10ms\", attempt = \"20ms\", total = \"1s\" }"));
        row(&found, "api/search", Phase::Before).refused[Layer::Breaker as usize]
    };
    assert_eq!(refused("endpoint"), 0.0);
    assert!(refused("upstream") > 0.0, "failures of one endpoint open the breaker of all");
}

#[test]
fn usual_traffic_is_half_of_a_limit_and_never_keeps_an_upstream_busy() {
    let loads = |head: &str, export: &str| {
        let config = policy(head, export);
        let shared = SharedCells::new(&config, CallerView::OnePerEndpoint);
        SurgeLoad::of(&SurgeCase::new(1, &config), &shared).steady
    };
    assert_eq!(loads("", ""), [20.0, 20.0, 20.0, 0.0]);
    assert_eq!(loads("", "limits = [ { name = \"qps\", rate = \"10/s\" } ]"), [5.0, 20.0, 20.0, 0.0]);
    let scaled = loads("[[limits]]\nname = \"everyone\"\nrate = \"3000/s\"", "");
    assert!((scaled.iter().sum::<f64>() - 100.0).abs() < 1e-9, "{scaled:?}");
}

#[test]
fn an_upstream_that_is_overloaded_before_the_surge_proves_nothing() {
    let found = run(&SurgeCase { surge_s: 10, rate: Some(150.0), ..SurgeCase::new(1, &policy("", "")) });
    assert!(!found.verdict.others.as_ref().unwrap().are_protected() && found.verdict.advice.is_none());
    assert!(found.verdict.to_string().contains("nothing can be said"), "{}", found.verdict);
}

#[test]
fn the_same_seed_gives_the_same_surge() {
    let policy = policy(POOL, "pool = \"export\"");
    assert_eq!(surge(&policy), surge(&policy));
    assert_ne!(surge(&policy).rows, run(&SurgeCase { surge_s: 60, rate: Some(20.0), ..SurgeCase::new(2, &policy) }).rows);
}
