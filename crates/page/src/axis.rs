// SPDX-License-Identifier: BSD-2-Clause
//! Axes: from values to places, and the values that get a label.

/// How an axis distributes its values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// In equal steps, from 0.
    #[default]
    Linear,
    /// In equal factors. Values that are not above 0 are at its lower end.
    Log,
}

/// An axis from `low` to `high`, whose values are placed between the coordinates `from` and `to`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Returns an axis that contains all `values`.
    pub(crate) fn new(scale: Scale, values: impl Iterator<Item = f64>, (from, to): (f64, f64)) -> Axis {
        let usable = values.filter(|v| v.is_finite() && (scale == Scale::Linear || *v > 0.0));
        let (low, high) = usable.fold((f64::INFINITY, 0.0), |(low, high), v| (v.min(low), v.max(high)));
        let (low, high) = match scale {
            _ if high <= 0.0 || low > high => (if scale == Scale::Log { 0.1 } else { 0.0 }, 1.0),
            Scale::Linear => (0.0, high * 1.06),
            Scale::Log => (low / 1.15, high * 1.15),
        };
        Axis { scale, low, high, from, to }
    }

    /// Returns the coordinate of a value.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let value = if value.is_finite() { value } else { self.low };
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Returns the values to label: round ones, at most about eight.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let rough = (self.high - self.low) / 6.0;
                let power = 10_f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= rough);
                let step = step.unwrap_or(10.0 * power);
                let last = (self.high / step).floor() as u32;
                (0..=last).map(|i| f64::from(i) * step).collect()
            }
            Scale::Log => {
                let decades = (self.high / self.low).log10();
                let parts: &[f64] = match decades {
                    d if d < 1.5 => &[1.0, 2.0, 3.0, 5.0, 7.0],
                    d if d < 4.0 => &[1.0, 3.0],
                    _ => &[1.0],
                };
                let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
                let every = (last - first) / 9 + 1;
                let powers = (first..=last).filter(|power| power.rem_euclid(every) == 0);
                let all = powers.flat_map(|power| parts.iter().map(move |part| part * 10_f64.powi(power)));
                all.filter(|v| (self.low..=self.high).contains(v)).collect()
            }
        }
    }
}
