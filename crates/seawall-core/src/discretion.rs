//! Hides secrets in what logs and operators see of a request: a header or query parameter with a secret's name keeps its name and loses its
//! value. The request itself is sent and stored unchanged.

use std::borrow::Cow;

/// The replacement for a secret value.
pub const REDACTED: &str = "[redacted]";

/// A name with one of these endings is secret, ignoring punctuation and case: `X-Auth-Token`, `accessToken`, `client_secret`.
const SECRET: &[&str] = &[
    "authorization",
    "cookie",
    "token",
    "secret",
    "password",
    "passphrase",
    "passwd",
    "apikey",
    "accesskey",
    "signature",
    "credential",
    "credentials",
];
/// A name is secret if its last word is one of these: `key`, `X-Functions-Key`, `secretKey`, `sig`, but not `monkey`.
const SECRET_WORDS: &[&str] = &["key", "sig", "pwd", "auth", "jwt"];
/// Exceptions, which name a thing or a position in a list.
const OPEN: &[&str] = &[
    "idempotencykey",
    "pagetoken",
    "nexttoken",
    "continuationtoken",
    "synctoken",
    "surrogatekey",
    "cachekey",
    "partitionkey",
    "routingkey",
    "sortkey",
    "publickey",
    "primarykey",
    "foreignkey",
    "objectkey",
];

/// The separators between parameters.
const ENDS: [char; 4] = ['?', '&', ';', '#'];

/// Whether a header or parameter of this name has a secret value.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    let last = last_word(name);
    let is_word = SECRET_WORDS.iter().any(|word| last.eq_ignore_ascii_case(word));
    (is_word || SECRET.iter().any(|end| letters.ends_with(end))) && !OPEN.iter().any(|end| letters.ends_with(end))
}

/// Words end at punctuation, and before a capital that follows a small letter.
fn last_word(name: &str) -> &str {
    let last = name.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or(name);
    let begins = last.as_bytes().windows(2).rposition(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
    begins.and_then(|at| last.get(at + 1..)).unwrap_or(last)
}

/// A path or a URL, without the values of secret parameters.
#[must_use]
pub fn target(text: &str) -> Cow<'_, str> {
    if secrets(text).next().is_none() {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for (place, piece) in text.split_inclusive(ENDS).enumerate() {
        match piece.split_once('=') {
            Some((name, value)) if place > 0 && is_secret(&decoded(name)) => {
                shown.extend([name, "=", REDACTED]);
                shown.extend(value.chars().last().filter(|last| ENDS.contains(last)));
            }
            _ => shown.push_str(piece),
        }
    }
    Cow::Owned(shown)
}

/// The values of secret parameters of a path or a URL, as they are written there.
pub fn secrets(text: &str) -> impl Iterator<Item = &str> {
    let pairs = text.split(ENDS).skip(1).filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, value)| !value.is_empty() && is_secret(&decoded(name))).map(|(_, value)| value)
}

/// Decodes percent escapes in names and values; an invalid escape stays as it is.
#[must_use]
pub fn decoded(name: &str) -> Cow<'_, str> {
    if !name.contains('%') {
        return Cow::Borrowed(name);
    }
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code =
            after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, code) {
            (b'%', Some(code)) => {
                out.push(code);
                rest = &after[2..];
            }
            _ => {
                out.push(first);
                rest = after;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_is_secret() {
        let secret = "Authorization Proxy-Authorization Cookie Set-Cookie X-API-Key Api-Key apikey api_key apiKey X-Auth-Token token \
                      access_token accessToken X-Amz-Security-Token X-Amz-Signature X-Amz-Credential X-Goog-Api-Key X-CSRF-Token \
                      X-Shopify-Access-Token Private-Token client_secret X-Client-Secret sig signature password passwd pwd key \
                      Ocp-Apim-Subscription-Key Seawall-Token AWSAccessKey x-auth jwt secretKey privateKey subscriptionKey passphrase";
        for name in secret.split_whitespace() {
            assert!(is_secret(name), "{name}");
        }
        let open = "Accept Content-Type Idempotency-Key X-Idempotency-Key idempotency_key pageToken page_token next_page_token monkey \
                    X-Request-Id keyword tokens Surrogate-Key partition_key signed author design publicKey monKey_x";
        for name in open.split_whitespace() {
            assert!(!is_secret(name), "{name}");
        }
        assert!(!is_secret(""));
    }

    #[test]
    fn targets_lose_the_values_of_secret_parameters_and_nothing_else() {
        for (text, shown) in [
            ("/x?a=1&key=abc&b=2", "/x?a=1&key=[redacted]&b=2"),
            ("/x?token=a=b==", "/x?token=[redacted]"),
            ("/x?k%65y=abc#key=d", "/x?k%65y=[redacted]#key=[redacted]"),
            ("https://h/token=1/x?sig=%2F&%zz=1", "https://h/token=1/x?sig=[redacted]&%zz=1"),
            ("/x?key&key=", "/x?key&key="),
            ("/x?page_token=abc", "/x?page_token=abc"),
            ("/x?a=1;token=abc;b=2", "/x?a=1;token=[redacted];b=2"),
            ("/x", "/x"),
        ] {
            assert_eq!(target(text), shown);
        }
        assert_eq!(secrets("/x?a=1&key=abc&sig=d").collect::<Vec<_>>(), ["abc", "d"]);
    }
}
