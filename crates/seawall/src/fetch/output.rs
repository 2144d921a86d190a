//! Writes finished rows on a thread of its own: first the output, then the journal with its dead letters. A kill between the two costs a
//! repetition, never a row.

use super::claim::Claims;
use super::journal::{Journal, JournalEntry};
use super::quarantine::Quarantine;
use super::response_check::Content;
use crate::exit::CommandError;
use anyhow::Context as _;
use bytes::Bytes;
use seawall_core::id::CallId;
use seawall_core::time::{Mono, Nanos};
use seawall_engine::clock::Clock;
use seawall_server::letter::Cause;
use seawall_store::Error;
use seawall_store::dead::NewLetter;
use seawall_store::journal::Durability;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// The most rows that are written together.
const BATCH: usize = 1024;
/// The time for which rows are gathered before they are written: too short for a pipe's reader to notice, but it saves disk writes.
const GATHER: Duration = Duration::from_millis(8);
/// The rows of one piece of the journal, and the longest time for which they are gathered.
const PIECE: usize = 512;
const PIECE_EVERY: Duration = Duration::from_millis(50);
/// The interval between syncs to disk.
const SYNC_EVERY: Nanos = Nanos::from_millis(500);

/// A finished row, or a fetched page of one.
#[derive(Debug)]
pub(super) struct FinishedRow {
    pub line: u64,
    pub ordinal: u64,
    pub key: u64,
    /// JSON text; empty if the line number serves as the id.
    pub id: String,
    /// The name of its file without page and extension, if it gets one.
    pub file: String,
    pub url: String,
    /// Present if pages are followed.
    pub page: Option<u32>,
    pub status: Option<u16>,
    pub attempts: u32,
    pub elapsed: Nanos,
    pub end: OutputEnd,
    /// The letter of an earlier run that this result makes out of date.
    pub replaces: Option<CallId>,
    /// The former line of the row whose pages or letter it continued, if another.
    pub moved_from: Option<u64>,
    /// Its share of the memory for unwritten results.
    pub share: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
pub(super) enum OutputEnd {
    /// With the place of the next page, if there is one.
    Good(Content, Option<String>),
    Dead(Box<Dead>),
}

#[derive(Debug)]
pub(super) struct Dead {
    pub outcome: &'static str,
    pub cause: Cause,
    pub letter: Option<NewLetter>,
    /// The body to quarantine, if the row itself was at fault.
    pub suspect: Option<Bytes>,
}

/// The destination of lines.
#[derive(Debug)]
pub(super) enum Sink {
    Stdout,
    File(File),
}

#[derive(Debug)]
pub(super) struct Output {
    pub sink: Sink,
    /// Bytes in the file.
    pub length: u64,
    /// The folder for one file per record; the lines then name the files.
    pub folder: Option<PathBuf>,
    pub body_only: bool,
    pub quarantine: Quarantine,
    pub journal: Journal,
    pub claims: Claims,
    /// Every row of the list has ended.
    pub finished: Arc<AtomicBool>,
    /// Whether the journal's lines differ from the list's.
    pub changed: Arc<AtomicBool>,
    pub clock: Clock,
    pub unjournaled: Unjournaled,
}

/// Rows that are in the output and not yet in the journal.
#[derive(Debug, Default)]
pub(super) struct Unjournaled {
    entry: JournalEntry,
    letters: Vec<NewLetter>,
    outdated: Vec<CallId>,
    since: Mono,
    synced: Mono,
}

impl Output {
    /// Writes results until the channel is closed.
    pub(super) async fn run(mut self, mut from: mpsc::Receiver<FinishedRow>) -> anyhow::Result<Quarantine> {
        let (mut batch, mut buffer) = (Vec::with_capacity(BATCH), Vec::with_capacity(1 << 16));
        self.unjournaled.synced = self.clock.now().mono;
        loop {
            let due = self.unjournaled.entry.rows() > 0;
            let count = tokio::select! {
                count = from.recv_many(&mut batch, BATCH) => count,
                () = tokio::time::sleep(PIECE_EVERY), if due => {
                    self.journal(false).await?;
                    continue;
                }
            };
            if count == 0 {
                self.journal(true).await?;
                if self.finished.load(Ordering::Relaxed) {
                    self.claims.finish(self.clock.now().wall).await.map_err(unavailable)?;
                }
                return self.quarantine.close().context("cannot write to the quarantine file");
            }
            self.keep(&mut batch, &mut buffer)?;
            if self.is_due() {
                self.journal(false).await?;
            }
            if count < BATCH / 4 {
                tokio::time::sleep(GATHER).await;
            }
        }
    }

