//! An axum handler whose upstream fails: while the breaker is open, the handler responds at once with `Retry-After`. `cargo run -p
//! seawall-engine --example guarded_handler` against `seawall flaky --listen 127.0.0.1:8080`.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod upstream;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use seawall_engine::Policy;
use std::time::Duration;

/// The policy is shared by every request, because it is cloned with the state.
async fn handler(State(policy): State<Policy>) -> Response {
    match policy.call(|_| upstream::get("/status/503")).await {
        Ok(text) => text.into_response(),
        Err(failure) => {
            let after = failure.retry_after().unwrap_or(Duration::from_secs(1)).as_secs().max(1);
            (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", after.to_string())], failure.to_string()).into_response()
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let policy = Policy::from_toml("[defaults]\nprofile = \"internal\"\nbreaker = { consecutive = 4 }").expect("the text is valid");
    let app = axum::Router::new().route("/", get(handler)).with_state(policy.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum::serve(listener, app).await });

    for request in 1..=4 {
        let asked = http::Request::get("/").header("host", address.to_string()).body(http_body_util::Full::default()).expect("a request");
        let answer = upstream::send_to(&address.to_string(), asked).await.expect("our own server answers");
        println!("request {request}: {} {} (breaker {})", answer.status().as_u16(), answer.body(), policy.breaker());
    }
}
