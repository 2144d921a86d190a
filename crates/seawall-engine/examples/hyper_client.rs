//! A hyper client under the policy's layer: the policy's rules classify responses, and a POST is retried only with a key. `cargo run -p
//! seawall-engine --example hyper_client` against `seawall flaky --listen 127.0.0.1:8080`.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod upstream;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use seawall_engine::Policy;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_layer::Layer as _;
use tower_service::Service;

/// hyper as a service.
#[derive(Clone)]
struct Client;

impl Service<Request<Full<Bytes>>> for Client {
    type Response = Response<String>;
    type Error = upstream::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<String>, upstream::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        println!("  {} {} key {:?}", request.method(), request.uri(), request.headers().get("idempotency-key"));
        Box::pin(upstream::send(request))
    }
}

fn request(method: &str, path: &str) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri(path).header("host", upstream::address()).body(Full::from("{}")).expect("a request")
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let plain = Policy::default();
    let payment = Policy::profile("payment").expect("it is built in");
    for (policy, method, path) in [
        (&plain, "GET", "/seq/layer-get/503,200"),
        (&plain, "POST", "/seq/layer-post/reset-before,200"),
        (&payment, "POST", "/seq/layer-pay/reset-before,200"),
    ] {
        let mut client = policy.http_layer().layer(Client);
        poll_fn(|cx| client.poll_ready(cx)).await.expect("it is always ready");
        match client.call(request(method, path)).await {
            Ok(answer) => println!("{method}: {}", answer.status()),
            Err(failure) => println!("{method}: {failure}"),
        }
    }
}
