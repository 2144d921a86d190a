//! What a thread sends with.

use crate::clock::Clock;
use seawall_http::connect::Connector;
use seawall_http::connection_pool::ConnectionPool;

/// What a thread needs in order to send.
#[derive(Clone, Debug)]
pub struct Sending {
    pub clock: Clock,
    pub pool: ConnectionPool,
    pub connector: Connector,
}
