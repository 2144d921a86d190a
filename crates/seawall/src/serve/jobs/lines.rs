//! Lines in, lines out: a body of many lines is answered line by line, each when it is on disk, and a bad one spoils no
//! other.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use http_body_util::BodyExt as _;
use serde::Serialize;
use tokio::sync::mpsc;

/// A line, or what is wrong with it.
pub(super) type Line = Result<Bytes, String>;

/// What a body may be made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub bytes_of_a_line: usize,
    pub lines: u64,
    /// Lines that are kept together.
    pub together: usize,
}

/// Answers with what `keep` says of each batch of numbered lines.
pub(super) fn answer<K, F>(body: Body, bounds: Bounds, keep: K) -> Response
where
    K: Fn(Vec<(u64, Line)>) -> F + Send + Sync + 'static,
    F: Future<Output = Bytes> + Send,
{
    let (sender, answers) = mpsc::channel::<Bytes>(16);
    tokio::spawn(async move { read(body, bounds, &keep, &sender).await });
    streamed(answers)
}

/// Lines as they come, until whoever makes them has no more.
pub(super) fn streamed(lines: mpsc::Receiver<Bytes>) -> Response {
    let stream = futures_util::stream::unfold(lines, async |mut lines| {
        lines.recv().await.map(|line| (Ok::<_, std::convert::Infallible>(line), lines))
    });
    let mut response = Response::new(Body::from_stream(stream));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}

async fn read<K, F>(mut body: Body, bounds: Bounds, keep: &K, answers: &mpsc::Sender<Bytes>)
where
    K: Fn(Vec<(u64, Line)>) -> F,
    F: Future<Output = Bytes>,
{
    let (mut pending, mut batch, mut number, mut taken) = (BytesMut::new(), Vec::new(), 0u64, 0u64);
    let mut over = false;
    while !over {
        match body.frame().await {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    pending.extend_from_slice(&data);
                }
            }
            Some(Err(_)) => return,
            None => {
                over = true;
                pending.extend_from_slice(b"\n");
            }
        }
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line = pending.split_to(end + 1).freeze();
            number += 1;
            if line.trim_ascii().is_empty() {
                continue;
            }
            taken += 1;
            if taken > bounds.lines {
                let why = format!("a submission has at most {} lines; this one and the rest were not read", bounds.lines);
                batch.push((number, Err(why)));
                over = true;
                break;
            }
            batch.push((number, Ok(line)));
            if batch.len() >= bounds.together && answers.send(keep(std::mem::take(&mut batch)).await).await.is_err() {
                return;
            }
        }
        if pending.len() > bounds.bytes_of_a_line {
            batch.push((number + 1, Err("a line longer than `max_body` allows; it and the rest were not read".to_owned())));
            over = true;
        }
    }
    if !batch.is_empty() {
        // Whoever left does not hear it; what is kept is kept.
        drop(answers.send(keep(batch).await).await);
    }
}

/// What is said of one line, as a line.
pub(super) fn text(said: &impl Serialize) -> String {
    let mut text = serde_json::to_string(said).unwrap_or_default();
    text.push('\n');
    text
}

pub(super) fn written(said: &impl Serialize) -> Bytes {
    Bytes::from(text(said))
}
