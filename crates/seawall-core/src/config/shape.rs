//! The configuration file's structure as data: every table, key, kind of value and one line of description. The checker, the JSON Schema
//! and the reference all read these tables, so they cannot disagree.

/// The kind of a value.
#[derive(Clone, Copy, Debug)]
pub enum ValueKind {
    /// Whether zero is allowed.
    Duration {
        zero: bool,
    },
    Size,
    /// Whether zero is allowed.
    Rate {
        zero: bool,
    },
    Share,
    Int {
        min: u64,
        max: u64,
    },
    Float {
        min: f64,
        max: f64,
    },
    Bool,
    Text,
    /// The name of a header that we may add to a request.
    Header,
    /// The value of a header.
    HeaderValue,
    /// A name that is also written in quotes in a header.
    Label,
    /// One of a closed set.
    Word(&'static [&'static str]),
    /// `env:NAME` or `file:PATH`.
    Secret,
    /// An absolute http(s) URL without credentials, query or fragment.
    Url,
    /// A URL, or a reference to one.
    UrlOrSecret,
    /// `sqlite:…`, `postgres://…`, `local`, `redis://…`: one of the given prefixes.
    Place(&'static [&'static str]),
    /// `HOST:PORT`.
    Listen,
    Cidr,
    /// `HH:MM Zone/Name`.
    Reset,
    /// One dimension of a limit key.
    LimitKey,
    /// `query:NAME`, `header:NAME`, `header:NAME: PREFIX {secret}`, `basic`.
    Inject,
    /// A method that may be sent.
    Method,
    /// `METHOD /path`.
    Match,
    List(&'static Self),
    /// A single value or a list of them.
    OneOrMany(&'static Self),
    Table(&'static TableShape),
    /// `[name.X]`: any names, one shape.
    Map(&'static TableShape),
    /// `[[name]]`.
    Tables(&'static TableShape),
    /// `[[classify]]`: read by the classifier's own parser; the schema shows the table.
    Rules(&'static TableShape),
    /// Free-form strings by free-form names.
    Strings,
    /// Whole numbers by free-form names.
    Counts,
    /// The second if the value is a table, else the first.
    Either(&'static Self, &'static Self),
}

#[derive(Clone, Copy, Debug)]
pub struct KeyShape {
    pub name: &'static str,
    pub kind: ValueKind,
    pub doc: &'static str,
    pub required: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct TableShape {
    /// The name for one of these tables in messages.
    pub what: &'static str,
    /// Several slices, so that endpoints and upstreams share the policy keys.
    pub keys: &'static [&'static [KeyShape]],
}

impl TableShape {
    pub fn iter(&self) -> impl Iterator<Item = &'static KeyShape> + use<> {
        self.keys.iter().flat_map(|slice| slice.iter())
    }

    #[must_use]
    pub fn key(&self, name: &str) -> Option<&'static KeyShape> {
        self.iter().find(|key| key.name == name)
    }
}

#[must_use]
pub const fn key(name: &'static str, kind: ValueKind, doc: &'static str) -> KeyShape {
    KeyShape { name, kind, doc, required: false }
}

#[must_use]
pub const fn required(name: &'static str, kind: ValueKind, doc: &'static str) -> KeyShape {
    KeyShape { name, kind, doc, required: true }
}
