//! The destination of a job, and the job's request as the call machine and the records see it.

use http::{HeaderMap, Method};
use seawall_core::call;
use seawall_core::config::AtCost;
use seawall_core::request_target::RequestTarget;
use seawall_core::time::Wall;
use seawall_engine::record::RequestLine;
use seawall_engine::runtime::{LiveEndpoint, LiveUpstream};
use seawall_store::job::Job;
use std::sync::Arc;

/// The destination of a job.
pub(super) struct Target {
    pub(super) upstream: Arc<LiveUpstream>,
    pub(super) endpoint: Arc<LiveEndpoint>,
    pub(super) target: RequestTarget,
    /// The whole URL that somebody handed in, where there is one.
    pub(super) url: Option<String>,
}

impl Target {
    /// The job's request as the call machine sees it.
    pub(super) fn request<'a>(&self, job: &'a Job, made: bool, headers: &HeaderMap, now: Wall) -> call::CallRequest<'a> {
        call::CallRequest {
            method: &job.request.method,
            mark: self.endpoint.plan.mark(&job.request.method, &job.request.path),
            keyed: job.idempotency_key.is_some() || made,
            at_cost: is_at_cost(self, &job.request.path, headers),
            replayable: true,
            deadline: job.expires_at.map(|at| at.since(now)),
            patient: true,
        }
    }

    pub(super) fn request_line(&self, job: &Job) -> Arc<RequestLine> {
        let method = Method::from_bytes(job.request.method.as_bytes()).unwrap_or_default();
        // A URL that the configuration refers to is often a secret itself: records keep the reference.
        let is_reference = self.url.as_ref().is_some_and(|url| *url != job.request.path);
        RequestLine::new(&method, &self.endpoint.route, if is_reference { &job.request.path } else { &self.target })
    }
}

fn is_at_cost(to: &Target, path: &str, headers: &HeaderMap) -> bool {
    let path = path.split('?').next().unwrap_or(path);
    to.endpoint.plan.at_cost.allows(path, || headers.get(AtCost::OPERATION)?.to_str().ok())
}
