//! The reset of a provider's quota: a time of day in a time zone, across daylight-saving changes.

use jiff::civil::{Date, Time};
use jiff::tz::{self, TimeZone};
use jiff::{Timestamp, ToSpan as _};

use crate::time::Wall;

/// `00:00 America/Los_Angeles`, every day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    time: Time,
    zone: TimeZone,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResetError {
    #[error("expected a time and a time zone, such as \"00:00 America/Los_Angeles\"")]
    Shape,
    #[error("\"{0}\" is not a time of day between 00:00 and 23:59")]
    Time(String),
    #[error("unknown time zone \"{name}\"{}", hint(.suggestion.as_deref()))]
    Zone { name: String, suggestion: Option<String> },
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map(|name| format!("; did you mean \"{name}\"?")).unwrap_or_default()
}

impl Reset {
    /// # Errors
    /// When the text is not `HH:MM Zone/Name`.
    pub fn parse(text: &str) -> Result<Self, ResetError> {
        let (time, zone) = text.trim().split_once(char::is_whitespace).ok_or(ResetError::Shape)?;
        Ok(Self { time: parse_time(time)?, zone: parse_zone(zone.trim())? })
    }

    /// The first reset after `now`. A time of day that the clocks skip counts as the first moment after the gap.
    #[must_use]
    pub fn next_after(&self, now: Wall) -> Wall {
        let today = self.zone.to_datetime(timestamp(now)).date();
        let days = [today.yesterday().ok(), Some(today), today.tomorrow().ok(), today.checked_add(2.days()).ok()];
        let next = days.into_iter().flatten().filter_map(|day| self.on(day)).find(|at| *at > now);
        next.unwrap_or(Wall(i64::MAX))
    }

    fn on(&self, day: Date) -> Option<Wall> {
        let at = self.zone.to_timestamp(day.to_datetime(self.time)).ok()?;
        Some(Wall(at.as_millisecond()))
    }
}

/// The start of the month, in UTC, that contains `at`.
#[must_use]
pub fn month_start_utc(at: Wall) -> Wall {
    utc_midnight(utc_date(at).first_of_month())
}

/// The start of the next month, in UTC, after `at`: the reset of monthly quotas.
#[must_use]
pub fn next_month_start_utc(at: Wall) -> Wall {
    utc_date(at).first_of_month().checked_add(1.month()).map_or(Wall(i64::MAX), utc_midnight)
}

fn utc_date(at: Wall) -> Date {
    TimeZone::UTC.to_datetime(timestamp(at)).date()
}

fn utc_midnight(day: Date) -> Wall {
    let since = day.duration_since(Date::constant(1970, 1, 1));
    Wall(since.as_secs().saturating_mul(1_000))
}

