//! A request that cannot be cloned, so that it cannot be repeated.

use seawall_engine::Policy;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

#[derive(Clone)]
struct Inner;

struct Once;

impl Service<Once> for Inner {
    type Response = ();
    type Error = std::io::Error;
    type Future = std::future::Ready<Result<(), std::io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Once) -> Self::Future {
        std::future::ready(Ok(()))
    }
}

fn main() {
    let _ = Policy::default().layer().layer(Inner).call(Once);
}
