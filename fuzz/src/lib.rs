//! Functions that fuzz targets call.

pub mod http1;
