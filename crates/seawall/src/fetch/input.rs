//! Parses lines into rows: URLs and paths, NDJSON, or CSV with a template. Runs on a thread of its own, some rows ahead of the sending
//! thread. An invalid line is reported and never ends the run.

use super::earlier_runs::{Earlier, block};
use super::lines::{LineReader, TextLine};
use super::name_filter::NameFilter;
use super::route::Routes;
use super::row::{BadRow, InputRow};
use super::template::Template;
use anyhow::Context as _;
use bytes::Bytes;
use seawall_core::id::CallId;
use seawall_core::request_method;
use seawall_http::request_headers::RequestHeaders;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::mpsc;

/// The memory limit of one batch, after its first row.
const HEAVY: usize = 1 << 20;
/// The most bytes shown of an invalid line.
const MAX_SHOWN: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// CSV by the file's name or with a template; otherwise each line by itself
    Auto,
    Urls,
    Ndjson,
    Csv,
}

/// A parsed line.
#[derive(Debug)]
pub(super) enum Read {
    Row(InputRow, EarlierRow),
    Bad(BadRow, EarlierRow),
}

impl Read {
    /// Its line and its key.
    pub(super) const fn place(&self) -> (u64, u64) {
        match self {
            Self::Row(row, _) => (row.line, row.key),
            Self::Bad(bad, _) => (bad.line, bad.key),
        }
    }

    pub(super) const fn before(&mut self) -> &mut EarlierRow {
        match self {
            Self::Row(_, before) | Self::Bad(_, before) => before,
        }
    }

    /// Its own id, a JSON text; empty if it has none.
    pub(super) fn id(&self) -> &str {
        if let Self::Row(row, _) = self { &row.id } else { "" }
    }

    const fn set_ordinal(&mut self, ordinal: u64) {
        match self {
            Self::Row(row, _) => row.ordinal = ordinal,
            Self::Bad(bad, _) => bad.ordinal = ordinal,
        }
    }

    fn weight(&self) -> usize {
        if let Self::Row(row, _) = self { row.weight() } else { size_of::<Self>() }
    }
}

/// The remainder of a row from earlier runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EarlierRow {
    /// Its former line, if it moved.
    pub moved_from: Option<u64>,
    /// Its dead letter.
    pub letter: Option<CallId>,
    /// The last fetched page, and the place of the next one.
    pub page: Option<(u32, String)>,
}

/// The reader's progress, for the progress display.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    pub bytes: Arc<AtomicU64>,
    pub rows: AtomicU64,
    /// Finished by an earlier run.
    pub skipped: AtomicU64,
    /// Unfinished rows that this run was not asked to fetch.
    pub unasked: AtomicU64,
    /// Rows whose files could not get the name that their id gives.
    pub renamed: AtomicU64,
    pub over: AtomicBool,
}

impl Ahead {
    /// Whether every row of the list was read and has been finished, by this run or an earlier one.
    pub(super) fn is_finished(&self) -> bool {
        self.over.load(Ordering::Relaxed) && self.unasked.load(Ordering::Relaxed) == 0
    }
}

#[derive(Debug)]
pub(super) struct InputReader {
    pub lines: LineReader,
    pub csv: bool,
    pub template: Option<Template>,
    pub routes: Routes,
    /// Headers for every row.
    pub headers: Vec<(String, String)>,
    pub earlier: Earlier,
    pub ahead: Arc<Ahead>,
    pub columns: Option<CsvColumns>,
    /// Present if each record becomes a file.
    pub names: Option<NameFilter>,
}

/// The head of a CSV file.
#[derive(Debug)]
pub(super) struct CsvColumns {
    names: Vec<String>,
    delimiter: char,
}

/// Rows that are sent together: some lines of one block.
#[derive(Default)]
struct RowBatch {
    rows: Vec<Read>,
    block: u64,
    weight: usize,
}

/// A row under construction.
#[derive(Default)]
struct RowBuilder {
    id: String,
    method: Option<String>,
    target: Option<String>,
    headers: Vec<(String, String)>,
    body: Bytes,
}

