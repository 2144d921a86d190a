//! The backend that a `store` value names. Opening it is the backend's task.

use std::path::PathBuf;

/// The supported backends; each passes the conformance suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    Sqlite(PathBuf),
    Postgres(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a store is `sqlite:PATH` or `postgres://…`")]
pub struct UnknownStore;

impl Location {
    /// # Errors
    /// When the text names no known backend.
    pub fn parse(text: &str) -> Result<Self, UnknownStore> {
        if let Some(path) = text.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
            return Ok(Self::Sqlite(PathBuf::from(path)));
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Self::Postgres(text.to_owned()));
        }
        Err(UnknownStore)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_chooses_the_backend() {
        assert_eq!(Location::parse("sqlite:seawall.db"), Ok(Location::Sqlite("seawall.db".into())));
        assert!(matches!(Location::parse("postgres://db/seawall"), Ok(Location::Postgres(_))));
        assert_eq!(Location::parse("mysql://db"), Err(UnknownStore));
        assert_eq!(Location::parse("sqlite:"), Err(UnknownStore));
    }
}
