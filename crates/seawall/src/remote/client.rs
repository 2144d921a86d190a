//! A minimal HTTP client for the admin API: one request and one response over a plain blocking socket.

use crate::exit::{CommandError, Exit};
use crate::setup;
use anyhow::Context as _;
use seawall_engine::secret::Secret;
use serde_json::Value;
use std::io::{Read as _, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(30);
/// More than any response of the API has.
const MAX_RESPONSE: u64 = 256 << 20;

#[derive(Debug)]
pub(super) struct AdminClient {
    authority: String,
    token: Option<Secret>,
}

/// A response that is not a refusal.
#[derive(Debug)]
pub(super) struct AdminReply {
    pub status: u16,
    pub body: Vec<u8>,
}

impl AdminClient {
    pub(super) fn new(url: &str, token: Option<Secret>) -> anyhow::Result<Self> {
        let unusable = || CommandError::usage(format!("`{url}` is no address of an admin port")).hint("write it as http://HOST:PORT");
        let authority = url.strip_prefix("http://").ok_or_else(unusable)?.trim_end_matches('/');
        if authority.is_empty() || authority.contains(['/', '?', '#', '@', ' ', '\r', '\n']) {
            return Err(unusable().into());
        }
        let with_port = if authority.rsplit(']').next().is_some_and(|rest| rest.contains(':')) {
            authority.to_owned()
        } else {
            format!("{authority}:80")
        };
        Ok(Self { authority: with_port, token })
    }

    /// Gets JSON, which must have `member`: `items` for a list.
    pub(super) fn get(&self, path: &str, member: &str) -> anyhow::Result<Value> {
        self.json("GET", path, None, member)
    }

    /// Sends and parses JSON. A response without `member` does not come from a Seawall's admin port.
    pub(super) fn json(&self, method: &str, path: &str, body: Option<&Value>, member: &str) -> anyhow::Result<Value> {
        let text = body.map(ToString::to_string);
        let reply = self.send(method, path, "application/json", text.as_deref().map(str::as_bytes))?;
        let answer = serde_json::from_slice(&reply.body).unwrap_or(Value::Null);
        if answer.get(member).is_some() { Ok(answer) } else { Err(self.unexpected().into()) }
    }

    /// Sends lines; prints the result of each, and returns whether all of them were accepted.
    pub(super) fn lines(&self, path: &str, file: &Path, out: &mut dyn Write) -> anyhow::Result<Exit> {
        let mut text = Vec::new();
        let read = if file.as_os_str() == "-" {
            std::io::stdin().read_to_end(&mut text)
        } else {
            std::fs::File::open(file).and_then(|mut file| file.read_to_end(&mut text))
        };
        read.with_context(|| format!("cannot read `{}`", file.display()))?;
        let reply = self.send("POST", path, "application/x-ndjson", Some(&text))?;
        let said: Option<Vec<Value>> = reply.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(line).collect();
        let said = said.ok_or_else(|| self.unexpected())?;
        out.write_all(&reply.body)?;
        Ok(if said.iter().any(|answer| answer.get("code").is_some()) { Exit::Failed } else { Exit::Done })
    }

    /// The error for a response that does not come from an admin port.
    fn unexpected(&self) -> CommandError {
        if self.is_gateway() { self.gateway() } else { self.not_seawall() }
    }

    /// Whether this address is the gateway's. The gateway reserves this path, and the admin port does not have it.
    fn is_gateway(&self) -> bool {
        let health = self.exchange("GET", "/-/health", "", None);
        health.is_ok_and(|reply| reply.status == 200 && reply.body.trim_ascii_end() == b"{\"status\":\"ok\"}")
    }

    fn gateway(&self) -> CommandError {
        let failure = CommandError::no_seawall(format!("http://{} is the gateway itself, not its admin port", self.authority));
        // The configuration file that this gateway most likely runs with names its admin port.
        let configured = setup::load_if_any(None).ok().flatten().map(|(_, config)| config.server);
        let port = |address: &str| address.rsplit(':').next().map(str::to_owned);
        match configured.filter(|server| port(&server.listen) == port(&self.authority)) {
            Some(server) => failure.hint(format!("use --admin http://{}, which `[server] admin` says", server.admin)),
            None => failure.hint("use --admin with the address of `[server] admin`, http://127.0.0.1:7330 by default"),
        }
    }

    fn not_seawall(&self) -> CommandError {
        CommandError::no_seawall(format!("what answers at http://{} is not a Seawall's admin port", self.authority))
            .hint("name another with --admin URL; it is the port of the dashboard, not of the gateway")
    }

    /// Sends and reads; a refusal becomes an error with the server's message.
    pub(super) fn send(&self, method: &str, path: &str, kind: &str, body: Option<&[u8]>) -> anyhow::Result<AdminReply> {
        let reply = self.exchange(method, path, kind, body)?;
        if reply.status < 400 {
            return Ok(reply);
        }
        let problem: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        let detail = problem["detail"].as_str().unwrap_or("no reason was given");
        let code = problem["code"].as_str().unwrap_or("unknown");
        let exit = match code {
            "store_unavailable" | "storage_full" => Exit::StoreUnavailable,
            // The response has no error code of ours.
            "unknown" => return Err(self.unexpected().into()),
            // The gateway's codes for a path without an upstream, and for an unknown caller.
            "no_upstream" | "caller_unknown" if self.is_gateway() => return Err(self.gateway().into()),
            _ => Exit::Failed,
        };
        let failure = CommandError { exit, message: format!("{detail} ({code}, {})", reply.status), hint: None };
        Err(if reply.status == 401 { failure.hint("set SEAWALL_ADMIN_TOKEN") } else { failure }.into())
    }

    fn exchange(&self, method: &str, path: &str, kind: &str, body: Option<&[u8]>) -> anyhow::Result<AdminReply> {
        let absent = |error: std::io::Error| {
            CommandError::no_seawall(format!("no Seawall answers at http://{}: {error}", self.authority))
                .hint("start one with `seawall serve`, or name another with --admin URL")
        };
        let mut places = self.authority.to_socket_addrs().map_err(absent)?;
        let place = places.next().ok_or_else(|| absent(std::io::ErrorKind::NotFound.into()))?;
        let mut stream = TcpStream::connect_timeout(&place, CONNECT).map_err(absent)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let authorization = self.token.as_ref().map(|token| format!("authorization: Bearer {}\r\n", token.reveal())).unwrap_or_default();
        let length = body.map(|body| format!("content-type: {kind}\r\ncontent-length: {}\r\n", body.len())).unwrap_or_default();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{authorization}{length}\r\n", self.authority);
        let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.unwrap_or_default()));
        let mut text = Vec::new();
        // A server that refuses early may close while we still send; its response counts.
        let read = stream.take(MAX_RESPONSE).read_to_end(&mut text);
        if text.is_empty() {
            sent.and(read).map_err(absent)?;
        }
        parse(&text)
            .ok_or_else(|| CommandError::no_seawall(format!("what answers at http://{} does not speak HTTP", self.authority)).into())
    }
}

