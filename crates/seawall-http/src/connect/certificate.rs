//! Certificates of upstreams: rustls verifies them, and this module gives operators a reason that they can act upon.

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};
use seawall_core::time::Wall;
use std::sync::Arc;

/// The remedy for a certificate of an unknown authority.
const MEND: &str = "add the authority to the system's certificates or to SSL_CERT_FILE";

/// The certificate was signed with its own key and by no authority.
#[derive(Debug, thiserror::Error)]
#[error("self-signed")]
struct SelfSigned;

/// Verifies against the roots, and marks untrusted certificates that are self-signed.
#[derive(Debug)]
pub(super) struct Verifier(Arc<WebPkiServerVerifier>);

impl Verifier {
    /// `roots` is never empty: it holds Mozilla's roots if the system has none.
    pub(super) fn new(roots: RootCertStore, provider: Arc<CryptoProvider>) -> Arc<Self> {
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Arc::new(Self(verifier.expect("there are roots and no revocation lists")))
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        verified.map_err(|error| match error {
            // A server that presents an authority's own certificate is refused as `Other`.
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::Other(_)) if is_self_signed(end_entity) => {
                Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(SelfSigned))))
            }
            other => other,
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Whether a certificate names itself as its issuer.
fn is_self_signed(certificate: &CertificateDer<'_>) -> bool {
    webpki::EndEntityCert::try_from(certificate).is_ok_and(|certificate| certificate.issuer() == certificate.subject())
}

/// Why a certificate is not trusted, and what to do about it.
pub(super) fn reason(why: &CertificateError) -> String {
    match why {
        CertificateError::Expired => "expired".to_owned(),
        CertificateError::ExpiredContext { not_after, .. } => format!("expired on {}", day(*not_after)),
        CertificateError::NotValidYet => "not valid yet".to_owned(),
        CertificateError::NotValidYetContext { not_before, .. } => format!("not valid before {}", day(*not_before)),
        CertificateError::NotValidForName => "wrong name".to_owned(),
        CertificateError::NotValidForNameContext { presented, .. } => format!("wrong name: it is for {}", names(presented)),
        CertificateError::Revoked => "revoked".to_owned(),
        // `BadSignature`: an unknown issuer may have the name of a known authority, but not its key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!("unknown issuer; {MEND}"),
        CertificateError::Other(OtherError(other)) if other.is::<SelfSigned>() => {
            "self-signed; have it signed by an authority of the system's certificates or of SSL_CERT_FILE".to_owned()
        }
        other => other.to_string(),
    }
}

fn day(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    String::from_utf8_lossy(&Wall(seconds.saturating_mul(1000)).rfc3339()[..10]).into_owned()
}

/// The first names of a certificate; rustls formats them as `DnsName("a.test")`.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| name.split('"').nth(1).unwrap_or(name).to_owned();
    match presented {
        [] => "no name at all".to_owned(),
        [one] => bare(one),
        [one, .., _] => format!("{} and {} more", bare(one), presented.len() - 1),
    }
}
