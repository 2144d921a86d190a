//! The composition root, and the only reader of the environment: finds the configuration file and the files it refers to.

use crate::exit::{CommandError, Exit};
use crate::terminal::Terminal;
use anyhow::Context as _;
use seawall_core::config::Config;
use seawall_core::config::place::SecretRef;
use seawall_engine::entropy;
use seawall_engine::runtime::{Around, Live, UnusableConfig};
use seawall_engine::secret::Secret;
use seawall_server::Host;
use seawall_server::configuration::{self, Environment, activate, shown_store};
use seawall_store::Store;
use seawall_store::location::Location;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Returns the given file, or the first of the usual places that exists.
pub(crate) fn config_path(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    let home = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".config")));
    let mut places = vec![PathBuf::from("seawall.toml")];
    places.extend(home.map(|home| home.join("seawall/seawall.toml")));
    places.push(PathBuf::from("/etc/seawall/seawall.toml"));
    if let Some(found) = places.iter().find(|place| place.is_file()) {
        return Ok(found.clone());
    }
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Err(CommandError::config(format!("there is no configuration file; looked for {}", looked.join(", ")))
        .hint("write one with `seawall config init`, or name one with `-c FILE`")
        .into())
}

/// As `load`, but `None` if no file is given and none is in the usual places.
pub(crate) fn load_if_any(given: Option<&Path>) -> anyhow::Result<Option<(PathBuf, Config)>> {
    if given.is_none() && config_path(None).is_err() {
        return Ok(None);
    }
    load(given).map(Some)
}

/// Reads and checks the configuration.
pub(crate) fn load(given: Option<&Path>) -> anyhow::Result<(PathBuf, Config)> {
    let path = config_path(given)?;
    let config = configuration::load(&path)?;
    Ok((path, config))
}

/// The environment of a configuration file: this process's variables, and the files beside it.
pub(crate) fn environment(file: &Path) -> Environment {
    Environment::new(file, |name| env::var(name).ok())
}

/// An environment whose given variables override the process's own.
pub(crate) fn environment_with(given: &'static [(&'static str, &'static str)]) -> Environment {
    let given = |name: &str| given.iter().find(|(given, _)| *given == name).map(|(_, value)| (*value).to_owned());
    Environment::new(Path::new(""), move |name| given(name).or_else(|| env::var(name).ok()))
}

/// Reads the script of a faulty upstream.
pub(crate) fn script(path: &Path) -> anyhow::Result<Vec<u8>> {
    Ok(configuration::read(path)?)
}

/// Arms the failpoint that a test requests, as `SEAWALL_FAILPOINT=name:kill|err|pause`. A release build has none.
#[cfg(debug_assertions)]
pub(crate) fn failpoint() -> anyhow::Result<()> {
    use seawall_store::failpoint::{NAMES, Trouble, arm};
    let Ok(text) = env::var("SEAWALL_FAILPOINT") else { return Ok(()) };
    let armed = text.split_once(':').and_then(|(name, trouble)| Some((name, Trouble::parse(trouble)?)));
    match armed.filter(|(name, _)| NAMES.contains(name)) {
        Some((name, trouble)) => arm(name, trouble),
        None => {
            return Err(CommandError::usage(format!("SEAWALL_FAILPOINT is NAME:kill|err|pause with one of {}", NAMES.join(", "))).into());
        }
    }
    Ok(())
}

/// Lets a test set the machine's clock, as `SEAWALL_CLOCK_STEP=BY_MS:AFTER_MS`. A release build has only one clock.
#[cfg(debug_assertions)]
pub(crate) fn clock_step() -> anyhow::Result<()> {
    let Ok(text) = env::var("SEAWALL_CLOCK_STEP") else { return Ok(()) };
    match text.split_once(':').map(|(by, after)| (by.parse(), after.parse())) {
        Some((Ok(by), Ok(after))) => seawall_engine::clock::step(by, after),
        _ => return Err(CommandError::usage("SEAWALL_CLOCK_STEP is BY_MS:AFTER_MS".to_owned()).into()),
    }
    Ok(())
}

