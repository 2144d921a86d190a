//! Uploads over failing sockets: an upstream gets the caller's complete request, or the call fails.

use super::*;
use crate::attempt::AttemptRequest;
use crate::clock::Clock;
use crate::runtime::{Around, Live};
use proptest::prelude::*;
use seawall_core::time::Nanos;
use seawall_http::connect::Connector;
use seawall_http::connection_pool::ConnectionPool;
use seawall_http::h1::ServerConnection;
use seawall_http::io::Io;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::mpsc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The behaviour of an upstream, connection by connection.
#[derive(Clone, Copy, Debug)]
struct Script {
    /// Bytes of the second request that the first connection reads before its reset; 0 resets it while idle.
    first: usize,
    /// Bytes that the second connection reads before its reset; all other connections respond.
    second: Option<usize>,
}

/// A caller's body, and the way in which it arrives.
#[derive(Clone, Debug)]
struct Upload {
    body: Vec<u8>,
    is_chunked: bool,
    /// The first connection to the upstream was used before.
    is_reused: bool,
}

/// Closes a connection so that the peer's next write fails.
fn reset(stream: TcpStream) {
    let stream = socket2::Socket::from(stream);
    stream.set_linger(Some(Duration::ZERO)).unwrap();
}

/// Returns length and body of the first request in these bytes, if it is complete.
fn whole(bytes: &[u8]) -> Option<(usize, Vec<u8>)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let mut rest = &bytes[end..];
    if !head.contains("transfer-encoding: chunked") {
        let length = head.split_once("content-length: ").map_or(0, |(_, text)| text.split_once('\r').unwrap().0.parse().unwrap());
        return Some((end + length, rest.get(..length)?.to_vec()));
    }
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        body.extend_from_slice(rest.get(line + 2..line + 2 + size)?);
        rest = rest.get(line + 2 + size + 2..)?;
        if size == 0 {
            return Some((bytes.len() - rest.len(), body));
        }
    }
}

/// Serves connections by the script, and delivers the body of each complete request. `idle` orders the reset of an idle connection, which
/// is confirmed.
fn upstream(script: Script, is_reused: bool, idle: Receiver<Sender<()>>, to: Sender<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for number in 0..3 {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let (mut seen, mut space) = (Vec::new(), [0; 4096]);
            if number == 0 && is_reused {
                while whole(&seen).is_none() {
                    let read = stream.read(&mut space).unwrap();
                    seen.extend_from_slice(&space[..read]);
                }
                stream.write_all(OK).unwrap();
                seen.clear();
            }
            let most = match number {
                0 => Some(script.first),
                1 => script.second,
                _ => None,
            };
            if most == Some(0) && number == 0 {
                let done = idle.recv().unwrap();
                reset(stream);
                done.send(()).unwrap();
                continue;
            }
            while whole(&seen).is_none() {
                let room = most.map_or(space.len(), |most| (most - seen.len()).min(space.len()));
                match stream.read(&mut space[..room]) {
                    Ok(read @ 1..) => seen.extend_from_slice(&space[..read]),
                    Ok(0) | Err(_) => break,
                }
            }
            if let Some((_, body)) = whole(&seen) {
                to.send(body).unwrap();
            }
            if most.is_some_and(|most| seen.len() >= most) {
                reset(stream);
            } else {
                let _gone = stream.write_all(OK);
            }
        }
    });
    at
}

/// Returns a caller's request as the gateway reads it: the beginning of its body, and the rest as a stream.
async fn uploaded(upload: &Upload) -> (ServerConnection<Relay>, ReplayBody) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let Upload { body, is_chunked, .. } = upload.clone();
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(at).unwrap();
        let _gone = if is_chunked {
            let chunks = body.chunks(10_000).map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
            let head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            stream.write_all(&[head, chunks.flatten().collect(), b"0\r\n\r\n".to_vec()].concat())
        } else {
            let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(&[head.as_bytes(), &body].concat())
        };
        let _closed = stream.read(&mut [0; 1]);
    });
    let mut served = ServerConnection::new(Io::Plain(listener.accept().await.unwrap().0));
    let (mut head, ()) = Request::new(()).into_parts();
    let heard = std::future::poll_fn(|cx| served.poll_request::<Inbound>(&mut head, cx)).await.unwrap();
    let (mut incoming, _) = heard.unwrap();
    let ahead = std::future::poll_fn(|cx| Pin::new(&mut incoming).poll_frame(cx)).await.unwrap().unwrap();
    (served, ReplayBody::once(ahead.into_data().unwrap(), incoming, u64::MAX))
}

struct Bench {
    sending: Sending,
    upstream: Arc<LiveUpstream>,
}

impl Bench {
    fn before(at: SocketAddr) -> Self {
        let text = format!("[upstreams.api]\nurl = \"http://{at}\"\n");
        let config = seawall_core::config::load("test", text.as_bytes()).unwrap();
        let around = Around { vault: &|_| Err("no secrets".to_owned()), files: &|_| Err("no files".to_owned()) };
        let live = Live::new(config, around, None).unwrap();
        let sending = Sending { clock: Clock::start(), pool: ConnectionPool::default(), connector: Connector::new() };
        Self { sending, upstream: Arc::clone(live.named("api").unwrap()) }
    }