/// Out of the calendar's range (the year 9999) is its end.
fn timestamp(at: Wall) -> Timestamp {
    Timestamp::from_millisecond(at.0).unwrap_or(if at.0 < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

fn parse_time(text: &str) -> Result<Time, ResetError> {
    let wrong = || ResetError::Time(text.to_owned());
    let (hour, minute) = text.split_once(':').ok_or_else(wrong)?;
    if minute.len() != 2 || !matches!(hour.len(), 1 | 2) {
        return Err(wrong());
    }
    let number = |part: &str| part.parse::<i8>().map_err(|_| wrong());
    Time::new(number(hour)?, number(minute)?, 0, 0).map_err(|_| wrong())
}

fn parse_zone(name: &str) -> Result<TimeZone, ResetError> {
    TimeZone::get(name).map_err(|_| ResetError::Zone { name: name.to_owned(), suggestion: closest_zone(name) })
}

/// Also finds a city without its continent, as people often write zones.
fn closest_zone(name: &str) -> Option<String> {
    let wanted = name.to_lowercase().replace(' ', "_");
    let likeness = |zone: &str| {
        let zone = zone.to_lowercase();
        let city = zone.rsplit('/').next().unwrap_or(&zone);
        strsim::jaro_winkler(&wanted, &zone).max(strsim::normalized_damerau_levenshtein(&wanted, city))
    };
    let scored = tz::db().available().map(|zone| (likeness(zone.as_str()), zone.as_str().to_owned()));
    scored.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(&a.1))).map(|(_, zone)| zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(text: &str) -> Wall {
        Wall(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    fn next(reset: &str, now: &str) -> String {
        let at = Reset::parse(reset).unwrap().next_after(wall(now));
        Timestamp::from_millisecond(at.0).unwrap().to_string()
    }

    #[test]
    fn midnight_pacific_follows_the_clocks() {
        let reset = "00:00 America/Los_Angeles";
        assert_eq!(next(reset, "2026-01-15T12:00:00Z"), "2026-01-16T08:00:00Z");
        assert_eq!(next(reset, "2026-07-15T12:00:00Z"), "2026-07-16T07:00:00Z");
        assert_eq!(next(reset, "2026-03-08T07:59:59Z"), "2026-03-08T08:00:00Z", "the night before the change");
        assert_eq!(next(reset, "2026-03-08T08:00:00Z"), "2026-03-09T07:00:00Z", "a day of 23 hours");
        assert_eq!(next(reset, "2026-11-01T07:00:00Z"), "2026-11-02T08:00:00Z", "a day of 25 hours");
    }

    #[test]
    fn a_reset_at_this_very_moment_is_over() {
        assert_eq!(next("09:30 UTC", "2026-05-01T09:30:00Z"), "2026-05-02T09:30:00Z");
        assert_eq!(next("09:30 UTC", "2026-05-01T09:29:59.999Z"), "2026-05-01T09:30:00Z");
    }

    #[test]
    fn a_time_that_the_clocks_skip_counts_after_the_gap_and_a_double_one_counts_once() {
        assert_eq!(next("02:30 Europe/Berlin", "2026-03-28T12:00:00Z"), "2026-03-29T01:30:00Z");
        assert_eq!(next("02:30 Europe/Berlin", "2026-10-24T12:00:00Z"), "2026-10-25T00:30:00Z");
        assert_eq!(next("02:30 Europe/Berlin", "2026-10-25T00:30:00Z"), "2026-10-26T01:30:00Z");
    }

    #[test]
    fn a_misspelt_zone_is_answered_with_the_right_one() {
        for (text, zone) in [
            ("00:00 America/Los_Angelas", "America/Los_Angeles"),
            ("00:00 Los Angeles", "America/Los_Angeles"),
            ("00:00 Europe/Berlni", "Europe/Berlin"),
        ] {
            let Err(ResetError::Zone { suggestion, .. }) = Reset::parse(text) else { panic!("{text} was accepted") };
            assert_eq!(suggestion.as_deref(), Some(zone), "{text}");
        }
        let error = Reset::parse("00:00 Europe/Berlni").unwrap_err();
        assert_eq!(error.to_string(), "unknown time zone \"Europe/Berlni\"; did you mean \"Europe/Berlin\"?");
        assert_eq!(Reset::parse("00:00 Qqqq").unwrap_err().to_string(), "unknown time zone \"Qqqq\"");
    }

    #[test]
    fn what_is_not_a_time_is_named() {
        assert_eq!(Reset::parse("midnight").unwrap_err(), ResetError::Shape);
        for text in ["24:00", "7", "12:5", "12:60", "aa:bb", "-1:00", "00:00:00"] {
            assert_eq!(Reset::parse(&format!("{text} UTC")).unwrap_err(), ResetError::Time(text.to_owned()));
        }
    }

    #[test]
    fn months_begin_at_utc_midnight() {
        assert_eq!(month_start_utc(wall("2026-02-28T23:59:59Z")), wall("2026-02-01T00:00:00Z"));
        assert_eq!(month_start_utc(wall("2026-03-01T00:00:00Z")), wall("2026-03-01T00:00:00Z"));
        assert_eq!(next_month_start_utc(wall("2026-12-31T23:59:59Z")), wall("2027-01-01T00:00:00Z"));
        assert_eq!(month_start_utc(wall("1969-07-20T20:17:00Z")), wall("1969-07-01T00:00:00Z"));
    }

    #[test]
    fn the_ends_of_the_calendar_are_survived() {
        let reset = Reset::parse("00:00 UTC").unwrap();
        assert_eq!(reset.next_after(Wall(i64::MAX)), Wall(i64::MAX));
        assert!(reset.next_after(Wall(i64::MIN)) > Wall(i64::MIN));
        assert_eq!(next_month_start_utc(Wall(i64::MAX)), Wall(i64::MAX));
    }
}
