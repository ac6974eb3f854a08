// SPDX-License-Identifier: BSD-2-Clause
//! One fault many times under the same traffic.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::faults;
use crate::scene::{Row, Scene};

/// Faults between two lines of progress.
const PROGRESS: usize = 50;

/// How long a program hangs or starves: longer than its deadline.
const HANG: Duration = Duration::from_millis(1300);

/// A fault that is repeated.
pub(crate) struct Repeated {
    /// Its name in the table.
    pub name: &'static str,
    /// The option with the number of times.
    pub option: &'static str,
    /// How long it lasts.
    pub hold: Duration,
    /// Has it happen once, and ends it.
    run: fn(&mut Scene) -> Result<(), String>,
}

/// All of them.
pub(crate) const REPEATED: &[Repeated] = &[
    Repeated { name: "program killed", option: "--kills", hold: Duration::ZERO, run: faults::kill_program },
    Repeated { name: "program stopped", option: "--hangs", hold: HANG, run: faults::stop_program },
    Repeated { name: "all with 2 % of a CPU", option: "--starvations", hold: HANG, run: faults::starve },
];

/// The results.
#[derive(Serialize)]
pub(crate) struct Results {
    /// How often it happened.
    pub times: usize,
    /// How long the wire was closed each time, in milliseconds: the median, the 99th percentile, and the longest.
    pub closed_ms: [f64; 3],
    /// The sums.
    pub row: Row,
}

/// Has a fault happen `times` times.
pub(crate) fn repeat(scene: &mut Scene, repeated: &Repeated, times: usize) -> Results {
    let mut row = Row { way: scene.place.way.name, fault: repeated.name, ..Row::default() };
    let mut gaps = Vec::new();
    if let Err(why) = try_repeat(scene, repeated, times, &mut row, &mut gaps) {
        row.failure = Some(format!("after {} of {times}: {why}", gaps.len()));
    }
    gaps.sort_by(f64::total_cmp);
    let at = |share: usize| gaps.get((gaps.len() * share / 100).min(gaps.len().saturating_sub(1))).copied();
    let closed_ms = [50, 99, 100].map(|share| at(share).unwrap_or_default());
    Results { times: gaps.len(), closed_ms, row }
}

fn try_repeat(
    scene: &mut Scene,
    repeated: &Repeated,
    times: usize,
    row: &mut Row,
    gaps: &mut Vec<f64>,
) -> Result<(), String> {
    scene.place.wait_until_it_works()?;
    let before = scene.ledger()?;
    scene.begin(row)?;
    let begin = Instant::now();
    for i in 1..=times {
        scene.take_gap();
        (repeated.run)(scene)?;
        scene.place.wait_until_it_works()?;
        scene.wait_until_it_passes()?;
        scene.place.wait_until_it_moves_frames()?;
        gaps.push(scene.take_gap().as_secs_f64() * 1e3);
        if i % PROGRESS == 0 {
            let seconds = begin.elapsed().as_secs_f64();
            println!("inline: {:8} {:36} {i} of {times} in {seconds:.0} s", row.way, row.fault);
        }
    }
    row.lasted_ms = begin.elapsed().as_millis() as u64;
    scene.end(row)?;
    if let (Some(before), Some(after)) = (before, scene.ledger()?) {
        row.frames = Some(before.until(&after));
    }
    Ok(())
}