    fn is_due(&self) -> bool {
        let since = self.clock.now().mono.since(self.unjournaled.since);
        self.unjournaled.entry.rows() >= PIECE || Duration::from_nanos(since.0) >= PIECE_EVERY
    }

    fn keep(&mut self, batch: &mut Vec<FinishedRow>, buffer: &mut Vec<u8>) -> anyhow::Result<()> {
        buffer.clear();
        if self.unjournaled.entry.rows() == 0 {
            self.unjournaled.since = self.clock.now().mono;
        }
        // Dropping the shares, once the rows are written, frees memory for other results.
        let mut shares = Vec::new();
        for mut done in batch.drain(..) {
            self.line(&done, buffer).context("cannot write the output")?;
            self.unjournaled.note(&done);
            shares.extend(done.share.take());
            if let OutputEnd::Dead(dead) = &mut done.end {
                if let Some(body) = &dead.suspect {
                    self.quarantine
                        .put(&done.id, done.line, &done.url, &dead.cause, body)
                        .context("cannot write to the quarantine file")?;
                }
                self.unjournaled.letters.extend(dead.letter.take());
            }
        }
        match &mut self.sink {
            Sink::Stdout => io::stdout().lock().write_all(buffer).and_then(|()| io::stdout().lock().flush()),
            Sink::File(file) => file.write_all(buffer),
        }
        .context("cannot write the output")?;
        drop(shares);
        self.length += u64::try_from(buffer.len()).unwrap_or(0);
        self.quarantine.flush().context("cannot write to the quarantine file")
    }

    /// Records the output's rows in the journal. The output is synced before the journal says so.
    async fn journal(&mut self, is_last: bool) -> anyhow::Result<()> {
        let now = self.clock.now();
        let mut kept = Durability::FromUs;
        if is_last || now.mono.since(self.unjournaled.synced) >= SYNC_EVERY {
            if let Sink::File(file) = &self.sink {
                // A pipe or a device cannot be synced, so the error is ignored.
                drop(file.sync_data());
            }
            self.unjournaled.synced = now.mono;
            kept = Durability::FromPowerCuts;
        }
        let Unjournaled { entry, letters, outdated, .. } = &mut self.unjournaled;
        let mut entry = std::mem::take(entry);
        entry.output = matches!(self.sink, Sink::File(_)).then_some(self.length);
        entry.changed = self.changed.load(Ordering::Relaxed);
        let (letters, outdated) = (std::mem::take(letters), std::mem::take(outdated));
        Ok(self.journal.append(&entry, letters, outdated, kept, now.wall).await.map_err(unavailable)?)
    }

    fn line(&self, done: &FinishedRow, to: &mut Vec<u8>) -> io::Result<()> {
        let content = match &done.end {
            OutputEnd::Good(content, _) => content,
            OutputEnd::Dead(dead) if !self.body_only => return dead_line(done, dead, to),
            OutputEnd::Dead(_) => return Ok(()),
        };
        if let Some(folder) = &self.folder {
            let name = file_name(done, content);
            std::fs::write(folder.join(&name), bytes(content))?;
            if !self.body_only {
                head(done, "success", None, to)?;
                to.extend_from_slice(b",\"file\":");
                serde_json::to_writer(&mut *to, &name)?;
                to.extend_from_slice(b"}\n");
            }
            return Ok(());
        }
        let Content::Items(items) = content else { return self.record(done, None, content, to) };
        for (number, item) in (0..).zip(items) {
            self.record(done, Some(number), &Content::Json(Bytes::from(item.clone())), to)?;
        }
        Ok(())
    }

