//! HTTP/1.1 over one connection, to an upstream or from a caller, run by the task of the call: a connection has no task, channel or waker
//! of its own, which would cost more than parsing does. It carries one request at a time and knows nothing of retries.

mod body_reader;
mod chunks;
mod client;
mod fields;
#[doc(hidden)]
pub mod fuzzing;
mod outgoing;
mod plain_response;
mod raw_request;
mod raw_response;
mod request_head;
mod response_head;
mod server;
mod writer;

pub use chunks::Cut;
pub use client::Conn;
pub use outgoing::BodyStart;
pub use raw_request::RawRequestHeaders;
pub use raw_response::{Passes, RawResponseHeaders};
pub use request_head::HeadError;
pub use server::{ReceivedBody, ResponseEnd, ServerConnection, Upload};
pub use writer::HeadWriter;
