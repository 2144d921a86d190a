//! The `demo` door: a faulty upstream, the gateway in front of it, and the same traffic through a naive client and
//! through Seawall. Nothing to configure, nothing outside this machine.

mod client;
mod story;
mod tally;
mod view;

use crate::exit::{CommandError, Exit};
use crate::flaky;
use crate::setup::{self, Purpose};
use crate::terminal::Terminal;
use anyhow::Context as _;
use client::DemoClient;
use seawall_core::config;
use seawall_core::rng::Rng;
use seawall_core::time::Nanos;
use seawall_core::units;
use seawall_engine::clock::Clock;
use seawall_server::{Control, ServerState, StartUp};
use std::cell::RefCell;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use story::DemoStory;
use tally::DemoTally;
use tokio::task::LocalSet;
use view::View;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  seawall demo\n  seawall demo --for 20s")]
pub(crate) struct Args {
    /// End by itself after this time, 8s or more; the story is told faster [default: 75 s of story, then calm until Ctrl-C]
    #[arg(long = "for", value_name = "DURATION", value_parser = |text: &str| units::duration(text))]
    length: Option<Nanos>,

    /// Print the summary as one JSON document instead of a table
    #[arg(long)]
    json: bool,

    /// The same seed tells the same story; the machine's own timing is not part of it
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// The default length of the story.
const STORY: Nanos = Nanos::from_secs(75);
/// In a shorter story the acts end before the gateway visibly recovers.
const SHORTEST: Nanos = Nanos::from_secs(8);

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    if args.length.is_some_and(|length| length < SHORTEST) {
        return Err(CommandError::usage(format!("`--for` is too short: the story needs at least {SHORTEST}")).into());
    }
    let story = DemoStory::new(args.length.unwrap_or(STORY));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("cannot listen on a loopback port")?;
    let script = flaky::Script::load("the demo's script", story.script().as_bytes())?;
    let upstream = flaky::start(script, listener, args.seed)?;
    let policy = story.policy(upstream.address);
    let around = setup::environment_with(&story::SECRETS);
    let live = setup::live(config::load("the demo's policy", policy.as_bytes())?, &around)?;
    let log = view::DemoLog::default();
    let folder = setup::Scratch::new("demo")?;
    let store = setup::open("sqlite:seawall.db", &setup::environment(&folder.path().join("seawall.toml")), Purpose::Jobs)?;
    let start_up = StartUp {
        store,
        file: Path::new("demo").to_owned(),
        around,
        threads: Some(1),
        head_timeout: Duration::from_secs(30),
        connections: None,
        host: Box::new(setup::Process),
        version: env!("SEAWALL_VERSION"),
    };
    let control = Control::listen()?;
    let gateway = seawall_server::start(live, start_up, Box::new(log.clone()))?;
    let clock = gateway.shared.clock.clone();
    let naive = DemoClient::naive(upstream.address);
    let seawall = DemoClient::seawall(gateway.gateway);
    let view = View::new(terminal, std::io::stderr().is_terminal(), log);
    view.opening(&policy, gateway.gateway, gateway.admin);
    let endless = args.length.is_none();
    let tallies = (Rc::new(DemoTally::default()), Rc::new(DemoTally::default()));
    let shared = std::sync::Arc::clone(&gateway.shared);
    let telling = run_story(&story, &clock, (&naive, &tallies.0), (&seawall, &tallies.1), args.seed, |now| {
        view.moment(&story, now, &tallies.0, &tallies.1, &shared.live.load(), clock.now());
    });
    let summary = || {
        let requests = upstream.stats()["requests"].as_u64().unwrap_or(0);
        let result = view::Comparison { naive: &tallies.0, seawall: &tallies.1, gateway: shared.recorder.metrics.totals(), requests };
        match args.json {
            true => writeln!(terminal.out(), "{}", view.json(&result)),
            false => view.summary(&result),
        }
    };
    let summed_up = RefCell::new(None);
    let stopped = gateway.until(control, async {
        telling.await;
        counted(&shared, &tallies.1).await;
        *summed_up.borrow_mut() = Some(summary());
        if endless {
            view.endless();
            std::future::pending::<()>().await;
        }
    })?;
    // An interrupted story ends with a summary of what happened so far.
    summed_up.into_inner().unwrap_or_else(summary)?;
    upstream.stop();
    Ok(stopped.into())
}

/// Waits until the log's writer, which counts, has processed every call.
async fn counted(shared: &ServerState, tally: &DemoTally) {
    let give_up = shared.clock.now().mono + Nanos::from_secs(2);
    while shared.recorder.metrics.totals().calls < tally.begun.get() && shared.clock.now().mono < give_up {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Sends the same requests at the same times both ways, until the story is over and every call has ended.
async fn run_story(
    story: &DemoStory,
    clock: &Clock,
    naive: (&DemoClient, &Rc<DemoTally>),
    seawall: (&DemoClient, &Rc<DemoTally>),
    seed: u64,
    mut moment: impl FnMut(Nanos),
) {
    let mut rng = Rng::seeded(seed);
    let calls = LocalSet::new();
    let start = clock.now().mono;
    let told = async {
        let mut next = start;
        let mut shown = Nanos::ZERO;
        loop {
            let now = clock.now().mono;
            let at = now.since(start);
            if at >= story.length {
                break;
            }
            if at >= shown {
                moment(at);
                shown = shown + view::EVERY;
            }
            if now >= next {
                let video = rng.up_to(9999);
                naive.0.spawn(video, Rc::clone(naive.1), clock);
                seawall.0.spawn(video, Rc::clone(seawall.1), clock);
                next = next + Nanos::from_secs_f64(rng.exponential(1.0 / story.rate));
            }
            clock.sleep_until(next.min(start + shown)).await;
        }
    };
    calls.run_until(told).await;
    // Each call ends by its own timeout.
    calls.await;
    moment(story.length);
}
