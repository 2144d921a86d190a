//! The names of an endpoint in logs and metrics.

use super::log_line;
use std::hash::{Hash as _, Hasher as _};

/// The names of an endpoint in logs and metrics.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointNames {
    pub upstream: String,
    pub endpoint: String,
    /// Both as members of a log line.
    pub(crate) fields: Vec<u8>,
    /// Precomputed hash of both names: every record is looked up by them.
    hash: u64,
}

impl std::hash::Hash for EndpointNames {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl EndpointNames {
    #[must_use]
    pub fn new(upstream: &str, endpoint: &str) -> Self {
        let mut hasher = std::hash::DefaultHasher::new();
        (upstream, endpoint).hash(&mut hasher);
        let fields = log_line::names(upstream, endpoint);
        Self { upstream: upstream.to_owned(), endpoint: endpoint.to_owned(), fields, hash: hasher.finish() }
    }
}
