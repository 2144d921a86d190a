//! The program: parses the command line and calls one door.

mod args;
mod check;
mod cli;
mod config;
mod demo;
mod exit;
mod explain;
mod fetch;
mod flaky;
mod remote;
mod serve;
mod setup;
mod sim;
mod store;
mod terminal;

use clap::Parser as _;
use std::process::ExitCode;

/// Each request makes many small, short-lived allocations: with the system's allocator they take a tenth of the CPU.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => return terminal::usage(&usage),
    };
    let terminal = terminal::Terminal::new(cli.color, cli.quiet, cli.verbose);
    match cli::dispatch(cli.command, &terminal) {
        Ok(exit) => exit.into(),
        Err(error) => terminal.fail(&error).into(),
    }
}
