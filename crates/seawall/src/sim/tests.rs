//! The `sim` command as its caller sees it: output, refusals and exit codes.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(line: &str) -> Args {
    Cli::try_parse_from(std::iter::once("sim").chain(line.split(' '))).unwrap().args
}

fn sim(args: &Args) -> (anyhow::Result<Exit>, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = run(args, &mut anstream::StripStream::new(&mut out), &mut anstream::StripStream::new(&mut err));
    (exit, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[test]
fn the_same_seed_prints_the_same_csv_and_another_seed_does_not() {
    let line = "contention --clients 10,20 --runs 2 --csv";
    assert_eq!(sim(&args(line)).1, sim(&args(line)).1);
    assert_ne!(sim(&args(line)).1, sim(&args(&format!("{line} --seed 2"))).1);
}

#[test]
fn csv_has_exactly_the_columns_of_the_models() {
    let heading = |line: &str| sim(&args(line)).1.lines().next().unwrap().to_owned();
    assert_eq!(heading("contention --clients 5 --runs 1 --csv"), "clients,strategy,calls_mean,time_ms_mean");
    assert_eq!(heading("herd --runs 1 --csv"), "scenario,policy,peak100_mean,peak1s_mean,retries_mean,succeeded_mean,dead_mean");
    let outage = sim(&args("outage --runs 1 --rho 0.8 --policy naive3 --csv")).1;
    assert!(outage.starts_with("rho,policy,recovered,recovery_s,amp_incident,success_incident\n0.80,naive3,0.000,,"), "{outage}");
}

#[test]
fn json_is_one_document_with_rows_and_series() {
    let text = sim(&args("herd --runs 1 --policy full --json")).1;
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["scenario"], "herd");
    assert_eq!((document["seed"].as_u64(), document["runs"].as_u64()), (Some(1), Some(1)));
    assert_eq!(document["rows"].as_array().unwrap().len(), 3);
    assert_eq!(document["series"][0]["policy"], "full");
}

#[test]
fn the_table_names_its_seed() {
    let text = sim(&args("contention --clients 10 --runs 3 --seed 42")).1;
    assert!(text.contains("decorrelated") && text.contains("seed 42, 3 runs per row"), "{text}");
}

#[test]
fn an_assertion_that_does_not_hold_lists_its_rows_and_fails() {
    let mut args = args("herd --runs 1 --policy full --policy fixed --csv");
    args.assert = vec!["peak100_mean < 200 where scenario=spike".parse().unwrap()];
    let (exit, _, err) = sim(&args);
    assert_eq!(exit.unwrap(), Exit::Findings);
    assert!(err.contains("policy=fixed") && !err.contains("policy=full"), "{err}");
    args.assert = vec!["peak100_mean < 200 where scenario=spike,policy=full".parse().unwrap()];
    assert_eq!(sim(&args).0.unwrap(), Exit::Done);
}

#[test]
fn an_assertion_about_nothing_is_refused() {
    let mut args = args("herd --runs 1 --policy full --csv");
    args.assert = vec!["peak100_mean < 200 where policy=fixed".parse().unwrap()];
    assert!(sim(&args).0.unwrap_err().to_string().contains("asserts nothing"));
    args.assert = vec!["peak < 200".parse().unwrap()];
    assert!(sim(&args).0.unwrap_err().to_string().contains("columns are scenario, policy, peak100_mean"));
}

#[test]
fn an_option_of_another_scenario_is_refused() {
    assert!(sim(&args("herd --rho 0.8")).0.unwrap_err().to_string().contains("`sim outage` only"));
    assert!(sim(&args("outage --clients 5")).0.unwrap_err().to_string().contains("`sim contention` only"));
    for line in ["herd --factor 5", "outage --rate 20", "replay x.ndjson --for 10s", "contention --endpoint a/b"] {
        assert!(sim(&args(line)).0.unwrap_err().to_string().contains("`sim surge` only"), "{line}");
    }
    assert!(sim(&args("surge x.ndjson")).0.unwrap_err().to_string().contains("`LOG` is for `sim replay` only"));
    assert!(sim(&args("surge --policy full")).0.unwrap_err().to_string().contains("`--policy` is for"));
    assert!(sim(&args("replay x.ndjson --svg x.svg")).0.unwrap_err().to_string().contains("`--svg` is for"));
    assert!(sim(&args("replay")).0.unwrap_err().to_string().contains("needs a log"));
}

#[test]
fn an_unknown_policy_lists_the_policies() {
    let error = sim(&args("outage --policy ful")).0.unwrap_err().to_string();
    assert!(error.contains("none, naive3, full, budget10"), "{error}");
}

#[test]
fn a_candidate_stands_beside_the_built_in_policies() {
    let built_in = seawall_core::sim::outage::OutagePolicy::built_in();
    let arm = built_in.iter().find(|arm| arm.name == "succ10+breaker5").unwrap();
    let candidate = Candidate { name: "api/search".to_owned(), retry: arm.retry, breaker: arm.breaker.unwrap(), adaptive: false };
    let report = compare(&args("outage --runs 1 --rho 0.8 --policy api/search --policy succ10+breaker5"), &[candidate]).unwrap();
    let mut out = Vec::new();
    report.csv(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let rows: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(rows[0].replace("succ10+breaker5", ""), rows[1].replace("api/search", ""), "the same policy gives the same numbers");
}

#[test]
fn the_chart_is_written_where_asked() {
    let dir = tempfile::tempdir().unwrap();
    let mut args = args("contention --clients 5,10 --runs 1");
    args.svg = Some(dir.path().join("chart.svg"));
    assert_eq!(sim(&args).0.unwrap(), Exit::Done);
    let svg = std::fs::read_to_string(dir.path().join("chart.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains(">decorrelated "), "{svg}");
}

/// A file of the directory that the documentation refers to.
fn shipped(name: &str) -> String {
    format!("{}/../../scenarios/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_surge_shows_every_second_of_every_endpoint() {
    let line = format!("surge -c {} --endpoint catalog/export --for 10s", shipped("surge.toml"));
    let (_, csv, _) = sim(&args(&format!("{line} --csv")));
    let heading = "second,endpoint,offered,admitted,refused_limit,refused_pool,refused_breaker,in_flight,p99_ms,success";
    assert_eq!(csv.lines().next(), Some(heading));
    assert_eq!(csv.lines().count(), 1 + 130 * 5);
    let json: serde_json::Value = serde_json::from_str(&sim(&args(&format!("{line} --json"))).1).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), 15);
    assert_eq!(json["series"][0]["values"].as_array().unwrap().len(), 130);
    assert!(json["summary"].as_str().unwrap().starts_with("Pool export refused"), "{}", json["summary"]);
    assert_eq!(csv, sim(&args(&format!("{line} --csv"))).1, "the same seed gives the same seconds");
}

#[test]
fn assertions_hold_the_summary_of_a_surge() {
    let mut args = args(&format!("surge -c {} --for 10s", shipped("surge.toml")));
    args.assert = vec!["success >= 0.99 where phase=during,endpoint=catalog/search".parse().unwrap()];
    assert_eq!(sim(&args).0.unwrap(), Exit::Done);
    args.assert = vec!["refused_pool < 10 where phase=during,endpoint=catalog/export".parse().unwrap()];
    assert_eq!(sim(&args).0.unwrap(), Exit::Findings);
}

#[test]
fn an_unknown_endpoint_lists_the_endpoints() {
    let error = sim(&args(&format!("surge -c {} --endpoint catalog/exports", shipped("surge.toml")))).0.unwrap_err().to_string();
    assert!(error.contains("catalog/export, catalog/search"), "{error}");
}

#[test]
fn the_surge_is_drawn_with_a_panel_for_each_endpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut args = args(&format!("surge -c {} --for 10s", shipped("surge.toml")));
    args.svg = Some(dir.path().join("surge.svg"));
    assert_eq!(sim(&args).0.unwrap(), Exit::Done);
    let svg = std::fs::read_to_string(dir.path().join("surge.svg")).unwrap();
    assert_eq!(svg.matches("class=\"name\"").count(), 5);
}

#[test]
fn a_replay_shows_before_and_after_and_what_was_left_out() {
    let line = format!("replay {} -c {}", shipped("attempts.ndjson"), shipped("surge.toml"));
    let (exit, text, _) = sim(&args(&line));
    assert_eq!(exit.unwrap(), Exit::Done);
    assert!(text.contains("catalog/search") && text.contains("left out, not in the configuration: geo (55 calls)"), "{text}");
    let (_, csv, notes) = sim(&args(&format!("{line} --csv")));
    assert!(
        csv.starts_with("upstream,endpoint,calls,success_before,success_after,attempts_before,") && csv.contains("\ntotal,,165,"),
        "{csv}"
    );
    assert!(notes.contains("left out"), "{notes}");
    let json: serde_json::Value = serde_json::from_str(&sim(&args(&format!("{line} --json"))).1).unwrap();
    assert!(json["notes"][0].as_str().unwrap().contains("geo"));
}

#[test]
fn a_log_that_is_none_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ndjson");
    let long = "x".repeat((1 << 20) + 10);
    std::fs::write(&path, format!("hello\n{long}\n{{}}")).unwrap();
    let mut args = args(&format!("replay x -c {}", shipped("surge.toml")));
    args.log = Some(path);
    let error = sim(&args).0.unwrap_err().to_string();
    assert!(error.contains("no attempt of any call in its 3 lines; line 1: "), "{error}");
}
