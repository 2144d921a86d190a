//! The `fetch` door: one request for each line of a list, one result for each request. Three threads: one reads, one sends, one writes.

mod call_result;
mod claim;
mod dead_letter;
mod destination;
mod earlier_runs;
mod edited_list;
mod input;
mod journal;
mod lanes;
mod lines;
mod name_filter;
mod output;
mod pages;
mod plan;
mod progress;
mod quarantine;
mod remainder;
mod repair;
mod report;
mod response_check;
mod route;
mod row;
mod spill;
mod tally;
mod template;
mod worker;

use crate::args::ConfigArg;
use crate::exit::{CommandError, Exit};
use crate::terminal::Terminal;
use anyhow::Context as _;
use input::Format;
use output::Output;
use pages::Pages;
use plan::FetchPlan;
use progress::ProgressDisplay;
use seawall_core::policy::Rate;
use seawall_core::time::Nanos;
use seawall_core::units;
use seawall_engine::recorder::Recorder;
use seawall_server::open_files;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use worker::{FetchState, FetchStop};

/// The batches of rows that are read ahead.
const READ_AHEAD: usize = 4;
/// The most results that wait to be written.
const UNWRITTEN: usize = 1024;

const AFTER_HELP: &str = "\
Examples:
  seawall fetch urls.txt -o out.ndjson
  seawall fetch urls.txt -o out.ndjson --resume
  seawall fetch ids.csv --url 'https://api.example.com/items/{id}' -o out.ndjson
  echo /items | seawall fetch -c seawall.toml --upstream api --pages link --items /data
  echo /items | seawall fetch -c seawall.toml --upstream api --pages next:/data/-/id,starting_after --items /data

An output that has not finished is only replaced with --overwrite; --resume continues it.

Without a configuration file each host gets a breaker, a budget and retries of its own; with one, URLs of its upstreams get
their policy and keys.

Exit codes: 0 done, 3 some rows ended as dead letters, 5 stopped by an authentication failure, 11 store unavailable, 130 interrupted";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    file: ConfigArg,

    /// What to fetch: URLs, NDJSON or CSV, also gzip; `-` is stdin
    #[arg(value_name = "INPUT", default_value = "-")]
    input: PathBuf,

    /// Where results go [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// The upstream that lines without a host belong to
    #[arg(long, value_name = "NAME")]
    upstream: Option<String>,

    /// How the input is written
    #[arg(long, value_enum, default_value = "auto")]
    format: Format,

    /// A URL in which each row fills in `{column}`
    #[arg(long, value_name = "TEMPLATE")]
    url: Option<String>,

    /// A header for every request
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// Requests in flight at a time
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..=4096))]
    concurrency: u16,

    /// Requests in all, such as 50/s
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<Rate>,

    /// Do only what has no success yet
    #[arg(long)]
    resume: bool,

    /// Replace an output that another run, or none, has left unfinished
    #[arg(long, conflicts_with_all = ["resume", "retry_dead"])]
    overwrite: bool,

    /// Do only what ended as dead letters
    #[arg(long, conflicts_with = "resume")]
    retry_dead: bool,

    /// Results in the order of the input
    #[arg(long)]
    ordered: bool,

    /// Stop when an upstream does not accept who we are
    #[arg(long, value_name = "BOOL", default_value = "true", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    fail_fast_auth: bool,

    /// JSON Schema of good answers; rows that do not fit go into quarantine
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,

    /// Where rows go that are at fault themselves [default: beside the output]
    #[arg(long, value_name = "FILE")]
    quarantine: Option<PathBuf>,

    /// Follow pages: link | next:/json/pointer or next:/json/pointer,PARAM (`-` is the last item of a list) | page:PARAM=1 | offset:PARAM,SIZE
    #[arg(long, value_name = "HOW", conflicts_with = "ordered")]
    pages: Option<Pages>,

    /// A result for each item of the list at this place in the answer
    #[arg(long, value_name = "POINTER")]
    items: Option<String>,

    /// One file for each record
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,

    /// Bodies without anything around them
    #[arg(long)]
    body_only: bool,

    /// Longer bodies are not taken
    #[arg(long, value_name = "SIZE", default_value = "10MiB", value_parser = units::size)]
    max_body: u64,

    /// A host that has been away for longer is given up
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = units::duration)]
    max_outage: Nanos,

    /// Where dead letters and the journal are kept [default: the configuration's, or sqlite:seawall.db]
    #[arg(long, value_name = "STORE")]
    store: Option<String>,

    /// A line for each attempt
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// A page that shows how it went
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

fn rate(text: &str) -> Result<Rate, String> {
    units::rate(text).and_then(|rate| if rate.count > 0 { Ok(rate) } else { Err("a rate of nothing fetches nothing".to_owned()) })
}

