//! What is wrong with a configuration file, shown the way rustc shows it: file, line, column, the line itself, and help.
//! Secrets that were written inline are masked before anything is rendered.

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use std::ops::Range;

/// One thing to mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Byte range in the file.
    pub span: Range<usize>,
    /// Dotted key path, such as `upstreams.youtube.retry.base`; empty where no key is to blame.
    pub path: String,
    pub message: String,
    pub help: Option<String>,
}

impl Problem {
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
    problems: Vec<Problem>,
}

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Invalid {}

impl Invalid {
    #[must_use]
    pub fn new(file: &str, text: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| (problem.span.start, problem.span.end));
        problems.dedup();
        Self { file: file.to_owned(), text: masked(text), problems }
    }

    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Line and column of a problem, both from 1, columns counted in characters.
    #[must_use]
    pub fn position(&self, problem: &Problem) -> (usize, usize) {
        position(&self.text, problem.span.start)
    }

    /// Rustc-style snippets, one for each problem, and a closing count.
    #[must_use]
    pub fn render(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let mut out = String::new();
        for problem in &self.problems {
            out.push_str(&self.render_one(&renderer, problem));
            out.push_str("\n\n");
        }
        let count = self.problems.len();
        out.push_str(&format!("{}: {count} problem{} found", self.file, if count == 1 { "" } else { "s" }));
        out
    }

    fn render_one(&self, renderer: &Renderer, problem: &Problem) -> String {
        let title = if problem.path.is_empty() { problem.message.clone() } else { format!("`{}`: {}", problem.path, problem.message) };
        let span = clamp(&self.text, &problem.span);
        let snippet = Snippet::source(self.text.as_str()).path(self.file.as_str()).annotation(AnnotationKind::Primary.span(span));
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
    // A span over many lines would print them all; the first is where the reader must look.
    let end = text[start..end].find('\n').map_or(end, |newline| start + newline);
    start..end
}

/// Blanks out what follows `secret =`, `token =` and the like unless it is a reference, keeping every byte offset.
fn masked(text: &str) -> String {
    let Ok(pattern) = regex::Regex::new(r#"(?i)(?:secret|token|password|client_id)[a-z_]*\s*=\s*["']*([^"'\s#,}\]]+)"#) else {
        return String::new();
    };
    let userinfo = regex::Regex::new(r"://([^/\s@\x22']+)@");
    let mut out = text.to_owned();
    let mut hide = |range: Range<usize>| out.replace_range(range.clone(), &"*".repeat(range.len()));
    for found in pattern.captures_iter(text) {
        if let Some(value) = found.get(1)
            && !value.as_str().starts_with("env:")
            && !value.as_str().starts_with("file:")
            && value.as_str() != "{"
        {
            hide(value.range());
        }
    }
    for found in userinfo.iter().flat_map(|pattern| pattern.captures_iter(text)) {
        if let Some(value) = found.get(1) {
            hide(value.range());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_secrets_never_reach_the_screen() {
        let text = "secret = \"sk-live-canary\"\nstore = \"postgres://me:hunter2@db/x\"\ntoken = \"env:OK\"\n";
        let invalid =
            Invalid::new("f", text, vec![Problem::new(0..6, "a", "b"), Problem::new(30..31, "c", "d"), Problem::new(70..71, "e", "f")]);
        let shown = invalid.render(false);
        assert!(!shown.contains("canary") && !shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("env:OK"), "{shown}");
    }

    #[test]
    fn positions_count_characters_and_survive_bad_spans() {
        assert_eq!(position("a\nµb", 4), (2, 2));
        assert_eq!(position("µ", 1), (1, 1));
        assert_eq!(position("a", 99), (1, 2));
    }
}
