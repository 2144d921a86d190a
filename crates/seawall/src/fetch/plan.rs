//! Builds a run from the command line: configuration, store, journal, input and output, in the order in which each may refuse.

use super::Args;
use super::claim::{Claims, underway};
use super::earlier_runs::{Again, Earlier};
use super::edited_list::Edited;
use super::input::{Ahead, Format, InputReader, check_header};
use super::journal::{Journal, JournalEntry, Underway};
use super::lanes::Lanes;
use super::lines::LineReader;
use super::name_filter::NameFilter;
use super::output::{FinishedRow, Output, Sink, Unjournaled, unavailable};
use super::quarantine::Quarantine;
use super::repair::rewrite;
use super::response_check::BodyRequest;
use super::route::Routes;
use super::tally::RunTally;
use super::template::Template;
use super::worker::{FetchState, MAX_UNWRITTEN};
use crate::exit::{CommandError, Exit};
use crate::setup::{self, Purpose};
use anyhow::Context as _;
use http::HeaderValue;
use seawall_core::admit::limit::Gcra;
use seawall_core::config::Config;
use seawall_core::discretion::is_secret;
use seawall_core::policy::{self, Algorithm, Fail, Mode, Rate};
use seawall_core::rng::Rng;
use seawall_core::time::Wall;
use seawall_engine::ad_hoc::AdHoc;
use seawall_engine::clock::Clock;
use seawall_engine::deadlines::Deadlines;
use seawall_engine::recorder::Recorder;
use seawall_engine::schema::Schema;
use seawall_engine::sender::Sending;
use seawall_http::connect::Connector;
use seawall_http::connection_pool::ConnectionPool;
use seawall_http::egress::Reach;
use seawall_server::configuration::Environment;
use seawall_store::Store;
use seawall_store::journal::{Durability, RunId};
use sha2::{Digest as _, Sha256};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{Notify, Semaphore, mpsc};

/// The policy for hosts without configuration: patient, but quick to retry, because most failures of a large batch are brief. If a host
/// keeps failing, its breaker stays open longer each time.
const HOSTS: &str = r#"preset = "generic"
profile = "fetcher"
retry = { attempts = 8, backoff = "full-jitter", base = "200ms", cap = "60s" }
breaker = { per = "upstream", consecutive = 20, open = "5s", open_max = "60s", probes = 2, successes = 1 }
"#;

/// The parts of a run.
pub(super) struct FetchPlan {
    pub reader: InputReader,
    pub output: Output,
    pub recorder: Arc<Recorder>,
    /// Bytes of the input, if known.
    pub size: Option<u64>,
    pub store: Store,
    /// Creates the sending side from the channel for results.
    pub work: Box<dyn FnOnce(mpsc::Sender<FinishedRow>) -> FetchState>,
}

impl std::fmt::Debug for FetchPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Plan")
    }
}

impl FetchPlan {
    pub(super) fn new(args: &Args) -> anyhow::Result<Self> {
        let found = match &args.upstream {
            Some(_) => Some(setup::load(args.file.path.as_deref())?),
            None => setup::load_if_any(args.file.path.as_deref())?,
        };
        let (around, config) = match found {
            Some((path, config)) => (setup::environment(&path), Some(config)),
            None => (setup::environment(Path::new("")), None),
        };
        let routes = Routes::new(config.as_ref(), args.upstream.as_deref()).map_err(CommandError::usage)?;
        let place = args.store.clone().or_else(|| config.as_ref().map(|config| config.server.store.clone()));
        let place = place.unwrap_or_else(|| "sqlite:seawall.db".to_owned());
        let reader_parts = (lines(args)?, template(args)?, headers(args)?);
        let wanted = wanted(args)?;
        let store = setup::open(&place, &around, Purpose::Journal)?;
        let run = run(args);
        let name = name(&run);
        let clock = Clock::start();
        let runtime = super::runtime()?;
        runtime.block_on(store.remember_little()).map_err(unavailable)?;
        let claims = runtime.block_on(Claims::take(&store, args, run))?;
        let (journal, earlier, kept) = runtime.block_on(journal(store.clone(), run, args, clock.now().wall))?;
        let ((lines, size, ahead), template, headers) = reader_parts;
        let csv = is_csv(args);
        let names = args.output_dir.is_some().then(NameFilter::default);
        let mut reader = InputReader { lines, csv, template, routes, headers, earlier, ahead, columns: None, names };
        let edited = runtime.block_on(edited(args, &mut reader, kept))?;
        let output = runtime.block_on(output(args, (journal, kept), &mut reader.earlier, edited, claims, clock.clone()))?;
        let recorder = Arc::new(if args.log.is_some() { Recorder::default() } else { Recorder::silent() });
        let work = work(args, config, &around, wanted, name, Arc::clone(&recorder), clock)?;
        Ok(Self { reader, output, recorder, size, store, work })
    }
}

