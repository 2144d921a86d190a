//! Round tick steps (1, 2, 2.5, 5 and their tens) and their labels.

/// The step that divides `span` into about `count` parts.
pub(super) fn step(span: f64, count: u32) -> f64 {
    if span <= 0.0 || !span.is_finite() {
        return 1.0;
    }
    let rough = span / f64::from(count.max(1));
    let ten = 10f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|nice| nice * ten >= rough * 0.999);
    nice.unwrap_or(10.0) * ten
}

pub(super) fn between(from: f64, to: f64, count: u32) -> Vec<f64> {
    let step = step(to - from, count);
    let first = (from / step).ceil();
    (0..=2 * count + 2).map(|index| (first + f64::from(index)) * step).take_while(|&tick| tick <= to + step * 1e-6).collect()
}

/// `12,000`, `0.5`: grouped above a thousand, without trailing decimals.
pub(super) fn label(value: f64) -> String {
    if value.fract().abs() > 1e-9 {
        return format!("{value:.2}").trim_end_matches('0').to_owned();
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_fall_on_numbers_people_count_in() {
        assert_eq!(between(0.0, 200.0, 5), [0.0, 50.0, 100.0, 150.0, 200.0]);
        assert_eq!(between(10.0, 200.0, 4), [50.0, 100.0, 150.0, 200.0]);
        assert_eq!(between(0.0, 0.0, 4), [0.0]);
    }

    #[test]
    fn labels_are_grouped() {
        assert_eq!([0.0, 0.5, 950.0, 12_000.0].map(label), ["0", "0.5", "950", "12,000"]);
    }
}
