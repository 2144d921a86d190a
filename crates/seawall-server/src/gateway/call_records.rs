//! The gateway's record of a request, written once its response has been sent.

use super::Gateway;
use super::caller_context::CallerContext;
use crate::response::Refusal;
use http::{Response, StatusCode};
use seawall_core::id::CallId;
use seawall_core::record::{Code, Reason};
use seawall_core::time::Nanos;
use seawall_engine::driver::Finished;
use seawall_engine::record::{BreakerRecord, CallRecord, IdleRecord, Record};
use seawall_engine::runtime::LiveEndpoint;
use seawall_http::response_body::{BodyEnd, OnEnd, Relay, RelayError};
use std::sync::Arc;

impl Gateway {
    /// Records a request that never became a call, with an id of its own.
    pub(crate) fn noted(&self, mut refusal: Refusal, endpoint: Option<&Arc<LiveEndpoint>>) -> Refusal {
        let now = self.sending.clock.now();
        let id = self.ids.borrow_mut().next(now.wall);
        refusal.call = Some(id.to_string());
        if let Some(endpoint) = endpoint {
            refusal = refusal.at(endpoint);
        }
        self.shared.recorder.push(Record::Call(CallRecord {
            at: now.wall,
            call: id,
            names: endpoint.map_or_else(|| Arc::clone(&self.nowhere), |endpoint| Arc::clone(&endpoint.names)),
            caller: Arc::clone(&self.nobody),
            request: None,
            attempts: 0,
            response_status: Some(refusal.status),
            outcome: refusal.code,
            reason: refusal.reason,
            elapsed: Nanos::ZERO,
            refused_by: Some("admit"),
        }));
        refusal
    }

    /// Writes the call's record when the whole response has been sent. A response that breaks off after its first byte cannot be retried,
    /// but the record and the breaker get the failure.
    pub(crate) fn record_at_end(&self, response: &mut Response<Relay>, endpoint: &Arc<LiveEndpoint>, mut record: CallRecord) {
        record.response_status = Some(response.status().as_u16());
        if !matches!(response.body(), Relay::Stream(_)) {
            self.shared.recorder.push(Record::Call(record));
            return;
        }
        let (endpoint, shared) = (Arc::clone(endpoint), Arc::clone(&self.shared));
        response.body_mut().on_end(OnEnd(Box::new(move |end| {
            let now = shared.clock.now();
            record.at = now.wall;
            match end {
                BodyEnd::Whole => {}
                // A failure stays one, even if the caller disconnects before the end of the body.
                BodyEnd::Abandoned if record.reason != Reason::Succeeded => {}
                BodyEnd::Abandoned => (record.outcome, record.reason) = (Code::Cancelled.as_str(), Reason::Cancelled),
                BodyEnd::Broken(error) => {
                    (record.outcome, record.reason) = (Code::StreamCut.as_str(), Reason::StreamCut);
                    let (call, names) = (record.call, Arc::clone(&endpoint.names));
                    if matches!(error, RelayError::Silent) {
                        shared.recorder.push(Record::Idle(IdleRecord { at: now.wall, call, names: Arc::clone(&names) }));
                    }
                    if let Some(change) = endpoint.state.broke_off(now) {
                        shared.recorder.push(Record::Breaker(BreakerRecord { at: now.wall, names, change }));
                    }
                }
            }
            shared.recorder.push(Record::Call(record));
        })));
    }

    pub(crate) fn record(
        &self,
        endpoint: &Arc<LiveEndpoint>,
        id: CallId,
        ended: &Finished,
        from: &CallerContext,
        outcome: &'static str,
        status: StatusCode,
    ) {
        let record = Self::call_record(endpoint, id, ended, from, outcome, None);
        self.shared.recorder.push(Record::Call(CallRecord { response_status: Some(status.as_u16()), ..record }));
    }

    pub(crate) fn call_record(
        endpoint: &Arc<LiveEndpoint>,
        id: CallId,
        ended: &Finished,
        from: &CallerContext,
        outcome: &'static str,
        refused_by: Option<&'static str>,
    ) -> CallRecord {
        CallRecord {
            at: ended.at.wall,
            call: id,
            names: Arc::clone(&endpoint.names),
            caller: Arc::clone(&from.caller.name),
            request: from.request.clone(),
            attempts: ended.finish.attempts,
            response_status: None,
            outcome,
            reason: ended.finish.reason,
            elapsed: ended.finish.elapsed,
            refused_by,
        }
    }
}
