//! HTTP/1.1 over one connection, to an upstream or from a caller, spoken by the task that makes the call: a connection
//! here has no task, channel or waker of its own, which would cost more than parsing does. It carries one request at a
//! time and knows nothing of retries.

mod asked;
mod chunks;
mod client;
mod fields;
#[doc(hidden)]
pub mod fuzzing;
mod head;
mod out;
mod plain;
mod reading;
mod served;
mod unread;
mod verbatim;
mod writer;

pub use asked::Unheard;
pub use chunks::Cut;
pub use client::Conn;
pub use out::Start;
pub use served::{End, Heard, Served, Upload};
pub use unread::Unread;
pub use verbatim::{Passes, Verbatim};
pub use writer::Writer;
