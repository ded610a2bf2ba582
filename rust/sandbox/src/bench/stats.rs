// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Times of repeated runs.

use std::time::Duration;

use serde_json::{json, Value};

/// Times of one case, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Times(Vec<u64>);

impl From<Vec<u64>> for Times {
    fn from(nanoseconds: Vec<u64>) -> Self {
        Self(nanoseconds)
    }
}

impl Times {
    pub(super) fn push(&mut self, time: Duration) {
        self.0
            .push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// All of them in nanoseconds, in the order they were taken.
    pub(super) fn all(&self) -> &[u64] {
        &self.0
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The largest of fewer than a hundred.
    pub(super) fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    pub(super) fn mean(&self) -> f64 {
        let sum: f64 = self.0.iter().map(|&time| time as f64).sum();
        sum / self.0.len().max(1) as f64
    }

    /// All of them in nanoseconds, the shortest first.
    pub(super) fn sorted(&self) -> Vec<u64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted
    }

    /// The value that this share of all values does not exceed; the middle of two
    /// for the median of an even number.
    fn quantile(&self, share: f64) -> f64 {
        let sorted = self.sorted();
        let Some(last) = sorted.len().checked_sub(1) else {
            return f64::NAN;
        };
        if share == 0.5 {
            let (low, high) = (sorted[last / 2], sorted[last.div_ceil(2)]);
            return (low as f64 + high as f64) / 2.0;
        }
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted[rank.clamp(1, last + 1) - 1] as f64
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "n": self.0.len(),
            "median_ns": self.median(),
            "p99_ns": self.p99(),
            "mean_ns": self.mean(),
            "all_ns": self.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_what_they_say() {
        let times = Times((1..=200).collect());
        assert_eq!(times.median(), 100.5);
        assert_eq!(times.p99(), 198.0);
        assert_eq!(times.mean(), 100.5);
        let few = Times(vec![5, 1, 3]);
        assert_eq!((few.median(), few.p99()), (3.0, 5.0));
    }
}
