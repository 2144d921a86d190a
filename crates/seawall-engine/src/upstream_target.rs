//! The request target at an upstream.

use crate::runtime::LiveUpstream;
use seawall_core::request_target::{BadTarget, RequestTarget, dots};

/// The target for the whole server (RFC 9112 §3.2.4).
pub const ASTERISK: &str = "*";

/// Joins the upstream's base path and the path below it, byte for byte. Removes a caller's own value of the parameter that carries
/// our key; otherwise both would be sent.
///
/// # Errors
/// When the result cannot stand in a request line.
pub fn target(upstream: &LiveUpstream, below: &str) -> Result<RequestTarget, BadTarget> {
    let base = &upstream.spec.url.path;
    if below == ASTERISK {
        // If the upstream is only a part of a server, `*` means that part.
        return if base.is_empty() { Ok(RequestTarget::asterisk()) } else { RequestTarget::new(base.as_str()) };
    }
    let mut target = String::with_capacity(base.len() + below.len() + 1);
    target.push_str(base);
    if !below.starts_with('/') {
        target.push('/');
    }
    target.push_str(below);
    if !base.is_empty() && dots::escapes(below) {
        return Err(BadTarget::Escapes);
    }
    RequestTarget::new(without_ours(upstream, target))
}

/// Returns the base path with a query or none; `target` would put a slash between the two.
///
/// # Errors
/// When the result cannot stand in a request line.
pub fn base_target(upstream: &LiveUpstream, query: &str) -> Result<RequestTarget, BadTarget> {
    RequestTarget::new(without_ours(upstream, format!("{}{query}", upstream.spec.url.path)))
}

/// Does the same without the upstream's base path, for the link to a next page.
pub fn below(upstream: &LiveUpstream, below: String) -> String {
    without_ours(upstream, below)
}

fn without_ours(upstream: &LiveUpstream, target: String) -> String {
    let parameter = upstream.credentials.as_ref().and_then(|credentials| credentials.parameter());
    let Some(name) = parameter else { return target };
    let Some((path, query)) = target.split_once('?') else { return target };
    let own = |pair: &&str| !is_spelt(pair.split('=').next().unwrap_or(pair), name);
    if query.split('&').all(|pair| own(&pair)) {
        return target;
    }
    let kept: Vec<&str> = query.split('&').filter(own).collect();
    if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) }
}

/// Returns whether a parameter's decoded name equals this one.
fn is_spelt(written: &str, name: &str) -> bool {
    let mut bytes = written.bytes();
    let read = std::iter::from_fn(|| match bytes.next()? {
        b'%' => {
            let mut ahead = bytes.clone();
            let hex = |digit: Option<u8>| char::from(digit?).to_digit(16);
            let Some((high, low)) = hex(ahead.next()).zip(hex(ahead.next())) else { return Some(b'%') };
            bytes = ahead;
            u8::try_from(high * 16 + low).ok()
        }
        b'+' => Some(b' '),
        byte => Some(byte),
    });
    read.eq(name.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_hide_no_parameter() {
        for written in ["key", "k%65y", "%6b%65%79", "%6B%65%79"] {
            assert!(is_spelt(written, "key"), "{written}");
        }
        for written in ["keys", "ke", "k%6y", "k%65", "%", "k%zzy", "Key", ""] {
            assert!(!is_spelt(written, "key"), "{written}");
        }
    }
}
