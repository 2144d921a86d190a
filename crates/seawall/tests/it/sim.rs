//! `seawall sim`: the numbers scripts read, the same for the same seed.

use crate::dir::{Dir, Run};

fn sim(args: &str) -> Run {
    Dir::new().run(["sim"].into_iter().chain(args.split(' ')))
}

fn rows(csv: &str) -> Vec<Vec<&str>> {
    csv.lines().skip(1).map(|line| line.split(',').collect()).collect()
}

#[test]
fn contention_repeats_for_a_seed_and_orders_the_strategies_as_published() {
    let command = "contention --csv --runs 5 --clients 10,100";
    let run = sim(command).ends_with(0);
    assert_eq!(run.out.lines().next(), Some("clients,strategy,calls_mean,time_ms_mean"));
    assert_eq!(run.out, sim(command).out);
    assert_ne!(run.out, sim("contention --csv --runs 5 --clients 10,100 --seed 2").out);
    let calls = |strategy: &str| {
        let found = rows(&run.out)
            .into_iter()
            .find(|row| row[0] == "100" && row[1] == strategy)
            .unwrap_or_else(|| panic!("{strategy}:\n{}", run.out));
        found[2].parse::<f64>().unwrap()
    };
    assert!(calls("full") * 2.0 < calls("exponential"), "{}", run.out);
    assert!(calls("exponential") < calls("none"), "{}", run.out);
    assert!(calls("full") < calls("equal"), "{}", run.out);
    assert!(calls("decorrelated") < calls("exponential"), "{}", run.out);
}

#[test]
fn outage_and_herd_have_the_columns_that_scripts_read() {
    let run = sim("outage --csv --runs 1 --rho 0.8 --policy none").ends_with(0);
    assert_eq!(run.out.lines().next(), Some("rho,policy,recovered,recovery_s,amp_incident,success_incident"));
    assert_eq!(rows(&run.out).len(), 1, "{}", run.out);
    assert_eq!(rows(&run.out)[0][..2], ["0.80", "none"]);
    let run = sim("herd --csv --runs 1").ends_with(0);
    assert_eq!(
        run.out.lines().next(),
        Some("scenario,policy,peak100_mean,peak1s_mean,retries_mean,succeeded_mean,dead_mean"),
        "{}",
        run.out
    );
    assert!(rows(&run.out).iter().all(|row| row.len() == 7), "{}", run.out);
}

#[test]
fn an_assertion_that_fails_ends_with_four_and_says_which_rows() {
    sim("outage --csv --runs 1 --rho 0.5 --policy none").ends_with(0);
    let dir = Dir::new();
    let outage = ["sim", "outage", "--csv", "--runs", "1", "--rho", "0.8", "--policy", "none", "--assert"];
    let run = dir.run(outage.iter().chain(&["amp_incident < 0.5"])).ends_with(4);
    assert!(run.err.contains("`amp_incident < 0.5` does not hold for 1 of 1 rows") && run.err.contains("policy=none"), "{}", run.err);
    assert!(run.out.starts_with("rho,policy"), "the table is printed all the same");
    dir.run(outage.iter().chain(&["amp_incident <= 1.0 where policy=none"])).ends_with(0);
    for bad in ["amp < 1", "policy < 1", "amp_incident < 1 where policy=other", "amp_incident"] {
        dir.run(outage.iter().chain(&[bad])).ends_with(2);
    }
}

#[test]
fn a_files_policies_are_rows_beside_the_built_in_ones() {
    let dir =
        Dir::with("[upstreams.mine]\nurl = \"https://a.test\"\n[[upstreams.mine.endpoints]]\nname = \"slow\"\nmatch = \"GET /slow\"\n");
    let outage = dir
        .run([
            "sim",
            "outage",
            "--csv",
            "--runs",
            "1",
            "--rho",
            "0.5",
            "--policy",
            "mine/slow",
            "--policy",
            "mine/default",
            "-c",
            "seawall.toml",
        ])
        .ends_with(0);
    let policies: Vec<&str> = rows(&outage.out).iter().map(|row| row[1]).collect();
    assert_eq!(policies, ["mine/slow", "mine/default"]);
    let herd = dir.run(["sim", "herd", "--csv", "--runs", "1", "-c", "seawall.toml"]).ends_with(0);
    assert!(herd.out.contains(",mine/slow,") && herd.out.contains(",mine/default,"), "{}", herd.out);
    dir.write("bad.toml", "x = 1");
    dir.run(["sim", "herd", "-c", "bad.toml"]).ends_with(78);
}

#[test]
fn options_of_another_scenario_are_bad_usage() {
    for args in [
        "herd --clients 5",
        "contention --rho 0.8",
        "contention -c seawall.toml",
        "outage --policy nope",
        "earthquake",
        "herd --csv --json",
        "outage --rho 9",
        "contention --clients 0",
        "herd --runs 0",
    ] {
        sim(args).ends_with(2);
    }
}

#[test]
fn json_and_charts_come_from_the_same_run() {
    let dir = Dir::new();
    let run = dir.run(["sim", "contention", "--json", "--runs", "2", "--clients", "10", "--svg", "c.svg"]).ends_with(0);
    let json = run.json();
    assert_eq!((json["scenario"].as_str(), json["seed"].as_u64()), (Some("contention"), Some(1)), "{json}");
    assert!(json["rows"].as_array().unwrap().len() >= 4, "{json}");
    let svg = dir.read("c.svg");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    dir.run(["sim", "herd", "--runs", "1", "--svg", "no/such/dir.svg"]).ends_with(1);
}
