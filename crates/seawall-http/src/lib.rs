//! HTTP without policy: request heads that can only be built from checked bytes, streaming bodies, HTTP/1.1 on both sides, HTTP/2 to
//! upstreams, connections and their pool. Nothing here knows of retries, limits or configuration files.

pub mod connect;
pub mod connection_pool;
pub mod content_type;
pub mod egress;
pub mod fault;
pub mod h1;
pub mod h2;
pub mod header_text;
pub mod io;
pub mod query_parameter;
pub mod request_body;
pub mod request_headers;
pub mod response_body;
pub mod tls;
