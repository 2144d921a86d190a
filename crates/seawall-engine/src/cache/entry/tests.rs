//! Storability, ownership and lifetimes of responses.

use super::*;

const NOW: Wall = Wall(1_794_777_105_000);
const POLICY: policy::CachePolicy =
    policy::CachePolicy { ttl: Nanos::from_secs(10), stale_if_error: Nanos::from_secs(60), stale_while_revalidate: Nanos::from_secs(5) };

fn map(lines: &[(&str, &str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
}

fn entry(asked: &[(&str, &str)], answered: &[(&str, &str)]) -> Option<CachedResponse> {
    let asked = map(asked);
    let caller = CallerDigest::of_stored(&asked);
    CachedResponse::new(CacheRequest { headers: &asked, caller }, StatusCode::OK, map(answered), Bytes::new(), &POLICY, NOW)
}

/// Returns whether an entry is fresh, usable during a refresh, and usable on errors, after this many seconds.
fn uses(entry: &CachedResponse, seconds: i64) -> (bool, bool, bool) {
    let (wanted, now) = (Directives::default(), Wall(NOW.0 + seconds * 1000));
    (entry.is_fresh(&wanted, now), entry.serves_meanwhile(&wanted, now), entry.serves_on_error(&wanted, now))
}

#[test]
fn an_answer_that_says_nothing_lives_by_the_policy() {
    let entry = entry(&[], &[]).unwrap();
    assert_eq!(uses(&entry, 9), (true, true, true));
    assert_eq!(uses(&entry, 11), (false, true, true));
    assert_eq!(uses(&entry, 16), (false, false, true));
    assert_eq!(uses(&entry, 71), (false, false, false));
}

#[test]
fn an_answers_own_word_comes_before_the_policys() {
    for (headers, fresh_for) in [
        (vec![("cache-control", "max-age=100")], 100),
        (vec![("cache-control", "max-age=100, s-maxage=50")], 50),
        (vec![("cache-control", "max-age=100"), ("age", "30")], 70),
        (vec![("expires", "Sun, 15 Nov 2026 21:12:05 GMT"), ("date", "Sun, 15 Nov 2026 21:11:45 GMT")], 20),
    ] {
        let entry = entry(&[], &headers).unwrap();
        assert!(uses(&entry, fresh_for - 1).0 && !uses(&entry, fresh_for).0, "{headers:?}");
    }
    let expired = entry(&[], &[("expires", "0")]).unwrap();
    assert_eq!(uses(&expired, 0), (false, true, true));
}

#[test]
fn what_must_be_revalidated_is_never_served_stale() {
    for directive in ["must-revalidate", "proxy-revalidate", "no-cache", "s-maxage=10"] {
        let headers = [("cache-control", format!("{directive}, stale-if-error=100")), ("etag", "\"1\"".to_owned())];
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let entry = entry(&[], &headers).unwrap();
        let (_, meanwhile, on_error) = uses(&entry, 11);
        assert!(!meanwhile && !on_error, "{directive}");
    }
    assert!(!uses(&entry(&[], &[("cache-control", "no-cache"), ("etag", "\"1\"")]).unwrap(), 0).0);
}

#[test]
fn private_answers_belong_to_whoever_asked() {
    assert!(entry(&[], &[("cache-control", "private")]).is_none());
    assert!(entry(&[("cookie", "a=1")], &[("cache-control", "private")]).unwrap().caller.is_some());
    for name in ["authorization", "cookie", "x-api-key", "x-auth-token"] {
        assert!(entry(&[(name, "a")], &[]).unwrap().caller.is_some(), "{name}");
        assert!(entry(&[(name, "a")], &[("cache-control", "public, max-age=5")]).unwrap().caller.is_none(), "{name}");
    }
    assert!(entry(&[("idempotency-key", "a")], &[]).unwrap().caller.is_none());
}

#[test]
fn callers_are_told_apart_by_every_credential() {
    let callers =
        [vec![("cookie", "a")], vec![("cookie", "b")], vec![("authorization", "a")], vec![("cookie", "a"), ("authorization", "a")]];
    let mut seen: Vec<Option<CallerDigest>> = callers.iter().map(|headers| CallerDigest::of(&map(headers))).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), callers.len());
    assert_eq!(CallerDigest::of(&map(&[("accept", "x")])), None);
    for name in ["ocp-apim-subscription-key", "x-functions-key", "x_api_key", "x-key", "dpop", "x-password", "x-jwt-assertion"] {
        assert_ne!(CallerDigest::of(&map(&[(name, "a")])), CallerDigest::of(&map(&[(name, "b")])), "{name}");
    }
}