/// The result for one line.
fn line(text: &[u8]) -> Option<Value> {
    serde_json::from_slice(text).ok().filter(|said: &Value| said.get("line").is_some())
}

fn parse(text: &[u8]) -> Option<AdminReply> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(text).ok()? else { return None };
    let status = head.code?;
    let chunked = head.headers.iter().any(|header| header.name.eq_ignore_ascii_case("transfer-encoding"));
    let body = &text[length..];
    Some(AdminReply { status, body: if chunked { unchunked(body)? } else { body.to_vec() } })
}

fn unchunked(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let httparse::Status::Complete((start, length)) = httparse::parse_chunk_size(text).ok()? else { return None };
        let length = usize::try_from(length).ok()?;
        if length == 0 {
            return Some(body);
        }
        let end = start.checked_add(length)?;
        body.extend_from_slice(text.get(start..end)?);
        text = text.get(end + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_in_both_framings() {
        let plain = parse(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
        assert_eq!((plain.status, plain.body.as_slice()), (200, &b"ok"[..]));
        let chunked = parse(b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n1\r\n!\r\n0\r\n\r\n").unwrap();
        assert_eq!((chunked.status, chunked.body.as_slice()), (404, &b"ok!"[..]));
        assert!(parse(b"SSH-2.0-OpenSSH").is_none());
        assert!(parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nok").is_none(), "cut off");
    }

    #[test]
    fn only_addresses_are_taken() {
        assert_eq!(AdminClient::new("http://[::1]/", None).unwrap().authority, "[::1]:80");
        assert_eq!(AdminClient::new("http://localhost:7330", None).unwrap().authority, "localhost:7330");
        for bad in ["https://x", "x:1", "http://", "http://a/b", "http://a\r\nb"] {
            assert!(AdminClient::new(bad, None).is_err(), "{bad}");
        }
    }
}
