//! Removes our credential from the headers of a response. An upstream that builds `Location` or `Link` from the request's URL repeats the
//! key in it, and no caller, cache or next page may get it.

use crate::credential::Credentials;
use crate::links::LINKS;
use crate::mask::Probe;
use http::Extensions;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::ext::ReasonPhrase;
use seawall_core::discretion;
use seawall_http::h1::RawResponseHeaders;
use std::borrow::Cow;

/// Removes an attempt's credential from its response's headers: by value everywhere, and by its parameter's name in links. A response
/// without the credential costs one search, and a key in the query costs a check of four names.
pub(crate) fn strip(credentials: &Credentials, probe: Option<&Probe>, headers: &mut HeaderMap, verbatim: &mut Option<RawResponseHeaders>) {
    let has_link = |name: &HeaderName| match &*verbatim {
        Some(verbatim) => verbatim.first(name.as_str()).is_some(),
        None => headers.contains_key(name),
    };
    let is_repeated = probe.is_some_and(|probe| match &*verbatim {
        Some(verbatim) => probe.is_in(verbatim.fields()),
        None => headers.values().any(|value| probe.is_in(value.as_bytes())),
    });
    let parameter = credentials.parameter().filter(|_| LINKS.iter().any(has_link));
    if !is_repeated && parameter.is_none() {
        return;
    }
    if let Some(verbatim) = verbatim.take() {
        verbatim.add_to_header_map(headers);
    }
    let mask = credentials.mask();
    for (name, value) in headers.iter_mut() {
        let mut shown = mask.field(value.as_bytes());
        if let Some(parameter) = parameter.filter(|_| LINKS.contains(name))
            && let Some(without) = std::str::from_utf8(&shown).ok().and_then(|text| without_parameter(text, parameter))
        {
            shown = Cow::Owned(without.into_bytes());
        }
        if let Cow::Owned(shown) = shown
            && let Ok(shown) = HeaderValue::from_bytes(&shown)
        {
            *value = shown;
        }
    }
}

/// Removes a reason phrase that contains our credential. The default phrase is sent instead.
pub(crate) fn strip_reason(credentials: &Credentials, extensions: &mut Extensions) {
    let is_repeated = |reason: &ReasonPhrase| matches!(credentials.mask().field(reason.as_bytes()), Cow::Owned(_));
    if extensions.get::<ReasonPhrase>().is_some_and(is_repeated) {
        extensions.remove::<ReasonPhrase>();
    }
}

/// Removes the parameter of this name from a URL, or from a header with URLs; `None` if there is none.
#[must_use]
pub(crate) fn without_parameter(text: &str, name: &str) -> Option<String> {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    let mut is_found = false;
    while let Some(at) = rest.find(['?', '&', ';']) {
        let (before, after) = rest.split_at(at);
        let (joint, after) = after.split_at(1);
        let end = after.find(['&', ';', '#', '>', '"', '\'', ' ']).unwrap_or(after.len());
        kept.push_str(before);
        let (pair, follows) = after.split_at(end);
        if discretion::decoded(pair.split('=').next().unwrap_or(pair)) != name {
            kept.push_str(joint);
            rest = after;
            continue;
        }
        is_found = true;
        rest = match follows.strip_prefix('&').filter(|_| joint == "?") {
            // The next pair becomes the first one.
            Some(_) => {
                kept.push('?');
                &follows[1..]
            }
            None => follows,
        };
        // The next pair may have that name as well.
        while kept.ends_with('?') {
            let end = rest.find(['&', ';', '#', '>', '"', '\'', ' ']).unwrap_or(rest.len());
            if end == 0 || discretion::decoded(rest[..end].split('=').next().unwrap_or("")) != name {
                break;
            }
            rest = rest[end..].strip_prefix('&').unwrap_or(&rest[end..]);
        }
        if kept.ends_with('?') && (rest.is_empty() || rest.starts_with(['#', '>', '"', '\'', ' '])) {
            kept.pop();
        }
    }
    kept.push_str(rest);
    is_found.then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lose_the_parameter_and_nothing_else() {
        for (text, without) in [
            ("/x?key=abc", "/x"),
            ("/x?key=abc&page=2", "/x?page=2"),
            ("/x?page=2&key=abc", "/x?page=2"),
            ("/x?page=2&k%65y=a%20bc#here", "/x?page=2#here"),
            ("/x?key=abc&key=def", "/x"),
            ("/x?key=abc&key=def&a=1&key=g&b=2#f", "/x?a=1&b=2#f"),
            ("<https://h/x?key=abc&p=1>; rel=\"prev\", </x?p=3&key=abc>; rel=next", "<https://h/x?p=1>; rel=\"prev\", </x?p=3>; rel=next"),
            ("5; url=/x?key=abc", "5; url=/x"),
            ("0;url='/x?key=abc&a=1'", "0;url='/x?a=1'"),
            ("/x?key", "/x"),
        ] {
            assert_eq!(without_parameter(text, "key").as_deref(), Some(without), "{text}");
        }
        for text in ["/x?keys=1", "/key=abc", "/x?a=key", "/x", "", "?", "/x?a=1&Key=2"] {
            assert_eq!(without_parameter(text, "key"), None, "{text}");
        }
    }
}
