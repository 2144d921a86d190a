//! The journal of a run, so that the next run does not repeat its rows: pieces in the store, each for some hundred rows, written after
//! their output and together with their dead letters. Rows after the last piece count as not done.

use super::earlier_runs::{Again, Earlier};
use bytes::Bytes;
use seawall_core::id::CallId;
use seawall_core::time::{Nanos, Wall};
use seawall_store::RunLock;
use seawall_store::dead::NewLetter;
use seawall_store::journal::{Durability, JournalPiece, RunId};
use seawall_store::{Error, Store};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Unused journals are deleted after this time.
const FORGOTTEN_AFTER: Nanos = Nanos::from_secs(90 * 24 * 3600);
/// Pieces that are read or deleted at a time.
const TOGETHER: usize = 64;

/// One piece: the rows that ended since the piece before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalEntry {
    /// The length of the output with all rows of this piece, if it is a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<u64>,
    /// The output is about to be replaced by one of length `output`; until then it has this length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<u64>,
    /// Lines of earlier pieces are no longer those of the list.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
    /// This piece replaces all earlier ones, which belong to the list before it was edited.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relined: bool,
    /// The output has lines of rows that are in no piece.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub loose: bool,
    /// Lines and keys, as bytes behind the rest.
    #[serde(skip)]
    pub done: Vec<(u64, u64)>,
    /// Keys of dead rows, their letters, and the letters that those replace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dead: Vec<(u64, String, String)>,
    /// The lines of those rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dead_lines: Vec<u64>,
    /// Keys of rows whose pages up to this one were fetched, and the place of the next.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<(u64, u32, String)>,
    /// The lines of those rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub page_lines: Vec<u64>,
    /// Keys of rows that took over an equal row's remainder, that row's line, and their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<(u64, u64, u64)>,
}

impl JournalEntry {
    pub(super) fn rows(&self) -> usize {
        self.done.len() + self.dead.len() + self.pages.len()
    }

    /// A line of JSON; then for each finished row eight bytes of key and the zigzag-encoded distance to the line before, often one byte.
    fn write(&self) -> Result<Bytes, Error> {
        let mut bytes = serde_json::to_vec(self).map_err(|error| Error::Failed(error.to_string()))?;
        bytes.push(b'\n');
        let mut before = 0u64;
        for (line, key) in &self.done {
            bytes.extend_from_slice(&key.to_le_bytes());
            let distance = line.wrapping_sub(before).cast_signed();
            // Zigzag: the sign becomes the lowest bit, so that short distances in either direction take one byte.
            let mut rest = ((distance << 1) ^ (distance >> 63)).cast_unsigned();
            while rest >= 0x80 {
                bytes.push((rest & 0x7f) as u8 | 0x80);
                rest >>= 7;
            }
            bytes.push((rest & 0x7f) as u8);
            before = *line;
        }
        Ok(Bytes::from(bytes))
    }

    /// `None` for bytes that `write` cannot have written.
    fn read(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let mut entry: Self = serde_json::from_slice(&bytes[..end]).ok()?;
        let mut rest = &bytes[end + 1..];
        let mut line = 0u64;
        while let Some((key, mut tail)) = rest.split_first_chunk::<8>() {
            let mut folded = 0u64;
            for shift in (0..64).step_by(7) {
                let (byte, after) = tail.split_first()?;
                tail = after;
                folded |= u64::from(byte & 0x7f) << shift;
                if byte & 0x80 == 0 {
                    break;
                }
            }
            let distance = (folded >> 1).cast_signed() ^ -(folded & 1).cast_signed();
            line = line.wrapping_add(distance.cast_unsigned());
            entry.done.push((line, u64::from_le_bytes(*key)));
            rest = tail;
        }
        rest.is_empty().then_some(entry)
    }
}

/// The pieces of a run's journal.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    store: Store,
    run: RunId,
}

impl Pieces {
    pub(super) const fn new(store: Store, run: RunId) -> Self {
        Self { store, run }
    }

    /// The first piece, as it was written.
    pub(super) async fn first(&self) -> Result<Option<Bytes>, Error> {
        Ok(self.store.journal(self.run, 0, 1).await?.pop().map(|(_, content)| content))
    }

    pub(super) async fn append(&self, number: u64, content: Bytes, kept: Durability, now: Wall) -> Result<(), Error> {
        let piece = JournalPiece { number, content, letters: Vec::new(), outdated: Vec::new() };
        patiently(|| self.store.journal_append(self.run, piece.clone(), kept, now)).await
    }

