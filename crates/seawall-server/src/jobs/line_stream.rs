//! Streams of lines: each line of a request body gets one line of response as soon as it is on disk. A bad line does not affect others.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use http_body_util::BodyExt as _;
use serde::Serialize;
use tokio::sync::mpsc;

/// A line, or its error.
pub(crate) type InputLine = Result<Bytes, String>;

/// Limits of a request body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineBounds {
    pub bytes_of_a_line: usize,
    pub lines: u64,
    /// Lines that are stored in one batch.
    pub together: usize,
    /// Maximum bytes of a batch, not counting its last line.
    pub bytes_together: usize,
}

/// Memory of one submission, not counting its last line.
pub(crate) const BYTES_TOGETHER: usize = 4 << 20;

/// Responds with the result of `keep` for each batch of numbered lines.
pub(crate) fn answer<K, F>(body: Body, bounds: LineBounds, keep: K) -> Response
where
    K: Fn(Vec<(u64, InputLine)>) -> F + Send + Sync + 'static,
    F: Future<Output = Bytes> + Send,
{
    let (sender, answers) = mpsc::channel::<Bytes>(16);
    tokio::spawn(async move { read(body, bounds, &keep, &sender).await });
    streamed(answers)
}

/// Streams lines until the sender is dropped.
pub(crate) fn streamed(lines: mpsc::Receiver<Bytes>) -> Response {
    let stream = futures_util::stream::unfold(lines, async |mut lines| {
        lines.recv().await.map(|line| (Ok::<_, std::convert::Infallible>(line), lines))
    });
    let mut response = Response::new(Body::from_stream(stream));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}

async fn read<K, F>(mut body: Body, bounds: LineBounds, keep: &K, answers: &mpsc::Sender<Bytes>)
where
    K: Fn(Vec<(u64, InputLine)>) -> F,
    F: Future<Output = Bytes>,
{
    let (mut pending, mut batch, mut number, mut taken) = (BytesMut::new(), Vec::new(), 0u64, 0u64);
    let (mut over, mut bytes, mut searched) = (false, 0, 0);
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
        // Continues behind the searched part, since a long line comes in many chunks.
        while let Some(end) = pending[searched..].iter().position(|byte| *byte == b'\n') {
            let line = pending.split_to(searched + end + 1).freeze();
            searched = 0;
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
            bytes += line.len();
            batch.push((number, Ok(line)));
            if batch.len() >= bounds.together || bytes >= bounds.bytes_together {
                bytes = 0;
                if answers.send(keep(std::mem::take(&mut batch)).await).await.is_err() {
                    return;
                }
            }
        }
        searched = pending.len();
        if pending.len() > bounds.bytes_of_a_line {
            batch.push((number + 1, Err("a line longer than `max_body` allows; it and the rest were not read".to_owned())));
            over = true;
        }
    }
    if !batch.is_empty() {
        // If the caller has disconnected, the response is dropped; stored lines stay stored.
        drop(answers.send(keep(batch).await).await);
    }
}

/// Serialises the result for one line.
pub(crate) fn text(said: &impl Serialize) -> String {
    let mut text = serde_json::to_string(said).unwrap_or_default();
    text.push('\n');
    text
}

pub(crate) fn written(said: &impl Serialize) -> Bytes {
    Bytes::from(text(said))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Returns the number of lines of each batch.
    async fn batches(pieces: Vec<Bytes>, bounds: LineBounds) -> Vec<usize> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let pieces = pieces.into_iter().map(Ok::<_, std::convert::Infallible>);
        let (sender, _answers) = mpsc::channel(100);
        let keep = move |lines: Vec<(u64, InputLine)>| {
            kept.lock().unwrap().push(lines.len());
            std::future::ready(Bytes::new())
        };
        read(Body::from_stream(futures_util::stream::iter(pieces)), bounds, &keep, &sender).await;
        let seen = seen.lock().unwrap();
        seen.clone()
    }

    #[tokio::test]
    async fn long_lines_are_not_gathered() {
        let bounds = LineBounds { bytes_of_a_line: 100, lines: 1_000, together: 4, bytes_together: 60 };
        let line = |bytes: usize| Bytes::from(format!("{}\n", "x".repeat(bytes - 1)));
        assert_eq!(batches(vec![line(10); 10], bounds).await, [4, 4, 2], "short ones are kept together");
        assert_eq!(batches(vec![line(50); 5], bounds).await, [2, 2, 1], "long ones as far as there is room");
        assert_eq!(batches(vec![line(90); 3], bounds).await, [1, 1, 1]);
        let split = vec![Bytes::from("aaa"), Bytes::from("a\nbb"), Bytes::from("b\n\ncc"), Bytes::from("c")];
        assert_eq!(batches(split, bounds).await, [3], "lines come in pieces");
    }
}