    fn transport<'a>(&'a self, endpoint: &'a Arc<LiveEndpoint>, method: Method, body: ReplayBody) -> HttpTransport<'a> {
        HttpTransport {
            sending: &self.sending,
            upstream: &self.upstream,
            endpoint,
            method,
            target: RequestTarget::new("/x").unwrap(),
            headers: RequestHeaders::default(),
            conditions: HeaderMap::new(),
            unread: None,
            body,
            answer: None,
            token: None,
            trace: None,
            detail: None,
            ahead: 1024,
            room: None,
            spares_streams: false,
            diagnoses: false,
            passes: None,
            resends: 0,
            repeated: false,
        }
    }

    fn attempt(&self) -> AttemptRequest {
        let (timeout, now) = (Nanos::from_secs(10), self.sending.clock.now());
        AttemptRequest { number: 1, key: None, timeout, remaining: timeout, now }
    }

    async fn send(&self, method: Method, body: ReplayBody) -> Result<StatusCode, Fault> {
        let endpoint = Arc::clone(self.upstream.endpoint(method.as_str(), "/x"));
        let mut transport = self.transport(&endpoint, method, body);
        transport.send(self.attempt()).await?;
        Ok(transport.answer.take().unwrap().response.status())
    }
}

/// Returns the result of the call, and the bodies of complete requests.
fn attempt(upload: &Upload, script: Script) -> (Result<StatusCode, Fault>, Vec<Vec<u8>>) {
    let ((order, idle), (to, taken)) = (mpsc::channel(), mpsc::channel());
    let at = upstream(script, upload.is_reused, idle, to);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async {
        let bench = Bench::before(at);
        let (_served, body) = uploaded(upload).await;
        if upload.is_reused {
            assert_eq!(bench.send(Method::GET, ReplayBody::Empty).await, Ok(StatusCode::OK));
        }
        if script.first == 0 {
            // No await here, so that the reactor does not see the reset before the request is written.
            let (done, confirmed) = mpsc::channel();
            order.send(done).unwrap();
            if upload.is_reused {
                confirmed.recv().unwrap();
            }
        }
        bench.send(Method::POST, body).await
    });
    drop(runtime);
    (result, taken.try_iter().collect())
}

fn body_of(size: usize) -> Vec<u8> {
    (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

#[test]
fn an_upload_that_meets_a_dead_connection_goes_over_a_new_one_whole() {
    for (size, is_chunked) in [(10, false), (10, true), (60_000, false), (60_000, true), (400_000, false)] {
        let upload = Upload { body: body_of(size), is_chunked, is_reused: true };
        let (result, taken) = attempt(&upload, Script { first: 0, second: None });
        assert_eq!((result, taken), (Ok(StatusCode::OK), vec![upload.body]), "{size} {is_chunked}");
    }
}

#[test]
fn a_body_that_went_through_once_is_not_sent_again() {
    let mut body = ReplayBody::once(Bytes::from_static(b"paid once"), Inbound::None, 0);
    assert!(body.take().is_some());
    assert!(body.take().is_none() && !body.restore(None) && body.take().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn what_an_upstream_takes_for_whole_is_what_the_caller_sent(
        size in prop_oneof![1..200usize, 1..150_000usize],
        is_chunked in any::<bool>(),
        is_reused in any::<bool>(),
        first in prop_oneof![Just(0), 1..300usize, 1..150_000usize],
        second in proptest::option::of(prop_oneof![1..300usize, 1..150_000usize]),
    ) {
        let upload = Upload { body: body_of(size), is_chunked, is_reused };
        let first = if is_reused { first } else { first.max(1) };
        let (result, taken) = attempt(&upload, Script { first, second });
        prop_assert!(taken.iter().all(|body| *body == upload.body), "{} bytes became {:?}", size, taken.iter().map(Vec::len).collect::<Vec<_>>());
        prop_assert!(result.is_err() || taken.len() == 1, "{:?} but the upstream has {} requests", result, taken.len());
    }
}

/// Responds to each connection with a body of the next of these lengths.
fn telling(lengths: &'static [usize]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for length in lengths {
            let (mut stream, _) = listener.accept().unwrap();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            let _seen = stream.read(&mut [0; 1024]);
            let _gone = stream.write_all(&[head.as_bytes(), &body_of(*length)].concat());
        }
    });
    at
}

#[tokio::test]
async fn long_answers_wait_until_there_is_room_and_short_ones_do_not() {
    const LONG: usize = 200_000;
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let bench = Bench::before(telling(&[LONG, 10, LONG]));
            let endpoint = Arc::clone(bench.upstream.endpoint("GET", "/x"));
            let room = Arc::new(Semaphore::new(300));
            let asking = || {
                let mut transport = bench.transport(&endpoint, Method::GET, ReplayBody::Empty);
                (transport.ahead, transport.room) = (LONG + 1, Some(Room::new(Arc::clone(&room))));
                transport
            };
            let mut first = asking();
            first.send(bench.attempt()).await.unwrap();
            assert_eq!(first.answer.as_ref().unwrap().seen().len(), LONG);
            assert_eq!(room.available_permits(), 300 - (LONG + 1).div_ceil(1024));
            let mut short = asking();
            short.send(bench.attempt()).await.unwrap();
            assert_eq!(short.answer.as_ref().unwrap().seen().len(), 10);
            let mut second = asking();
            let mut sending = Box::pin(second.send(bench.attempt()));
            let early = tokio::time::timeout(Duration::from_millis(200), &mut sending).await;
            assert!(early.is_err(), "there is room for one of them");
            drop(first);
            (&mut sending).await.unwrap();
            drop(sending);
            assert_eq!(second.answer.as_ref().unwrap().seen().as_ref(), body_of(LONG));
        })
        .await;
}
