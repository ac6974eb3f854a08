// SPDX-License-Identifier: BSD-2-Clause
//! Contestants that are built into the benchmark.

use crate::probe::{self, Cores};
use crate::session;
use crate::stats::Sample;
use crate::turns::{Contestant, TurnSamples};

/// Turns one after the other that are repeated because the hypervisor took a processor. Where it always does, the next
/// one counts: that is how the machine is.
const STOLEN_IN_A_ROW: u32 = 3;

/// A contestant that is measured by this process, or by programs that it starts. Probes the distance of the cores
/// before and after each sample.
pub(crate) struct Builtin<F> {
    label: &'static str,
    cores: Cores,
    /// Whether samples count although the distance of the cores changed meanwhile.
    any_distance: bool,
    /// The last turns, one after the other, in which the hypervisor took a processor.
    stolen: u32,
    /// One value for each row.
    measure: F,
}

impl<F: FnMut() -> Result<Vec<f64>, String> + 'static> Builtin<F> {
    pub(crate) fn boxed(label: &'static str, cores: Cores, measure: F) -> Box<dyn Contestant> {
        Box::new(Builtin { label, cores, any_distance: false, stolen: 0, measure })
    }

    /// One turn takes so long that the distance nearly always changes meanwhile.
    pub(crate) fn slow(label: &'static str, cores: Cores, measure: F) -> Box<dyn Contestant> {
        Box::new(Builtin { label, cores, any_distance: true, stolen: 0, measure })
    }
}

impl<F: FnMut() -> Result<Vec<f64>, String>> Contestant for Builtin<F> {
    fn turn(&mut self) -> Result<TurnSamples, String> {
        session::check()?;
        let before = probe::core_distance(self.cores)?;
        let ticks = probe::stolen(self.cores);
        let values = (self.measure)()?;
        if !self.any_distance {
            let stolen = probe::stolen(self.cores) > ticks;
            self.stolen = if stolen && self.stolen < STOLEN_IN_A_ROW { self.stolen + 1 } else { 0 };
            if self.stolen > 0 || probe::core_distance(self.cores)? != before {
                return Ok(TurnSamples::new());
            }
        }
        Ok(values.into_iter().enumerate().map(|(row, value)| (row, before, Sample::one(value))).collect())
    }

    fn label(&self) -> &str {
        self.label
    }
}