impl InputReader {
    /// Reads to the end, or until the receiver is closed.
    pub(super) fn run(mut self, to: &mpsc::Sender<Vec<Read>>) -> anyhow::Result<()> {
        let runtime = super::runtime()?;
        let mut batch = RowBatch::default();
        loop {
            let line = self.record().context("cannot read the input")?;
            let over = line == TextLine::End;
            if over || block(self.lines.number) != batch.block {
                let sent = runtime.block_on(self.pass(&mut batch, true, to))?;
                if over || !sent {
                    self.ahead.over.store(over, Ordering::Relaxed);
                    return Ok(());
                }
            }
            batch.block = block(self.lines.number);
            let read = match line {
                TextLine::End => None,
                TextLine::TooLong => Some(self.bad(b"", "the line is longer than 16 MiB".to_owned())),
                TextLine::Text(text) => self.read(&text),
            };
            let Some(read) = read else { continue };
            batch.weight += read.weight();
            batch.rows.push(read);
            // The sender is out of rows, so pass on this batch at once, unless an earlier run knows its block.
            let wanted = to.capacity() == to.max_capacity() && !self.earlier.knows(batch.block);
            if (wanted || batch.weight > HEAVY) && !runtime.block_on(self.pass(&mut batch, false, to))? {
                return Ok(());
            }
        }
    }

    /// Reads a list to its end without sending rows. The input is opened anew before and after.
    pub(super) fn survey(&mut self, mut look: impl FnMut(&Read)) -> anyhow::Result<()> {
        let names = self.names.take();
        self.lines.reopen()?;
        self.columns = None;
        loop {
            let read = match self.record()? {
                TextLine::End => break,
                TextLine::TooLong => Some(self.bad(b"", String::new())),
                TextLine::Text(text) => self.read(&text),
            };
            read.iter().for_each(&mut look);
        }
        self.names = names;
        self.columns = None;
        self.lines.reopen()
    }

    /// Sends the rows that no earlier run has finished. `false` once the receiver is closed.
    async fn pass(&mut self, batch: &mut RowBatch, whole: bool, to: &mpsc::Sender<Vec<Read>>) -> anyhow::Result<bool> {
        let RowBatch { mut rows, block, .. } = std::mem::take(batch);
        batch.block = block;
        let read = rows.len();
        let unasked = self.earlier.filter_block(block, &mut rows, whole).await?;
        let skipped = u64::try_from(read - rows.len()).unwrap_or(0) - unasked;
        self.ahead.skipped.fetch_add(skipped, Ordering::Relaxed);
        self.ahead.unasked.fetch_add(unasked, Ordering::Relaxed);
        let mut ordinal = self.ahead.rows.load(Ordering::Relaxed);
        let renamed = rows.iter().filter(|read| matches!(read, Read::Row(row, _) if NameFilter::is_renamed(&row.file))).count();
        self.ahead.renamed.fetch_add(u64::try_from(renamed).unwrap_or(0), Ordering::Relaxed);
        for row in &mut rows {
            row.set_ordinal(ordinal);
            ordinal += 1;
        }
        self.ahead.rows.store(ordinal, Ordering::Relaxed);
        Ok(rows.is_empty() || to.send(rows).await.is_ok())
    }

    /// Reads a line, or as many as a CSV record needs: an odd number of quotes means that the record continues.
    fn record(&mut self) -> std::io::Result<TextLine> {
        let mut record = match self.lines.line()? {
            TextLine::Text(text) => text,
            other => return Ok(other),
        };
        while self.csv && record.iter().filter(|byte| **byte == b'"').count() % 2 == 1 {
            match self.lines.line()? {
                TextLine::Text(more) if record.len() + more.len() < super::lines::MAX_LINE => {
                    record.push(b'\n');
                    record.extend_from_slice(&more);
                }
                TextLine::TooLong | TextLine::Text(_) => return Ok(TextLine::TooLong),
                TextLine::End => break,
            }
        }
        Ok(TextLine::Text(record))
    }

