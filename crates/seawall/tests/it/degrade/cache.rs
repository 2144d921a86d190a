//! The cache before an upstream that comes and goes.

use super::{answer, before, eventually, scripted};
use crate::upstream::Upstream;
use std::time::Duration;

/// Works once for each target and fails from then on.
fn fails_later(headers: &'static str) -> Upstream {
    scripted(move |n, request| {
        if n == 1 { answer("200 X", headers, &format!("good {}", request.split(' ').nth(1).unwrap())) } else { answer("503 X", "", "bad") }
    })
}

#[test]
fn an_outage_is_bridged_with_the_last_good_answer() {
    let upstream = fails_later("etag: \"1\"\r\n");
    let gateway = before(
        &upstream,
        "cache = { stale_if_error = \"1h\" }\nfallback = { body = \"[]\" }\nbreaker = { consecutive = 2, open = \"5s\" }",
    );
    let first = gateway.get("/a/x?q=1");
    assert_eq!((first.status, first.outcome(), first.header("cache-status")), (200, "success", None));
    for _ in 0..3 {
        let stale = gateway.get("/a/x?q=1");
        assert_eq!((stale.status, stale.text().as_str(), stale.outcome()), (200, "good /x?q=1", "stale"));
        assert_eq!(stale.header("cache-status"), Some("seawall; hit; detail=stale-if-error"));
        assert!(stale.header("age").is_some());
    }
    eventually("also where the breaker refuses", || gateway.stdout().contains("circuit_open"));
    assert_eq!(gateway.get("/a/other").outcome(), "fallback", "what was never seen has only the fallback");
    eventually("it is counted", || gateway.metrics().contains(r#"outcome="stale"} 3"#));
    assert_eq!(gateway.metric("seawall_cache_lookups_total{upstream=\"a\",result=\"stale\"}"), Some(3.0));
    assert!(upstream.asked(2).contains("if-none-match: \"1\""), "{}", upstream.asked(2));
}

#[test]
fn a_fresh_answer_needs_no_upstream() {
    let upstream = scripted(|n, _| answer("200 X", "x-a: 1\r\nx-a: 2\r\n", &format!("answer {n}")));
    let gateway = before(&upstream, "cache = { ttl = \"1h\" }");
    let (first, second) = (gateway.get("/a/x"), gateway.get("/a/x"));
    assert_eq!((first.text().as_str(), second.text().as_str(), upstream.count()), ("answer 1", "answer 1", 1));
    assert_eq!(
        (second.outcome(), second.header("cache-status"), second.header("seawall-attempts")),
        ("success", Some("seawall; hit"), Some("0"))
    );
    assert_eq!(gateway.get("/a/x?").text(), "answer 2", "another target is another answer");
    assert_eq!(gateway.get_with("/a/x", "cache-control: no-cache\r\n").text(), "answer 3", "who wants a new one gets it");
    assert_eq!(gateway.get("/a/x").text(), "answer 3", "and so do those behind");
    assert_eq!(gateway.post("/a/x", "", "").text(), "answer 4");
    assert_eq!(gateway.get("/a/x").text(), "answer 5", "a change forgets what was there");
    eventually("it is logged", || gateway.stdout().contains(r#""attempts":0,"outcome":"success""#));
    let counts = [("hit", 2), ("miss", 4), ("stale", 0)];
    for (result, count) in counts {
        let name = format!("seawall_cache_lookups_total{{upstream=\"a\",result=\"{result}\"}}");
        assert_eq!(gateway.metric(&name), Some(f64::from(count)), "{result}");
    }
    assert_eq!(gateway.metric("seawall_cache_stored_total{upstream=\"a\"}"), Some(4.0));
}

#[test]
fn every_answer_says_once_through_whose_hands_it_went() {
    let upstream = scripted(|_, request| {
        if request.contains("if-none-match") {
            answer("304 X", "etag: \"1\"\r\n", "")
        } else {
            answer("200 X", "etag: \"1\"\r\nvia: 1.1 far\r\n", "x")
        }
    });
    let (cached, plain) = (before(&upstream, "cache = { ttl = \"1h\" }"), before(&upstream, ""));
    let (key, new) = ("idempotency-key: k\r\n", "cache-control: no-cache\r\n");
    let replies = [
        ("relayed", plain.get("/a/x")),
        ("kept under its key", plain.post("/a/x", key, "x")),
        ("replayed", plain.post("/a/x", key, "x")),
        ("kept in the cache", cached.get("/a/x")),
        ("out of the cache", cached.get("/a/x")),
        ("confirmed", cached.get_with("/a/x", new)),
    ];
    for (how, reply) in &replies {
        let ours = reply.headers.iter().filter(|(name, value)| name == "via" && value.starts_with("1.1 seawall-"));
        assert_eq!(ours.count(), 1, "{how}: {reply:?}");
    }
    assert_eq!(replies[2].1.header("idempotency-replayed"), Some("true"));
    assert_eq!(replies[4].1.header("cache-status"), Some("seawall; hit"));
    assert_eq!(replies[5].1.header("cache-status"), Some("seawall; fwd=stale; fwd-status=304"));
}

#[test]
fn an_answers_own_rules_come_first() {
    for (headers, served) in [
        ("cache-control: no-store\r\n", 3),
        ("set-cookie: a=1\r\ncache-control: public, max-age=60\r\n", 3),
        ("cache-control: max-age=0\r\n", 3),
        ("cache-control: private\r\n", 3),
        ("vary: *\r\n", 3),
        ("cache-control: s-maxage=60\r\n", 1),
    ] {
        let upstream = scripted(move |_, _| answer("200 X", headers, "x"));
        let gateway = before(&upstream, "cache = { ttl = \"1h\" }");
        for _ in 0..3 {
            assert_eq!(gateway.get("/a/x").status, 200);
        }
        assert_eq!(upstream.count(), served, "{headers}");
    }
}

#[test]
fn a_failure_is_not_covered_up_where_the_answer_forbids_it() {
    for directive in ["must-revalidate", "proxy-revalidate", "no-cache", "s-maxage=0"] {
        let headers: &'static str = Box::leak(format!("cache-control: {directive}\r\netag: \"1\"\r\n").into_boxed_str());
        let upstream = fails_later(headers);
        let gateway = before(&upstream, "cache = { stale_if_error = \"1h\" }");
        assert_eq!(gateway.get("/a/x").status, 200);
        assert_eq!(gateway.get("/a/x").status, 503, "{directive}");
    }
}

#[test]
fn nobody_gets_what_another_callers_credentials_got() {
    for (credential, other) in [
        ("authorization: Bearer one\r\n", "authorization: Bearer two\r\n"),
        ("cookie: id=one\r\n", "cookie: id=two\r\n"),
        ("x-api-key: one\r\n", "x-api-key: two\r\n"),
    ] {
        let upstream = scripted(|n, request| {
            let who = request.lines().find(|line| line.contains("one") || line.contains("two")).unwrap_or("nobody").to_owned();
            if n <= 3 { answer("200 X", "", &who) } else { answer("503 X", "", "bad") }
        });
        let gateway = before(&upstream, "cache = { ttl = \"1h\", stale_if_error = \"1h\" }");
        let bodies = |headers: &str| gateway.get_with("/a/me", headers).text();
        assert_eq!(bodies(credential), credential.trim());
        assert_eq!(bodies(credential), credential.trim());
        assert_eq!(upstream.count(), 1, "the same caller is served from the cache");
        assert_eq!(bodies(other), other.trim());
        assert_eq!(bodies(""), "nobody");
        // Stale answers keep to the same rule.
        let third = credential.replace("one", "three");
        assert_eq!(gateway.get_with("/a/me", &third).status, 503);
    }
}

#[test]
fn an_answer_that_says_so_is_for_everybody() {
    let upstream = scripted(|n, _| answer("200 X", "cache-control: public, max-age=60\r\n", &n.to_string()));
    let gateway = before(&upstream, "cache = { ttl = \"1s\" }");
    for headers in ["authorization: Bearer one\r\n", "authorization: Bearer two\r\n", ""] {
        assert_eq!(gateway.get_with("/a/x", headers).text(), "1");
    }
}

#[test]
fn a_stale_answer_is_served_while_one_request_fetches_a_new_one() {
    let upstream = scripted(|n, _| {
        if n > 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        answer("200 X", "", &format!("answer {n}"))
    });
    let gateway = before(&upstream, "cache = { ttl = \"100ms\", stale_while_revalidate = \"1h\" }");
    assert_eq!(gateway.get("/a/x").text(), "answer 1");
    std::thread::sleep(Duration::from_millis(150));
    for _ in 0..5 {
        let meanwhile = gateway.get("/a/x");
        assert_eq!((meanwhile.text().as_str(), meanwhile.outcome()), ("answer 1", "success"));
        assert_eq!(meanwhile.header("cache-status"), Some("seawall; hit; detail=stale-while-revalidate"));
    }
    eventually("the new answer comes", || gateway.get("/a/x").text() != "answer 1");
    assert!(upstream.asked(2).starts_with("GET /x "));
    assert!(upstream.count() <= 3, "one at a time, not {}", upstream.count());
}

#[test]
fn an_unchanged_answer_is_confirmed_without_its_body() {
    let upstream = scripted(|_, request| {
        if request.contains("if-none-match: \"1\"") {
            answer("304 X", "cache-control: max-age=3600\r\netag: \"1\"\r\n", "")
        } else {
            answer("200 X", "cache-control: max-age=0\r\netag: \"1\"\r\n", "long")
        }
    });
    let gateway = before(&upstream, "cache = { stale_if_error = \"1h\" }");
    assert_eq!(gateway.get("/a/x").header("cache-status"), None);
    let confirmed = gateway.get("/a/x");
    assert_eq!(
        (confirmed.status, confirmed.text().as_str(), confirmed.header("cache-status")),
        (200, "long", Some("seawall; fwd=stale; fwd-status=304"))
    );
    assert_eq!((gateway.get("/a/x").header("cache-status"), upstream.count()), (Some("seawall; hit"), 2), "the 304 made it fresh");
    let unchanged = gateway.get_with("/a/x", "if-none-match: W/\"1\"\r\n");
    assert_eq!((unchanged.status, unchanged.text().as_str()), (304, ""), "callers have their own copies");
}

#[test]
fn a_broken_or_open_ended_answer_is_never_kept() {
    for whole in ["HTTP/1.1 200 X\r\ncontent-length: 100000\r\n\r\nhalf", "HTTP/1.1 200 X\r\nconnection: close\r\n\r\nuntil the end"] {
        let upstream = Upstream::with(move |turn| turn.send(whole).close());
        let gateway = before(&upstream, "cache = { ttl = \"1h\" }");
        drop((gateway.get("/a/x"), gateway.get("/a/x")));
        assert_eq!(upstream.count(), 2, "{whole}");
    }
}

#[test]
fn an_answer_in_pieces_is_kept_whole_and_a_large_one_is_not() {
    let upstream = scripted(|_, request| match request.contains("/small") {
        true => "HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n".to_owned(),
        false => answer("200 X", "", &"x".repeat((1 << 20) + 1)),
    });
    let gateway = before(&upstream, "cache = { ttl = \"1h\" }");
    drop(gateway.get("/a/small"));
    let small = gateway.get("/a/small");
    assert_eq!((small.text().as_str(), small.header("cache-status"), upstream.count()), ("abcdefg", Some("seawall; hit"), 1));
    assert_eq!(gateway.get("/a/large").body.len(), (1 << 20) + 1);
    assert_eq!(gateway.get("/a/large").header("cache-status"), None);
}

#[test]
fn endpoints_without_a_cache_keep_nothing() {
    let upstream = scripted(|_, _| answer("200 X", "cache-control: max-age=3600\r\n", "x"));
    let gateway = before(&upstream, "");
    drop((gateway.get("/a/x"), gateway.get("/a/x")));
    assert_eq!(upstream.count(), 2);
}
