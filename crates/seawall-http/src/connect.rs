//! New connections to upstreams: name lookup, TCP, TLS with verified certificates, and the choice of HTTP/1.1 or HTTP/2.

mod certificate;
mod race;

use crate::egress::{OUT_OF_REACH, Reach};
use crate::fault::{Fault, Shortage};
use crate::h1::Conn;
use crate::h2::MultiplexedConnection;
use crate::io::Io;
use crate::request_body::Outgoing;
use certificate::Verifier;
use race::{Winners, race};
use rustls::pki_types::ServerName;
use seawall_core::config::url::Base;
use seawall_core::time::Nanos;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A way to send requests over one connection.
#[derive(Debug)]
pub enum RequestSender {
    H1(Box<Conn<Outgoing>>),
    H2(MultiplexedConnection<Outgoing>),
}

/// The reason why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    pub fault: Fault,
    /// An explanation for the operator, with the remedy.
    pub detail: Option<String>,
}

impl From<Fault> for ConnectError {
    fn from(fault: Fault) -> Self {
        // Without the host's name: a URL may be a secret.
        let detail = if fault == Fault::OUT_OF_REACH { format!("where it leads {OUT_OF_REACH}") } else { fault.describe().to_owned() };
        Self { fault, detail: Some(detail) }
    }
}

#[derive(Clone)]
pub struct Connector {
    tls: TlsConnector,
    /// The addresses that may be connected to; `None` allows any, for upstreams that an operator configured.
    reach: Option<Arc<Reach>>,
    winners: Arc<Winners>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

impl ConnectError {
    /// The error for a failed connection to a place.
    fn of_io(error: &std::io::Error, place: &str) -> Self {
        let fault = Fault::of_connect(error);
        let detail = match Shortage::of(error) {
            Some(shortage) => shortage.detail().to_owned(),
            None if fault == Fault::REFUSED => format!("{place} refused the connection"),
            None => format!("no connection to {place} ({})", words_of(error)),
        };
        Self { fault, detail: Some(detail) }
    }

    /// The error for a failed name lookup. Without a free file descriptor the resolver only says that it failed, so this tries to open one.
    fn of_lookup(error: &std::io::Error, name: &str) -> Self {
        match std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)) {
            Err(error) if Shortage::of(&error).is_some() => Self::of_io(&error, name),
            Ok(_) | Err(_) => Self { fault: Fault::DNS, detail: Some(format!("the name {name} cannot be resolved ({})", words_of(error))) },
        }
    }
}

impl Connector {
    /// Trusts the system's certificate authorities, and Mozilla's where the system has none.
    #[must_use]
    pub fn new() -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .dangerous()
            .with_custom_certificate_verifier(Verifier::new(roots, provider))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self { tls: TlsConnector::from(Arc::new(config)), reach: None, winners: Arc::default() }
    }

    /// The same for URLs from outside: connects only to addresses within reach.
    #[must_use]
    pub fn restricted_to(&self, reach: Reach) -> Self {
        Self { tls: self.tls.clone(), reach: Some(Arc::new(reach)), winners: Arc::clone(&self.winners) }
    }

    pub async fn connect(&self, to: &Base, timeout: Nanos) -> Result<RequestSender, ConnectError> {
        let limit = Duration::from_nanos(timeout.0);
        match tokio::time::timeout(limit, self.establish(to, limit)).await {
            Ok(result) => result,
            Err(_) => {
                let detail = format!("no connection to {} within {timeout} (`timeout.connect`)", self.place(to));
                Err(ConnectError { fault: Fault::CONNECT_TIMEOUT, detail: Some(detail) })
            }
        }
    }

    /// The connection's destination, for people. A URL from outside may be a secret and is not shown.
    fn place(&self, to: &Base) -> String {
        if self.reach.is_some() { "the host of the URL".to_owned() } else { format!("{}:{}", to.host, to.port) }
    }

    /// The host alone, with the same care.
    fn host<'a>(&self, to: &'a Base) -> &'a str {
        if self.reach.is_some() { "the host of the URL" } else { &to.host }
    }

    async fn establish(&self, to: &Base, limit: Duration) -> Result<RequestSender, ConnectError> {
        let stream = self.tcp(to, limit).await?;
        // Requests are small and written whole; waiting for more only adds latency.
        stream.set_nodelay(true).map_err(|error| ConnectError::of_io(&error, &self.place(to)))?;
        if !to.tls {
            return Ok(h1(Io::Plain(stream)));
        }
        let bare = to.host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare).map_err(|_| Fault::TLS)?;
        let stream = self.tls.connect(name, stream).await.map_err(|error| tls_error(self.host(to), &error))?;
        let speaks_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if speaks_h2 { Ok(RequestSender::H2(MultiplexedConnection::open(stream).await?)) } else { Ok(h1(Io::Tls(Box::new(stream.into())))) }
    }

    /// Tries the addresses of a name concurrently. Reach is checked for each address instead of the name, which may resolve to another
    /// address the next time.
    async fn tcp(&self, to: &Base, limit: Duration) -> Result<TcpStream, ConnectError> {
        let bare = to.host.trim_start_matches('[').trim_end_matches(']');
        let within_reach = |address: &SocketAddr| self.reach.as_ref().is_none_or(|reach| reach.permits(address.ip()));
        if let Ok(ip) = bare.parse() {
            let address = SocketAddr::new(ip, to.port);
            if !within_reach(&address) {
                return Err(Fault::OUT_OF_REACH.into());
            }
            return TcpStream::connect(address).await.map_err(|error| ConnectError::of_io(&error, &self.place(to)));
        }
        let found = tokio::net::lookup_host((bare, to.port)).await;
        let found: Vec<SocketAddr> = found.map_err(|error| ConnectError::of_lookup(&error, self.host(to)))?.collect();
        let permitted: Vec<SocketAddr> = found.iter().copied().filter(within_reach).collect();
        if permitted.is_empty() {
            return Err(if found.is_empty() { Fault::DNS } else { Fault::OUT_OF_REACH }.into());
        }
        let order = self.winners.order(bare, permitted);
        let (stream, address) =
            race(&order, limit, TcpStream::connect).await.map_err(|error| ConnectError::of_io(&error, &self.place(to)))?;
        if order.len() > 1 {
            self.winners.remember(bare, address);
        }
        Ok(stream)
    }
}

impl Default for Connector {
    fn default() -> Self {
        Self::new()
    }
}

fn tls_error(host: &str, error: &std::io::Error) -> ConnectError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(why)) => {
            let detail = format!("certificate of {host} is not trusted ({})", certificate::reason(why));
            ConnectError { fault: Fault::CERTIFICATE, detail: Some(detail) }
        }
        Some(rustls::Error::InvalidMessage(_)) => {
            ConnectError { fault: Fault::TLS, detail: Some(format!("{host} does not speak TLS at this port")) }
        }
        Some(other) => ConnectError { fault: Fault::TLS, detail: Some(format!("the TLS handshake with {host} failed ({other})")) },
        None => ConnectError { fault: Fault::TLS, detail: Some(format!("{host} broke off the TLS handshake ({})", words_of(error))) },
    }
}

/// An operating system's error without its number.
fn words_of(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn h1(io: Io) -> RequestSender {
    RequestSender::H1(Box::new(Conn::new(io)))
}
