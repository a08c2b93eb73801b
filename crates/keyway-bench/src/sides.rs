//! What the measurements of one figure gave, Keyway's beside its peer's.

use crate::report::known;
use crate::samples::Samples;
use serde::{Deserialize, Serialize};

/// Both sides and their ratio: medians, lowest and highest. What is not known is `None`, null in JSON, where these fields stand in the
/// row that has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Of what was measured once.
    pub fn none(median: Option<f64>) -> Self {
        Self {
            median,
            low: None,
            high: None,
        }
    }
}

impl Sides {
    /// Of measurements in their order, those with the same place made one after the other; NaN is none.
    pub fn of(keyway: &[f64], peer: &[f64]) -> Self {
        let ratios: Vec<f64> = keyway.iter().zip(peer).map(|(keyway, peer)| keyway / peer).collect();
        let [keyway, peer, ratio] = [keyway, peer, &ratios].map(summary);
        Self {
            keyway: keyway.median,
            keyway_low: keyway.low,
            keyway_high: keyway.high,
            peer: peer.median,
            peer_low: peer.low,
            peer_high: peer.high,
            ratio: ratio.median,
            ratio_low: ratio.low,
            ratio_high: ratio.high,
        }
    }

    /// Keyway's measurements.
    pub fn of_keyway(&self) -> Spread {
        Spread {
            median: self.keyway,
            low: self.keyway_low,
            high: self.keyway_high,
        }
    }

    /// The peer's.
    pub fn of_peer(&self) -> Spread {
        Spread {
            median: self.peer,
            low: self.peer_low,
            high: self.peer_high,
        }
    }

    /// Keyway's over the peer's.
    pub fn of_ratio(&self) -> Spread {
        Spread {
            median: self.ratio,
            low: self.ratio_low,
            high: self.ratio_high,
        }
    }
}

fn summary(values: &[f64]) -> Spread {
    let samples: Samples = values.iter().copied().filter(|value| value.is_finite()).collect();
    Spread {
        median: known(samples.median()),
        low: known(samples.low()),
        high: known(samples.high()),
    }
}
