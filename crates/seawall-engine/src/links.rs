//! Rewrites links in a response's headers for a caller of the gateway: a link to the upstream becomes one to the gateway, so that a client
//! that follows it keeps its retries, limits and credentials.

use crate::runtime::{Live, LiveUpstream};
use bytes::Bytes;
use http::header::{CONTENT_LOCATION, HeaderMap, HeaderName, HeaderValue, LINK, LOCATION, REFRESH};
use seawall_core::config::url::Base;
use seawall_core::request_target::{RequestTarget, dots};
use std::borrow::Cow;

/// Headers that contain URLs of the upstream.
pub(crate) const LINKS: [HeaderName; 4] = [LOCATION, CONTENT_LOCATION, LINK, REFRESH];

/// The URL by which a caller reaches an upstream through the gateway.
#[derive(Clone, Debug, Default)]
pub struct GatewayUrl {
    /// Host and port as the caller wrote them; `None` if it wrote no host.
    authority: Option<Bytes>,
    is_tls: bool,
    /// The path names the upstream: `/{upstream}/…`.
    is_prefixed: bool,
    /// The path consists of that name alone.
    is_bare: bool,
    /// The port belongs to the upstream.
    is_own_port: bool,
}

impl GatewayUrl {
    /// Builds the URL of a request; the first `prefix` bytes of its path name the upstream.
    #[must_use]
    pub const fn new(authority: Option<Bytes>, is_tls: bool, path: &str, prefix: usize) -> Self {
        Self { authority, is_tls, is_prefixed: prefix > 0, is_bare: prefix > 0 && path.len() == prefix, is_own_port: false }
    }

    /// Builds the URL of a request on the upstream's own port.
    #[must_use]
    pub const fn at_own_port(authority: Option<Bytes>, is_tls: bool) -> Self {
        Self { authority, is_tls, is_prefixed: false, is_bare: false, is_own_port: true }
    }

    fn authority_text(&self) -> Option<&str> {
        std::str::from_utf8(self.authority.as_deref()?).ok().filter(|text| text.is_ascii())
    }

    /// Returns the authority if it consists of host and port alone, because a header will contain it.
    fn checked_authority(&self) -> Option<&str> {
        let authority = self.authority_text()?;
        let base = Base::parse(&format!("http://{authority}")).ok()?;
        base.path.is_empty().then_some(authority)
    }
}

/// The links of one response for one caller.
#[derive(Debug)]
pub struct Links<'a> {
    pub live: &'a Live,
    pub upstream: &'a LiveUpstream,
    /// Path and query of the request, as sent to the upstream.
    pub target: &'a str,
    pub url: &'a GatewayUrl,
}

