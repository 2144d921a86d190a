//! Claims the outputs of a run: a file, a folder or a quarantine file. A note in the store, found by the path of the output, names the run
//! that writes there and says whether it has finished. A run overwrites another run's output only with `--overwrite`.

use super::Args;
use super::journal::Pieces;
use super::plan::{in_a_pipe, name, quarantine, resume_command};
use crate::exit::{CommandError, Exit};
use seawall_core::time::Wall;
use seawall_store::RunLock;
use seawall_store::journal::{Durability, RunId};
use seawall_store::{Error, Store};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};

/// The store's note about an output.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    run: String,
    finished: bool,
    /// The command that continues the run.
    resume: String,
}

/// The default quarantine file of a run without an output has a number behind its name if the name is taken.
const MAX_QUARANTINES: u32 = 1000;

/// The kind of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimKind {
    Output,
    Quarantine,
}

impl ClaimKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Quarantine => "quarantine file",
        }
    }
}

/// An exclusive claim to write an output, until it is dropped.
#[derive(Debug)]
pub(super) struct OutputClaim {
    kind: ClaimKind,
    path: PathBuf,
    pieces: Pieces,
    note: Option<Note>,
    _held: RunLock,
}

impl OutputClaim {
    async fn take(store: &Store, kind: ClaimKind, path: &Path, run: &RunId) -> anyhow::Result<Self> {
        let place: RunId =
            Sha256::new().chain_update(b"output\0").chain_update(resolved(path).as_os_str().as_encoded_bytes()).finalize().into();
        let pieces = Pieces::new(store.clone(), place);
        let note: Option<Note> =
            pieces.first().await.map_err(super::output::unavailable)?.and_then(|text| serde_json::from_slice(&text).ok());
        let Some(held) = store.hold_run(place).await.map_err(super::output::unavailable)? else {
            let is_ours = note.is_some_and(|note| note.run == name(run));
            let message = if is_ours { underway() } else { format!("another run is writing to `{}`", path.display()) };
            return Err(CommandError { exit: Exit::Failed, message, hint: None }.into());
        };
        Ok(Self { kind, path: path.to_owned(), pieces, note, _held: held })
    }

    /// Whether the run may write here.
    fn check(&self, args: &Args, run: &RunId) -> Result<(), CommandError> {
        let continues = args.resume || args.retry_dead;
        let (shown, kind) = (self.path.display(), self.kind.as_str());
        if args.overwrite || is_empty(&self.path) {
            return Ok(());
        }
        match &self.note {
            Some(note) if note.run != name(run) => {
                let unfinished = if note.finished { "" } else { ", which has not finished" };
                let other = CommandError::usage(format!("`{shown}` is the {kind} of another run{unfinished}"));
                Err(other
                    .hint(format!("`{}` continues that run; choose another {kind}, or replace this one with `--overwrite`", note.resume)))
            }
            // A quarantine file is written anew, whether or not the earlier run finished.
            Some(note) if !note.finished && !continues && self.kind == ClaimKind::Output => {
                Err(CommandError::usage(format!("`{shown}` is the output of this run, which has not finished"))
                    .hint("`--resume` continues it, `--overwrite` begins anew and replaces it"))
            }
            // Whether the journal knows an output's contents is checked once the journal is open.
            None if !continues || self.kind == ClaimKind::Quarantine => Err(self.unknown()),
            Some(_) | None => Ok(()),
        }
    }

    fn unknown(&self) -> CommandError {
        let what = format!("`{}` is not empty, and no journal says what is in it", self.path.display());
        let hint = if self.path.is_dir() {
            "choose a folder that is empty or new, or replace files in this one with `--overwrite`"
        } else {
            "move it away, or replace it with `--overwrite`; `--resume` continues a run whose journal is in another `--store`"
        };
        CommandError::usage(what).hint(hint)
    }