/// A temporary folder, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> anyhow::Result<Self> {
        let path = env::temp_dir().join(format!("seawall-{name}-{}-{:x}", std::process::id(), entropy()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make the folder `{}`", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If removal fails, the operating system cleans up.
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Resolves the secrets of a configuration. The error names all that are missing.
pub(crate) fn live(config: Config, vault: &Environment) -> anyhow::Result<Live> {
    let missing: Vec<String> = config.secrets().into_iter().filter_map(|(path, secret)| vault.missing(path, &secret)).collect();
    if !missing.is_empty() {
        return Err(CommandError::config(missing.join("\n")).hint(SET_IT).into());
    }
    activate(config, vault, None).map_err(|unusable| refusal(&unusable))
}

fn refusal(unusable: &UnusableConfig) -> anyhow::Error {
    let hint = match unusable {
        UnusableConfig::Secret(_) => SET_IT,
        UnusableConfig::Schema { .. } => "paths are relative to the configuration file",
        UnusableConfig::Tls(_) => "both are PEM; paths are relative to the configuration file",
        UnusableConfig::Shared(_) => "write it as redis://HOST:PORT/DB, or rediss:// for TLS",
    };
    CommandError::config(unusable.to_string()).hint(hint).into()
}

const SET_IT: &str = "set it and start again; paths are relative to the configuration file";

/// Refuses a configuration with unusable references, as `serve` does.
pub(crate) fn references(config: &Config, around: &Environment) -> anyhow::Result<()> {
    live(config.clone(), around)?;
    location(&config.server.store, around).map(drop)
}

/// As `references`, on a machine without all of the server's secrets and files: absent ones are skipped, and a warning names each. Present
/// ones are checked as `serve` would.
pub(crate) fn references_that_exist(config: &Config, around: &Environment) -> anyhow::Result<()> {
    let mut config = config.clone();
    let is_absent = |place: &str| SecretRef::parse(place).is_some_and(|reference| around.is_absent(&reference));
    let server = &mut config.server;
    server.tls = server.tls.take().filter(|tls| !around.is_absent(&tls.key) && around.path(Path::new(&tls.cert)).exists());
    if is_absent(&server.shared) {
        "local".clone_into(&mut server.shared);
    }
    for upstream in &mut config.upstreams {
        for endpoint in &mut Arc::make_mut(upstream).endpoints {
            if endpoint.policy.schema.as_ref().is_some_and(|file| !around.path(Path::new(file)).exists()) {
                Arc::make_mut(endpoint).policy.schema = None;
            }
        }
    }
    let vault = |reference: &SecretRef| if around.is_absent(reference) { Ok(Secret::new("absent")) } else { around.fetch(reference) };
    Live::new(config.clone(), Around { vault: &vault, files: &|path| around.read(path) }, None).map_err(|unusable| refusal(&unusable))?;
    if is_absent(&config.server.store) { Ok(()) } else { location(&config.server.store, around).map(drop) }
}

/// The use of a store, which decides how it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Jobs are written all the time, and their callers wait for the disk.
    Jobs,
    /// The journal of a `fetch` run is written now and then.
    Journal,
}

/// Opens the store that the configuration names; a relative path starts at the configuration's folder.
pub(crate) fn open(place: &str, around: &Environment, purpose: Purpose) -> anyhow::Result<Store> {
    let location = location(place, around)?;
    let shown = shown_store(place);
    let opened = on_a_thread_of_its_own(location, purpose)?;
    let store = opened.map_err(|error| CommandError::store(format!("cannot open the store {shown}: {error}")))?;
    if purpose == Purpose::Jobs {
        let is_ours = store.claim_serving().map_err(|error| CommandError::store(format!("cannot open the store {shown}: {error}")))?;
        if !is_ours {
            let why = "another `seawall serve` runs its jobs; end that one, or set `server.store` to another file or to PostgreSQL";
            return Err(CommandError::store(format!("cannot use the store {shown}: {why}")).into());
        }
    }
    if store.lost_its_log() {
        let why = "was in use when it was copied or left, and its log is not beside it: what was written last may be missing";
        Terminal::plain().note(&format!("warning: {shown} {why}; see `seawall store --help`"));
    }
    Ok(store)
}

/// The location of the configured store.
fn location(place: &str, around: &Environment) -> anyhow::Result<Location> {
    let url = around.resolve(place).map_err(|why| CommandError::config(format!("`server.store`: {why}")))?;
    Ok(match Location::parse(&url).map_err(|unknown| CommandError::config(format!("`server.store`: {unknown}")))? {
        Location::Sqlite(path) => Location::Sqlite(around.path(&path)),
        Location::Postgres(url) => Location::Postgres(url),
    })
}

/// The file of the configured store, if it is a file.
pub(crate) fn database_file(place: &str, around: &Environment) -> anyhow::Result<PathBuf> {
    match location(place, around)? {
        Location::Sqlite(path) => Ok(path),
        Location::Postgres(_) => {
            Err(CommandError::usage("the store is PostgreSQL, which has tools of its own").hint("back it up with pg_dump").into())
        }
    }
}

/// Opens a store on its own thread, because a server's store must serve its connections as long as the process lives.
fn on_a_thread_of_its_own(location: Location, purpose: Purpose) -> anyhow::Result<Result<Store, seawall_store::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let (sender, opened) = std::sync::mpsc::channel();
    let serve = move || {
        runtime.block_on(async move {
            let store = Store::open(&location).await;
            let stays = store.is_ok() && matches!(location, Location::Postgres(_));
            // The receiver waits below, so this cannot fail.
            drop(sender.send(store.clone()));
            if let (Ok(store), Purpose::Jobs) = (store, purpose) {
                // Without preallocation, jobs take longer for a while.
                drop(store.make_room().await);
            }
            if stays {
                std::future::pending::<()>().await;
            }
        });
    };
    std::thread::Builder::new().name("store".to_owned()).spawn(serve).context("cannot start a thread")?;
    opened.recv().context("the store's thread ended before it was open")
}

