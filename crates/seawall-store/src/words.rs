//! Headers and attempts as every row keeps them: JSON, as serde would write it, for a third fewer instructions: most texts need no
//! escape, and to find that out for a whole text at once is cheaper than for each of its characters.

use crate::error::Error;
use crate::job::Attempted;
use crate::sql::json;

/// Headers: a list of pairs.
pub(crate) fn pairs(pairs: &[(String, String)]) -> Result<String, Error> {
    let mut out = String::with_capacity(2 + pairs.iter().map(|(name, value)| name.len() + value.len() + 8).sum::<usize>());
    list(&mut out, pairs, |out, (name, value)| {
        out.push('[');
        quoted(out, name)?;
        out.push(',');
        quoted(out, value)?;
        out.push(']');
        Ok(())
    })?;
    Ok(out)
}

/// What became of attempts.
pub(crate) fn history(attempts: &[Attempted]) -> Result<String, Error> {
    let mut out = String::with_capacity(2 + attempts.len() * 128);
    list(&mut out, attempts, |out, Attempted { attempt, status, latency_ms, outcome, at }| {
        out.push_str(r#"{"attempt":"#);
        out.push_str(itoa::Buffer::new().format(*attempt));
        out.push_str(r#","status":"#);
        quoted(out, status)?;
        out.push_str(r#","latency_ms":"#);
        out.push_str(&json(latency_ms)?);
        out.push_str(r#","outcome":"#);
        quoted(out, outcome)?;
        out.push_str(r#","at":"#);
        quoted(out, at)?;
        out.push('}');
        Ok(())
    })?;
    Ok(out)
}

fn list<T>(out: &mut String, items: &[T], mut one: impl FnMut(&mut String, &T) -> Result<(), Error>) -> Result<(), Error> {
    out.push('[');
    for (number, item) in items.iter().enumerate() {
        if number > 0 {
            out.push(',');
        }
        one(out, item)?;
    }
    out.push(']');
    Ok(())
}

fn quoted(out: &mut String, text: &str) -> Result<(), Error> {
    // Without a way out of the loop, so that many bytes are looked at in one step.
    let odd = text.bytes().fold(false, |odd, byte| odd | (byte < b' ') | (byte == b'"') | (byte == b'\\'));
    if odd {
        out.push_str(&json(&text)?);
        return Ok(());
    }
    out.push('"');
    out.push_str(text);
    out.push('"');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_are_written_as_serde_writes_them(headers in prop::collection::vec((".*", any::<String>()), 0..6)) {
            prop_assert_eq!(pairs(&headers).unwrap(), json(&headers).unwrap());
        }

        #[test]
        fn attempts_are_written_as_serde_writes_them(
            all in prop::collection::vec((any::<u32>(), any::<String>(), any::<f64>(), ".*", any::<String>()), 0..4),
        ) {
            let all: Vec<Attempted> = all
                .into_iter()
                .map(|(attempt, status, latency_ms, outcome, at)| Attempted { attempt, status, latency_ms, outcome, at })
                .collect();
            prop_assert_eq!(history(&all).unwrap(), json(&all).unwrap());
        }
    }

    #[test]
    fn every_character_that_needs_it_is_escaped() {
        for byte in 0..=127u8 {
            let header = vec![(char::from(byte).to_string(), format!("a{}b", char::from(byte)))];
            assert_eq!(pairs(&header).unwrap(), json(&header).unwrap(), "{byte}");
        }
    }
}