    /// Records that this run owns the output, and at its end that it has finished.
    async fn write(&mut self, run: &RunId, finished: bool, now: Wall) -> Result<(), Error> {
        let note = Note { run: name(run), finished, resume: resume_command() };
        let text = serde_json::to_vec(&note).map_err(|error| Error::Failed(error.to_string()))?;
        // Between these two steps there is no note. The output then counts as unknown, which protects it as well as an unfinished one.
        self.pieces.cut(0).await?;
        self.pieces.append(0, text.into(), Durability::FromPowerCuts, now).await
    }
}

/// The outputs of a run.
#[derive(Debug)]
pub(super) struct Claims {
    run: RunId,
    claims: Vec<OutputClaim>,
    quarantine: PathBuf,
}

impl Claims {
    /// Claims the file, the folder and the quarantine file that a run writes.
    ///
    /// # Errors
    /// When one of them belongs to another run or has no note, or is unfinished and the command neither continues nor replaces it.
    pub(super) async fn take(store: &Store, args: &Args, mut run: RunId) -> anyhow::Result<Self> {
        if in_a_pipe(args) {
            // The same command in another pipe is another run.
            run[..8].copy_from_slice(&seawall_engine::entropy().to_be_bytes());
        }
        let mut claims = Vec::new();
        for path in [args.output.as_deref().filter(|path| is_file_or_new(path)), args.output_dir.as_deref()].into_iter().flatten() {
            let claim = OutputClaim::take(store, ClaimKind::Output, path, &run).await?;
            claim.check(args, &run)?;
            claims.push(claim);
        }
        let quarantine = match quarantine(args) {
            Some(path) if is_file_or_new(&path) => {
                let claim = OutputClaim::take(store, ClaimKind::Quarantine, &path, &run).await?;
                claim.check(args, &run)?;
                claims.push(claim);
                path
            }
            // A device or a pipe needs no claim.
            Some(path) => path,
            None => {
                let claim = Self::free_quarantine(store, args, &run).await?;
                let path = claim.path.clone();
                claims.push(claim);
                path
            }
        };
        Ok(Self { run, claims, quarantine })
    }

    /// Claims the first default quarantine file that no other run has.
    async fn free_quarantine(store: &Store, args: &Args, run: &RunId) -> anyhow::Result<OutputClaim> {
        let name = |number| if number == 1 { "quarantine.ndjson".to_owned() } else { format!("quarantine-{number}.ndjson") };
        for path in (1..MAX_QUARANTINES).map(|number| PathBuf::from(name(number))).filter(|path| is_file_or_new(path)) {
            match OutputClaim::take(store, ClaimKind::Quarantine, &path, run).await {
                Ok(claim) if claim.check(args, run).is_ok() => return Ok(claim),
                Ok(_) => {}
                // Another run holds it.
                Err(error) if error.downcast_ref::<CommandError>().is_some_and(|failure| failure.exit == Exit::Failed) => {}
                Err(error) => return Err(error),
            }
        }
        Err(CommandError::usage("every name for a quarantine file is taken").hint("name one with `--quarantine`").into())
    }

    /// Refuses to continue in an output that has no note and no journal.
    ///
    /// # Errors
    /// When there is one, and it is not empty.
    pub(super) fn refuse_unknown(&self) -> Result<(), CommandError> {
        let unknown = self.claims.iter().find(|claim| claim.kind == ClaimKind::Output && claim.note.is_none() && !is_empty(&claim.path));
        unknown.map_or(Ok(()), |claim| Err(claim.unknown()))
    }

    /// The file for rows that are themselves at fault.
    pub(super) fn quarantine(&self) -> &Path {
        &self.quarantine
    }

    /// Records that the run begins to write.
    pub(super) async fn begin(&mut self, now: Wall) -> Result<(), Error> {
        self.write(false, now).await
    }

    /// Records that every row of the list has ended.
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

/// Resolves links in the existing part of the path.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = || Some(absolute.parent()?.canonicalize().ok()?.join(absolute.file_name()?));
    absolute.canonicalize().ok().or_else(folder).unwrap_or(absolute)
}

fn is_file_or_new(path: &Path) -> bool {
    std::fs::metadata(path).map_or(true, |found| found.is_file())
}

fn is_empty(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()),
        Ok(found) => found.len() == 0,
        Err(_) => true,
    }
}
