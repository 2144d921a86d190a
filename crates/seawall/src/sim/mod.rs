//! The `sim` door: runs a model of the core in virtual time and shows the results as a table, CSV, JSON or a chart.

mod assert;
mod contention;
mod herd;
mod options;
mod outage;
mod replay;
mod report;
mod surge;
mod svg;
mod table;

use std::io::Write;
use std::path::PathBuf;

use crate::exit::{CommandError, Exit};
use crate::setup;
use crate::terminal::{DIM, ERROR};
use anyhow::Context as _;
use seawall_core::config::Config;
use seawall_core::policy;
use seawall_core::time::Nanos;

pub(crate) use assert::Assertion;
use report::{Column, SimReport};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// N clients race to update one row: what jitter buys
    Contention,
    /// 500 workers fail in the same instant: do they come back in the same instant?
    Herd,
    /// A server loses its workers for ten seconds: does the system come back?
    Outage,
    /// One endpoint gets ten times its traffic for five minutes: what protects the rest?
    Surge,
    /// Your own attempt log under another policy: what would have become of the same calls?
    Replay,
}

#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  seawall sim contention --svg jitter.svg\n  seawall sim outage -c seawall.toml --rho 0.8\n  seawall sim outage --assert 'recovery_s < 10 where policy=succ10+breaker5,rho=0.8'"
)]
pub(crate) struct Args {
    /// What to simulate
    #[arg(value_enum)]
    pub scenario: Scenario,

    /// The attempt log to replay, one JSON object per line; `-` is standard input (replay)
    #[arg(value_name = "LOG")]
    pub log: Option<PathBuf>,