pub(crate) fn run(args: &Args, terminal: &Terminal) -> anyhow::Result<Exit> {
    open_files::raise_limit();
    open_files::make_room();
    let plan = FetchPlan::new(args)?;
    let (ahead, size) = (Arc::clone(&plan.reader.ahead), plan.size);
    let (rows, to_send) = mpsc::channel(READ_AHEAD);
    let (results, to_write) = mpsc::channel(UNWRITTEN);
    let (reader, output) = (plan.reader, plan.output);
    let finished = Arc::clone(&output.finished);
    let reading = spawn("reader", move || reader.run(&rows))?;
    let writing = spawn("writer", move || write(output, to_write))?;
    let logging = args.log.as_deref().map(|path| log(path, Arc::clone(&plan.recorder))).transpose()?;
    let work = Rc::new((plan.work)(results));
    let progress = ProgressDisplay::new(Arc::clone(&ahead), size, terminal.is_quiet());
    send(&work, to_send, usize::from(args.concurrency), &progress, terminal)?;
    progress.clear();
    let mut work = Rc::try_unwrap(work).map_err(|_| anyhow::anyhow!("a worker outlived the run"))?;
    finished.store(ahead.is_finished() && !work.lanes.borrow().stopping, Ordering::Relaxed);
    // Dropping the channel ends the writer, and makes the relaxed store above visible to it.
    let (nobody, _) = mpsc::channel(1);
    drop(std::mem::replace(&mut work.to, nobody));
    let quarantine = writing.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    // The store's log keeps what it cannot merge now; the next run finds it there.
    drop(runtime()?.block_on(plan.store.close()));
    if let Some(logging) = logging {
        work.recorder.stop();
        logging.join().map_err(|_| anyhow::anyhow!("the log's writer panicked"))?;
    }
    if ahead.over.load(Ordering::Relaxed) || !work.lanes.borrow().stopping {
        reading.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
    }
    if let Some(path) = &args.report {
        let now = work.clock.now();
        let page = report::html(&work.tally.borrow(), &work.name, now.mono, now.wall);
        std::fs::write(path, page).with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    let in_quarantine = (quarantine.rows > 0).then_some(quarantine.path.as_path());
    if !terminal.is_quiet() {
        progress::summary(&work, &ahead, in_quarantine, terminal)?;
    }
    ending(&work, terminal)
}

fn log(path: &Path, recorder: Arc<Recorder>) -> anyhow::Result<thread::JoinHandle<()>> {
    let file = std::fs::File::create(path).with_context(|| format!("cannot write `{}`", path.display()))?;
    spawn("log", move || recorder.write_to(Box::new(file), true, |_| {}))
}

fn write(output: Output, from: mpsc::Receiver<output::FinishedRow>) -> anyhow::Result<quarantine::Quarantine> {
    runtime()?.block_on(output.run(from))
}

/// A runtime for one thread.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")
}

/// The sending thread: as many slots as requested, and the tasks that feed, wake and watch them.
fn send(
    work: &Rc<FetchState>,
    rows: mpsc::Receiver<Vec<input::Read>>,
    slots: usize,
    progress: &ProgressDisplay,
    terminal: &Terminal,
) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let mut workers = Vec::with_capacity(slots + 2);
        for _ in 0..slots {
            let work = Rc::clone(work);
            workers.push(tokio::task::spawn_local(async move { work.slot().await }));
        }
        let (feeder, watcher) = (Rc::clone(work), Rc::clone(work));
        let feeding = tokio::task::spawn_local(async move { feeder.feed(rows).await });
        let watching = tokio::task::spawn_local(async move { watcher.watch().await });
        let all = async {
            for worker in workers {
                drop(worker.await);
            }
        };
        tokio::pin!(all);
        let mut asked = false;
        loop {
            tokio::select! {
                () = &mut all => break,
                () = progress.show(work, terminal) => {}
                result = interrupted() => {
                    result?;
                    if asked {
                        return Err(CommandError { exit: Exit::Interrupted, message: "interrupted twice".to_owned(), hint: None }.into());
                    }
                    asked = true;
                    terminal.note("finishing what is in flight; once more to end at once");
                    work.halt(FetchStop::Interrupted);
                }
            }
        }
        feeding.abort();
        watching.abort();
        drop((feeding.await, watching.await));
        Ok(())
    })
}

async fn interrupted() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen to signals")?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result.context("cannot listen to signals"),
        _ = terminate.recv() => Ok(()),
    }
}

fn ending(work: &FetchState, terminal: &Terminal) -> anyhow::Result<Exit> {
    let again = || format!("go on with `{}`", plan::again_command());
    match work.stop.borrow().clone() {
        Some(FetchStop::Interrupted) => {
            terminal.note(&again());
            Ok(Exit::Interrupted)
        }
        Some(FetchStop::Unauthorized(who)) => {
            let failure = CommandError { exit: Exit::Unauthorized, message: format!("stopped: {who}"), hint: Some(again()) };
            Err(failure.into())
        }
        Some(FetchStop::Failed(why)) => Err(anyhow::anyhow!(why)),
        Some(FetchStop::NoOutput) => Ok(Exit::Failed),
        None if work.tally.borrow().all.dead > 0 => Ok(Exit::DeadLetters),
        None => Ok(Exit::Done),
    }
}

fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<thread::JoinHandle<T>> {
    thread::Builder::new().name(name.to_owned()).spawn(body).context("cannot start a thread")
}
