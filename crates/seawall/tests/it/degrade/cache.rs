//! The cache before an upstream that comes and goes.

use super::stage::{Gateway, Scripted, answer, send};
use std::time::Duration;

fn eventually(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..200 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what}");
}

/// Works once for each target and fails from then on.
fn fails_later(headers: &'static str) -> Scripted {
    Scripted::start(move |n, request| {
        if n == 1 { answer(200, headers, &format!("good {}", request.split(' ').nth(1).unwrap())) } else { answer(503, "", "bad") }
    })
}

#[test]
fn an_outage_is_bridged_with_the_last_good_answer() {
    let upstream = fails_later("etag: \"1\"\r\n");
    let gateway = Gateway::before(
        &upstream.address,
        "cache = { stale_if_error = \"1h\" }\nfallback = { body = \"[]\" }\nbreaker = { consecutive = 2 }",
    );
    let first = gateway.get("/a/x?q=1");
    assert_eq!((first.status, first.outcome(), first.cache()), (200, "success", None));
    for _ in 0..3 {
        let stale = gateway.get("/a/x?q=1");
        assert_eq!((stale.status, stale.body.as_str(), stale.outcome()), (200, "good /x?q=1", "stale"));
        assert_eq!(stale.cache(), Some("seawall; hit; detail=stale-if-error"));
        assert!(stale.header("age").is_some());
    }
    assert!(gateway.log().contains("circuit_open"), "also where the breaker refuses");
    assert_eq!(gateway.get("/a/other").outcome(), "fallback", "what was never seen has only the fallback");
    assert!(gateway.metrics().contains(r#"outcome="stale"} 3"#));
    assert!(gateway.metrics().contains("seawall_cache_lookups_total{upstream=\"a\",result=\"stale\"} 3\n"));
    assert!(upstream.asked(2).contains("if-none-match: \"1\""), "{}", upstream.asked(2));
}

#[test]
fn a_fresh_answer_needs_no_upstream() {
    let upstream = Scripted::start(|n, _| answer(200, "x-a: 1\r\nx-a: 2\r\n", &format!("answer {n}")));
    let gateway = Gateway::before(&upstream.address, "cache = { ttl = \"1h\" }");
    let (first, second) = (gateway.get("/a/x"), gateway.get("/a/x"));
    assert_eq!((first.body.as_str(), second.body.as_str(), upstream.count()), ("answer 1", "answer 1", 1));
    assert_eq!((second.outcome(), second.cache(), second.header("seawall-attempts")), ("success", Some("seawall; hit"), Some("0")));
    assert_eq!(gateway.get("/a/x?").body, "answer 2", "another target is another answer");
    assert_eq!(gateway.with("/a/x", "cache-control: no-cache\r\n").body, "answer 3", "who wants a new one gets it");
    assert_eq!(gateway.get("/a/x").body, "answer 3", "and so do those behind");
    assert_eq!(send(&gateway.address, "POST", "/a/x", "content-length: 0\r\n").body, "answer 4");
    assert_eq!(gateway.get("/a/x").body, "answer 5", "a change forgets what was there");
    assert!(gateway.log().contains(r#""attempts":0,"outcome":"success""#));
    let counts = [("hit", 2), ("miss", 4), ("stale", 0)];
    for (result, count) in counts {
        let line = format!("seawall_cache_lookups_total{{upstream=\"a\",result=\"{result}\"}} {count}\n");
        assert!(gateway.metrics().contains(&line), "{line}: {}", gateway.metrics());
    }
    assert!(gateway.metrics().contains("seawall_cache_stored_total{upstream=\"a\"} 4\n"));
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
        let upstream = Scripted::start(move |_, _| answer(200, headers, "x"));
        let gateway = Gateway::before(&upstream.address, "cache = { ttl = \"1h\" }");
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
        let gateway = Gateway::before(&upstream.address, "cache = { stale_if_error = \"1h\" }");
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
        let upstream = Scripted::start(|n, request| {
            let who = request.lines().find(|line| line.contains("one") || line.contains("two")).unwrap_or("nobody").to_owned();
            if n <= 3 { answer(200, "", &who) } else { answer(503, "", "bad") }
        });
        let gateway = Gateway::before(&upstream.address, "cache = { ttl = \"1h\", stale_if_error = \"1h\" }");
        let bodies = |headers: &str| gateway.with("/a/me", headers).body;
        assert_eq!(bodies(credential), credential.trim());
        assert_eq!(bodies(credential), credential.trim());
        assert_eq!(upstream.count(), 1, "the same caller is served from the cache");
        assert_eq!(bodies(other), other.trim());
        assert_eq!(bodies(""), "nobody");
        // Stale answers keep to the same rule.
        let third = credential.replace("one", "three");
        assert_eq!(gateway.with("/a/me", &third).status, 503);
    }
}

#[test]
fn an_answer_that_says_so_is_for_everybody() {
    let upstream = Scripted::start(|n, _| answer(200, "cache-control: public, max-age=60\r\n", &n.to_string()));
    let gateway = Gateway::before(&upstream.address, "cache = { ttl = \"1s\" }");
    for headers in ["authorization: Bearer one\r\n", "authorization: Bearer two\r\n", ""] {
        assert_eq!(gateway.with("/a/x", headers).body, "1");
    }
}

#[test]
fn a_stale_answer_is_served_while_one_request_fetches_a_new_one() {
    let upstream = Scripted::start(|n, _| {
        if n > 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        answer(200, "", &format!("answer {n}"))
    });
    let gateway = Gateway::before(&upstream.address, "cache = { ttl = \"100ms\", stale_while_revalidate = \"1h\" }");
    assert_eq!(gateway.get("/a/x").body, "answer 1");
    std::thread::sleep(Duration::from_millis(150));
    for _ in 0..5 {
        let meanwhile = gateway.get("/a/x");
        assert_eq!((meanwhile.body.as_str(), meanwhile.outcome()), ("answer 1", "success"));
        assert_eq!(meanwhile.cache(), Some("seawall; hit; detail=stale-while-revalidate"));
    }
    eventually("the new answer comes", || gateway.get("/a/x").body != "answer 1");
    assert!(upstream.asked(2).starts_with("GET /x "));
    assert!(upstream.count() <= 3, "one at a time, not {}", upstream.count());
}

#[test]
fn an_unchanged_answer_is_confirmed_without_its_body() {
    let upstream = Scripted::start(|_, request| {
        if request.contains("if-none-match: \"1\"") {
            answer(304, "cache-control: max-age=3600\r\netag: \"1\"\r\n", "")
        } else {
            answer(200, "cache-control: max-age=0\r\netag: \"1\"\r\n", "long")
        }
    });
    let gateway = Gateway::before(&upstream.address, "cache = { stale_if_error = \"1h\" }");
    assert_eq!(gateway.get("/a/x").cache(), None);
    let confirmed = gateway.get("/a/x");
    assert_eq!((confirmed.status, confirmed.body.as_str(), confirmed.cache()), (200, "long", Some("seawall; fwd=stale; fwd-status=304")));
    assert_eq!((gateway.get("/a/x").cache(), upstream.count()), (Some("seawall; hit"), 2), "the 304 made it fresh");
    let unchanged = gateway.with("/a/x", "if-none-match: W/\"1\"\r\n");
    assert_eq!((unchanged.status, unchanged.body.as_str()), (304, ""), "callers have their own copies");
}

#[test]
fn a_broken_or_open_ended_answer_is_never_kept() {
    for whole in ["HTTP/1.1 200 X\r\ncontent-length: 100\r\n\r\nhalf", "HTTP/1.1 200 X\r\nconnection: close\r\n\r\nuntil the end"] {
        let upstream = Scripted::start(move |_, _| whole.to_owned());
        let gateway = Gateway::before(&upstream.address, "cache = { ttl = \"1h\" }");
        drop((gateway.get("/a/x"), gateway.get("/a/x")));
        assert_eq!(upstream.count(), 2, "{whole}");
    }
}

#[test]
fn an_answer_in_pieces_is_kept_whole_and_a_large_one_is_not() {
    let upstream = Scripted::start(|_, request| match request.contains("/small") {
        true => "HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n".to_owned(),
        false => answer(200, "", &"x".repeat((1 << 20) + 1)),
    });
    let gateway = Gateway::before(&upstream.address, "cache = { ttl = \"1h\" }");
    drop(gateway.get("/a/small"));
    let small = gateway.get("/a/small");
    assert_eq!((small.body.as_str(), small.cache(), upstream.count()), ("abcdefg", Some("seawall; hit"), 1));
    assert_eq!(gateway.get("/a/large").body.len(), (1 << 20) + 1);
    assert_eq!(gateway.get("/a/large").cache(), None);
}

#[test]
fn endpoints_without_a_cache_keep_nothing() {
    let upstream = Scripted::start(|_, _| answer(200, "cache-control: max-age=3600\r\n", "x"));
    let gateway = Gateway::before(&upstream.address, "");
    drop((gateway.get("/a/x"), gateway.get("/a/x")));
    assert_eq!(upstream.count(), 2);
}