    /// The same seed gives the same numbers
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Runs per row [default: contention 100, herd 100, outage 8, surge 1, replay 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: Option<u32>,

    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    /// Draw a chart into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Fail with exit code 4 unless it holds, e.g. 'recovery_s < 10 where policy=succ10+breaker5,rho=0.8'
    #[arg(long, value_name = "EXPR")]
    pub assert: Vec<Assertion>,

    /// Simulate only these policies (contention, herd, outage)
    #[arg(long, value_name = "NAME")]
    pub policy: Vec<String>,

    /// Numbers of clients (contention)
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: Vec<u32>,

    /// Offered load as shares of the capacity (outage)
    #[arg(long, value_name = "SHARE", value_delimiter = ',', value_parser = options::rho)]
    pub rho: Vec<policy::Share>,

    /// The endpoint that gets the surge [default: the first of the file] (surge)
    #[arg(long, value_name = "UPSTREAM/ENDPOINT")]
    pub endpoint: Option<String>,

    /// How many times its usual traffic that endpoint gets [default: 10] (surge)
    #[arg(long, value_name = "N", value_parser = options::factor)]
    pub factor: Option<f64>,

    /// Usual calls per second to each endpoint [default: half of its limit, or 20] (surge)
    #[arg(long, value_name = "R", value_parser = options::calls_per_second)]
    pub rate: Option<f64>,

    /// How long the surge lasts [default: 5m] (surge)
    #[arg(long = "for", value_name = "TIME", value_parser = options::surge_length)]
    pub lasting: Option<Nanos>,

    /// Put this file's policies beside the built-in ones (herd, outage), or the file to simulate (surge, replay)
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// A resolved policy of the user, simulated beside the built-in ones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// `upstream/endpoint`
    pub name: String,
    pub retry: policy::Retry,
    pub breaker: policy::BreakerPolicy,
    pub adaptive: bool,
}

/// Runs the scenario with the built-in policies and those of the given file.
pub(crate) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<Exit> {
    options::check(args)?;
    for assertion in &args.assert {
        assertion.check_columns(columns(args.scenario))?;
    }
    let report = match args.scenario {
        Scenario::Surge => surge::report(args, &setup::load(args.config.as_deref())?.1)?,
        Scenario::Replay => replay::report(args, &setup::load(args.config.as_deref())?.1)?,
        Scenario::Contention | Scenario::Herd | Scenario::Outage => match &args.config {
            Some(path) => compare(args, &candidates(&setup::load(Some(path))?.1))?,
            None => compare(args, &[])?,
        },
    };
    show(args, &report, out, err)
}

/// Every endpoint of a configuration, as a policy to simulate.
fn candidates(config: &Config) -> Vec<Candidate> {
    config
        .endpoints()
        .map(|(upstream, endpoint)| Candidate {
            name: format!("{}/{}", upstream.name, endpoint.name),
            retry: endpoint.policy.retry,
            breaker: endpoint.policy.breaker,
            adaptive: config.pool_of(&endpoint.policy).is_some_and(|pool| pool.adaptive),
        })
        .collect()
}

/// The scenarios that compare policies.
fn compare(args: &Args, candidates: &[Candidate]) -> anyhow::Result<SimReport> {
    match args.scenario {
        Scenario::Contention => contention::report(args),
        Scenario::Herd => herd::report(args, candidates),
        Scenario::Outage => outage::report(args, candidates),
        Scenario::Surge | Scenario::Replay => anyhow::bail!("this scenario simulates one file, not policies beside each other"),
    }
}

/// Writes results to `out`, broken assertions to `err`; both must strip colour if it is not wanted.
fn show(args: &Args, report: &SimReport, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<Exit> {
    if let (Some(path), Some(figure)) = (&args.svg, &report.figure) {
        std::fs::write(path, figure.render()).with_context(|| format!("cannot write the chart to `{}`", path.display()))?;
    }
    if args.csv {
        for note in &report.notes {
            writeln!(err, "{DIM}{note}{DIM:#}")?;
        }
        report.csv(out)?;
    } else if args.json {
        report.json(out)?;
    } else {
        for_people(report, out)?;
    }
    check(&args.assert, report, err)
}

const fn columns(scenario: Scenario) -> &'static [Column] {
    match scenario {
        Scenario::Contention => contention::COLUMNS,
        Scenario::Herd => herd::COLUMNS,
        Scenario::Outage => outage::COLUMNS,
        Scenario::Surge => surge::COLUMNS,
        Scenario::Replay => replay::COLUMNS,
    }
}

fn for_people(report: &SimReport, out: &mut dyn Write) -> anyhow::Result<()> {
    report.table.write(out)?;
    writeln!(out, "\n{}", report.closing)?;
    for note in &report.notes {
        writeln!(out, "{note}")?;
    }
    writeln!(out, "{DIM}seed {}, {} {} per row{DIM:#}", report.seed, report.runs, if report.runs == 1 { "run" } else { "runs" })?;
    Ok(())
}

fn check(assertions: &[Assertion], report: &SimReport, err: &mut dyn Write) -> anyhow::Result<Exit> {
    let mut exit = Exit::Done;
    for assertion in assertions {
        let (failures, rows) = assertion.failures(report)?;
        if failures.is_empty() {
            continue;
        }
        exit = Exit::Findings;
        writeln!(err, "{ERROR}failed:{ERROR:#} `{assertion}` does not hold for {} of {rows} rows", failures.len())?;
        for failure in failures {
            writeln!(err, "  {failure}")?;
        }
    }
    Ok(exit)
}

/// Keeps the policies that `--policy` names, in the order of the table; without names, all of them.
fn choose<T>(all: Vec<T>, name: impl Fn(&T) -> &str, wanted: &[String]) -> anyhow::Result<Vec<T>> {
    for want in wanted {
        let names = || all.iter().map(&name).collect::<Vec<_>>().join(", ");
        CommandError::require(all.iter().any(|item| name(item) == want), || {
            format!("`{want}` is not a policy of this scenario; policies are {}", names())
        })?;
    }
    Ok(all.into_iter().filter(|item| wanted.is_empty() || wanted.iter().any(|want| want == name(item))).collect())
}

#[cfg(test)]
mod tests;
