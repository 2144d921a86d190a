//! Callbacks: the result of a job, sent to a URL of its submitter. They are jobs themselves. Each send is signed anew by the Standard
//! Webhooks scheme, so that a late one does not look like a replay.

use super::{JobContext, view};
use crate::ServerState;
use base64::Engine as _;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use seawall_core::time::Wall;
use seawall_store::job::{AD_HOC, Job, JobOrigin, JobRequest, NewJob};
use sha2::Sha256;

/// A signing key.
#[derive(Clone)]
pub(crate) struct Signer(Vec<u8>);

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

impl Signer {
    /// Parses a key: `whsec_` and base64, as the scheme defines; any other text is used as it is.
    pub(crate) fn new(secret: &str) -> Self {
        let encoded = secret.strip_prefix("whsec_").unwrap_or("");
        let decoded = base64::engine::general_purpose::STANDARD.decode(encoded).ok().filter(|key| !key.is_empty());
        Self(decoded.unwrap_or_else(|| secret.as_bytes().to_vec()))
    }

    /// Returns the three headers of a message that is sent now.
    pub(crate) fn sign(&self, id: &str, at: Wall, body: &[u8]) -> [(&'static str, String); 3] {
        let timestamp = at.0.div_euclid(1000).to_string();
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        let signature = base64::engine::general_purpose::STANDARD.encode(mac.finalize().into_bytes());
        [("webhook-id", id.to_owned()), ("webhook-timestamp", timestamp), ("webhook-signature", format!("v1,{signature}"))]
    }
}

/// Returns the receiver's own key, the configured one, or the one in the store. Returns `None` for jobs that are not signed.
pub(super) fn signer(shared: &ServerState, job: &Job) -> Option<Signer> {
    let live = shared.live.load();
    let own = match &job.origin {
        JobOrigin::Callback(_) => None,
        JobOrigin::Notification => live.notify_secret(&job.request.path),
        JobOrigin::Caller | JobOrigin::Replay { .. } | JobOrigin::Schedule { .. } => return None,
    };
    let key = own.or(live.webhook_secret.as_ref());
    Some(key.map_or_else(|| Signer::new(&shared.desk.secret()), |secret| Signer::new(secret.reveal())))
}

/// Builds a job that delivers a message.
pub(crate) fn message(url: String, headers: Vec<(String, String)>, body: Bytes, origin: JobOrigin, desk: &JobContext) -> NewJob {
    NewJob {
        id: desk.new_id(),
        upstream: AD_HOC.to_owned(),
        tenant: String::new(),
        caller: "notify".to_owned(),
        priority: 0,
        request: JobRequest { method: "POST".to_owned(), path: url, headers, body },
        idempotency_key: None,
        dedup: None,
        fingerprint: [0; 32],
        correlation_id: None,
        callback: None,
        run_at: Wall(0),
        expires_at: None,
        origin,
        progress: seawall_core::decide::CallProgress::default(),
        history: Vec::new(),
    }
}

/// Builds the callback job for a finished job, if its submitter asked for one.
pub(super) fn for_job(ended: &Job, desk: &JobContext) -> Option<NewJob> {
    let url = ended.callback.clone()?;
    let kind = format!("job.{}", ended.state.as_str());
    let document = serde_json::json!({ "type": kind, "timestamp": desk.now().to_string(), "data": view::job(ended) });
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    let origin = JobOrigin::Callback(ended.id.to_string());
    Some(NewJob {
        tenant: ended.tenant.clone(),
        caller: ended.caller.clone(),
        correlation_id: ended.correlation_id.clone(),
        ..message(url, headers, Bytes::from(document.to_string()), origin, desk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in the scheme's documentation.
    #[test]
    fn signatures_are_those_of_the_scheme() {
        let signer = Signer::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let body = br#"{"test": 2432232314}"#;
        let [id, timestamp, signature] = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", Wall(1_614_265_330_000), body);
        assert_eq!(id.1, "msg_p5jXN8AQM9LWM0D4loKWxJek");
        assert_eq!(timestamp.1, "1614265330");
        assert_eq!(signature, ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=".to_owned()));
    }

    #[test]
    fn keys_do_not_appear_in_debug() {
        assert_eq!(format!("{:?}", Signer::new("secret")), "Signer");
    }
}
