//! The history of attempts, as a JSON column.

use crate::json::{list, quoted, scalar};
use crate::model::job::Attempted;

/// Serialises the attempts as serde would.
pub(crate) fn to_json(attempts: &[Attempted]) -> String {
    let mut out = String::with_capacity(2 + attempts.len() * 128);
    list(&mut out, attempts, |out, Attempted { attempt, status, latency_ms, outcome, at }| {
        out.push_str(r#"{"attempt":"#);
        out.push_str(itoa::Buffer::new().format(*attempt));
        out.push_str(r#","status":"#);
        quoted(out, status);
        out.push_str(r#","latency_ms":"#);
        out.push_str(&scalar(latency_ms));
        out.push_str(r#","outcome":"#);
        quoted(out, outcome);
        out.push_str(r#","at":"#);
        quoted(out, at);
        out.push('}');
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn attempts_are_written_as_serde_writes_them(
            all in prop::collection::vec((any::<u32>(), any::<String>(), any::<f64>(), ".*", any::<String>()), 0..4),
        ) {
            let all: Vec<Attempted> = all
                .into_iter()
                .map(|(attempt, status, latency_ms, outcome, at)| Attempted { attempt, status, latency_ms, outcome, at })
                .collect();
            prop_assert_eq!(to_json(&all), scalar(&all));
        }
    }
}
