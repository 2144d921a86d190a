//! Relays W3C trace context: the trace id stays, and each attempt gets a span of its own. Requests without a trace get none.

use http::{HeaderMap, HeaderName, HeaderValue};

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// A caller's trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    id: u128,
    /// The caller's span.
    parent: u64,
    flags: u8,
    seed: u64,
}

/// One attempt's span: the upstream's parent, and a child of the caller's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptSpan {
    pub trace: u128,
    pub id: u64,
    pub parent: u64,
}

impl TraceContext {
    /// Removes the trace from a request's headers. A malformed one is dropped with its state; spans are derived from `seed`.
    pub fn take(headers: &mut HeaderMap, seed: u64) -> Option<Self> {
        let mut all = headers.get_all(TRACEPARENT).iter();
        let trace = match (all.next(), all.next()) {
            (Some(only), None) => only.to_str().ok().and_then(|text| Self::parse(text, seed)),
            _ => None,
        };
        headers.remove(TRACEPARENT);
        if trace.is_none() {
            headers.remove(TRACESTATE);
        }
        trace
    }

    fn parse(text: &str, seed: u64) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, id, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex =
            |text: &str, length: usize| text.len() == length && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let zero = |text: &str| text.bytes().all(|b| b == b'0');
        let formed = hex(version, 2) && hex(id, 32) && hex(span, 16) && hex(flags, 2) && !zero(id) && !zero(span);
        // Later versions may have further fields; version 00 may not, and ff is invalid.
        let fits = version != "ff" && (version != "00" || parts.next().is_none());
        let (id, parent) = (u128::from_str_radix(id, 16), u64::from_str_radix(span, 16));
        let flags = u8::from_str_radix(flags, 16).ok().filter(|_| formed && fits)?;
        Some(Self { id: id.ok()?, parent: parent.ok()?, flags, seed })
    }

    /// Returns the unique span of this attempt.
    #[must_use]
    pub fn span(&self, number: u32) -> AttemptSpan {
        // SplitMix64's finaliser: a bijection that turns consecutive numbers into unrelated ones.
        let mut span = self.seed.wrapping_add(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        span = (span ^ (span >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        span = (span ^ (span >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        AttemptSpan { trace: self.id, id: (span ^ (span >> 31)).max(1), parent: self.parent }
    }

    /// Returns the header for this attempt, with its span as the upstream's parent.
    #[must_use]
    pub fn attempt(&self, number: u32) -> Option<HeaderValue> {
        HeaderValue::from_str(&format!("00-{:032x}-{:016x}-{:02x}", self.id, self.span(number).id, self.flags)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn take(values: &[&str]) -> (Option<TraceContext>, HeaderMap) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, value.parse().unwrap());
        }
        headers.insert(TRACESTATE, "a=1".parse().unwrap());
        (TraceContext::take(&mut headers, 7), headers)
    }

    #[test]
    fn the_trace_stays_and_each_attempt_is_a_span() {
        let (trace, headers) = take(&[GOOD]);
        let spans: Vec<HeaderValue> = (1..=3).map(|n| trace.as_ref().unwrap().attempt(n).unwrap()).collect();
        for span in &spans {
            let text = span.to_str().unwrap();
            assert!(text.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && text.ends_with("-01") && text != GOOD, "{text}");
        }
        let second = trace.unwrap().span(2);
        assert_eq!(spans[1], format!("00-{:032x}-{:016x}-01", second.trace, second.id));
        assert_eq!(second.parent, 0xb7ad_6b71_6920_3331);
        assert!(spans[0] != spans[1] && spans[1] != spans[2] && headers.contains_key(TRACESTATE));
    }

    #[test]
    fn what_is_malformed_goes_with_its_state() {
        let zero = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        for bad in ["", "00-1-2-3", zero, &GOOD.replace("00-", "ff-"), &GOOD.to_uppercase(), &format!("{GOOD}-more")] {
            let (trace, headers) = take(&[bad]);
            assert!(trace.is_none() && headers.is_empty(), "{bad}");
        }
        assert!(take(&[GOOD, GOOD]).0.is_none());
        assert!(take(&[&format!("{}-more", GOOD.replacen("00", "01", 1))]).0.is_some(), "a later version may say more");
    }
}
