//! The program: parses the command line and hands over to one door.

mod sim;

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "seawall")]
enum Cli {
    /// Run the real policy code in virtual time
    Sim(sim::Args),
}

fn main() -> anyhow::Result<ExitCode> {
    let Cli::Sim(args) = Cli::parse();
    let exit = sim::run(&args, &mut anstream::stdout(), &mut anstream::stderr())?;
    Ok(match exit {
        sim::Exit::Done => ExitCode::SUCCESS,
        sim::Exit::AssertFailed => ExitCode::from(4),
    })
}
