//! The run that an output belongs to. A note in the store, found by the path of the output, names the run that writes there and
//! says whether it has finished. No run writes over the results of another unless it is told to.

use super::Args;
use super::journal::Pieces;
use super::plan::{name, resume_command};
use crate::exit::{Exit, Failure};
use seawall_core::time::Wall;
use seawall_store::RunLock;
use seawall_store::journal::{Kept, Run};
use seawall_store::{Error, Store};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};

/// What the store says of an output.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    run: String,
    finished: bool,
    /// The command that continues the run.
    resume: String,
}

/// An output that nobody else writes for as long as this lives.
#[derive(Debug)]
pub(super) struct Claim {
    path: PathBuf,
    pieces: Pieces,
    note: Option<Note>,
    _held: RunLock,
}

impl Claim {
    async fn take(store: &Store, path: &Path, run: &Run) -> anyhow::Result<Self> {
        let place: Run =
            Sha256::new().chain_update(b"output\0").chain_update(resolved(path).as_os_str().as_encoded_bytes()).finalize().into();
        let pieces = Pieces::new(store.clone(), place);
        let note: Option<Note> =
            pieces.first().await.map_err(super::output::unavailable)?.and_then(|text| serde_json::from_slice(&text).ok());
        let Some(held) = store.hold_run(place).await.map_err(super::output::unavailable)? else {
            let is_ours = note.is_some_and(|note| note.run == name(run));
            let message = if is_ours { underway() } else { format!("another run is writing to `{}`", path.display()) };
            return Err(Failure { exit: Exit::Failed, message, hint: None }.into());
        };
        Ok(Self { path: path.to_owned(), pieces, note, _held: held })
    }

    /// Whether the run may write here. A folder may hold other files, a file may not.
    fn check(&self, args: &Args, run: &Run) -> Result<(), Failure> {
        let continues = args.resume || args.retry_dead;
        let shown = self.path.display();
        if args.overwrite || is_empty(&self.path) {
            return Ok(());
        }
        match &self.note {
            Some(note) if note.run != name(run) => {
                let what = if note.finished { "the output of another run" } else { "the output of another run, which has not finished" };
                let other = Failure::usage(format!("`{shown}` is {what}"));
                Err(other
                    .hint(format!("`{}` continues that run; choose another output, or replace this one with `--overwrite`", note.resume)))
            }
            Some(note) if !note.finished && !continues => {
                Err(Failure::usage(format!("`{shown}` is the output of this run, which has not finished"))
                    .hint("`--resume` continues it, `--overwrite` begins anew and replaces it"))
            }
            None if !continues && self.path.is_file() => Err(Failure::usage(format!(
                "`{shown}` is not empty, and no journal says what is in it"
            ))
            .hint("move it away, or replace it with `--overwrite`; `--resume` continues a run whose journal is in another `--store`")),
            Some(_) | None => Ok(()),
        }
    }

    /// Writes down that this run has the output from now on, and at its end that it has finished.
    async fn write(&mut self, run: &Run, finished: bool, now: Wall) -> Result<(), Error> {
        let note = Note { run: name(run), finished, resume: resume_command() };
        let text = serde_json::to_vec(&note).map_err(|error| Error::Failed(error.to_string()))?;
        // Without a note nothing is known of the output, which is then as safe as one that has not finished.
        self.pieces.cut(0).await?;
        self.pieces.append(0, text.into(), Kept::FromPowerCuts, now).await
    }
}

/// The outputs of a run.
#[derive(Debug)]
pub(super) struct Claims {
    run: Run,
    claims: Vec<Claim>,
}

impl Claims {
    /// Claims the file and the folder that a run writes.
    ///
    /// # Errors
    /// When one of them is another run's, or has not finished and the command neither continues nor replaces it.
    pub(super) async fn take(store: &Store, args: &Args, run: Run) -> anyhow::Result<Self> {
        let mut claims = Vec::new();
        let file = args.output.as_deref().filter(|path| std::fs::metadata(path).map_or(true, |found| found.is_file()));
        for path in [file, args.output_dir.as_deref()].into_iter().flatten() {
            let claim = Claim::take(store, path, &run).await?;
            claim.check(args, &run)?;
            claims.push(claim);
        }
        Ok(Self { run, claims })
    }

    /// The run begins to write.
    pub(super) async fn begin(&mut self, now: Wall) -> Result<(), Error> {
        self.write(false, now).await
    }

    /// Every row of the list has ended.
    pub(super) async fn finish(&mut self, now: Wall) -> Result<(), Error> {
        self.write(true, now).await
    }

    async fn write(&mut self, finished: bool, now: Wall) -> Result<(), Error> {
        for claim in &mut self.claims {
            claim.write(&self.run, finished, now).await?;
        }
        Ok(())
    }
}

pub(super) fn underway() -> String {
    "the same run is under way in another process".to_owned()
}

/// The path without links, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = || Some(absolute.parent()?.canonicalize().ok()?.join(absolute.file_name()?));
    absolute.canonicalize().ok().or_else(folder).unwrap_or(absolute)
}

fn is_empty(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()),
        Ok(found) => found.len() == 0,
        Err(_) => true,
    }
}
