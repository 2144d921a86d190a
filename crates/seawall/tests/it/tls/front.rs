//! Upstreams behind TLS: certificates of a private authority, a front that hands the plain bytes on to a scripted upstream,
//! and an HTTP/2 server of bare frames that can refuse what no library would.

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, split};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};
use tokio_rustls::server::TlsStream;

/// Signs certificates; trusted by programs that get its file.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("roots.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    /// The file with its own certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("roots.pem")
    }

    /// A certificate for this name and its key, as files beside a policy are written.
    pub(crate) fn issue(&self, name: &str, directory: &std::path::Path) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        // OpenSSL takes a certificate for its own issuer whose name is the issuer's.
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(directory.join("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(directory.join("key.pem"), key.serialize_pem()).unwrap();
    }

    /// A server's certificate for this name, which is of no use after the year.
    pub(crate) fn certify(&self, name: &str, until: i32, speaks: &[&str]) -> TlsAcceptor {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = date_time_ymd(until, 12, 31);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        acceptor(&certificate, &key, speaks)
    }
}

/// A certificate that is its own issuer; many are made as if they were an authority's.
pub(crate) fn self_signed(name: &str, is_authority: bool) -> TlsAcceptor {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    if is_authority {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    let key = KeyPair::generate().unwrap();
    acceptor(&params.self_signed(&key).unwrap(), &key, &[])
}

fn acceptor(certificate: &Certificate, key: &KeyPair, speaks: &[&str]) -> TlsAcceptor {
    let mut config = ServerConfig::builder_with_provider(Arc::new(crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())))
        .unwrap();
    config.alpn_protocols = speaks.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

/// Whether a connection ends with TLS's `close_notify`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Farewell {
    Proper,
    Cut,
}

/// Listens for TLS, and lives as long as the process.
fn listen<F: Future<Output = ()> + 'static>(
    acceptor: TlsAcceptor,
    serve: impl Fn(TlsStream<TcpStream>) -> F + Send + 'static,
) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                // A client that does not trust us leaves in the middle of this.
                if let Ok(stream) = acceptor.accept(stream).await {
                    tokio::task::spawn_local(serve(stream));
                }
            }
        });
    });
    at
}

/// A front before an upstream that speaks plainly.
pub(crate) fn front(upstream: SocketAddr, acceptor: TlsAcceptor, farewell: Farewell) -> SocketAddr {
    listen(acceptor, move |secure| async move {
        let plain = TcpStream::connect(upstream).await.unwrap();
        let ((mut from, mut to), (mut secure_from, mut secure_to)) = (plain.into_split(), split(secure));
        tokio::select! {
            _ = copy(&mut from, &mut secure_to) => {}
            _ = copy(&mut secure_from, &mut to) => {}
        }
        if farewell == Farewell::Proper {
            // The client may have left first.
            let _gone = secure_to.shutdown().await;
        }
    })
}

/// The HTTP/2 server's reaction to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Does {
    Answers,
    /// Half of a response, then `RST_STREAM` without an error: what Node sends for a response that is destroyed.
    AnswersHalf,
    /// `RST_STREAM` with this reason.
    Resets(u32),
    /// `GOAWAY` that leaves this and everything after it unprocessed.
    GoesAway,
    /// The same, and the end of the connection at once.
    Leaves,
    /// The same, and a reset of the connection, because the request's body was not read.
    Cuts,
    /// `GOAWAY` that includes this request among the processed ones, and the end of the connection.
    DiesWorking,
    /// Nothing, on a connection that takes one request at a time.
    Hangs,
}

/// An HTTP/2 server.
pub(crate) struct Frames {
    pub at: SocketAddr,
    posts: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

impl Frames {
    /// Does the first with the first request, and so on; the last is repeated.
    pub(crate) fn doing(script: &'static [Does], acceptor: TlsAcceptor) -> Self {
        let (posts, connections) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (counted, opened) = (Arc::clone(&posts), Arc::clone(&connections));
        let at = listen(acceptor, move |stream| {
            opened.fetch_add(1, Ordering::SeqCst);
            let counted = Arc::clone(&counted);
            async move {
                // The client leaves when it likes.
                let _gone = speak(stream, script, &counted).await;
            }
        });
        Self { at, posts, connections }
    }

    /// POSTs that arrived, processed or not.
    pub(crate) fn posts(&self) -> usize {
        self.posts.load(Ordering::SeqCst)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

async fn speak(mut stream: TlsStream<TcpStream>, script: &[Does], posts: &AtomicUsize) -> std::io::Result<()> {
    stream.read_exact(&mut [0; 24]).await?;
    let takes_one = script.iter().any(|does| matches!(does, Does::Hangs));
    // `SETTINGS_MAX_CONCURRENT_STREAMS`.
    let settings: &[u8] = if takes_one { &[0, 3, 0, 0, 0, 1] } else { &[] };
    stream.write_all(&frame(SETTINGS, 0, 0, settings)).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let mut payload = vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await?;
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let said = match (head[3], head[4] & 1) {
            (SETTINGS, 0) => frame(SETTINGS, 1, 0, &[]),
            (PING, 0) => frame(PING, 1, 0, &payload),
            (HEADERS, _) => {
                // `:method: POST` is entry 3 of the static table.
                assert_eq!(payload[0], 0x83, "only POSTs are expected");
                let number = posts.fetch_add(1, Ordering::SeqCst);
                match script[number.min(script.len() - 1)] {
                    Does::Answers => [frame(HEADERS, 4, id, &[0x88]), frame(DATA, 1, id, b"ok")].concat(),
                    Does::AnswersHalf => {
                        [frame(HEADERS, 4, id, &[0x88]), frame(DATA, 0, id, b"o"), frame(RST_STREAM, 0, id, &[0; 4])].concat()
                    }
                    Does::Resets(reason) => frame(RST_STREAM, 0, id, &reason.to_be_bytes()),
                    Does::Hangs => continue,
                    Does::GoesAway => frame(GOAWAY, 0, 0, &[0; 8]),
                    Does::Cuts => {
                        // The rest of the request is there by now.
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                        stream.write_all(&frame(GOAWAY, 0, 0, &[0; 8])).await?;
                        return stream.flush().await;
                    }
                    does @ (Does::Leaves | Does::DiesWorking) => {
                        let last = if matches!(does, Does::Leaves) { 0 } else { id };
                        stream.write_all(&frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())).await?;
                        return stream.shutdown().await;
                    }
                }
            }
            _ => continue,
        };
        stream.write_all(&said).await?;
        stream.flush().await?;
    }
}
