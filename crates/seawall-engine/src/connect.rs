//! New connections to upstreams: name lookup, TCP, TLS with verified certificates, and which HTTP is spoken.

use crate::fault::Fault;
use crate::h1::Conn;
use crate::h2::Shared;
use crate::io::Io;
use crate::reach::Reach;
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
pub(crate) enum Sender {
    H1(Box<Conn>),
    H2(Shared),
}

#[derive(Clone)]
pub struct Connector {
    tls: TlsConnector,
    /// Which addresses may be spoken to; any, for upstreams that an operator configured.
    reach: Option<Arc<Reach>>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
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
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self { tls: TlsConnector::from(Arc::new(config)), reach: None }
    }

    /// The same for targets that somebody else names: only addresses within reach.
    #[must_use]
    pub fn within(&self, reach: Reach) -> Self {
        Self { tls: self.tls.clone(), reach: Some(Arc::new(reach)) }
    }

    pub(crate) async fn connect(&self, to: &Base, timeout: Nanos) -> Result<Sender, Fault> {
        let limit = Duration::from_nanos(timeout.0);
        match tokio::time::timeout(limit, self.establish(to)).await {
            Ok(result) => result,
            Err(_) => Err(Fault::CONNECT_TIMEOUT),
        }
    }

    async fn establish(&self, to: &Base) -> Result<Sender, Fault> {
        let stream = self.tcp(to).await?;
        // Requests are small and written whole; waiting for more only adds latency.
        stream.set_nodelay(true).map_err(|error| Fault::of_connect(&error))?;
        if !to.tls {
            return Ok(h1(Io::Plain(stream)));
        }
        let bare = to.host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare).map_err(|_| Fault::TLS)?;
        let stream = self.tls.connect(name, stream).await.map_err(|error| tls_fault(&error))?;
        let speaks_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if speaks_h2 { Shared::open(stream).await.map(Sender::H2) } else { Ok(h1(Io::Tls(Box::new(stream.into())))) }
    }

    /// Tries the addresses of a name in turn; the last failure is the one reported. Reach is asked about each address and
    /// not about the name, which may mean something else the next time.
    async fn tcp(&self, to: &Base) -> Result<TcpStream, Fault> {
        let bare = to.host.trim_start_matches('[').trim_end_matches(']');
        let open = async |address: SocketAddr| match &self.reach {
            Some(reach) if !reach.permits(address.ip()) => Err(Fault::OUT_OF_REACH),
            _ => TcpStream::connect(address).await.map_err(|error| Fault::of_connect(&error)),
        };
        if let Ok(ip) = bare.parse() {
            return open(SocketAddr::new(ip, to.port)).await;
        }
        let addresses = tokio::net::lookup_host((bare, to.port)).await.map_err(|_| Fault::DNS)?;
        let mut last = Fault::DNS;
        for address in addresses {
            match open(address).await {
                Ok(stream) => return Ok(stream),
                Err(fault) => last = fault,
            }
        }
        Err(last)
    }
}

impl Default for Connector {
    fn default() -> Self {
        Self::new()
    }
}

fn tls_fault(error: &std::io::Error) -> Fault {
    let certificate = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match certificate {
        Some(rustls::Error::InvalidCertificate(_)) => Fault::CERTIFICATE,
        _ => Fault::TLS,
    }
}

fn h1(io: Io) -> Sender {
    Sender::H1(Box::new(Conn::new(io)))
}
