//! The `sim` door: runs a model of the core in virtual time and shows what it found as a table, CSV, JSON or a chart.

mod assert;
mod contention;
mod herd;
mod outage;
mod report;
mod svg;
mod table;

use std::io::Write;
use std::path::PathBuf;

use crate::exit::Exit;
use crate::setup;
use anstyle::{AnsiColor, Style};
use anyhow::Context as _;
use seawall_core::config::Config;
use seawall_core::policy;

pub(crate) use assert::Assertion;
use report::{Column, Report};

const DIM: Style = Style::new().dimmed();
const FAILED: Style = AnsiColor::Red.on_default().bold();

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// N clients race to update one row: what jitter buys
    Contention,
    /// 500 workers fail in the same instant: do they come back in the same instant?
    Herd,
    /// A server loses its workers for ten seconds: does the system come back?
    Outage,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// What to simulate
    #[arg(value_enum)]
    pub scenario: Scenario,

    /// The same seed gives the same numbers
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Runs per row [default: contention 100, herd 100, outage 8]
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

    /// Simulate only these policies
    #[arg(long, value_name = "NAME")]
    pub policy: Vec<String>,

    /// Numbers of clients (contention)
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: Vec<u32>,

    /// Offered load as shares of the capacity (outage)
    #[arg(long, value_name = "SHARE", value_delimiter = ',', value_parser = rho)]
    pub rho: Vec<policy::Share>,

    /// Put this file's policies beside the built-in ones (herd, outage)
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// A resolved policy of the user's own, to be simulated beside the built-in ones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// `upstream/endpoint`
    pub name: String,
    pub retry: policy::Retry,
    pub breaker: policy::Breaker,
    pub adaptive: bool,
}

/// Runs the scenario with the built-in policies and those of the file given.
pub(crate) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<Exit> {
    let candidates = match &args.config {
        Some(path) => candidates(&setup::load(Some(path))?.1),
        None => Vec::new(),
    };
    run_with(args, &candidates, out, err)
}

/// Every endpoint of a configuration, as a policy to simulate.
fn candidates(config: &Config) -> Vec<Candidate> {
    let endpoints = config.upstreams.iter().flat_map(|upstream| upstream.endpoints.iter().map(move |endpoint| (upstream, endpoint)));
    endpoints
        .map(|(upstream, endpoint)| Candidate {
            name: format!("{}/{}", upstream.name, endpoint.name),
            retry: endpoint.policy.retry,
            breaker: endpoint.policy.breaker,
            adaptive: endpoint.policy.pool.as_deref().and_then(|name| config.pool(name)).is_some_and(|pool| pool.adaptive),
        })
        .collect()
}

/// Results go to `out`, broken assertions to `err`; both are expected to strip colour where it is not wanted.
pub(crate) fn run_with(args: &Args, candidates: &[Candidate], out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<Exit> {
    anyhow::ensure!(args.clients.is_empty() || args.scenario == Scenario::Contention, "`--clients` is for `sim contention` only");
    anyhow::ensure!(args.rho.is_empty() || args.scenario == Scenario::Outage, "`--rho` is for `sim outage` only");
    for assertion in &args.assert {
        assertion.check_columns(columns(args.scenario))?;
    }
    let report = match args.scenario {
        Scenario::Contention => contention::report(args)?,
        Scenario::Herd => herd::report(args, candidates)?,
        Scenario::Outage => outage::report(args, candidates)?,
    };
    if let Some(path) = &args.svg {
        std::fs::write(path, report.figure.render()).with_context(|| format!("cannot write the chart to `{}`", path.display()))?;
    }
    if args.csv {
        report.csv(out)?;
    } else if args.json {
        report.json(out)?;
    } else {
        for_people(&report, out)?;
    }
    check(&args.assert, &report, err)
}

const fn columns(scenario: Scenario) -> &'static [Column] {
    match scenario {
        Scenario::Contention => contention::COLUMNS,
        Scenario::Herd => herd::COLUMNS,
        Scenario::Outage => outage::COLUMNS,
    }
}

fn for_people(report: &Report, out: &mut dyn Write) -> anyhow::Result<()> {
    report.table.write(out)?;
    writeln!(out, "\n{}", report.closing)?;
    writeln!(out, "{DIM}seed {}, {} runs per row{DIM:#}", report.seed, report.runs)?;
    Ok(())
}

fn check(assertions: &[Assertion], report: &Report, err: &mut dyn Write) -> anyhow::Result<Exit> {
    let mut exit = Exit::Done;
    for assertion in assertions {
        let (failures, rows) = assertion.failures(report)?;
        if failures.is_empty() {
            continue;
        }
        exit = Exit::Findings;
        writeln!(err, "{FAILED}failed:{FAILED:#} `{assertion}` does not hold for {} of {rows} rows", failures.len())?;
        for failure in failures {
            writeln!(err, "  {failure}")?;
        }
    }
    Ok(exit)
}

/// Keeps what `--policy` names, in the order of the table; nothing named keeps everything.
fn choose<T>(all: Vec<T>, name: impl Fn(&T) -> &str, wanted: &[String]) -> anyhow::Result<Vec<T>> {
    for want in wanted {
        let names = || all.iter().map(&name).collect::<Vec<_>>().join(", ");
        anyhow::ensure!(all.iter().any(|item| name(item) == want), "`{want}` is not a policy of this scenario; policies are {}", names());
    }
    Ok(all.into_iter().filter(|item| wanted.is_empty() || wanted.iter().any(|want| want == name(item))).collect())
}

fn rho(text: &str) -> Result<policy::Share, String> {
    let share: f64 = text.parse().map_err(|_| "expected a share such as 0.8".to_owned())?;
    if !(0.01..=2.0).contains(&share) {
        return Err("expected a share between 0.01 and 2".to_owned());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between one hundredth and two")]
    Ok(policy::Share((share * 1e6).round() as u32))
}

#[cfg(test)]
mod tests;
