//! The program: parses the command line and hands over to one door.

mod check;
mod cli;
mod config;
mod exit;
mod explain;
mod setup;
mod sim;
mod terminal;

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => return terminal::usage(&usage),
    };
    let terminal = terminal::Terminal::new(cli.color, cli.quiet);
    match cli::dispatch(cli.command, &terminal) {
        Ok(exit) => exit.into(),
        Err(error) => terminal.fail(&error).into(),
    }
}
