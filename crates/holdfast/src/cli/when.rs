//! Times that people type: how long ago, or RFC 3339.

use std::time::{Duration, SystemTime};

const HOW: &str = "write how long ago, as 90s, 15m, 2h or 3d, or a time as 2026-11-21T08:00:00Z";

/// The time that is meant.
pub(super) fn parse(text: &str) -> Result<SystemTime, String> {
    let found = ago(text).map_or_else(|| rfc3339(text), |ago| SystemTime::now().checked_sub(ago));
    found.ok_or_else(|| HOW.to_owned())
}

/// A time to wait, in seconds: a number alone is one of seconds.
///
/// # Errors
/// How one is written.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let bare = || text.parse::<u32>().ok().map(u64::from);
    let found = bare().or_else(|| Some(ago(text)?.as_secs()));
    found.ok_or_else(|| "write seconds, or a number with its unit: 90, 90s, 5m, 1h".to_owned())
}

fn ago(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    number.parse::<u32>().ok().map(|number| Duration::from_secs(u64::from(number) * seconds))
}

/// A time of RFC 3339, with a fraction or without.
pub(super) fn rfc3339(text: &str) -> Option<SystemTime> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let marks = [(4, "-"), (7, "-"), (13, ":"), (16, ":")];
    let is_marked = |(at, mark): &(usize, &str)| text.get(*at..at + 1) == Some(mark);
    if !marks.iter().all(is_marked) || !matches!(text.get(10..11)?, "T" | "t" | " ") {
        return None;
    }
    let days = days(number(0, 4)?, number(5, 7)?, number(8, 10)?)?;
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let rest = text.get(19..)?;
    let digits =
        rest.strip_prefix('.').map_or(0, |it| it.bytes().take_while(u8::is_ascii_digit).count());
    let (fraction, zone) = rest.split_at(if digits > 0 { digits + 1 } else { 0 });
    let micros = format!("{:0<6}", fraction.trim_start_matches('.'))[..6].parse().ok()?;
    let local = days * 86_400 + hour * 3600 + minute * 60 + second;
    let seconds = local.checked_add_signed(-offset(zone)?)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds) + Duration::from_micros(micros))
}

/// How far a zone is before UTC, in seconds.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let sign = match zone.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let within = |text: &str, max: i64| {
        let two = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i64>().ok().filter(|number| two && *number <= max)
    };
    Some(sign * (within(hours, 23)? * 3600 + within(minutes, 59)? * 60))
}

/// Days since 1970, of a year from then on (Hinnant, "chrono-compatible low-level date algorithms").
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // With years that begin in March the leap day is the last one.
    let year = if month <= 2 { year - 1 } else { year };
    let march_month = (month + 9) % 12;
    let year_day = (153 * march_month + 2) / 5 + day - 1;
    (365 * year + year / 4 - year / 100 + year / 400 + year_day).checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_wait_may_have_a_unit() {
        for (text, wanted) in [("60", 60), ("90s", 90), ("5m", 300), ("1h", 3600), ("0", 0)] {
            assert_eq!(seconds(text), Ok(wanted), "{text}");
        }
        for text in ["", "m", "-5", "5 m", "1.5", "5min", "99999999999"] {
            assert!(seconds(text).unwrap_err().contains("90s, 5m"), "{text}");
        }
    }
    use crate::status;

    #[test]
    fn times_come_back_as_they_were_written() {
        for secs in [0, 951_782_400, 1_709_251_199, 1_795_219_200, 4_102_444_799] {
            let at = SystemTime::UNIX_EPOCH + Duration::new(secs, 12_000);
            assert_eq!(rfc3339(&status::rfc3339(at)), Some(at), "{secs}");
        }
        let at = |text| rfc3339(text).map(status::rfc3339);
        let noon = Some("2026-11-21T12:00:00.000000Z".to_owned());
        assert_eq!(at("2026-11-21T14:30:00+02:30"), noon);
        assert_eq!(at("2026-11-21 07:00:00-05:00"), noon);
        assert_eq!(at("2026-11-21T12:00:00.5Z").unwrap(), "2026-11-21T12:00:00.500000Z");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "h",
            "2",
            "-2h",
            "2026-11-21",
            "2026-11-21T12:00:00",
            "2026-13-21T12:00:00Z",
            "2026-11-21T25:00:00Z",
            "1969-12-31T23:59:59Z",
            "2026-11-21T12:00:00+2:00",
            "ü",
            "99999999999d",
            "1970-01-01T00:00:00+01:00",
            "2026-11-21T12:00:00.Z",
            "2026-11-2ü1T12:00:00Z",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let ago = parse("2h").unwrap().elapsed().unwrap().as_secs();
        assert!((7200..7260).contains(&ago), "{ago}");
    }
}
