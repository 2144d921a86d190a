//! One HTTP/1 connection of a caller: request, response, next request.

use super::caller_socket::{CallerSocket, LINGER};
use super::http2::Streams;
use super::idle::IdleWatch;
use super::worker::draining;
use crate::DrainPhase;
use crate::gateway::Entrance;
use crate::gateway::Gateway;
use crate::gateway::request_check;
use crate::response::CallerResponse;
use http::header::DATE;
use http::{HeaderMap, Method, Request, Uri, request};
use seawall_http::h1::{self, HeadError, ResponseEnd};
use seawall_http::io::Io;
use seawall_http::request_body::Inbound;
use seawall_http::response_body::Relay;
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;

/// A caller's connection.
type Http1Server = h1::ServerConnection<Relay>;
/// The body of a request, with its headers if they are unparsed.
type CallerBody = h1::ReceivedBody<Inbound>;

/// The state of one connection, as the idle sweeper sees it.
#[derive(Debug, Default)]
pub(crate) struct Http1Connection(Rc<ConnectionActivity>);

#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    /// Number of requests so far.
    turns: Cell<u32>,
    awaited: Cell<Option<AwaitedRead>>,
    pub hush: IdleWatch,
    /// Streams, if the connection speaks HTTP/2.
    pub streams: Streams,
}

/// The caller's action that the connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AwaitedRead {
    /// To send a request, after this many earlier requests.
    Request(u32),
    /// To read its response beyond this many bytes.
    Reader(u64),
}

impl Default for ConnectionActivity {
    fn default() -> Self {
        Self {
            turns: Cell::new(0),
            awaited: Cell::new(Some(AwaitedRead::Request(0))),
            hush: IdleWatch::default(),
            streams: Streams::default(),
        }
    }
}

impl Http1Connection {
    pub(crate) fn activity(&self) -> &Rc<ConnectionActivity> {
        &self.0
    }

    fn begin(&self) {
        self.0.begin();
    }

    /// Notes that a response is being sent; `stuck` is set if the caller does not read it.
    fn set_writing(&self, stuck: Option<u64>) {
        self.0.awaited.set(stuck.map(AwaitedRead::Reader));
    }

    fn end(&self) {
        self.0.end();
    }
}

impl ConnectionActivity {
    /// Notes the start of a request.
    pub(crate) fn begin(&self) {
        self.turns.set(self.turns.get().wrapping_add(1));
        self.awaited.set(None);
    }

    /// Notes the end of a request and waits for the next one.
    pub(crate) fn end(&self) {
        self.awaited.set(Some(AwaitedRead::Request(self.turns.get())));
    }

    pub(crate) fn awaited(&self) -> Option<AwaitedRead> {
        self.awaited.get()
    }
}

/// Tells whether the process is stopping.
struct DrainSignal {
    phases: watch::Receiver<DrainPhase>,
    told: Pin<Box<dyn Future<Output = ()>>>,
    is_asked: bool,
    is_ending: bool,
}

impl DrainSignal {
    fn new(phases: watch::Receiver<DrainPhase>) -> Self {
        let told = Box::pin(draining(phases.clone()));
        Self { phases, told, is_asked: false, is_ending: false }
    }

    /// Polled once, the future wakes this task when the drain begins. Polling it each time would cost 2 % of a request.
    fn is_near(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_ending && (!self.is_asked || self.phases.has_changed().unwrap_or(true)) {
            self.is_asked = true;
            self.is_ending = self.told.as_mut().poll(cx).is_ready();
        }
        self.is_ending
    }
}

