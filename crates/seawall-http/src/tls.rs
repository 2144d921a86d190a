//! TLS for our own listener: the certificate for callers, and the choice of HTTP version.

use crate::io::Io;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsStream};

#[derive(Clone)]
pub struct Front(TlsAcceptor);

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Front")
    }
}

impl Front {
    /// # Errors
    /// When these are not a chain of certificates and the key of the first one, both in PEM. The message reveals nothing of the key.
    pub fn new(chain: &[u8], key: &[u8]) -> Result<Self, String> {
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(chain).collect::<Result<_, _>>().map_err(|_| "`cert` is not PEM")?;
        if chain.is_empty() {
            return Err("`cert` has no certificate in it".to_owned());
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| "`key` is not a private key in PEM")?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| format!("`cert` and `key` cannot be used together: {error}"))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Accepts a connection. Returns its stream, and whether the caller chose HTTP/2.
    ///
    /// # Errors
    /// When the TLS handshake fails.
    pub async fn accept(&self, stream: TcpStream) -> std::io::Result<(Io, bool)> {
        let stream = self.0.accept(stream).await?;
        let speaks_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok((Io::Tls(Box::new(TlsStream::from(stream))), speaks_h2))
    }
}
