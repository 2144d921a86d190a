//! The upstream of the examples: `seawall flaky`, over plain hyper. Its address is the first argument, or 127.0.0.1:8080.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use seawall_engine::{Classify, Meaning, Usual};
use tokio::net::TcpStream;

/// Any error; the library finds a cause that it knows.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// Returns the address of the upstream.
pub(crate) fn address() -> String {
    std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned())
}

/// The reason why there is no successful response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Bad {
    #[error("answered {}", .0.status())]
    Answer(Response<String>),
    #[error(transparent)]
    Nothing(Error),
}

/// The policy's rules classify responses, including `Retry-After`; an error is classified by its cause.
impl Classify<Bad> for Usual {
    fn classify<'a>(&self, error: &'a Bad) -> Meaning<'a> {
        match error {
            Bad::Answer(answer) => answer.into(),
            Bad::Nothing(error) => self.classify(error),
        }
    }
}

/// Returns the body of a successful response.
#[allow(dead_code, reason = "each example uses what it needs")]
pub(crate) async fn get(path: &str) -> Result<String, Bad> {
    let request = Request::get(path).header("host", address()).body(Full::<Bytes>::default()).expect("a path of ours");
    let answer = send(request).await.map_err(Bad::Nothing)?;
    if answer.status().is_success() { Ok(answer.into_body()) } else { Err(Bad::Answer(answer)) }
}

/// Sends one request to the upstream.
pub(crate) async fn send(request: Request<Full<Bytes>>) -> Result<Response<String>, Error> {
    send_to(&address(), request).await
}

/// Sends one request on a connection of its own.
pub(crate) async fn send_to(address: &str, request: Request<Full<Bytes>>) -> Result<Response<String>, Error> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let answer = sender.send_request(request).await;
    let (head, body) = answer?.into_parts();
    let bytes = body.collect().await?.to_bytes();
    driver.abort();
    Ok(Response::from_parts(head, String::from_utf8_lossy(&bytes).into_owned()))
}
