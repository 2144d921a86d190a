//! Connections of callers: accepted, counted, read, served and ended.

mod caller_socket;
mod http1;
mod http2;
mod idle;
mod ports;
mod worker;

pub(crate) use ports::{NewPorts, Ports, count};
pub(crate) use worker::{listen, listeners, run, threads};