    /// `None` for lines without a request: empty ones, comments, the head of a CSV file.
    fn read(&mut self, line: &[u8]) -> Option<Read> {
        let made = match std::str::from_utf8(line) {
            Err(_) => Err("it is not UTF-8".to_owned()),
            Ok(text) if text.contains('\0') => Err("it has a NUL character".to_owned()),
            Ok(text) if text.trim().is_empty() => return None,
            Ok(text) if self.csv && self.columns.is_none() => {
                self.columns = Some(CsvColumns::parse(text));
                return None;
            }
            Ok(text) if self.csv => self.of_csv(text),
            Ok(text) if text.trim_start().starts_with('{') => self.of_json(text),
            Ok(text) if text.starts_with('#') => return None,
            Ok(text) => Ok(RowBuilder { target: Some(text.trim().to_owned()), ..RowBuilder::default() }),
        };
        Some(match made.and_then(|asked| self.row(asked)) {
            Ok(row) => Read::Row(row, EarlierRow::default()),
            Err(why) => self.bad(line, why),
        })
    }

    fn bad(&self, line: &[u8], why: String) -> Read {
        let text = String::from_utf8_lossy(&line[..line.len().min(MAX_SHOWN)]).replace('\0', "\u{fffd}");
        let number = self.lines.number;
        let key = InputRow::key("", "", "", &text, &number.to_be_bytes());
        let text = without_password(&text);
        Read::Bad(BadRow { line: number, ordinal: 0, key, text, why }, EarlierRow::default())
    }

    fn row(&mut self, asked: RowBuilder) -> Result<InputRow, String> {
        let target = asked.target.ok_or("it has neither `url` nor `path`")?;
        let (lane, below) = self.routes.route(&target)?;
        let method = asked.method.map_or_else(|| "GET".to_owned(), |method| method.to_ascii_uppercase());
        request_method::check(&method).map_err(|bad| format!("`{method}` is no method that could be sent: {bad}"))?;
        let mut headers = asked.headers;
        for (name, value) in &self.headers {
            if !headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
                headers.push((name.clone(), value.clone()));
            }
        }
        for (name, value) in &headers {
            check_header(name, value)?;
        }
        let key = InputRow::key(&asked.id, &lane, &method, &below, &asked.body);
        let line = self.lines.number;
        let file = self.names.as_mut().map(|names| names.claim(&asked.id, line, key)).unwrap_or_default();
        Ok(InputRow { line, ordinal: 0, key, id: asked.id, file, lane, method, below, headers, body: asked.body })
    }

    fn of_csv(&self, text: &str) -> Result<RowBuilder, String> {
        let columns = self.columns.as_ref().ok_or("the file has no head")?;
        let values = columns.split(text);
        if values.len() > columns.names.len() {
            return Err(format!("it has {} fields, and the head names {}", values.len(), columns.names.len()));
        }
        let value = |name: &str| columns.names.iter().position(|other| other == name).and_then(|at| values.get(at).cloned());
        let target = match &self.template {
            Some(template) => Some(template.fill(value)?),
            None => value("url").or_else(|| value("path")),
        };
        let id = value("id").map(|id| Value::String(id).to_string()).unwrap_or_default();
        Ok(RowBuilder { id, target, ..RowBuilder::default() })
    }

    fn of_json(&self, text: &str) -> Result<RowBuilder, String> {
        let members: Map<String, Value> = serde_json::from_str(text).map_err(|error| format!("it is not a JSON object: {error}"))?;
        let word = |name: &str| match members.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(format!("`{name}` is not a string")),
        };
        let id = match members.get("id") {
            None | Some(Value::Null) => String::new(),
            Some(id @ (Value::String(_) | Value::Number(_) | Value::Bool(_))) => id.to_string(),
            Some(Value::Array(_) | Value::Object(_)) => return Err("`id` is neither text nor a number".to_owned()),
        };
        let target = match (&self.template, word("url")?, word("path")?) {
            (_, Some(url), _) => Some(url),
            (_, None, Some(path)) => Some(path),
            (Some(template), None, None) => Some(template.fill(|name| members.get(name).and_then(scalar))?),
            (None, None, None) => None,
        };
        let mut headers = headers(members.get("headers"))?;
        let body = match members.get("body") {
            None | Some(Value::Null) => Bytes::new(),
            Some(Value::String(text)) => Bytes::from(text.clone()),
            Some(value) => {
                if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
                    headers.push(("content-type".to_owned(), "application/json".to_owned()));
                }
                Bytes::from(value.to_string())
            }
        };
        Ok(RowBuilder { id, method: word("method")?, target, headers, body })
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn headers(value: Option<&Value>) -> Result<Vec<(String, String)>, String> {
    let members = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(members)) => members,
        Some(_) => return Err("`headers` is not an object".to_owned()),
    };
    let pair = |(name, value): (&String, &Value)| Some((name.clone(), scalar(value)?));
    members.iter().map(|member| pair(member).ok_or_else(|| format!("the header `{}` is not text", member.0))).collect()
}

