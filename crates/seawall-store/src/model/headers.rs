//! A response's headers in stored form: serialised once and parsed only for display. A string per name and value would cost a dozen
//! allocations for every job that ends.

use crate::error::Error;
use crate::json;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A JSON list of pairs. Names are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredHeaders(String);

/// Initial capacity; enough for most responses.
const USUAL: usize = 256;

impl Default for StoredHeaders {
    fn default() -> Self {
        Self("[]".to_owned())
    }
}

impl StoredHeaders {
    pub(crate) fn read(text: String) -> Result<Self, Error> {
        json::read::<Vec<(String, String)>>(&text).map(|_| Self(text))
    }

    /// Returns the column value.
    #[must_use]
    pub fn as_json(&self) -> &str {
        &self.0
    }

    #[must_use]
    pub fn pairs(&self) -> Vec<(String, String)> {
        json::read(&self.0).unwrap_or_default()
    }
}

impl<N: AsRef<str>, V: AsRef<str>> FromIterator<(N, V)> for StoredHeaders {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut out = String::with_capacity(USUAL);
        json::list(&mut out, pairs, |out, (name, value)| json::pair(out, name.as_ref(), value.as_ref(), str::make_ascii_lowercase));
        Self(out)
    }
}

impl Serialize for StoredHeaders {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.pairs().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StoredHeaders {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<(String, String)>::deserialize(deserializer)?.into_iter().collect())
    }
}
