//! Files and secrets of a configuration: bounded reads, and the activation of a configuration.

use seawall_core::config::place::SecretRef;
use seawall_core::config::{self, Config};
use seawall_core::lint::Surroundings;
use seawall_core::time::Now;
use seawall_engine::runtime::{Around, Live, UnusableConfig};
use seawall_engine::secret::{MissingSecret, Secret};
use seawall_store::location::Location;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A file of the configuration that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {file}: {why}")]
pub struct Unreadable {
    pub(crate) file: String,
    pub(crate) why: String,
}

/// Reads and checks the configuration.
///
/// # Errors
/// When the file cannot be read, or the configuration is not valid.
pub fn load(path: &Path) -> anyhow::Result<Config> {
    Ok(config::load(&path.display().to_string(), &read(path)?)?)
}

/// Reads a file that is no larger than a configuration may be.
///
/// # Errors
/// When it cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>, Unreadable> {
    let limit = u64::try_from(config::MAX_FILE).unwrap_or(u64::MAX);
    read_file(path, limit).map_err(|why| Unreadable { file: format!("`{}`", path.display()), why })
}

/// Maximum bytes of a secret: enough for a private key.
const MAX_SECRET: u64 = 64 * 1024;

fn read_secret(path: &Path) -> Result<String, String> {
    let bytes = read_file(path, MAX_SECRET)?;
    if bytes.len() as u64 > MAX_SECRET {
        return Err(format!("it is longer than {MAX_SECRET} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

/// The file that is being read, so that a timeout error can name it.
static READING: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Returns the configuration file that is being read now.
pub(crate) fn being_read() -> Option<PathBuf> {
    READING.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Reads a configuration file, up to one byte more than the limit. Only regular files are accepted: a pipe blocks its reader and cannot be
/// read again by a reload, and a device has no end.
fn read_file(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    *READING.lock().unwrap_or_else(PoisonError::into_inner) = Some(path.to_owned());
    let read = read_regular(path, most);
    *READING.lock().unwrap_or_else(PoisonError::into_inner) = None;
    read
}

fn read_regular(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    // Without this, opening a pipe blocks until it has a writer. Regular files ignore the flag.
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = std::fs::File::options().read(true).custom_flags(nonblocking).open(path).map_err(|error| error.to_string())?;
    if !file.metadata().map_err(|error| error.to_string())?.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Resolves a configuration's references: variables of this process, and files relative to the configuration file.
pub struct Environment {
    beside: PathBuf,
    variables: Box<Variables>,
}

/// Returns the value of a variable, if it is set.
type Variables = dyn Fn(&str) -> Option<String> + Send + Sync;

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment").field("beside", &self.beside).finish_non_exhaustive()
    }
}

impl Environment {
    /// Relative paths are relative to the file that names them, not to the working directory.
    pub fn new(file: &Path, variables: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { beside: file.parent().map(Path::to_path_buf).unwrap_or_default(), variables: Box::new(variables) }
    }

    /// Returns the path of a file that the configuration names.
    pub fn path(&self, named: &Path) -> PathBuf {
        self.beside.join(named)
    }

    /// Resolves a value that may be a reference to a secret, such as a URL with a password.
    ///
    /// # Errors
    /// When the secret cannot be read.
    pub fn resolve(&self, value: &str) -> Result<String, String> {
        match SecretRef::parse(value) {
            Some(reference) => self.fetch(&reference).map(|secret| secret.reveal().to_owned()),
            None => Ok(value.to_owned()),
        }
    }

    /// Reads a secret.
    ///
    /// # Errors
    /// When it is not set, cannot be read or is empty.
    pub fn fetch(&self, reference: &SecretRef) -> Result<Secret, String> {
        let text = match reference {
            SecretRef::Env(name) => (self.variables)(name).ok_or_else(|| "the variable is not set".to_owned())?,
            SecretRef::File(path) => read_secret(&self.beside.join(path))?,
        };
        let text = text.trim_end_matches(['\r', '\n']);
        if text.is_empty() { Err("it is empty".to_owned()) } else { Ok(Secret::new(text)) }
    }

    /// Returns whether a secret is absent. An empty variable counts as absent, since CI systems set unknown variables to the empty string.
    pub fn is_absent(&self, reference: &SecretRef) -> bool {
        match reference {
            SecretRef::Env(_) => self.fetch(reference).is_err(),
            SecretRef::File(path) => !self.path(Path::new(path)).exists(),
        }
    }

    /// Describes why the secret at this place of the configuration cannot be used, if so.
    pub fn missing(&self, path: String, reference: &SecretRef) -> Option<String> {
        let why = self.fetch(reference).err()?;
        Some(MissingSecret { path, reference: reference.to_string(), why }.to_string())
    }

    /// Reads a file that the configuration names, no larger than a configuration may be.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        read(&self.beside.join(path)).map_err(|error| error.to_string())
    }
}

impl Surroundings for Environment {
    fn has_secret(&self, secret: &SecretRef) -> bool {
        self.fetch(secret).is_ok()
    }

    fn has_file(&self, path: &str) -> bool {
        std::fs::metadata(self.beside.join(path)).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0)
    }
}

/// Builds the live state of a configuration and takes over the state of the previous one.
///
/// # Errors
/// When one of its references cannot be used.
pub fn activate(config: Config, around: &Environment, before: Option<(&Live, Now)>) -> Result<Live, UnusableConfig> {
    let around = Around { vault: &|reference| around.fetch(reference), files: &|path| around.read(path) };
    Live::new(config, around, before)
}

/// Describes the location of data without credentials of its URL.
pub fn shown_store(place: &str) -> String {
    match Location::parse(place) {
        Ok(Location::Sqlite(path)) => path.display().to_string(),
        Ok(Location::Postgres(_)) => "PostgreSQL".to_owned(),
        // A reference to a URL: only its name is shown.
        Err(_) => place.to_owned(),
    }
}