    /// All pieces in order, up to the first unreadable one.
    pub(super) async fn each(&self, mut take: impl FnMut(u64, &JournalEntry)) -> Result<(), Error> {
        let mut next = 0;
        loop {
            let pieces = self.store.journal(self.run, next, TOGETHER).await?;
            if pieces.is_empty() {
                return Ok(());
            }
            for (number, content) in pieces {
                let Some(entry) = JournalEntry::read(&content).filter(|_| number == next) else { return Ok(()) };
                take(number, &entry);
                next = number + 1;
            }
        }
    }

    /// Deletes all pieces from a number on.
    pub(super) async fn cut(&self, from: u64) -> Result<(), Error> {
        while self.store.journal_cut(self.run, from, TOGETHER).await? > 0 {}
        Ok(())
    }
}

/// The same run is active in another process.
#[derive(Debug)]
pub(super) struct Underway;

#[derive(Debug)]
pub(super) struct Journal {
    store: Store,
    /// `None` if no later run can continue this one.
    place: Option<Pieces>,
    next: u64,
    _held: Option<RunLock>,
}

impl Journal {
    /// For a run that cannot be continued.
    pub(super) fn none(store: Store) -> Self {
        Self { store, place: None, next: 0, _held: None }
    }

    /// Opens the journal of a run; returns the results of earlier runs, and the length of the output that belongs to them. `length` is the
    /// output's current length, if it is a file.
    pub(super) async fn open(
        store: Store,
        run: RunId,
        again: Again,
        length: Option<u64>,
        now: Wall,
    ) -> Result<Result<(Self, Earlier, Option<u64>), Underway>, Error> {
        let Some(held) = store.hold_run(run).await? else { return Ok(Err(Underway)) };
        while store.sweep_runs(Wall(now.0.saturating_sub(FORGOTTEN_AFTER.as_millis().cast_signed())), TOGETHER).await? > 0 {}
        let pieces = Pieces { store: store.clone(), run };
        let mut journal = Self { store, place: Some(pieces.clone()), next: 0, _held: Some(held) };
        if again == Again::Everything {
            pieces.cut(0).await?;
            return Ok(Ok((journal, Earlier::new(again, None), None)));
        }
        let (end, outdated) = confirmed_pieces(&pieces, length).await?;
        pieces.cut(end).await?;
        let (mut earlier, mut output) = (Earlier::new(again, Some(pieces.clone())), None);
        pieces
            .each(|number, entry| {
                output = entry.output.or(output);
                journal.next = number + 1;
                earlier.add(entry);
            })
            .await?;
        earlier.complete().await?;
        if !outdated.is_empty() {
            journal
                .append(&JournalEntry { output, ..JournalEntry::default() }, Vec::new(), outdated, Durability::FromPowerCuts, now)
                .await?;
        }
        Ok(Ok((journal, earlier, output)))
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.next == 0
    }

    /// Appends a piece, with its new letters and the letters that it makes out of date.
    pub(super) async fn append(
        &mut self,
        entry: &JournalEntry,
        letters: Vec<NewLetter>,
        outdated: Vec<CallId>,
        kept: Durability,
        now: Wall,
    ) -> Result<(), Error> {
        let Some(place) = &self.place else { return patiently(|| self.store.keep_letters(letters.clone())).await };
        let piece = JournalPiece { number: self.next, content: entry.write()?, letters, outdated };
        patiently(|| self.store.journal_append(place.run, piece.clone(), kept, now)).await?;
        self.next += 1;
        Ok(())
    }
}

/// The number of pieces that the output confirms, and the letters of the others. After a power cut the output may have lost more than the
/// journal; and an announced replacement of the output may not have happened.
async fn confirmed_pieces(pieces: &Pieces, length: Option<u64>) -> Result<(u64, Vec<CallId>), Error> {
    let (mut end, mut outdated) = (0, Vec::new());
    let (mut announced, mut is_last) = (None, true);
    pieces
        .each(|number, entry| {
            is_last = length.is_none_or(|length| entry.output.is_none_or(|output| output <= length));
            if is_last {
                end = number + 1;
                announced = entry.replaces.filter(|before| entry.output != Some(*before));
                outdated.clear();
            } else {
                // A letter that replaces itself comes from an earlier piece.
                let own = entry.dead.iter().filter(|(_, letter, before)| letter != before);
                outdated.extend(own.filter_map(|(_, letter, _)| CallId::parse(letter)));
            }
        })
        .await?;
    if is_last && announced.is_some() && announced == length {
        end -= 1;
    }
    Ok((end, outdated))
}

/// Retries while the store is briefly unavailable.
async fn patiently<F: Future<Output = Result<(), Error>>>(write: impl Fn() -> F) -> Result<(), Error> {
    let mut pause = Duration::from_millis(50);
    loop {
        match write().await {
            Err(error) if error.passes() && pause < Duration::from_secs(4) => {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests;