/// The form of a reference, and the path with query that it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form<'a> {
    Absolute(Cow<'a, str>),
    SchemeRelative(Cow<'a, str>),
    Rooted(Cow<'a, str>),
    Relative(Cow<'a, str>),
}

impl Links<'_> {
    /// Returns whether the headers may contain links.
    #[must_use]
    pub fn are_in(headers: &HeaderMap) -> bool {
        LINKS.iter().any(|name| headers.contains_key(name))
    }

    /// Rewrites links to the upstream into links to the gateway.
    pub fn rewrite(&self, headers: &mut HeaderMap) {
        for name in LINKS.iter().filter(|name| headers.contains_key(*name)).collect::<Vec<_>>() {
            let http::header::Entry::Occupied(mut values) = headers.entry(name) else { continue };
            for value in values.iter_mut() {
                let rewritten = std::str::from_utf8(value.as_bytes())
                    .ok()
                    .and_then(|text| map_references(name, text, |reference| self.rewritten(reference).filter(|ours| ours != reference)))
                    .and_then(|text| HeaderValue::try_from(text).ok());
                if let Some(rewritten) = rewritten {
                    *value = rewritten;
                }
            }
        }
    }

    /// Returns the reference by which the caller reaches the same target through the gateway; `None` if it needs no change or refers to
    /// another server.
    fn rewritten(&self, reference: &str) -> Option<String> {
        let (reference, fragment) = reference.find('#').map_or((reference, ""), |at| reference.split_at(at));
        let form = self.form(reference)?;
        let (Form::Absolute(path) | Form::SchemeRelative(path) | Form::Rooted(path) | Form::Relative(path)) = &form;
        let authority = self.url.checked_authority();
        let scheme = if self.url.is_tls { "https" } else { "http" };
        let Some(ours) = self.gateway_path(path) else {
            // To the caller, a bare path would belong to the gateway.
            let origin = Base { path: String::new(), ..self.upstream.spec.url.clone() };
            return matches!(form, Form::Rooted(_) | Form::Relative(_)).then(|| format!("{origin}{path}{fragment}"));
        };
        if matches!(form, Form::Relative(_)) && self.resolved_by_caller(reference) == ours {
            return None;
        }
        match (form, authority) {
            (Form::Absolute(_), Some(authority)) => Some(format!("{scheme}://{authority}{ours}{fragment}")),
            (Form::SchemeRelative(_), Some(authority)) => Some(format!("//{authority}{ours}{fragment}")),
            // Two leading slashes would make the first segment a host.
            (Form::Rooted(_) | Form::Relative(_), Some(authority)) if ours.starts_with("//") => {
                Some(format!("{scheme}://{authority}{ours}{fragment}"))
            }
            _ if ours.starts_with("//") => None,
            _ => Some(format!("{ours}{fragment}")),
        }
    }

    /// Resolves a reference from the upstream's view; `None` if it refers to the request's own URL or to another server.
    fn form<'r>(&self, reference: &'r str) -> Option<Form<'r>> {
        let base = &self.upstream.spec.url;
        let own_scheme = if base.tls { "https" } else { "http" };
        if reference.is_empty() || reference.starts_with('?') {
            return None;
        }
        if let Some(rest) = reference.strip_prefix("//") {
            return is_of(base, own_scheme, rest).map(Form::SchemeRelative);
        }
        if reference.starts_with('/') {
            return Some(Form::Rooted(without_dots(reference)));
        }
        match scheme(reference) {
            Some(scheme) => {
                let rest = reference[scheme.len() + 1..].strip_prefix("//")?;
                is_of(base, scheme, rest).map(Form::Absolute)
            }
            None => Some(Form::Relative(Cow::Owned(resolve(self.target, reference)))),
        }
    }

    /// Returns the gateway's path for an upstream path, or `None` if no request through the gateway reaches it.
    fn gateway_path(&self, path: &str) -> Option<String> {
        let base = &self.upstream.spec.url;
        let below = path.strip_prefix(&base.path).filter(|below| below.starts_with('/'))?;
        // Clients encode spaces before they send the request.
        let sent = below.replace(' ', "%20");
        if RequestTarget::new(sent.as_str()).is_err() || (!base.path.is_empty() && dots::escapes(&sent)) {
            return None;
        }
        let named = format!("/{}", self.upstream.spec.name);
        let prefixes = if self.url.is_prefixed { [&*named, &*named] } else { ["", &*named] };
        let prefix = prefixes.into_iter().find(|prefix| self.leads_here(&format!("{prefix}{sent}"), prefix.len()))?;
        Some(format!("{prefix}{below}"))
    }

    /// Returns whether the gateway routes such a request to this upstream, with the whole path behind the prefix.
    fn leads_here(&self, target: &str, prefix: usize) -> bool {
        let path = target.split('?').next().unwrap_or(target);
        let host = || self.url.authority_text().unwrap_or("");
        let is_ours =
            |(upstream, named): (&std::sync::Arc<LiveUpstream>, usize)| upstream.spec.name == self.upstream.spec.name && named == prefix;
        let is_routed = || if self.url.is_own_port { prefix == 0 } else { self.live.route(host, path).is_some_and(is_ours) };
        !path.starts_with("/-/") && is_routed()
    }

    /// Resolves a relative reference from the caller's view, which knows only its own path.
    fn resolved_by_caller(&self, reference: &str) -> String {
        let prefix = if self.url.is_prefixed { &*format!("/{}", self.upstream.spec.name) } else { "" };
        let below = self.target.get(self.upstream.spec.url.path.len()..).unwrap_or("");
        resolve(&format!("{prefix}{}", if self.url.is_bare { "" } else { below }), reference)
    }
}

/// Returns path and query of a URL behind its scheme and `//`, if its origin is this one. A URL with a user part is never rewritten.
fn is_of<'r>(base: &Base, scheme: &str, rest: &'r str) -> Option<Cow<'r, str>> {
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let origin = Base::parse(&format!("{}://{authority}", scheme.to_ascii_lowercase())).ok()?;
    if !origin.same_origin(base) {
        return None;
    }
    Some(if path.starts_with('/') { without_dots(path) } else { Cow::Owned(format!("/{path}")) })
}

