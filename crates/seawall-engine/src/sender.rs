//! The resources with which a thread sends.

use crate::clock::Clock;
use seawall_http::connect::Connector;
use seawall_http::connection_pool::ConnectionPool;

/// The resources that a thread needs to send requests.
#[derive(Clone, Debug)]
pub struct Sending {
    pub clock: Clock,
    pub pool: ConnectionPool,
    pub connector: Connector,
}
