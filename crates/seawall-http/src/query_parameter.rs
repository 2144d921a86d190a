//! A parameter that is added to the query of a request.

/// A query parameter with a credential, encoded so that it stays one parameter.
pub struct QueryParameter(String);

impl QueryParameter {
    #[must_use]
    pub fn new(name: &str, value: &str) -> Self {
        let mut text = String::with_capacity(name.len() + value.len() + 1);
        encode_onto(&mut text, name, b"-._~[]");
        text.push('=');
        encode_onto(&mut text, value, b"-._~");
        Self(text)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for QueryParameter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// Percent-encodes all except RFC 3986's unreserved characters.
#[must_use]
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    encode_onto(&mut out, text, b"-._~");
    out
}

fn encode_onto(out: &mut String, text: &str, plain: &[u8]) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}
