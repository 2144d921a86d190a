//! Credentials in the form in which they are sent, and their masking in that form.

use crate::base64::base64;
use crate::mask::{Mask, Probe};
use crate::secret::Secret;
use http::HeaderValue;
use seawall_core::config::place::Inject;
use seawall_http::query_parameter::encode;

/// A key in the form in which it is sent.
pub(crate) enum CredentialForm {
    Header(HeaderValue),
    Query(Secret),
}

impl std::fmt::Debug for CredentialForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// Masks a credential in each form in which it is sent.
pub(crate) fn hide(inject: &Inject, secret: &Secret, shown: &str, mask: &mut Mask) {
    match inject {
        Inject::Basic => mask.hide_basic(secret.reveal(), shown),
        Inject::Query(_) | Inject::Header { .. } => mask.hide(secret.reveal(), shown),
    }
}

pub(crate) fn probe(inject: &Inject, secret: &Secret) -> Probe {
    match inject {
        Inject::Basic => Probe::new(secret.reveal(), base64(secret.reveal().as_bytes()).trim_end_matches('=')),
        Inject::Query(_) | Inject::Header { .. } => Probe::new(secret.reveal(), &encode(secret.reveal())),
    }
}

pub(crate) fn sent(inject: &Inject, secret: &Secret) -> Result<CredentialForm, String> {
    let value = match inject {
        Inject::Query(_) => return Ok(CredentialForm::Query(secret.clone())),
        Inject::Header { template, .. } => template.replace("{secret}", secret.reveal()),
        Inject::Basic => format!("Basic {}", base64(secret.reveal().as_bytes())),
    };
    let mut value = HeaderValue::from_str(&value).map_err(|_| "it has characters that no header can carry".to_owned())?;
    value.set_sensitive(true);
    Ok(CredentialForm::Header(value))
}