pub(crate) async fn serve_connection(
    gateway: &Gateway,
    stream: Io,
    from: &Entrance,
    phases: watch::Receiver<DrainPhase>,
    talk: &Http1Connection,
) {
    let (mut served, mut ending) = (Http1Server::new(stream), DrainSignal::new(phases.clone()));
    let (mut head, ()) = Request::new(()).into_parts();
    loop {
        let asked = match next_request(&mut served, &mut head, &mut ending, talk).await {
            Ok(Some(asked)) => asked,
            Ok(None) => break,
            Err(why) => return answer_bad_head(gateway, served, from, phases, why).await,
        };
        talk.begin();
        let Some(CallerResponse { mut response, verbatim, signed }) = answer(gateway, &mut served, &mut head, asked, from).await else {
            return;
        };
        // These share the read buffer and would keep it in memory while the connection is idle.
        (head.method, head.uri, head.headers) = (Method::GET, Uri::default(), HeaderMap::new());
        head.extensions.clear();
        let last = std::future::poll_fn(|cx| Poll::Ready(ending.is_near(cx))).await;
        served.answer(&mut response, verbatim.as_ref(), last, |out, is_dated| {
            if !is_dated {
                out.field(&DATE, &gateway.date());
            }
            signed.iter().for_each(|signed| signed.write(out));
        });
        drop((response, verbatim));
        match answered(&mut served, talk).await {
            ResponseEnd::Open => talk.end(),
            ResponseEnd::Last => break,
            // Closes without a proper end: an aborted response must not look complete.
            ResponseEnd::Broken => return served.break_off(),
        }
    }
    close(served, phases).await;
}

/// Reads the next request. Returns `None` if no further request is accepted.
async fn next_request(
    served: &mut Http1Server,
    head: &mut request::Parts,
    ending: &mut DrainSignal,
    talk: &Http1Connection,
) -> Result<Option<CallerBody>, HeadError> {
    std::future::poll_fn(|cx| {
        // Polled first, so that a request that has arrived is read before the connection ends.
        if let Poll::Ready(heard) = served.poll_request(head, cx) {
            return Poll::Ready(heard);
        }
        let is_over = talk.0.hush.is_over(cx) || (ending.is_near(cx) && served.is_idle());
        if is_over { Poll::Ready(Ok(None)) } else { Poll::Pending }
    })
    .await
}

/// Handles a request. Returns `None` if the caller has disconnected; the call is then dropped.
async fn answer(
    gateway: &Gateway,
    served: &mut Http1Server,
    head: &mut request::Parts,
    asked: CallerBody,
    from: &Entrance,
) -> Option<CallerResponse> {
    // A call's future is large and a connection is mostly idle, so the future is boxed per call. It is written directly into uninitialised
    // heap memory, so that it is not built on the stack and moved.
    let mut call = Box::into_pin(Box::write(Box::new_uninit(), gateway.handle(head, asked, from)));
    std::future::poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(response) => Poll::Ready(Some(response)),
        Poll::Pending => served.poll_gone(cx).map(|()| None),
    })
    .await
}

/// Sends a response while the caller reads it.
async fn answered(served: &mut Http1Server, talk: &Http1Connection) -> ResponseEnd {
    std::future::poll_fn(|cx| {
        if let Poll::Ready(end) = served.poll_answered(cx) {
            return Poll::Ready(end);
        }
        talk.set_writing(served.stalled_at());
        if talk.0.hush.is_over(cx) { Poll::Ready(ResponseEnd::Broken) } else { served.poll_gone(cx).map(|()| ResponseEnd::Broken) }
    })
    .await
}

/// Responds to input that is no valid request, and closes the connection.
async fn answer_bad_head(gateway: &Gateway, mut served: Http1Server, from: &Entrance, phases: watch::Receiver<DrainPhase>, why: HeadError) {
    let refusal = match why {
        HeadError::Malformed => request_check::bad_request("the request is malformed"),
        HeadError::TooLarge { line } if line > request_check::MAX_TARGET => request_check::target_too_long(),
        HeadError::TooLarge { .. } => request_check::too_large(431, "the request's headers are too large"),
    };
    let refusal = refusal.closing().shaped(gateway.port_endpoint(from.port.as_ref()).as_deref());
    let words = gateway.noted(refusal, None).wire(gateway.wall());
    let Some(stream) = served.close() else { return };
    let mut wire = CallerSocket::new(stream, phases);
    // If the caller does not read the response in time, it is dropped.
    if let Ok(Ok(())) = tokio::time::timeout(LINGER, wire.write_all(&words)).await {
        drop(wire.shutdown().await);
    }
}

async fn close(mut served: Http1Server, phases: watch::Receiver<DrainPhase>) {
    if let Some(stream) = served.close() {
        // Errors of a connection are the peer's.
        drop(CallerSocket::new(stream, phases).shutdown().await);
    }
}
