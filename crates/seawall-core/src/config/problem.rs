//! Problems of a configuration file, rendered in rustc's style: file, line, column, the line itself, and help. Secrets that were written
//! inline are masked before anything is rendered.

use crate::discretion;
use crate::spelling::nearest;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use regex::Regex;
use std::ops::Range;
use std::sync::LazyLock;

/// The most problems shown at once.
const SHOWN: usize = 50;

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Byte range in the file.
    pub span: Range<usize>,
    /// Dotted key path, such as `upstreams.youtube.retry.base`; empty if the problem has no key.
    pub path: String,
    pub message: String,
    pub help: Option<String>,
}

impl Diagnostic {
    #[must_use]
    pub fn new(span: Range<usize>, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { span, path: path.into(), message: message.into(), help: None }
    }

    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// A file that cannot be used, with every reason at once.
#[derive(Clone, Debug)]
pub struct Invalid {
    file: String,
    text: String,
    problems: Vec<Diagnostic>,
}

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Invalid {}

impl Invalid {
    #[must_use]
    pub fn new(file: &str, text: &str, mut problems: Vec<Diagnostic>) -> Self {
        problems.sort_by_key(|problem| (problem.span.start, problem.span.end));
        problems.dedup();
        Self { file: file.to_owned(), text: masked(text), problems }
    }

    #[must_use]
    pub fn problems(&self) -> &[Diagnostic] {
        &self.problems
    }

    /// Line and column of a problem, both from 1, columns counted in characters.
    #[must_use]
    pub fn position(&self, problem: &Diagnostic) -> (usize, usize) {
        position(&self.text, problem.span.start)
    }

    /// Rustc-style snippets, one for each of the first few problems, and a closing count.
    #[must_use]
    pub fn render(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let mut out = String::new();
        for problem in self.problems.iter().take(SHOWN) {
            out.push_str(&self.render_one(&renderer, problem));
            out.push_str("\n\n");
        }
        let count = self.problems.len();
        let shown = if count > SHOWN { format!(", the first {SHOWN} are shown") } else { String::new() };
        out.push_str(&format!("{}: {count} problem{} found{shown}", self.file, if count == 1 { "" } else { "s" }));
        out
    }

    fn render_one(&self, renderer: &Renderer, problem: &Diagnostic) -> String {
        let title = if problem.path.is_empty() { problem.message.clone() } else { format!("`{}`: {}", problem.path, problem.message) };
        // Passes only the line itself, because a snippet scans its whole input.
        let span = clamp(&self.text, &problem.span);
        let from = self.text[..span.start].rfind('\n').map_or(0, |newline| newline + 1);
        let to = self.text[span.end..].find('\n').map_or(self.text.len(), |newline| span.end + newline);
        let line = self.text[from..to].trim_end_matches('\r');
        let mark = (span.start - from).min(line.len())..(span.end - from).min(line.len());
        let (number, _) = position(&self.text, span.start);
        let snippet = Snippet::source(line).line_start(number).path(self.file.as_str()).annotation(AnnotationKind::Primary.span(mark));
        let mut group = Level::ERROR.primary_title(title).element(snippet);
        if let Some(help) = &problem.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        renderer.render(&[group])
    }
}

/// Line and column, both from 1, columns counted in characters.
#[must_use]
pub(crate) fn position(text: &str, at: usize) -> (usize, usize) {
    let at = floor_char(text, at);
    let before = &text[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |tail| tail.chars().count()) + 1;
    (line, column)
}

fn floor_char(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn clamp(text: &str, span: &Range<usize>) -> Range<usize> {
    let start = floor_char(text, span.start);
    let end = floor_char(text, span.end).max(start);
    // A span over many lines would print them all, so only its first line is shown.
    let end = text[start..end].find('\n').map_or(end, |newline| start + newline);
    start..end
}

/// A name and the value that is assigned to it, quoted in any of TOML's ways, closed or not.
const ASSIGNED: &str =
    r#"(?i)["']?([a-z0-9_-]+)["']?\s*=\s*("{3}(?s:.*?)(?:"{3}|\z)|'{3}(?s:.*?)(?:'{3}|\z)|"(?:\\.|[^"\\\n])*|'[^'\n]*|[^\s#,}\]\["'{]+)"#;

/// Other places of secrets: a list of bare keys, user information and query of a URL, the query of a path, and a header's value without the
/// placeholder for the secret.
const ANYWHERE: [&str; 5] = [
    r#"(?i)\bkeys\s*=\s*\[([^\]{]*)"#,
    r#"://([^\s"']+)@"#,
    r#"://[^\s"'?]*\?([^\s"']+)"#,
    r#"["']/[^\s"'?]*\?([^\s"']+)"#,
    r#"(?i)\bheader:[a-z0-9_-]+:\s*(?:(?:bearer|basic|token)\s+)?([^{"'\n]+)["'\n]"#,
];

/// Parts of secrets' names. A name that is close to one, such as a misspelt one, counts too.
const SECRETS: [&str; 8] = ["secret", "token", "password", "passwd", "credential", "api_key", "apikey", "client_id"];

/// Keys of ours whose names look like secrets and are not.
const OPEN: [&str; 2] = ["key", "client_auth"];

/// Masks possible secrets that are not references, and keeps every byte offset. Use it for every text of a configuration that is shown: a
/// rejected file may hold secrets too.
#[must_use]
pub fn masked(text: &str) -> String {
    static PATTERNS: LazyLock<(Regex, [Regex; 5])> = LazyLock::new(|| {
        let pattern = |pattern| Regex::new(pattern).expect("the patterns are constants that the tests use");
        (pattern(ASSIGNED), ANYWHERE.map(pattern))
    });
    let (assigned, anywhere) = &*PATTERNS;
    let mut out = text.to_owned();
    let mut hide = |found: regex::Match<'_>| {
        let quotes = found.as_str().len() - found.as_str().trim_start_matches(['"', '\'']).len();
        let (start, end) = (found.start() + quotes, found.end());
        let reference = text[start..end].starts_with("env:") || text[start..end].starts_with("file:");
        if !reference && start < end {
            out.replace_range(start..end, &stars(&text[start..end]));
        }
    };
    for found in assigned.captures_iter(text) {
        if let (Some(name), Some(value)) = (found.get(1), found.get(2))
            && is_secret(name.as_str())
        {
            hide(value);
        }
    }
    for anywhere in anywhere {
        anywhere.captures_iter(text).filter_map(|found| found.get(1)).for_each(&mut hide);
    }
    out
}

/// Whether the name, or the known name closest to it, is that of a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_header = || !OPEN.contains(&name.as_str()) && discretion::is_secret(&name);
    SECRETS.iter().any(|secret| name.contains(secret)) || nearest(&name, SECRETS).is_some() || is_header()
}

