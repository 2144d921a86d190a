//! The connections of the admin port, with limits on their number and idle time. They have file descriptors of their own, so that they
//! never take one from a caller.

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower_service::Service as _;

/// How long a connection may take for a complete request head, on a new connection or after a response.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait before the next accept after one failed: descriptors in use must come back first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves the admin port for ever, `max_connections` at a time. Connections beyond that are closed at once.
pub(crate) async fn serve(listener: TcpListener, router: Router, max_connections: usize) -> Infallible {
    let places = Arc::new(Semaphore::new(max_connections));
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let router = router.clone();
        tokio::spawn(async move {
            connection(stream, peer, router).await;
            drop(place);
        });
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, router: Router) {
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        router.clone().call(request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    // Errors of a connection are the peer's fault.
    drop(served);
}
