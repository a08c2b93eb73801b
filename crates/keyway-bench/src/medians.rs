//! Repeats of one measurement and what stands for them: the median, with the lowest and the highest beside it; and two sides' of these,
//! with their ratio.

use crate::table::fixed;
use serde::Serialize;

/// Repeats of one measurement.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// None so far.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// One more repeat.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The middle value, or the mean of the two in the middle; NaN of nothing.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// The smallest.
    pub fn low(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The largest.
    pub fn high(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// `median (low–high)` with this many digits after the point.
    pub fn show(&self, digits: usize) -> String {
        format!(
            "{:.digits$} ({:.digits$}–{:.digits$})",
            self.median(),
            self.low(),
            self.high()
        )
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// Both sides and their ratio: medians, lowest and highest. What is not known is `None`, null in JSON, where these fields stand in the
/// row that has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sides {
    /// median
    pub keyway: Option<f64>,
    /// of its measurements
    pub keyway_low: Option<f64>,
    /// of its measurements
    pub keyway_high: Option<f64>,
    /// median
    pub peer: Option<f64>,
    /// of its measurements
    pub peer_low: Option<f64>,
    /// of its measurements
    pub peer_high: Option<f64>,
    /// Keyway's over the peer's: median of the pairs
    pub ratio: Option<f64>,
    /// of the pairs
    pub ratio_low: Option<f64>,
    /// of the pairs
    pub ratio_high: Option<f64>,
}

/// A median with the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// of an odd number of measurements the one in the middle
    pub median: Option<f64>,
    /// lowest
    pub low: Option<f64>,
    /// highest
    pub high: Option<f64>,
}

impl Spread {
    const fn new(median: Option<f64>, low: Option<f64>, high: Option<f64>) -> Self {
        Self { median, low, high }
    }

    /// Of what was measured once.
    pub const fn none(median: Option<f64>) -> Self {
        Self::new(median, None, None)
    }

    /// Of measurements; NaN is none.
    pub fn of(values: &[f64]) -> Self {
        let samples: Samples = values.iter().copied().filter(|value| value.is_finite()).collect();
        Self::new(finite(samples.median()), finite(samples.low()), finite(samples.high()))
    }

    fn parts(self) -> (Option<f64>, Option<f64>, Option<f64>) {
        (self.median, self.low, self.high)
    }

    /// The median with this many digits after the point, and the lowest and the highest if they differ.
    pub fn text(self, digits: usize) -> String {
        let number = |value: f64| fixed(value, digits);
        let ends = self.ends().map(|(low, high)| format!(" ({}–{})", number(low), number(high)));
        self.median.map_or("–".to_owned(), number) + &ends.unwrap_or_default()
    }

    /// The lowest and the highest, if they differ.
    pub fn ends(self) -> Option<(f64, f64)> {
        self.low.zip(self.high).filter(|(low, high)| low < high)
    }
}

impl Sides {
    /// Of measurements in their order, those with the same place made one after the other; NaN is none.
    pub fn of(keyway: &[f64], peer: &[f64]) -> Self {
        let ratios: Vec<f64> = keyway.iter().zip(peer).map(|(keyway, peer)| keyway / peer).collect();
        let mut sides = Self::default();
        (sides.keyway, sides.keyway_low, sides.keyway_high) = Spread::of(keyway).parts();
        (sides.peer, sides.peer_low, sides.peer_high) = Spread::of(peer).parts();
        (sides.ratio, sides.ratio_low, sides.ratio_high) = Spread::of(&ratios).parts();
        sides
    }

    /// Keyway's measurements.
    pub fn of_keyway(&self) -> Spread {
        Spread::new(self.keyway, self.keyway_low, self.keyway_high)
    }

    /// The peer's.
    pub fn of_peer(&self) -> Spread {
        Spread::new(self.peer, self.peer_low, self.peer_high)
    }

    /// Keyway's over the peer's.
    pub fn of_ratio(&self) -> Spread {
        Spread::new(self.ratio, self.ratio_low, self.ratio_high)
    }
}

/// What is a number.
pub fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_ignores_the_outlier() {
        let odd: Samples = [3.0, 1.0, 1000.0].into_iter().collect();
        assert_eq!(odd.median(), 3.0);
        let even: Samples = [4.0, 2.0].into_iter().collect();
        assert_eq!(even.median(), 3.0);
        assert_eq!(odd.show(0), "3 (1–1000)");
        assert!(Samples::default().median().is_nan());
    }
}
