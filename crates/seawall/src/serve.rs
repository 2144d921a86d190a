//! The `serve` door: starts a server from the command line.

use crate::args::ConfigArg;
use crate::exit::Exit;
use crate::setup::{self, Purpose};
use crate::terminal::Terminal;
use seawall_server::{Control, StartUp, open_files};
use std::time::Duration;

const AFTER_HELP: &str = "\
Examples:
  seawall serve
  seawall serve -c prod.toml

`server.listen` is the gateway: http://127.0.0.1:7329/UPSTREAM/PATH. `server.admin` is the dashboard, the \
admin API and /metrics: http://127.0.0.1:7330/. Jobs and [[schedules]] run in this process as well, and are \
kept in `server.store`.

SIGHUP reloads the file; a bad one changes nothing. SIGTERM drains and ends with 0; a second one cuts off \
what is in flight and ends with 130.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    file: ConfigArg,

    /// Threads that serve requests, and as many that work jobs off, four at most [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Longest wait for a complete request head, on a new connection or after an answer; a caller that takes nothing of its answer has ten
    /// times as long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = wait)]
    head_timeout: Duration,

    /// Callers that may be connected at once [default: what the open files that the system allows are enough for, two for each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    connections: Option<u32>,
}

fn wait(text: &str) -> Result<Duration, String> {
    seawall_core::units::duration(text).map(|wait| Duration::from_nanos(wait.0))
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    #[cfg(debug_assertions)]
    {
        setup::failpoint()?;
        setup::clock_step()?;
    }
    open_files::raise_limit();
    open_files::make_room();
    let mut control = Control::listen()?;
    let path = args.file.path.clone();
    let Some((file, vault, live)) = control.load(move || {
        let (file, config) = setup::load(path.as_deref())?;
        let vault = setup::environment(&file);
        let live = setup::live(config, &vault)?;
        Ok((file, vault, live))
    })?
    else {
        return Ok(Exit::Done);
    };
    let connections = args.connections.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    let (threads, head_timeout) = (args.threads, args.head_timeout);
    let Some((running, banner)) = control.start(move || {
        let store = setup::open(&live.config.server.store, &vault, Purpose::Jobs)?;
        let (host, version) = (Box::new(setup::Process), env!("SEAWALL_VERSION"));
        let start_up = StartUp { store, file, around: vault, threads, head_timeout, connections, host, version };
        let running = seawall_server::start(live, start_up, Box::new(std::io::stdout()))?;
        let banner = running.banner();
        Ok((running, banner))
    })?
    else {
        return Ok(Exit::Done);
    };
    let (serving, jobs) = running.threads();
    terminal.detail(&format!("{serving} threads serve, {jobs} work jobs off"));
    let stopped = running.until(control, async {
        terminal.note(&banner);
        std::future::pending().await
    })?;
    Ok(stopped.into())
}
