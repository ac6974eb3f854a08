// SPDX-License-Identifier: BSD-2-Clause
//! One fault many times under the same traffic.

use std::time::{Duration, Instant};

use conformance::home::Guard;
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
    /// Processes that use all processors meanwhile.
    load: usize,
    /// Has it happen for the time of this number, and ends it.
    run: fn(&mut Scene, usize) -> Result<(), String>,
}

/// All of them.
pub(crate) const REPEATED: &[Repeated] = &[
    Repeated {
        name: "program killed",
        option: "--kills",
        hold: Duration::ZERO,
        load: 0,
        run: |scene, _| faults::kill_program(scene),
    },
    Repeated {
        name: "program stopped",
        option: "--hangs",
        hold: HANG,
        load: 0,
        run: |scene, _| faults::stop_program(scene),
    },
    Repeated {
        name: "all with 2 % of a CPU beside a load of 50, one stopped after the other",
        option: "--starvations",
        hold: HANG,
        load: 50,
        run: faults::starve_and_stop,
    },
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
    let (before, echoes, dropped) = (scene.ledger()?, scene.echoes()?, scene.dropped());
    scene.begin(row)?;
    let load: Vec<Guard> = (0..repeated.load).map(|_| faults::busy()).collect();
    let pings = scene.start_denied_pings();
    let begin = Instant::now();
    for i in 1..=times {
        scene.take_gap();
        (repeated.run)(scene, i)?;
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
    drop((load, pings));
    scene.end(row)?;
    let since = scene.echoes()?;
    for way in 0..2 {
        row.denied_sent[way] += since.sent[way] - echoes.sent[way];
        row.denied_seen[way] += since.seen[way] - echoes.seen[way];
    }
    row.kernel_dropped = scene.dropped().zip(dropped).map(|(now, before)| now - before);
    if let (Some(before), Some(after)) = (before, scene.ledger()?) {
        row.frames = Some(before.until(&after));
    }
    Ok(())
}
