//! The `config` door: writes a starter file, describes the format, shows presets and resolved values.

use crate::args::ConfigArg;
use crate::exit::{CommandError, Exit};
use crate::setup;
use crate::terminal::{BOLD, DIM, Terminal};
use anyhow::Context as _;
use seawall_core::classify::presets::Preset;
use seawall_core::config::{self, UpstreamConfig, explain, schema};
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ConfigCommand {
    /// Write a commented file to start from; never overwrites
    Init {
        /// Where to write it; `-` for standard output
        #[arg(default_value = "seawall.toml")]
        path: PathBuf,
        /// Print every key with its default instead, as comments: the reference manual
        #[arg(long)]
        full: bool,
    },
    /// Print the JSON Schema of the file
    Schema,
    /// List the shipped presets, or print one
    Presets {
        name: Option<String>,
        #[arg(long)]
        json: bool,
    },
    /// Every resolved value of an upstream or endpoint, and where it came from
    Explain {
        /// UPSTREAM or UPSTREAM/ENDPOINT
        target: String,
        #[command(flatten)]
        file: ConfigArg,
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    match &args.command {
        ConfigCommand::Init { full: true, .. } => {
            terminal.out().write_all(config::manual().as_bytes())?;
        }
        ConfigCommand::Init { path, full: false } => init(path, terminal)?,
        ConfigCommand::Schema => {
            let mut out = terminal.out();
            serde_json::to_writer_pretty(&mut out, &schema::json_schema()).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
        ConfigCommand::Presets { name, json } => presets(name.as_deref(), *json, terminal)?,
        ConfigCommand::Explain { target, file, json } => explain_target(target, file, *json, terminal)?,
    }
    Ok(Exit::Done)
}

fn init(path: &PathBuf, terminal: &Terminal) -> anyhow::Result<()> {
    if path.as_os_str() == "-" {
        terminal.out().write_all(config::STARTER_TOML.as_bytes())?;
        return Ok(());
    }
    let mut file = std::fs::File::create_new(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => anyhow::Error::new(
            CommandError { exit: Exit::Failed, message: format!("`{}` exists already", path.display()), hint: None }
                .hint("name another file, or print it with `seawall config init -`"),
        ),
        _ => anyhow::Error::new(error).context(format!("cannot write `{}`", path.display())),
    })?;
    file.write_all(config::STARTER_TOML.as_bytes()).with_context(|| format!("cannot write `{}`", path.display()))?;
    terminal.note(&format!(
        "wrote `{}`\n\nnext:\n  seawall check\n  seawall explain GET /example/things --status 503\n  seawall sim outage -c {}",
        path.display(),
        path.display()
    ));
    Ok(())
}

fn presets(name: Option<&str>, as_json: bool, terminal: &Terminal) -> anyhow::Result<()> {
    let mut out = terminal.out();
    if let Some(name) = name {
        let Some(preset) = Preset::named(name) else {
            let names: Vec<&str> = Preset::all().iter().map(|preset| preset.name).collect();
            return Err(CommandError::usage(format!("there is no preset `{name}`")).hint(format!("there are {}", names.join(", "))).into());
        };
        out.write_all(preset.text.as_bytes())?;
        return Ok(());
    }
    if as_json {
        let rows: Vec<Value> = Preset::all().iter().map(|preset| json!({ "name": preset.name, "aliases": preset.aliases, "description": preset.description(), "rules": preset.rules().map_or(0, |rules| rules.len()) })).collect();
        serde_json::to_writer_pretty(&mut out, &rows).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    let width = Preset::all().iter().map(|preset| preset.name.len()).max().unwrap_or(0);
    for preset in Preset::all() {
        let rules = preset.rules().map_or(0, |rules| rules.len());
        writeln!(out, "{BOLD}{:<width$}{BOLD:#}  {rules:>2} rules  {}", preset.name, preset.description())?;
    }
    writeln!(out, "\n{DIM}use one as `preset = \"NAME\"`; `seawall config presets NAME` prints it{DIM:#}")?;
    Ok(())
}

fn explain_target(target: &str, file: &ConfigArg, as_json: bool, terminal: &Terminal) -> anyhow::Result<()> {
    let (path, config) = setup::load(file.path.as_deref())?;
    terminal.detail(&format!("read {}", path.display()));
    let (upstream, endpoint) = target.split_once('/').map_or((target, config::CATCH_ALL), |(upstream, endpoint)| (upstream, endpoint));
    let Some(upstream) = config.upstream(upstream) else {
        let names: Vec<&str> = config.upstreams.iter().map(|upstream| upstream.name.as_str()).collect();
        return Err(CommandError::usage(format!("there is no upstream `{upstream}`"))
            .hint(format!("there are {}", names.join(", ")))
            .into());
    };
    let lines = explain::endpoint(upstream, find_endpoint(upstream, endpoint)?);
    let mut out = terminal.out();
    if as_json {
        let rows: Vec<Value> = lines.iter().map(|line| json!({ "key": line.key, "value": line.value, "origin": line.origin })).collect();
        serde_json::to_writer_pretty(&mut out, &rows).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    let keys = lines.iter().map(|line| line.key.len()).max().unwrap_or(0);
    let values = lines.iter().map(|line| line.value.chars().count()).filter(|width| *width <= 48).max().unwrap_or(0);
    for line in &lines {
        writeln!(out, "{:<keys$}  {:<values$}  {DIM}{}{DIM:#}", line.key, line.value, line.origin)?;
    }
    Ok(())
}

fn find_endpoint<'a>(upstream: &'a UpstreamConfig, name: &str) -> anyhow::Result<&'a config::EndpointConfig> {
    if let Some(endpoint) = upstream.endpoints.iter().find(|endpoint| endpoint.name == name) {
        return Ok(endpoint);
    }
    let names: Vec<&str> = upstream.endpoints.iter().map(|endpoint| endpoint.name.as_str()).collect();
    Err(CommandError::usage(format!("upstream `{}` has no endpoint `{name}`", upstream.name))
        .hint(format!("there are {}", names.join(", ")))
        .into())
}
