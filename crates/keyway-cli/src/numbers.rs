//! Numbers, for people.

/// A count as a number to divide.
#[expect(clippy::cast_precision_loss, reason = "for people: 16 digits are enough")]
pub(crate) fn number(count: u64) -> f64 {
    count as f64
}

/// So many of something whose plural ends with an s, or with es after an s.
pub(crate) fn counted(count: u64, what: &str) -> String {
    let ending = if what.ends_with('s') { "es" } else { "s" };
    match count {
        1 => format!("1 {what}"),
        n => format!("{n} {what}{ending}"),
    }
}

/// A number with its thousands apart.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate: whole from 10 on.
pub(crate) fn rate(per_s: f64) -> String {
    if per_s < 9.95 {
        return format!("{per_s:.1}");
    }
    let whole = format!("{per_s:.0}");
    whole.parse().map_or(whole, grouped)
}

/// The share of hits.
pub(crate) fn ratio(hits: u64, misses: u64) -> String {
    match hits.saturating_add(misses) {
        0 => "-".to_owned(),
        all => format!("{:.1} %", 100.0 * number(hits) / number(all)),
    }
}

/// A time in nanoseconds, in a unit for people.
pub(crate) fn time(ns: Option<u64>) -> String {
    match ns {
        None => "-".to_owned(),
        Some(ns @ 0..1_000) => format!("{ns} ns"),
        Some(ns @ 1_000..1_000_000) => format!("{:.1} us", number(ns) / 1e3),
        Some(ns) => format!("{:.1} ms", number(ns) / 1e6),
    }
}

/// Seconds, in a unit for people.
pub(crate) fn age(s: Option<u32>) -> String {
    match s {
        None => "-".to_owned(),
        Some(s @ 0..120) => format!("{s} s"),
        Some(s @ 120..7_200) => format!("{} min", s / 60),
        Some(s @ 7_200..172_800) => format!("{} h", s / 3_600),
        Some(s) => format!("{} days", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            [0, 1, 2].map(|count| counted(count, "item")),
            ["0 items", "1 item", "2 items"]
        );
        assert_eq!(counted(2, "process"), "2 processes");
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 9.94, 9.96, 12_345.6].map(rate), ["0.0", "9.9", "10", "12,346"]);
        assert_eq!(
            [(0, 0), (1, 2), (5, 0)].map(|(hits, misses)| ratio(hits, misses)),
            ["-", "33.3 %", "100.0 %"]
        );
        assert_eq!(
            [Some(64), Some(1_535), Some(536_870_912), None].map(time),
            ["64 ns", "1.5 us", "536.9 ms", "-"]
        );
        assert_eq!(
            [Some(119), Some(120), Some(7_200), Some(172_800)].map(age),
            ["119 s", "2 min", "2 h", "2 days"]
        );
    }
}
