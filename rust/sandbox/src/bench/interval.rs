// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! How sure a ratio of two medians is.

use super::stats::Times;

const RESAMPLES: usize = 2000;

/// Where the ratio of the medians of two cases is in 95 of 100 bootstrap
/// resamplings of their runs; `None` with fewer than two runs of each.
///
/// Runs are drawn in pairs, one of each case from the same turn, as both met the
/// same machine. A change that cannot be told from noise has 1 inside. The same
/// times give the same interval.
pub(super) fn of_ratio(below: &Times, above: &Times) -> Option<(f64, f64)> {
    let pairs: Vec<_> = below.all().iter().zip(above.all()).collect();
    if pairs.len() < 2 {
        return None;
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut ratios: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let drawn = || pairs[random.below(pairs.len())];
            let (below, above): (Vec<u64>, Vec<u64>) =
                std::iter::repeat_with(drawn).take(pairs.len()).unzip();
            Times::from(above).median() / Times::from(below).median()
        })
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let edge = RESAMPLES / 40;
    Some((ratios[edge], ratios[RESAMPLES - 1 - edge]))
}

/// Xorshift: resampling needs no better one.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 40 times around `middle`, as a busy machine has them.
    fn times(middle: u64, seed: u64) -> Times {
        let mut random = Random(seed);
        let spread = middle as usize / 5;
        Times::from(
            (0..40)
                .map(|_| middle + random.below(spread) as u64)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn noise_has_one_inside_and_a_change_has_not() {
        let inline = times(1000, 1);
        let (low, high) = of_ratio(&inline, &times(1000, 2)).unwrap();
        assert!(low < 1.0 && high > 1.0, "{low} {high}");
        assert!(high - low < 0.2, "{low} {high}");
        let (low, high) = of_ratio(&inline, &times(1150, 3)).unwrap();
        assert!(low > 1.0 && high < 1.3, "{low} {high}");
    }

    #[test]
    fn what_both_cases_met_together_is_no_noise_between_them() {
        // The machine is ten times slower in every other turn.
        let drift = |middle| {
            let times = times(middle, 4);
            let turns = times.all().iter().enumerate();
            Times::from(
                turns
                    .map(|(turn, time)| time * [1, 10][turn % 2])
                    .collect::<Vec<_>>(),
            )
        };
        let (low, high) = of_ratio(&drift(1000), &drift(2000)).unwrap();
        assert!(low > 1.5 && high < 2.5, "{low} {high}");
    }

    #[test]
    fn one_run_says_nothing() {
        assert_eq!(of_ratio(&Times::from(vec![1]), &Times::from(vec![2])), None);
    }
}