#[test]
fn the_order_of_credentials_says_nothing_about_the_caller() {
    let (one, two) = (("authorization", "a"), ("cookie", "c"));
    assert_eq!(CallerDigest::of(&map(&[one, two])), CallerDigest::of(&map(&[two, one])));
}

#[test]
fn what_nobody_may_keep_is_not_kept() {
    assert!(entry(&[], &[("set-cookie", "a=1"), ("cache-control", "public, max-age=5")]).is_none());
    assert!(entry(&[], &[("cache-control", "no-store")]).is_none());
    assert!(entry(&[("cache-control", "no-store")], &[]).is_none());
    assert!(entry(&[], &[("vary", "*")]).is_none());
    for status in [206, 302, 404, 500] {
        let asked = CacheRequest { headers: &HeaderMap::new(), caller: None };
        let status = StatusCode::from_u16(status).unwrap();
        assert!(CachedResponse::new(asked, status, HeaderMap::new(), Bytes::new(), &POLICY, NOW).is_none(), "{status}");
    }
}

#[test]
fn an_answer_is_for_requests_like_its_own() {
    let entry = entry(&[("accept", "text/plain")], &[("vary", "Accept, Accept-Language")]).unwrap();
    assert!(entry.takes(&map(&[("accept", "text/plain")])));
    assert!(!entry.takes(&map(&[("accept", "text/html")])));
    assert!(!entry.takes(&map(&[("accept", "text/plain"), ("accept-language", "de")])));
}

#[test]
fn a_request_may_ask_for_something_fresher() {
    let entry = entry(&[], &[]).unwrap();
    let at = |text: &str, seconds: i64| entry.is_fresh(&Directives::of(&map(&[("cache-control", text)])), Wall(NOW.0 + seconds * 1000));
    assert!(at("max-age=5", 5) && !at("max-age=5", 6));
    assert!(at("min-fresh=3", 6) && !at("min-fresh=3", 8));
    assert!(!at("no-cache", 0));
    let wanted = Directives::of(&map(&[("cache-control", "no-cache")]));
    assert!(!entry.serves_on_error(&wanted, NOW) && !entry.serves_meanwhile(&wanted, NOW));
}

#[test]
fn a_304_renews_the_answer_without_touching_its_body() {
    let old = entry(&[], &[("etag", "\"1\""), ("content-length", "5"), ("x-a", "1"), ("age", "9")]).unwrap();
    let later = Wall(NOW.0 + 50_000);
    let asked = CacheRequest { headers: &HeaderMap::new(), caller: None };
    let by = map(&[("x-a", "2"), ("content-length", "0"), ("cache-control", "max-age=7")]);
    let new = old.confirmed(asked, &by, &POLICY, later).unwrap();
    assert_eq!((new.headers["x-a"].as_bytes(), new.headers["content-length"].as_bytes()), (&b"2"[..], &b"5"[..]));
    assert!(new.is_fresh(&Directives::default(), Wall(later.0 + 6000)) && !new.is_fresh(&Directives::default(), Wall(later.0 + 7000)));
}

#[test]
fn stored_answers_are_kept_apart_by_every_header_that_is_not_known_to_be_harmless() {
    let of = |name: &'static str, value: &str| CallerDigest::of_stored(&map(&[(name, value)]));
    for name in ["authorization", "x-api-key", "x-tenant", "x-user-id", "x-never-heard-of"] {
        assert_ne!(of(name, "a"), of(name, "b"), "{name}");
    }
    for name in ["accept", "user-agent", "traceparent", "x-request-id", "date", "sec-fetch-mode", "idempotency-key"] {
        assert_eq!(of(name, "a"), None, "{name}");
    }
}