/// Stars for every byte of the text; line breaks stay.
fn stars(text: &str) -> String {
    text.bytes().map(|byte| if byte == b'\n' { '\n' } else { '*' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_secrets_never_reach_the_screen() {
        let text = "secret = \"sk-live-canary\"\nstore = \"postgres://me:hunter2@db/x\"\ntoken = \"env:OK\"\n";
        let invalid = Invalid::new(
            "f",
            text,
            vec![Diagnostic::new(0..6, "a", "b"), Diagnostic::new(30..31, "c", "d"), Diagnostic::new(70..71, "e", "f")],
        );
        let shown = invalid.render(false);
        assert!(!shown.contains("canary") && !shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("env:OK"), "{shown}");
    }

    #[test]
    fn a_secret_is_masked_however_it_is_written() {
        let ways = [
            "secret = \"a canary in words\"",
            "secret = 'canary'",
            "secret = \"\"\"\nfirst canary\nsecond canary\"\"\"",
            "secret = \"canary",
            "secret = \"a,canary#x]}\"",
            "secret = \"\\\"canary\"",
            "\"secret\" = \"canary\"",
            "secrte = \"canary\"",
            "api_key = \"canary\"",
            "API-Token='canary'",
            "{ id = \"a\", secret = \"canary\" }",
            "keys = [\"canary\", \"canary\"]",
            "url = \"https://me:ca/nary@canary@host/x\"",
            "url = \"https://host/x?key=canary\"",
            "inject = \"header:Authorization: Bearer canary\"",
            "inject = \"header:X-Key: canary\"",
            "request.path = \"/x?page=1&api_key=canary\"",
            "secret = canary",
            "headers = { Authorization = \"Bearer canary\", \"X-Key\" = \"canary\" }",
        ];
        for way in ways {
            let hidden = masked(way);
            assert!(!hidden.contains("canary"), "{way} → {hidden}");
            assert_eq!(hidden.len(), way.len(), "{way} → {hidden}");
        }
        for kept in [
            "secret = \"env:CANARY\"",
            "keys = [{ id = \"a\" }]",
            "inject = \"header:X: Bearer {secret}\"",
            "rate = \"50/s\"",
            "key = \"global\"",
        ] {
            assert_eq!(masked(kept), kept);
        }
    }

    #[test]
    fn a_file_full_of_problems_is_told_of_in_a_moment() {
        let text = "x = 1\n".repeat(100_000);
        let problems = (0..100_000).map(|i| Diagnostic::new(i * 6..i * 6 + 1, "x", "no")).collect();
        let shown = Invalid::new("f", &text, problems).render(true);
        assert!(shown.ends_with("f: 100000 problems found, the first 50 are shown"), "{}", &shown[shown.len() - 200..]);
    }

    #[test]
    fn positions_count_characters_and_survive_bad_spans() {
        assert_eq!(position("a\nµb", 4), (2, 2));
        assert_eq!(position("µ", 1), (1, 1));
        assert_eq!(position("a", 99), (1, 2));
    }
}
