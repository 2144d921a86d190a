//! HTTP/1 from outside: the corpora of the fuzz targets, and the messages of llhttp's own tests.

#[cfg(test)]
mod corpora;
#[cfg(test)]
#[expect(unreachable_pub, reason = "the fuzz targets have it in a library")]
#[path = "../../../../fuzz/src/http1.rs"]
mod http1;
#[cfg(test)]
mod llhttp;