    fn record(&self, done: &FinishedRow, item: Option<u64>, content: &Content, to: &mut Vec<u8>) -> io::Result<()> {
        if self.body_only {
            match content {
                Content::Text(text) | Content::Binary(text) => to.extend_from_slice(text),
                Content::Nothing => return Ok(()),
                Content::Json(_) | Content::Items(_) => body(content, to)?,
            }
            to.push(b'\n');
            return Ok(());
        }
        head(done, "success", item, to)?;
        to.extend_from_slice(b",\"body\":");
        body(content, to)?;
        if matches!(content, Content::Binary(_)) {
            to.extend_from_slice(b",\"body_encoding\":\"base64\"");
        }
        to.extend_from_slice(b"}\n");
        Ok(())
    }
}

/// The beginning of every line.
fn head(done: &FinishedRow, outcome: &str, item: Option<u64>, to: &mut Vec<u8>) -> io::Result<()> {
    to.extend_from_slice(b"{\"id\":");
    if done.id.is_empty() {
        write!(to, "{}", done.line)?
    } else {
        to.extend_from_slice(done.id.as_bytes())
    }
    to.extend_from_slice(b",\"url\":");
    serde_json::to_writer(&mut *to, &done.url)?;
    if let Some(page) = done.page {
        write!(to, ",\"page\":{page}")?;
    }
    if let Some(item) = item {
        write!(to, ",\"item\":{item}")?;
    }
    if let Some(status) = done.status {
        write!(to, ",\"status\":{status}")?;
    }
    let micros = done.elapsed.0 / 1000;
    write!(to, ",\"attempts\":{},\"elapsed_ms\":{}.{:03},\"outcome\":\"{outcome}\"", done.attempts, micros / 1000, micros % 1000)
}

fn dead_line(done: &FinishedRow, dead: &Dead, to: &mut Vec<u8>) -> io::Result<()> {
    head(done, dead.outcome, None, to)?;
    let Cause { class, reason, code, detail } = &dead.cause;
    let error = serde_json::json!({ "class": class.as_str(), "code": code, "reason": reason, "detail": detail.as_str() });
    write!(to, ",\"line\":{},\"error\":{error}}}", done.line)?;
    to.push(b'\n');
    Ok(())
}

fn body(content: &Content, to: &mut Vec<u8>) -> io::Result<()> {
    match content {
        Content::Nothing | Content::Items(_) => to.extend_from_slice(b"null"),
        Content::Json(json) => {
            let from = to.len();
            to.extend_from_slice(json);
            // In valid JSON, raw line ends occur only between values: inside strings they are escaped.
            to[from..].iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
        }
        Content::Text(text) => serde_json::to_writer(to, std::str::from_utf8(text).unwrap_or_default())?,
        Content::Binary(bytes) => {
            use base64::Engine as _;
            to.push(b'"');
            to.extend_from_slice(base64::engine::general_purpose::STANDARD.encode(bytes).as_bytes());
            to.push(b'"');
        }
    }
    Ok(())
}

/// A body in the form that a file gets.
fn bytes(content: &Content) -> Vec<u8> {
    match content {
        Content::Nothing => Vec::new(),
        Content::Json(bytes) | Content::Text(bytes) | Content::Binary(bytes) => bytes.to_vec(),
        Content::Items(items) => items.iter().flat_map(|item| item.bytes().chain([b'\n'])).collect(),
    }
}

fn file_name(done: &FinishedRow, content: &Content) -> String {
    let extension = match content {
        Content::Json(_) => "json",
        Content::Items(_) => "ndjson",
        Content::Text(_) | Content::Nothing => "txt",
        Content::Binary(_) => "bin",
    };
    match done.page {
        Some(page) => format!("{}-{page}.{extension}", done.file),
        None => format!("{}.{extension}", done.file),
    }
}

impl Unjournaled {
    fn note(&mut self, done: &FinishedRow) {
        self.outdated.extend(done.replaces);
        self.entry.moved.extend(done.moved_from.map(|from| (done.key, from, done.line)));
        match &done.end {
            OutputEnd::Good(_, None) => self.entry.done.push((done.line, done.key)),
            OutputEnd::Good(_, Some(next)) => {
                self.entry.pages.push((done.key, done.page.unwrap_or(1), next.clone()));
                self.entry.page_lines.push(done.line);
            }
            OutputEnd::Dead(dead) => {
                let text = |id: Option<CallId>| id.map(|id| id.to_string()).unwrap_or_default();
                self.entry.dead.push((done.key, text(dead.letter.as_ref().map(|letter| letter.id)), text(done.replaces)));
                self.entry.dead_lines.push(done.line);
            }
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
pub(super) fn unavailable(error: Error) -> CommandError {
    CommandError::store(format!("the journal cannot be kept: {error}")).hint("`--resume` goes on where this run stopped")
}