/// The most bytes of a body for a dry run. Rules use only 64 KiB.
const MAX_BODY: u64 = 1 << 20;

/// Reads a request or response body for a dry run.
pub(crate) fn body(path: &Path) -> anyhow::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut body = Vec::new();
    let file = std::fs::File::open(path).with_context(|| format!("cannot read the body `{}`", path.display()))?;
    file.take(MAX_BODY).read_to_end(&mut body).with_context(|| format!("cannot read the body `{}`", path.display()))?;
    Ok(body)
}

/// The token of a running Seawall's admin port, if one is set.
pub(crate) fn admin_token() -> Option<Secret> {
    env::var("SEAWALL_ADMIN_TOKEN").ok().filter(|token| !token.is_empty()).map(|token| Secret::new(&token))
}

/// The program's arguments.
pub(crate) fn command_line() -> Vec<String> {
    env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The server's process: its standard error, and systemd if that started it.
#[derive(Debug)]
pub(crate) struct Process;

impl Host for Process {
    fn note(&self, text: &str) {
        Terminal::plain().note(text);
    }

    fn error(&self, error: &anyhow::Error) {
        let _: Exit = Terminal::plain().fail(error);
    }

    fn ready(&self) {
        notify("READY=1");
    }

    fn stopping(&self) {
        notify("STOPPING=1");
    }
}

fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let sent = std::os::unix::net::UnixDatagram::unbound().and_then(|socket| socket.send_to(state.as_bytes(), PathBuf::from(path)));
    // A failed notification cannot be reported anywhere.
    drop(sent);
}