type Opened = (LineReader, Option<u64>, Arc<Ahead>);

fn lines(args: &Args) -> anyhow::Result<Opened> {
    let ahead = Arc::new(Ahead::default());
    let lines = LineReader::open(&args.input, Arc::clone(&ahead.bytes))?;
    let size = std::fs::metadata(&args.input).ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
    Ok((lines, size, ahead))
}

fn is_csv(args: &Args) -> bool {
    let name = args.input.to_string_lossy().to_ascii_lowercase();
    let bare = name.strip_suffix(".gz").unwrap_or(&name);
    match args.format {
        Format::Csv => true,
        Format::Urls | Format::Ndjson => false,
        Format::Auto => {
            bare.ends_with(".csv") || bare.ends_with(".tsv") || (args.url.is_some() && !bare.ends_with("json") && !bare.ends_with("jsonl"))
        }
    }
}

fn template(args: &Args) -> anyhow::Result<Option<Template>> {
    let template = args.url.as_deref().map(Template::parse).transpose();
    Ok(template.map_err(|why| CommandError::usage(format!("--url: {why}")))?)
}

fn headers(args: &Args) -> anyhow::Result<Vec<(String, String)>> {
    let pair = |text: &String| {
        let (name, value) = text.split_once(':').ok_or_else(|| CommandError::usage("a header is written as `NAME: VALUE`"))?;
        let (name, value) = (name.trim().to_owned(), value.trim().to_owned());
        check_header(&name, &value).map_err(CommandError::usage)?;
        Ok((name, value))
    };
    args.headers.iter().map(pair).collect::<Result<_, CommandError>>().map_err(Into::into)
}

fn wanted(args: &Args) -> anyhow::Result<BodyRequest> {
    let schema = match &args.schema {
        None => None,
        Some(path) => {
            let text = setup::script(path)?;
            let unusable = |why: String| CommandError::config(format!("the schema `{}` cannot be used: {why}", path.display()));
            Some(Schema::parse(&text, args.max_body).map_err(unusable)?)
        }
    };
    let parsed = args.items.is_some() || args.pages.is_some();
    Ok(BodyRequest { most: usize::try_from(args.max_body).unwrap_or(usize::MAX), schema, items: args.items.clone(), parsed })
}

/// The id of this run: the same command gives the same run.
fn run(args: &Args) -> RunId {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned();
    let parts = [
        if args.input == Path::new("-") { "-".to_owned() } else { absolute(&args.input) },
        args.output.as_deref().map(absolute).unwrap_or_default(),
        args.output_dir.as_deref().map(absolute).unwrap_or_default(),
        args.upstream.clone().unwrap_or_default(),
        args.url.clone().unwrap_or_default(),
        args.pages.as_ref().map(|pages| format!("{pages:?}")).unwrap_or_default(),
        args.items.clone().unwrap_or_default(),
    ];
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.len().to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}

/// The run's name for people.
pub(super) fn name(run: &RunId) -> String {
    run[..6].iter().fold(String::new(), |mut text, byte| {
        let _: std::fmt::Result = write!(text, "{byte:02x}");
        text
    })
}

/// Whether the run has no path of its own, so that only the command line identifies it.
pub(super) fn in_a_pipe(args: &Args) -> bool {
    args.input == Path::new("-") && args.output.is_none() && args.output_dir.is_none()
}

async fn journal(store: Store, run: RunId, args: &Args, now: Wall) -> anyhow::Result<(Journal, Earlier, Option<u64>)> {
    let again = match (args.resume, args.retry_dead) {
        (_, true) => Again::Dead,
        (true, false) => Again::Unfinished,
        (false, false) => Again::Everything,
    };
    if in_a_pipe(args) && again == Again::Everything {
        // Concurrent pipes are different runs, and none of them can be continued.
        return Ok((Journal::none(store), Earlier::new(again, None), None));
    }
    let length = args.output.as_deref().map(|path| match std::fs::metadata(path) {
        Ok(found) => found.is_file().then_some(found.len()),
        Err(_) => Some(0),
    });
    let opened = Journal::open(store, run, again, length.flatten(), now).await.map_err(unavailable)?;
    opened.map_err(|Underway| CommandError { exit: Exit::Failed, message: underway(), hint: None }.into())
}

