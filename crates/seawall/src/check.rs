//! The `check` door: validates a file, predicts its effect, and warns its author.

use crate::args::ConfigArg;
use crate::exit::{CommandError, Exit};
use crate::setup;
use crate::terminal::{BOLD, DIM, GOOD, HINT, Terminal, WARNING};
use seawall_core::calc;
use seawall_core::config::checklist::Item;
use seawall_core::config::{Config, EndpointConfig, Invalid};
use seawall_core::lint::{self, Warning};
use seawall_server::figures::{self, Calculator};
use serde_json::{Value, json};
use std::io::{self, Write};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  seawall check\n  seawall check -c prod.toml --strict\n  seawall check --explain SW007")]
pub(crate) struct Args {
    #[command(flatten)]
    file: ConfigArg,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    /// End with exit code 4 if there is any warning
    #[arg(long)]
    strict: bool,

    /// Say what a warning means, and what to do about it
    #[arg(long, value_name = "CODE")]
    explain: Option<String>,

    /// Warn of secrets and files that are missing, and refuse none: for a machine that is not the one that serves
    #[arg(long)]
    elsewhere: bool,

    /// Layers that retry like this one, for the amplification
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10))]
    layers: u32,

    /// Calls per second to each endpoint, for the amplification with the retry budget and the chance of giving up
    #[arg(long, value_name = "RATE", default_value_t = 100.0)]
    load: f64,

    /// How long the outage is that the chance of giving up is about; may be given several times [default: 10s, 60s and 10m]
    #[arg(long = "outage", value_name = "DURATION", value_parser = figures::Outage::parse)]
    outages: Vec<figures::Outage>,
}

impl Args {
    fn calculator(&self) -> Calculator {
        let usual = figures::FigureLoad::default();
        let outages = if self.outages.is_empty() { usual.outages } else { self.outages.clone() };
        Calculator::new(figures::FigureLoad { layers: self.layers, calls_per_second: self.load, outages })
    }
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    if let Some(code) = &args.explain {
        return explain(code, terminal);
    }
    if !args.load.is_finite() || args.load <= 0.0 {
        return Err(CommandError::usage("--load needs a number of calls per second above zero").into());
    }
    let (path, config) = match setup::load(args.file.path.as_deref()) {
        Ok(loaded) => loaded,
        Err(error) => return refused(error, args, terminal),
    };
    terminal.detail(&format!("read {}", path.display()));
    let around = setup::environment(&path);
    let references = if args.elsewhere { setup::references_that_exist } else { setup::references };
    if let Err(error) = references(&config, &around) {
        return refused(error, args, terminal);
    }
    let warnings = lint::warnings(&config, &around);
    let mut out = terminal.out();
    if args.json {
        let document = document(&config, &warnings, args);
        serde_json::to_writer_pretty(&mut out, &document).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        for_people(&mut out, &path.display().to_string(), &config, &warnings, args)?;
    }
    out.flush()?;
    Ok(if args.strict && !warnings.is_empty() { Exit::Findings } else { Exit::Done })
}

/// Reports a file that cannot be used: as JSON if that was requested.
fn refused(error: anyhow::Error, args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    let problems = match (error.downcast_ref::<Invalid>(), error.downcast_ref::<CommandError>()) {
        (Some(invalid), _) if args.json => figures::problems(invalid),
        (None, Some(unfit)) if args.json && unfit.exit == Exit::InvalidConfig => unfit.message.lines().map(figures::unfit).collect(),
        _ => return Err(error),
    };
    let mut out = terminal.out();
    serde_json::to_writer_pretty(&mut out, &json!({ "valid": false, "problems": problems })).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(Exit::InvalidConfig)
}

fn explain(code: &str, terminal: &Terminal) -> anyhow::Result<Exit> {
    let Some((code, title, text)) = lint::CODES.iter().find(|(known, _, _)| known.eq_ignore_ascii_case(code)) else {
        let known: Vec<&str> = lint::CODES.iter().map(|(code, _, _)| *code).collect();
        return Err(CommandError::usage(format!("there is no warning `{code}`")).hint(format!("there are {}", known.join(", "))).into());
    };
    writeln!(terminal.out(), "{BOLD}{code}{BOLD:#}: {title}\n\n{text}")?;
    Ok(Exit::Done)
}

