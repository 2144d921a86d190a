//! OAuth 2 tokens: a brief failure of the provider costs no call, and its refusal is final.

use super::caller::eventually;
use super::gateway::{Gateway, Start};
use super::upstream::{Upstream, answer};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A provider of tokens whose first answers are bad; nothing stands for a connection that it resets.
fn provider(bad: Option<String>, count: usize) -> Upstream {
    let asked = AtomicUsize::new(0);
    Upstream::with(move |turn| match (asked.fetch_add(1, Ordering::SeqCst) < count, &bad) {
        (true, Some(bad)) => turn.say(bad),
        (true, None) => turn.close(),
        (false, _) => turn.say(answer("200 OK", "Content-Type: application/json\r\n", r#"{"access_token":"token-1","expires_in":3600}"#)),
    })
}

fn gateway(upstream: &Upstream, provider: &Upstream) -> Gateway {
    let refresh = format!(
        "refresh = {{ kind = \"client-credentials\", token_url = \"http://{}/token\", client_id = \"env:ID\", client_secret = \"env:ID\" }}",
        provider.at
    );
    Start::before(upstream, &format!("[upstreams.api.auth]\n{refresh}\n")).secret("ID", "client-secret").go()
}

#[test]
fn a_bad_moment_of_the_provider_costs_no_call() {
    let html = |status| Some(answer(status, "Content-Type: text/html\r\n", "<html>maintenance</html>"));
    let moments = [
        (html("200 OK"), 1),
        (html("403 Blocked"), 1),
        (html("404 No route"), 1),
        (Some(answer("400 Later", "", r#"{"error":"temporarily_unavailable"}"#)), 1),
        (Some(answer("500 Down", "", "")), 2),
        (None, 2),
    ];
    for (bad, count) in moments {
        let (upstream, provider) = (Upstream::fine(), provider(bad.clone(), count));
        let gateway = gateway(&upstream, &provider);
        let job = gateway.admin("POST", "/v1/jobs", r#"{"upstream":"api","path":"/job"}"#).json();
        let job = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
        std::thread::scope(|scope| {
            let gateway = &gateway;
            let calls: Vec<_> = (0..40).map(|n| scope.spawn(move || gateway.get(&format!("/api/{n}")))).collect();
            for call in calls {
                let reply = call.join().unwrap();
                assert_eq!(reply.status, 200, "{bad:?}: {reply:?}");
            }
        });
        eventually("the job is done", || gateway.look(&job)["state"] == "done");
        assert!(provider.count() <= count + 1, "{bad:?}: one request at a time");
    }
}

#[test]
fn a_provider_that_says_no_is_believed() {
    let (upstream, provider) = (Upstream::fine(), provider(Some(answer("401 No", "", r#"{"error":"invalid_client"}"#)), 1));
    let reply = gateway(&upstream, &provider).get("/api/x");
    assert_eq!((reply.status, reply.code().as_str()), (502, "keys_rejected"), "{reply:?}");
    assert_eq!((upstream.count(), provider.count()), (0, 1));
}
