//! Repeats of one measurement, and what stands for them: the median, with the lowest and the highest beside it.

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
