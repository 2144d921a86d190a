//! Connections of callers: accepted, counted, read, served and ended.

mod http2;
mod hush;
mod ports;
mod talk;
mod wire;
mod worker;

pub(crate) use ports::{NewPorts, Ports, count};
pub(crate) use worker::{listen, listeners, run, threads};
