//! HTTP/1: see `http1::request_heads`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| seawall_fuzz::http1::request_heads(data));
