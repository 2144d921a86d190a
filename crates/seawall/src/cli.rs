//! The command line: all commands, and the door that each opens.

use crate::exit::Exit;
use crate::terminal::{Color, Terminal};
use crate::{check, config, demo, explain, fetch, flaky, remote, serve, sim, store};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use std::io::Write as _;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Examples:
  seawall demo                            see failures being healed
  seawall config init                     write a policy to start from
  seawall fetch urls.txt -o out.ndjson    nothing lost, one line for each
  seawall check                           what it will do, and what to watch out for
  seawall explain GET /example/x --status 503
  seawall sim outage                      which policies come back after an outage

Exit codes: 0 done, 1 failed, 2 bad usage, 3 some rows ended as dead letters, \
4 findings (check --strict, sim --assert), 5 stopped by an authentication failure, 10 no running Seawall, \
11 store unavailable, 78 invalid configuration, 130 interrupted";

/// A self-healing gateway between your code and the HTTP APIs it depends on
#[derive(Debug, Parser)]
#[command(name = "seawall", version = env!("SEAWALL_VERSION"), after_help = AFTER_HELP, arg_required_else_help = true, infer_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// When to use colour
    #[arg(long, global = true, value_enum, default_value = "auto", env = "SEAWALL_COLOR", hide_possible_values = true)]
    pub color: Color,

    /// Say only what was asked for
    #[arg(short, long, global = true)]
    pub quiet: bool,

    /// Say also which file was read and what was started
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// See failures being healed: zero configuration, nothing outside this machine
    Demo(demo::Args),
    /// Run the gateway, job workers, schedules, admin API and dashboard in one process
    Serve(serve::Args),
    /// Fetch one answer for each line of a list, healing what fails on the way
    Fetch(fetch::Args),
    /// Submit, list, look at and cancel durable jobs of a running Seawall
    Jobs(remote::jobs::Args),
    /// List, look at, replay, discard, export and import dead letters of a running Seawall
    Dlq(remote::letters::Args),
    /// Show the keys of a running Seawall, let one rest or restore it
    Keys(remote::keys::Args),
    /// Show the breakers of a running Seawall, or hold one open or closed
    Breakers(remote::breakers::Args),
    /// Show the pauses that providers asked a running Seawall for, or end one
    Pauses(remote::pauses::Args),
    /// Back up, restore and check the database file
    Store(store::Args),
    /// Validate a policy and show what it will do
    Check(check::Args),
    /// Dry run: which endpoint, rule, class, decision and wait would apply
    Explain(explain::Args),
    /// Run the real policy code in virtual time
    Sim(sim::Args),
    /// A faulty upstream to try a policy on: scripted, seeded
    Flaky(flaky::Args),
    /// Write, describe and look into configuration files
    Config(config::Args),
    /// Print completions for a shell
    Completions { shell: clap_complete::Shell },
    /// Print the manual page, or write one for each command
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write seawall.1, seawall-check.1, … into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn dispatch(command: Command, terminal: &Terminal) -> anyhow::Result<Exit> {
    match command {
        Command::Demo(args) => demo::run(&args, terminal),
        Command::Serve(args) => serve::run(&args, terminal),
        Command::Fetch(args) => fetch::run(&args, terminal),
        Command::Jobs(args) => remote::jobs::run(&args, terminal),
        Command::Dlq(args) => remote::letters::run(&args, terminal),
        Command::Keys(args) => remote::keys::run(&args, terminal),
        Command::Breakers(args) => remote::breakers::run(&args, terminal),
        Command::Pauses(args) => remote::pauses::run(&args, terminal),
        Command::Store(args) => store::run(&args, terminal),
        Command::Check(args) => check::run(&args, terminal),
        Command::Explain(args) => explain::run(&args, terminal),
        Command::Sim(args) => sim::run(&args, &mut terminal.out(), &mut terminal.err()),
        Command::Flaky(args) => flaky::run(&args, terminal),
        Command::Config(args) => config::run(&args, terminal),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "seawall", &mut script);
            terminal.out().write_all(&script)?;
            Ok(Exit::Done)
        }
        Command::Man(args) => man(&args, terminal),
    }
}

fn man(args: &ManArgs, terminal: &Terminal) -> anyhow::Result<Exit> {
    let Some(directory) = &args.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        terminal.out().write_all(&page)?;
        return Ok(Exit::Done);
    };
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)?;
    terminal.note(&format!("wrote the manual pages to `{}`", directory.display()));
    Ok(Exit::Done)
}
