//! An answer's headers as they are kept: written once, by whoever has the answer, and read by whoever wants to see them. A text for each
//! name and each value would be a dozen allocations for every job that ends.

use crate::error::Error;
use crate::json;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A JSON list of pairs. Names are in lower case, however they were spelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredHeaders(String);

/// What most answers need.
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

    /// As rows keep them.
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
