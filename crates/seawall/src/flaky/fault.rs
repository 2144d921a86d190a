//! The faults on the wire.

use super::entry::Fault;
use super::serve::{FlakyConnection, FlakyReply, NextRequest, drain};
use super::wire::Framed;
use bytes::Bytes;
use seawall_core::time::Nanos;
use std::io;
use std::time::Duration;

/// Enough time for the caller to read what was sent before the reset.
const BEFORE_RESET: Nanos = Nanos::from_millis(20);
const DRIP: Nanos = Nanos::from_secs(1);
const HUGE: usize = 256 << 10;
const BROKEN_JSON: &[u8] = b"{\"ok\":true,\"items\":[1,2,{\"id\":";

impl FlakyConnection<'_> {
    pub(super) async fn fail(&mut self, fault: Fault, reply: &FlakyReply) -> io::Result<NextRequest> {
        let body = reply.payload.piece();
        let length = Framed::Length(body.len() as u64);
        let half = &body[..body.len() / 2];
        match fault {
            Fault::ResetBefore => self.reset().await,
            Fault::ResetAfterHeaders => {
                self.head(reply, length);
                self.reset().await
            }
            Fault::ResetMidBody => {
                self.head(reply, length);
                self.output.extend_from_slice(half);
                self.reset().await
            }
            Fault::Truncate => {
                self.head(reply, length);
                self.output.extend_from_slice(half);
                self.close().await
            }
            Fault::TruncateChunked => {
                self.head(reply, Framed::Chunked);
                self.output.extend_from_slice(format!("{:x}\r\n", half.len().max(1)).as_bytes());
                self.output.extend_from_slice(if half.is_empty() { b"x" } else { half });
                self.output.extend_from_slice(b"\r\n");
                self.close().await
            }
            Fault::Garbage => {
                self.output.extend_from_slice(b"\x15\x03\x01\x00\x02BLAH BLAH\r\n\r\nthis is not HTTP\r\n");
                self.close().await
            }
            Fault::MalformedJson => {
                self.head(reply, Framed::Length(BROKEN_JSON.len() as u64));
                self.output.extend_from_slice(BROKEN_JSON);
                self.next(reply).await
            }
            Fault::Hang => {
                self.flush().await?;
                drain(&mut self.stream).await;
                Ok(NextRequest::Close)
            }
            Fault::Drip => self.drip(reply, &body).await,
            Fault::HugeHeaders => self.huge(reply, &body).await,
            Fault::EndlessHeaders => self.endless().await,
            Fault::LyingLength => {
                self.head(reply, Framed::Length(half.len() as u64));
                self.output.extend_from_slice(&body);
                self.next(reply).await
            }
            Fault::CloseIdle => {
                self.send(reply).await?;
                self.close().await
            }
            Fault::EarlyHints => {
                self.output.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n");
                self.flush().await?;
                self.send(reply).await
            }
        }
    }

    /// Closes with RST: a zero linger discards unsent bytes and resets the connection.
    async fn reset(&mut self) -> io::Result<NextRequest> {
        if !self.output.is_empty() {
            self.flush().await?;
            self.pause(BEFORE_RESET).await;
        }
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
        Ok(NextRequest::Close)
    }

    async fn drip(&mut self, reply: &FlakyReply, body: &Bytes) -> io::Result<NextRequest> {
        self.head(reply, Framed::Length(body.len() as u64));
        self.flush().await?;
        for byte in body {
            self.pause(DRIP).await;
            self.output.push(*byte);
            self.flush().await?;
        }
        self.next(reply).await
    }

    async fn huge(&mut self, reply: &FlakyReply, body: &Bytes) -> io::Result<NextRequest> {
        self.head(reply, Framed::Length(body.len() as u64));
        // Removes the empty line that ends the headers; it follows the filling.
        self.output.truncate(self.output.len() - 2);
        for n in 0..HUGE / 1024 {
            self.output.extend_from_slice(filling(n).as_bytes());
        }
        self.output.extend_from_slice(b"\r\n");
        self.output.extend_from_slice(body);
        self.next(reply).await
    }

    /// Ends when the caller closes and writing fails.
    async fn endless(&mut self) -> io::Result<NextRequest> {
        self.output.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        for n in 0.. {
            self.output.extend_from_slice(filling(n).as_bytes());
            self.flush().await?;
        }
        Ok(NextRequest::Close)
    }
}

/// A header line of one KiB.
fn filling(n: usize) -> String {
    let name = format!("x-filling-{n}: ");
    let rest = 1022 - name.len();
    format!("{name}{}\r\n", "x".repeat(rest))
}
