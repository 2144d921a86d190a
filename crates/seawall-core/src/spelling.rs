//! Finds the known word that is closest to a mistyped one.

/// Returns the candidate that the user most likely meant, if one is near enough.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Similarity is quadratic in the length, and a longer text is no typing error.
    let word = if word.len() <= 64 { word.to_ascii_lowercase().replace('_', "-") } else { return None };
    let near = candidates.into_iter().map(|known| (likeness(&word, &known.replace('_', "-")), known));
    near.filter(|(likeness, _)| *likeness > 0.82).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, known)| known)
}

/// A swap of two letters counts as a full match, because Jaro's measure punishes it too hard in short words.
fn likeness(word: &str, known: &str) -> f64 {
    let swapped = known.len() > 2 && strsim::osa_distance(word, known) <= 1;
    if swapped { 1.0 } else { strsim::jaro_winkler(word, known) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_are_near_or_nothing() {
        assert_eq!(nearest("attemps", ["attempts", "backoff"]), Some("attempts"));
        assert_eq!(nearest("xyz", ["attempts", "backoff"]), None);
    }
}
