//! Text becomes policy. `walk` checks a file against `shape` and finds every problem at once; `layers` and `resolve`
//! merge it over the embedded defaults, profiles and presets into a [`Config`] that remembers where each value came from.

mod at_cost;
pub mod checklist;
pub mod endpoint;
mod entrances;
pub mod explain;
mod fields;
pub mod keys;
mod layers;
pub mod model;
pub mod node;
pub mod place;
mod problem;
mod resolve;
pub mod schema;
pub mod shape;
pub mod url;
mod walk;

pub use at_cost::AtCost;
pub use model::{Auth, CATCH_ALL, Config, EndpointConfig, EndpointPolicy, Refresh, ServerConfig, Tls, UpstreamConfig};
pub use problem::{Diagnostic, Invalid, masked};
pub use resolve::MAX_KEYS;

use node::ConfigLayer;
use std::sync::Arc;
use walk::Walker;

/// Every default, commented: the reference manual of the file format.
pub const DEFAULT_TOML: &str = include_str!("default.toml");

/// The output of `seawall config init --full`: every default as a comment, under its name in a user's file, and one upstream, so that the
/// text is a valid file and sets nothing.
#[must_use]
pub fn manual() -> String {
    let mut manual = String::with_capacity(DEFAULT_TOML.len() * 2);
    for line in DEFAULT_TOML.lines() {
        if !line.is_empty() && !line.starts_with('#') {
            manual.push_str("# ");
        }
        // The defaults of repeated tables have section names that do not occur in users' files.
        let real = line.strip_prefix("[each.").and_then(|rest| rest.split_once("# ")).map(|(_, real)| real);
        manual.push_str(real.unwrap_or(line));
        manual.push('\n');
    }
    manual.push_str("\n[upstreams.example]\nurl = \"https://api.example.com/v1\"\n");
    manual
}

/// The file that `seawall config init` writes.
pub const STARTER_TOML: &str = include_str!("starter.toml");

/// The largest policy file; a larger file is a mistake.
pub const MAX_FILE: usize = 1 << 20;

/// Reads a configuration file's bytes.
///
/// # Errors
/// With every problem of the file at once.
pub fn load(file: &str, bytes: &[u8]) -> Result<Config, Invalid> {
    let (text, tree, mut problems) = read(file, bytes, &keys::ROOT)?;
    let config = resolve::config(&tree, &mut problems);
    if problems.is_empty() { Ok(config) } else { Err(Invalid::new(file, text, problems)) }
}

/// Checks any TOML file against a shape. Returns its text, its tree and its problems.
///
/// # Errors
/// When it is too large, not UTF-8 or not TOML, so that nothing else can be checked.
pub fn read<'b>(file: &str, bytes: &'b [u8], shape: &'static shape::TableShape) -> Result<(&'b str, node::Tree, Vec<Diagnostic>), Invalid> {
    let refuse =
        |text: &str, span: std::ops::Range<usize>, why: String| Err(Invalid::new(file, text, vec![Diagnostic::new(span, "", why)]));
    if bytes.len() > MAX_FILE {
        return refuse("", 0..0, format!("the file is larger than {MAX_FILE} bytes, which is more than any configuration needs"));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let valid = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
            let (line, column) = problem::position(valid, valid.len());
            return refuse(
                valid,
                valid.len()..valid.len(),
                format!("not UTF-8: the byte after line {line}, column {column} is no part of any character"),
            );
        }
    };
    let mut walker = Walker::new(text, ConfigLayer::File(Arc::from(file)), false);
    let tree = walker.document(shape);
    let problems = walker.problems;
    let syntax = problems.iter().any(|problem| problem.message.starts_with("not valid TOML"));
    if syntax {
        return Err(Invalid::new(file, text, problems));
    }
    Ok((text, tree, problems))
}

/// The policy of a host without configuration: the built-in defaults and the generic rules.
#[must_use]
pub fn default_policy() -> EndpointPolicy {
    layers::policy(&layers::builtin_defaults(), "defaults", &mut Vec::new())
}

/// Names of the shipped profiles.
#[must_use]
pub fn profiles() -> Vec<&'static str> {
    layers::profile_names()
}