/// # Errors
/// When a header cannot be sent, or a row may not set it.
pub(super) fn check_header(name: &str, value: &str) -> Result<(), String> {
    RequestHeaders::check(name, value).map(|_| ()).map_err(|bad| bad.to_string())
}

impl CsvColumns {
    /// Takes the most frequent delimiter of the head.
    fn parse(head: &str) -> Self {
        let count = |delimiter: char| head.matches(delimiter).count();
        let delimiter = [',', ';', '\t'].into_iter().rev().max_by_key(|delimiter| count(*delimiter)).unwrap_or(',');
        let mut columns = Self { names: Vec::new(), delimiter };
        columns.names = columns.split(head).into_iter().map(|name| name.trim().to_owned()).collect();
        columns
    }

    /// The fields of a record (RFC 4180).
    fn split(&self, record: &str) -> Vec<String> {
        let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
        let mut characters = record.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '"' if quoted && characters.next_if_eq(&'"').is_some() => field.push('"'),
                '"' if quoted => quoted = false,
                '"' if field.is_empty() => quoted = true,
                other if other == self.delimiter && !quoted => fields.push(std::mem::take(&mut field)),
                other => field.push(other),
            }
        }
        fields.push(field);
        fields
    }
}

/// A line for display, without the credentials of a URL.
fn without_password(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let authority = part.find(|byte: char| "/?#\"\\ ".contains(byte)).unwrap_or(part.len());
        let host = part[..authority].rfind('@').unwrap_or(0);
        shown.push_str("://");
        shown.push_str(if host > 0 { "…" } else { "" });
        shown.push_str(&part[host..]);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown_again() {
        assert_eq!(without_password("http://user:pw@h/a@b"), "http://…@h/a@b");
        assert_eq!(without_password(r#"{"url":"https://u@h","x":"http://h/"}"#), r#"{"url":"https://…@h","x":"http://h/"}"#);
        assert_eq!(without_password("http://h/?to=a@b"), "http://h/?to=a@b");
        assert_eq!(without_password("no URL at all"), "no URL at all");
    }

    #[test]
    fn records_come_apart_as_rfc_4180_says() {
        let columns = CsvColumns::parse("id;name");
        assert_eq!(columns.names, ["id", "name"]);
        assert_eq!(columns.split(r#"1;"a ""b"";c""#), ["1", r#"a "b";c"#]);
        assert_eq!(columns.split("1;"), ["1", ""]);
        assert_eq!(CsvColumns::parse("id").split("a,b"), ["a", "b"]);
    }

    #[test]
    fn framing_is_not_a_rows_to_set() {
        assert!(check_header("accept", "*/*").is_ok());
        for (name, value) in [("Host", "x"), ("content-length", "3"), ("a b", "c"), ("a", "b\nc")] {
            assert!(check_header(name, value).is_err(), "{name}");
        }
    }
}
