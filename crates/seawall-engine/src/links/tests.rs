//! Rewriting of links, and checks that a rewritten link has the same target as the original.

use super::*;
use crate::runtime::Around;
use proptest::prelude::*;
use seawall_core::config;

const POLICY: &str = "[server]\ndefault_upstream = \"plain\"\n\
    [upstreams.api]\nurl = \"https://up.test/v1\"\n\
    [upstreams.plain]\nurl = \"http://plain.test:8080\"\n\
    [upstreams.named]\nurl = \"https://real.test\"\nhosts = [\"named.test\"]\n";

fn live() -> Live {
    let around = Around { vault: &|_| Err("none".to_owned()), files: &|_| Err("none".to_owned()) };
    Live::new(config::load("t", POLICY.as_bytes()).unwrap(), around, None).unwrap()
}

/// A request with this Host and path, and its links.
struct Asked {
    live: Live,
    host: &'static str,
    path: &'static str,
}

impl Asked {
    fn new(host: &'static str, path: &'static str) -> Self {
        Self { live: live(), host, path }
    }

    fn with<T>(&self, look: impl FnOnce(&Links<'_>) -> T) -> T {
        let (upstream, prefix) = self.live.route(|| self.host, self.path.split('?').next().unwrap()).unwrap();
        let below = &self.path[prefix..];
        let target = format!("{}{}{below}", upstream.spec.url.path, if below.starts_with('/') { "" } else { "/" });
        let url = GatewayUrl::new(Some(Bytes::from(self.host)), false, self.path, prefix);
        look(&Links { live: &self.live, upstream, target: &target, url: &url })
    }

    #[track_caller]
    fn becomes(&self, reference: &str, expected: &str) {
        let rewritten = self.with(|links| links.rewritten(reference));
        assert_eq!(rewritten.as_deref().unwrap_or(reference), expected, "{reference}");
    }

    #[track_caller]
    fn stays(&self, references: &[&str]) {
        references.iter().for_each(|reference| self.becomes(reference, reference));
    }
}

#[test]
fn links_to_the_upstream_lead_through_the_gateway() {
    let asked = Asked::new("gw:7329", "/api/items/7?page=1");
    asked.becomes("https://up.test/v1/items?page=2#end", "http://gw:7329/api/items?page=2#end");
    asked.becomes("HTTPS://UP.test:443/v1/a%2Fb", "http://gw:7329/api/a%2Fb");
    asked.becomes("//up.test/v1/x", "//gw:7329/api/x");
    asked.becomes("/v1/x?a=/v1/y", "/api/x?a=/v1/y");
    asked.becomes("/v1/a/../b", "/api/b");
    asked.becomes("../../v1/b", "/api/b");
    asked.becomes("/v1//b", "/api//b");
    asked.stays(&["", "?page=2", "#end", "x", "./x", "../x", "items/a:b"]);
    Asked::new("gw", "/api").becomes("x", "/api/x");
}

#[test]
fn links_to_elsewhere_stay() {
    let asked = Asked::new("gw", "/api/items");
    asked.stays(&[
        "http://up.test/v1/x",
        "https://up.test:8443/v1/x",
        "https://up.test.evil/v1/x",
        "https://up.test@evil/v1/x",
        "https://me:pw@up.test/v1/x",
        "https://up.test/v2/x",
        "https://up.test/v11",
        "https://up.test/v1",
        "https://up.test/v1/../admin",
        "https://up.test/v1/%252e%252e/admin",
        "//other.test/v1/x",
        "///v1/x",
        "mailto:a@up.test",
        "https:up.test/v1/x",
    ]);
    // A path that the gateway does not serve is completed by the upstream's origin.
    asked.becomes("/v2/x#y", "https://up.test/v2/x#y");
    asked.becomes("/plain/x", "https://up.test/plain/x");
    asked.becomes("../../admin", "https://up.test/admin");
}

#[test]
fn callers_without_a_prefix_get_links_without_one() {
    let asked = Asked::new("gw:1", "/items");
    asked.becomes("http://plain.test:8080/x", "http://gw:1/x");
    asked.becomes("http://plain.test:8080", "http://gw:1/");
    asked.becomes("http://plain.test:8080?x=1", "http://gw:1/?x=1");
    asked.stays(&["/x", "x"]);
    // A path that the gateway would route elsewhere gets this upstream's name as prefix.
    asked.becomes("/api/x", "/plain/api/x");
    asked.becomes("api/x", "/plain/api/x");
    asked.becomes("/-/jobs/1", "/plain/-/jobs/1");
    let asked = Asked::new("named.test:80", "/api/x");
    asked.becomes("https://real.test/api/y", "http://named.test:80/api/y");
    asked.becomes("https://real.test//a/b", "http://named.test:80//a/b");
    asked.stays(&["/api/y", "https://real.test/-/y"]);
    asked.becomes("/-/y", "https://real.test/-/y");
}

#[test]
fn a_host_that_is_none_goes_into_no_header() {
    for host in ["", "a@b", "a/b", "a b", "a:b", "a\\b", "a:1/x", "[::1", "a%b"] {
        Asked::new(host, "/api/x").becomes("https://up.test/v1/y", "/api/y");
    }
    Asked::new("[::1]:80", "/api/x").becomes("https://up.test/v1/y", "http://[::1]:80/api/y");
}

#[test]
fn each_header_has_its_own_grammar() {
    let marked = |name: &HeaderName, text: &str| map_references(name, text, |reference| Some(format!("({reference})")));
    for (name, text, expected) in [
        (LOCATION, " /a b ", "(/a b)"),
        (LINK, "<a,b>; title=\"x, <y> \\\" <z>\", <c>;rel=next,<>", "<(a,b)>; title=\"x, <y> \\\" <z>\", <(c)>;rel=next,<()>"),
        (LINK, "<a>; title=\"open, <b>", "<(a)>; title=\"open, <b>"),
        (LINK, "<a>, <b", "<(a)>, <b"),
        (REFRESH, "5; url=/a;b ", "5; url=(/a;b)"),
        (REFRESH, "0;URL = '/a' x", "0;URL = '(/a)' x"),
        (REFRESH, "0,\"/a\"", "0,\"(/a)\""),
        (REFRESH, "0; /a", "0; (/a)"),
        (REFRESH, "5", "5()"),
    ] {
        assert_eq!(marked(&name, text).as_deref(), Some(expected), "{text}");
    }
    assert_eq!(marked(&LINK, "no link"), None);
}

#[test]
fn every_header_and_every_value_is_rewritten() {
    Asked::new("gw", "/api/x").with(|links| {
        let mut headers = HeaderMap::new();
        headers.append(LINK, HeaderValue::from_static("</v1/a>; rel=next, <https://else.test/v1/b>; rel=prev"));
        headers.append(LINK, HeaderValue::from_static("<https://up.test/v1/c>"));
        headers.append("x-link", HeaderValue::from_static("</v1/a>"));
        headers.append(LOCATION, HeaderValue::from_bytes(b"/v1/\xff").unwrap());
        links.rewrite(&mut headers);
        let all: Vec<&[u8]> = headers.get_all(LINK).iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(all, [&b"</api/a>; rel=next, <https://else.test/v1/b>; rel=prev"[..], b"<http://gw/api/c>"]);
        assert_eq!((&headers["x-link"], headers[LOCATION].as_bytes()), (&HeaderValue::from_static("</v1/a>"), &b"/v1/\xff"[..]));
    });
}

/// Returns scheme, authority and path with query of the request that a client sends when it follows a reference.
fn followed(at: (&str, &str), path: &str, reference: &str) -> (String, String, String) {
    let reference = reference.split('#').next().unwrap();
    let (scheme, rest) = match scheme(reference) {
        Some(scheme) => (scheme.to_ascii_lowercase(), &reference[scheme.len() + 1..]),
        None => (at.0.to_owned(), reference),
    };
    if let Some(rest) = rest.strip_prefix("//") {
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        return (scheme, authority.to_owned(), without_dots(&path).into_owned());
    }
    let bare = path.split('?').next().unwrap();
    let path = match rest {
        "" => path.to_owned(),
        _ if rest.starts_with('?') => format!("{bare}{rest}"),
        _ if rest.starts_with('/') => without_dots(rest).into_owned(),
        _ => resolve(path, rest),
    };
    (scheme, at.1.to_owned(), path)
}

fn piece() -> impl Strategy<Value = &'static str> {
    let pieces = [
        "https://",
        "http://",
        "//",
        "/",
        "?",
        "#",
        ":",
        "@",
        "up.test",
        "plain.test:8080",
        "real.test",
        "gw",
        "named.test",
        "evil.test",
        "v1",
        "/v1",
        "/v1/",
        "api",
        "/api/",
        "plain",
        "-",
        "/-/",
        "..",
        ".",
        "%2e%2E",
        "%2F",
        ";",
        "a",
        "b=c",
        ":443",
        ":80",
        "HTTPS:",
        "\\",
        " ",
    ];
    proptest::sample::select(pieces.to_vec())
}