fn for_people(out: &mut dyn Write, path: &str, config: &Config, warnings: &[Warning], args: &Args) -> io::Result<()> {
    let count = config.endpoints().count();
    let calculator = args.calculator();
    writeln!(out, "{GOOD}{path} is valid{GOOD:#}: {}, {}", plural(config.upstreams.len(), "upstream"), plural(count, "endpoint"))?;
    for (upstream, endpoint) in config.endpoints() {
        let preset = upstream.preset.as_ref().map(|preset| format!(", preset {preset}")).unwrap_or_default();
        writeln!(
            out,
            "\n{BOLD}{}/{}{BOLD:#}  {}  {DIM}profile {}{preset}{DIM:#}",
            upstream.name, endpoint.name, endpoint.matches, endpoint.policy.profile
        )?;
        for Item { question, answer, gap } in seawall_core::config::checklist::checklist(config, upstream, endpoint) {
            let (mark, style) = if gap { ("–", DIM) } else { ("✓", GOOD) };
            writeln!(out, "  {style}{mark}{style:#} {question:<20} {answer}")?;
        }
        figures_for_people(out, &calculator.figures(config, upstream, endpoint), endpoint, args)?;
        if upstream.seawall {
            let (layers, retry) = (args.layers.max(2), &endpoint.policy.retry);
            let (known, unknown) = (calc::chained(retry, layers), calc::amplification(retry, layers, args.load).attempts);
            writeln!(
                out,
                "    {:<20} {known} sends at most through {layers} Seawalls that retry like this one, {unknown:.0} if they did not know",
                "chain"
            )?;
        }
    }
    warnings_for_people(out, warnings)
}

fn figures_for_people(out: &mut dyn Write, figures: &figures::Figures, endpoint: &EndpointConfig, args: &Args) -> io::Result<()> {
    let worst = figures.worst;
    let fit = if worst.attempts_that_fit < endpoint.policy.retry.attempts {
        format!(", {} attempts fit", worst.attempts_that_fit)
    } else {
        String::new()
    };
    writeln!(out, "    {:<20} {} ({} without the deadline{fit})", "worst case", worst.elapsed, worst.unbounded)?;
    let figures::Figures { amplification, gives_up, .. } = figures;
    let layers = if args.layers > 1 { format!(" through {} layers", args.layers) } else { String::new() };
    writeln!(
        out,
        "    {:<20} {:.1}× by attempts, {:.2}× with the budget at {} calls/s{layers}",
        "amplification", amplification.attempts, amplification.budgeted, args.load
    )?;
    let chances: Vec<String> = gives_up.iter().map(|(name, chance)| format!("{} of an outage of {name}", percent(*chance))).collect();
    writeln!(out, "    {:<20} {} at {} calls/s", "gives up", chances.join(", "), args.load)
}

fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.01 { "< 1 %".to_owned() } else { format!("{:.0} %", share * 100.0) }
}

fn warnings_for_people(out: &mut dyn Write, warnings: &[Warning]) -> io::Result<()> {
    if warnings.is_empty() {
        return writeln!(out, "\n{GOOD}no warnings{GOOD:#}");
    }
    writeln!(out)?;
    for warning in warnings {
        let title = lint::CODES.iter().find(|(code, _, _)| *code == warning.code).map_or("", |(_, title, _)| title);
        let origin = if warning.origin.is_empty() { String::new() } else { format!(" {DIM}({}){DIM:#}", warning.origin) };
        writeln!(out, "{WARNING}{}{WARNING:#} {}: {title}: {}{origin}", warning.code, warning.subject, warning.message)?;
    }
    writeln!(out, "\n{}; {HINT}seawall check --explain {}{HINT:#} says more", plural(warnings.len(), "warning"), warnings[0].code)
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn document(config: &Config, warnings: &[Warning], args: &Args) -> Value {
    let calculator = args.calculator();
    let endpoints: Vec<figures::PolicyFigures> =
        config.endpoints().map(|(upstream, endpoint)| calculator.policy(config, upstream, endpoint)).collect();
    let warnings: Vec<Value> = warnings
        .iter()
        .map(|warning| json!({ "code": warning.code, "subject": warning.subject, "message": warning.message, "origin": warning.origin }))
        .collect();
    json!({ "valid": true, "endpoints": endpoints, "warnings": warnings })
}
