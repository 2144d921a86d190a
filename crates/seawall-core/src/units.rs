//! Values in their usual notation: durations, sizes, rates, shares. Each parser's error gives an example of what it expects.

use crate::policy::{Rate, Share};
use crate::time::Nanos;

const BYTES: &[(&str, f64)] =
    &[("B", 1.0), ("kB", 1e3), ("KB", 1e3), ("MB", 1e6), ("GB", 1e9), ("KiB", 1024.0), ("MiB", 1_048_576.0), ("GiB", 1_073_741_824.0)];

/// `"250ms"`, `"1.5s"`, `"2h30m"`.
pub fn duration(text: &str) -> Result<Nanos, String> {
    let text = text.trim();
    length(text).ok_or_else(|| {
        let digits = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ' ');
        match digits {
            "" if !text.is_empty() => format!("missing unit: write \"{text}s\" or \"{text}ms\""),
            unit if digits.len() < text.len() && unit.chars().all(char::is_alphabetic) => {
                format!("unknown unit `{unit}`; durations use ms, s, m, h, d, as in \"250ms\" or \"3m\"")
            }
            _ => "not a duration; write it as \"250ms\", \"30s\" or \"3m\"".to_owned(),
        }
    })
}

/// A length written as Go, Protocol Buffers and our own configuration write it: `1s`, `6m0s`, `20ms`, `1h2m3.5s`, and
/// `14d` besides. Zero is a length; an empty text, a sign or a bare number is not.
#[must_use]
pub fn length(text: &str) -> Option<Nanos> {
    let mut total = Nanos::ZERO;
    let mut rest = text;
    if rest.is_empty() || rest.len() > 64 {
        return None;
    }
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len()));
        let size: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return None,
        };
        total = total + exact(number, size)?;
        rest = after;
    }
    Some(total)
}

/// A decimal number of units, rounded up to the nanosecond. Floating point would make some waits a nanosecond too short.
pub(crate) fn exact(text: &str, unit: u64) -> Option<Nanos> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if text.len() > 32 || !digits(whole) || !digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let number = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u128>().ok() };
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = fraction.bytes().fold(1_u128, |scale, _| scale * 10);
    let nanos = number(whole)?.saturating_mul(unit.into()).saturating_add((number(fraction)? * u128::from(unit)).div_ceil(scale));
    Some(Nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}

/// `"1MiB"`, `"64KiB"`, `"10MB"`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "only digits and a point are parsed, and the cast saturates")]
pub fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim_start());
    let number: f64 = number.parse().map_err(|_| "not a size; write it as \"64KiB\" or \"1MiB\"".to_owned())?;
    if unit.is_empty() {
        return Err(format!("missing unit: write \"{text}KiB\" or \"{text}MiB\""));
    }
    let Some((_, size)) = BYTES.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("unknown unit `{unit}`; sizes use B, KiB, MiB, GiB, as in \"1MiB\""));
    };
    Ok((number * size) as u64)
}

/// `"50/s"`, `"5000/h"`, `"10/10s"`.
pub fn rate(text: &str) -> Result<Rate, String> {
    const FORM: &str = "not a rate; write it as \"50/s\", \"300/m\" or \"5000/h\"";
    let Some((count, period)) = text.split_once('/') else {
        return Err(if text.trim().parse::<u64>().is_ok() {
            format!("missing unit: write \"{}/s\" or \"{}/m\"", text.trim(), text.trim())
        } else {
            FORM.to_owned()
        });
    };
    let count: u64 = count.trim().parse().map_err(|_| FORM.to_owned())?;
    let period = period.trim();
    let length = if period.starts_with(|c: char| c.is_ascii_digit()) { duration(period) } else { duration(&format!("1{period}")) };
    let per = length.map_err(|_| format!("unknown period `{period}`; rates are per s, m, h or d, as in \"50/s\""))?;
    if per == Nanos::ZERO {
        return Err("a rate needs a period above zero".to_owned());
    }
    Ok(Rate { count, per })
}

/// `"20%"`, up to 100 %.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to lie between 0 and 100")]
pub fn share(text: &str) -> Result<Share, String> {
    let Some(number) = text.trim().strip_suffix('%') else {
        return Err(format!(
            "missing unit: shares are written with a percent sign, as in \"{}%\"",
            if text.trim().is_empty() { "20" } else { text.trim() }
        ));
    };
    let percent: f64 = number.trim().parse().map_err(|_| "not a share; write it as \"20%\"".to_owned())?;
    if !(0.0..=100.0).contains(&percent) {
        return Err("a share lies between 0% and 100%".to_owned());
    }
    Ok(Share((percent * 1e4).round() as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read() {
        let texts =
            [("1s", 1_000), ("6m0s", 360_000), ("20ms", 20), ("1h2m3.5s", 3_723_500), ("0s", 0), ("46.5s", 46_500), ("1d", 86_400_000)];
        for (text, ms) in texts {
            assert_eq!(length(text), Some(Nanos::from_millis(ms)), "{text}");
        }
        assert_eq!(length("1.5µs"), Some(Nanos(1_500)));
        for text in ["", "5", "-1s", "s", "1x", "1 s", "..s", "1s1", "1.2.3s"] {
            assert_eq!(length(text), None, "{text}");
        }
        assert_eq!(length("99999999999999h"), Some(Nanos::MAX));
    }

    #[test]
    fn durations_and_sizes_need_a_unit() {
        assert_eq!(duration("250ms"), Ok(Nanos::from_millis(250)));
        assert_eq!(duration("2h30m"), Ok(Nanos::from_secs(9000)));
        assert_eq!(duration("1.5s"), Ok(Nanos::from_millis(1500)));
        assert!(duration("30").unwrap_err().starts_with("missing unit"));
        assert!(duration("30 parsecs").unwrap_err().contains("`parsecs`"));
        for bad in ["", "-5s", "s", "1e3s", "NaNs", "1..2s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(duration("99999999999999999999d"), Ok(Nanos::MAX));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert!(size("7").unwrap_err().starts_with("missing unit"));
    }

    #[test]
    fn rates_and_shares_say_what_they_want() {
        assert_eq!(rate("50/s"), Ok(Rate::per_second(50)));
        assert_eq!(rate("10/10s"), Ok(Rate { count: 10, per: Nanos::from_secs(10) }));
        assert_eq!(rate("5000/h").map(|r| r.per), Ok(Nanos::from_secs(3600)));
        for bad in ["50", "50/", "/s", "-1/s", "50/0s", "50/fortnight", "1.5/s"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        assert_eq!(share("12.5%"), Ok(Share(125_000)));
        for bad in ["20", "101%", "-1%", "NaN%", "%"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