/// Compares the list with that of an earlier run, if ids or files identify its results.
async fn edited(args: &Args, reader: &mut InputReader, kept: Option<u64>) -> anyhow::Result<Option<Edited>> {
    let continues = args.resume || args.retry_dead;
    let tells = args.output_dir.is_some() || (kept.is_some() && !args.body_only);
    if !continues || !(tells || reader.earlier.has_remainders()) {
        return Ok(None);
    }
    if !std::fs::metadata(&args.input).is_ok_and(|found| found.is_file()) {
        reader.earlier.refuses_changes = tells;
        return Ok(None);
    }
    // Taken out, because `find` also borrows the reader.
    let mut earlier = std::mem::replace(&mut reader.earlier, Earlier::new(Again::Everything, None));
    let edited = Edited::find(&mut earlier, reader, tells).await;
    reader.earlier = earlier;
    let edited = edited?;
    if args.output_dir.is_some() && edited.as_ref().is_some_and(Edited::has_moved_unnamed) {
        let failure = CommandError::usage("rows without an id changed their lines, and their files are called by them");
        return Err(failure.hint("give the rows ids, or begin anew with `--overwrite`").into());
    }
    Ok(edited)
}

async fn output(
    args: &Args,
    (mut journal, kept): (Journal, Option<u64>),
    earlier: &mut Earlier,
    edited: Option<Edited>,
    mut claims: Claims,
    clock: Clock,
) -> anyhow::Result<Output> {
    let (mut sink, mut length) = (Sink::Stdout, 0);
    let continues = args.resume || args.retry_dead;
    if let (true, None, Some(path)) = (continues, kept, &args.output)
        && std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0)
    {
        let failure = CommandError::usage(format!("`{}` is not empty, and no journal says what is in it", path.display()));
        return Err(failure.hint("move it away, or begin anew with `--overwrite`").into());
    }
    if continues && journal.is_empty() {
        claims.refuse_unknown()?;
    }
    claims.begin(clock.now().wall).await.map_err(unavailable)?;
    if let Some(path) = &args.output {
        let unwritable = || format!("cannot write `{}`", path.display());
        let mut file = File::options().create(true).truncate(!continues).write(true).open(path).with_context(unwritable)?;
        if let (true, Some(kept)) = (continues && file.metadata().is_ok_and(|metadata| metadata.is_file()), kept) {
            length = kept.min(file.metadata().with_context(unwritable)?.len());
            file.set_len(length).with_context(unwritable)?;
            if !args.body_only && (earlier.has_dead() || edited.is_some()) {
                length = mended(path, length, edited.as_ref(), earlier, &mut journal, &clock).await.with_context(unwritable)?;
                file = File::options().write(true).open(path).with_context(unwritable)?;
            }
            file.seek(SeekFrom::Start(length)).with_context(unwritable)?;
        }
        sink = Sink::File(file);
        // From here on the journal says which part of the output counts, whatever is written.
        let entry = JournalEntry { output: Some(length), changed: earlier.is_changed(), ..JournalEntry::default() };
        journal.append(&entry, Vec::new(), Vec::new(), Durability::FromPowerCuts, clock.now().wall).await.map_err(unavailable)?;
    }
    if let Some(folder) = &args.output_dir {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder `{}`", folder.display()))?;
    }
    let quarantine = Quarantine::new(claims.quarantine().to_owned()).context("cannot write the quarantine file")?;
    Ok(Output {
        sink,
        length,
        folder: args.output_dir.clone(),
        body_only: args.body_only,
        quarantine,
        journal,
        claims,
        finished: Arc::default(),
        changed: earlier.changed(),
        clock,
        unjournaled: Unjournaled::default(),
    })
}

/// Rewrites the output without outdated lines, and gives the others their new ids. Returns its length.
async fn mended(
    path: &Path,
    before: u64,
    edited: Option<&Edited>,
    earlier: &mut Earlier,
    journal: &mut Journal,
    clock: &Clock,
) -> anyhow::Result<u64> {
    let mended = rewrite(path, earlier.has_dead(), edited)?;
    if !mended.without_dead && !mended.relined {
        return Ok(before);
    }
    let (length, relined) = (mended.length, edited.filter(|_| mended.relined));
    let rows = relined
        .map_or_else(|| JournalEntry { changed: earlier.is_changed(), ..JournalEntry::default() }, |edited| edited.entry(mended.loose));
    let entry = JournalEntry { output: Some(length), replaces: Some(before), ..rows };
    journal.append(&entry, Vec::new(), Vec::new(), Durability::FromPowerCuts, clock.now().wall).await.map_err(unavailable)?;
    if relined.is_some() {
        earlier.add(&entry);
    }
    mended.replace()?;
    Ok(length)
}

