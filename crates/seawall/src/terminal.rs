//! Output: data to stdout, everything else to stderr, colour only if it is wanted.

use crate::exit::{CommandError, Exit};
use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use seawall_core::config::Invalid;
use seawall_server::configuration::Unreadable;
use std::io::{self, Write};
use std::process::ExitCode;

pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub(crate) const HINT: Style = AnsiColor::Cyan.on_default();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug)]
pub(crate) struct Terminal {
    quiet: bool,
    verbose: bool,
}

impl Terminal {
    pub(crate) fn new(color: Color, quiet: bool, verbose: bool) -> Self {
        // `Auto` lets anstream check NO_COLOR, CLICOLOR_FORCE, TERM and whether the stream is a terminal.
        match color {
            Color::Auto => ColorChoice::Auto.write_global(),
            Color::Always => ColorChoice::Always.write_global(),
            Color::Never => ColorChoice::Never.write_global(),
        }
        Self { quiet, verbose }
    }

    /// For output without a command line.
    pub(crate) const fn plain() -> Self {
        Self { quiet: false, verbose: false }
    }

    pub(crate) const fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub(crate) fn out(&self) -> impl Write + use<> {
        anstream::AutoStream::auto(io::stdout()).lock()
    }

    pub(crate) fn err(&self) -> impl Write + use<> {
        anstream::AutoStream::auto(io::stderr()).lock()
    }

    /// Writes a line for people that scripts do not need.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            // If stderr is gone, there is no place to report that.
            drop(writeln!(self.err(), "{text}"));
        }
    }

    /// Writes a line for `--verbose`.
    pub(crate) fn detail(&self, text: &str) {
        if self.verbose {
            self.note(text);
        }
    }

    /// Reports an error and returns its exit code.
    pub(crate) fn fail(&self, error: &anyhow::Error) -> Exit {
        if is_broken_pipe(error) {
            return Exit::Done;
        }
        let mut err = self.err();
        let told = if let Some(invalid) = error.downcast_ref::<Invalid>() {
            writeln!(err, "{}", invalid.render(true))
        } else {
            tell(&mut err, error)
        };
        drop(told);
        if error.is::<Invalid>() || error.is::<Unreadable>() {
            return Exit::InvalidConfig;
        }
        error.downcast_ref::<CommandError>().map_or(Exit::Failed, |failure| failure.exit)
    }
}

fn tell(err: &mut impl Write, error: &anyhow::Error) -> io::Result<()> {
    writeln!(err, "{ERROR}error{ERROR:#}: {error}")?;
    for cause in error.chain().skip(1) {
        writeln!(err, "  caused by: {cause}")?;
    }
    if let Some(hint) = error.downcast_ref::<CommandError>().and_then(|failure| failure.hint.as_ref()) {
        writeln!(err, "\n{HINT}hint{HINT:#}: {hint}")?;
    }
    Ok(())
}

/// Whether the reader closed the pipe: `seawall … | head` ends quietly.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe))
}

/// Prints help and usage errors, with clap's own exit codes.
pub(crate) fn usage(usage: &clap::Error) -> ExitCode {
    // A reader that closed the pipe has read enough.
    drop(usage.print());
    if usage.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() }
}