proptest! {
    /// A client that follows a rewritten link reaches the link's original target, through the gateway or directly.
    #[test]
    fn a_rewritten_link_means_what_it_meant(
        pieces in proptest::collection::vec(piece(), 0..8),
        asked in proptest::sample::select(vec![("gw", "/api/x/y?z"), ("gw", "/api"), ("gw", "/x/y"), ("named.test", "/x?a/b"), ("gw", "/")]),
    ) {
        let reference = pieces.concat();
        let asked = Asked::new(asked.0, asked.1);
        asked.with(|links| {
            let base = &links.upstream.spec.url;
            let meant = followed((if base.tls { "https" } else { "http" }, &base.authority()), links.target, &reference);
            let Some(rewritten) = links.rewritten(&reference) else {
                // An unchanged link refers elsewhere, or works through the gateway as it is, or cannot be reached there.
                return Ok(());
            };
            let (scheme, authority, path) = followed(("http", asked.host), asked.path, &rewritten);
            let origin = |scheme: &str, authority: &str| Base::parse(&format!("{scheme}://{authority}"));
            let reached = if (&*scheme, &*authority) == ("http", asked.host) {
                prop_assert!(!path.starts_with("/-/"));
                let (upstream, prefix) = asked.live.route(|| asked.host, path.split('?').next().unwrap()).unwrap();
                prop_assert_eq!(&upstream.spec.name, &links.upstream.spec.name);
                (origin(if base.tls { "https" } else { "http" }, &base.authority()), format!("{}{}", base.path, &path[prefix..]))
            } else {
                (origin(&scheme, &authority), path)
            };
            prop_assert_eq!(reached, (origin(&meant.0, &meant.1), meant.2));
            Ok(())
        })?;
    }

    /// Unchanged links that are paths lead through the gateway to their original target.
    #[test]
    fn a_path_that_stays_is_right_as_it_is(pieces in proptest::collection::vec(piece(), 0..8)) {
        let reference = pieces.concat();
        let asked = Asked::new("gw", "/x/y");
        asked.with(|links| {
            let is_path = scheme(&reference).is_none() && !reference.starts_with("//");
            if is_path && links.rewritten(&reference).is_none() {
                let base = &links.upstream.spec.url;
                let meant = followed(("http", &base.authority()), links.target, &reference).2;
                let path = followed(("http", asked.host), asked.path, &reference).2;
                let (upstream, prefix) = asked.live.route(|| asked.host, path.split('?').next().unwrap()).unwrap();
                prop_assert_eq!((&*upstream.spec.name, &path[prefix..]), ("plain", &*meant));
            }
            Ok(())
        })?;
    }
}