/// The quarantine file that the command names, or the default beside its output.
pub(super) fn quarantine(args: &Args) -> Option<PathBuf> {
    match (&args.quarantine, &args.output, &args.output_dir) {
        (Some(path), ..) => Some(path.clone()),
        (None, Some(output), _) => {
            let mut name = output.clone().into_os_string();
            name.push(".quarantine.ndjson");
            Some(PathBuf::from(name))
        }
        (None, None, Some(folder)) => Some(folder.join("quarantine.ndjson")),
        (None, None, None) => None,
    }
}

/// The rate as a limit with a tenth of a second of burst, so that timers need not be exact.
fn pace(rate: Rate) -> Gcra {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive count")]
    let burst = (rate.per_second_f64() / 10.0) as u64;
    let (algorithm, mode, fail) = (Algorithm::TokenBucket, Mode::Enforce, Fail::Open);
    let (name, key, max_wait) = ("rate".to_owned(), Vec::new(), seawall_core::time::Nanos::ZERO);
    Gcra::from(&policy::LimitPolicy { name, key, rate, burst: burst.max(1), algorithm, mode, fail, max_wait })
}

fn work(
    args: &Args,
    config: Option<Config>,
    around: &Environment,
    wanted: BodyRequest,
    name: String,
    recorder: Arc<Recorder>,
    clock: Clock,
) -> anyhow::Result<Box<dyn FnOnce(mpsc::Sender<FinishedRow>) -> FetchState>> {
    // Without a configuration, the user's URLs may reach all that this machine may; with one, its operator decides.
    let reach = config.as_ref().map(|config| Reach::new(config.server.allow_private.clone()));
    let live = config
        .map(|mut config| {
            config.uncalled();
            setup::live(config, around)
        })
        .transpose()?;
    let pages = args.pages.clone();
    let lanes = Lanes::new(usize::from(args.concurrency), args.rate.map(pace), args.ordered, args.max_outage);
    let fail_fast_auth = args.fail_fast_auth;
    Ok(Box::new(move |to| {
        let connector = Connector::new();
        let outside = reach.map_or_else(|| connector.clone(), |reach| connector.restricted_to(reach));
        FetchState {
            deadlines: Deadlines::default(),
            rng: RefCell::new(Rng::seeded(seawall_engine::entropy())),
            recorder,
            live,
            adhoc: AdHoc::new(HOSTS),
            sending: Sending { clock: clock.clone(), pool: ConnectionPool::default(), connector },
            outside: Sending { clock: clock.clone(), pool: ConnectionPool::default(), connector: outside },
            wanted,
            pages,
            fail_fast_auth,
            name,
            caller: Arc::from("fetch"),
            agent: HeaderValue::from_static(concat!("seawall/", env!("CARGO_PKG_VERSION"))),
            lanes: RefCell::new(lanes),
            tally: RefCell::new(RunTally::new(clock.now().mono)),
            to,
            unwritten: Arc::new(Semaphore::new(MAX_UNWRITTEN)),
            held: RefCell::default(),
            stop: RefCell::default(),
            rows: Notify::new(),
            timer: Notify::new(),
            hungry: Notify::new(),
            clock,
        }
    }))
}

/// The command that fetches every unfinished row, without this command's secrets.
pub(super) fn resume_command() -> String {
    again_command().replace(" --retry-dead", " --resume")
}

/// The command that continues this run, without its secrets.
pub(super) fn again_command() -> String {
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&byte));
    let mut words = Vec::new();
    for argument in setup::command_line() {
        let secret = argument.split_once(':').filter(|(name, _)| is_secret(name.trim_start_matches("--header=").trim()));
        let argument = secret.map_or_else(|| argument.clone(), |(name, _)| format!("{name}: …"));
        words.push(if plain(&argument) { argument } else { format!("'{}'", argument.replace('\'', "'\\''")) });
    }
    if !words.iter().any(|word| word == "--resume" || word == "--retry-dead") {
        words.push("--resume".to_owned());
    }
    words.join(" ")
}