/// Returns the scheme of a reference, if it has one.
fn scheme(reference: &str) -> Option<&str> {
    let scheme = &reference[..reference.find([':', '/', '?'])?];
    let is_scheme = reference[scheme.len()..].starts_with(':')
        && scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme.then_some(scheme)
}

/// Resolves a relative reference against a path (RFC 3986 §5.2).
fn resolve(at: &str, reference: &str) -> String {
    let path = at.split('?').next().unwrap_or(at);
    let folder = &path[..path.rfind('/').map_or(0, |slash| slash + 1)];
    let joined = format!("{}{folder}{reference}", if folder.is_empty() { "/" } else { "" });
    without_dots(&joined).into_owned()
}

/// Removes dot segments from a path, as clients do before they send the request; keeps the query.
fn without_dots(target: &str) -> Cow<'_, str> {
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    let is_dotted = |segment: &str| matches!(dotted(segment), 1 | 2);
    if !path.split('/').any(is_dotted) {
        return Cow::Borrowed(target);
    }
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let dots = dotted(segment);
        if dots == 0 {
            kept.push(segment);
            continue;
        }
        if dots == 2 {
            kept.pop();
        }
        if segments.peek().is_none() {
            kept.push("");
        }
    }
    Cow::Owned(format!("/{}{query}", kept.join("/")))
}

/// Returns the number of dots if a segment consists of one or two dots; `%2e` counts as a dot.
fn dotted(segment: &str) -> usize {
    let mut rest = segment;
    for dots in 0..3 {
        if rest.is_empty() {
            return dots;
        }
        let after = rest.strip_prefix('.').or_else(|| rest.strip_prefix("%2e")).or_else(|| rest.strip_prefix("%2E"));
        let Some(after) = after else { return 0 };
        rest = after;
    }
    0
}

/// Replaces some references in the value of one of these headers; `None` if none was replaced.
fn map_references(name: &HeaderName, text: &str, mut map: impl FnMut(&str) -> Option<String>) -> Option<String> {
    if *name == LINK {
        return map_link(text, map);
    }
    let start = if *name == REFRESH { refresh(text) } else { 0 };
    let quote = text[start..].chars().next().filter(|first| *name == REFRESH && matches!(first, '"' | '\''));
    let start = start + quote.map_or(0, char::len_utf8);
    let (before, rest) = text.split_at(start);
    let (reference, after) = rest.split_at(quote.and_then(|quote| rest.find(quote)).unwrap_or(rest.len()));
    map(reference.trim()).map(|mapped| format!("{before}{mapped}{after}"))
}

/// Returns the start of the URL in `5; url=/x`; the end of the text if there is none.
fn refresh(text: &str) -> usize {
    let Some(joint) = text.find([';', ',']) else { return text.len() };
    let skip = |at: usize| at + text[at..].len() - text[at..].trim_start().len();
    let start = skip(joint + 1);
    let named = text.get(start..start + 3).filter(|name| name.eq_ignore_ascii_case("url"));
    let equals = named.map(|_| skip(start + 3)).filter(|at| text[*at..].starts_with('='));
    equals.map_or(start, |at| skip(at + 1))
}

/// Replaces some URLs in `<url>; parameter="value", <url>` (RFC 8288). Text in another form stays.
fn map_link(text: &str, mut map: impl FnMut(&str) -> Option<String>) -> Option<String> {
    let mut out = String::with_capacity(text.len() + 32);
    let (mut rest, mut is_mapped) = (text, false);
    while let Some(open) = value_start(rest) {
        let (before, inside) = rest.split_at(open + 1);
        let Some(close) = inside.find('>') else { break };
        out.push_str(before);
        match map(&inside[..close]) {
            Some(mapped) => {
                is_mapped = true;
                out.push_str(&mapped);
            }
            None => out.push_str(&inside[..close]),
        }
        rest = &inside[close..];
    }
    out.push_str(rest);
    is_mapped.then_some(out)
}

/// Returns the position of the next `<` outside of quotes.
fn value_start(text: &str) -> Option<usize> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.bytes().position(|byte| {
        let found = byte == b'<' && !is_quoted;
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ => {}
        }
        found
    })
}

#[cfg(test)]
mod tests;
