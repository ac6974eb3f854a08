// SPDX-License-Identifier: BSD-2-Clause
//! Measures the contestants in turns until each has enough samples of one class.

use std::time::Duration;

use crate::stats::{PlacementClass, Sample, Samples};

/// The samples of one turn: the index of the row, the class, and the sample.
pub(crate) type TurnSamples = Vec<(usize, PlacementClass, Sample)>;

/// A row of the results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowName {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
}

/// A workload that is compared with others.
pub(crate) trait Contestant {
    /// Measures once. Returns no samples if the measurement was disturbed, as by a change of the cores' distance.
    fn turn(&mut self) -> Result<TurnSamples, String>;

    fn label(&self) -> &str;
}

/// When to stop measuring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StopCondition {
    /// Samples that each contestant needs in one class, 1 or more.
    pub(crate) samples: u32,
    /// No turn starts after this time.
    pub(crate) limit: Duration,
}

/// The samples of one contestant, by row and class.
#[derive(Clone, Debug)]
pub(crate) struct ContestantSamples {
    pub(crate) label: String,
    /// Turns that were disturbed, and so repeated.
    pub(crate) repeated: u32,
    rows: Vec<[Samples; PlacementClass::ALL.len()]>,
}

impl ContestantSamples {
    fn new(label: &str, rows: usize) -> ContestantSamples {
        ContestantSamples { label: label.into(), repeated: 0, rows: vec![Default::default(); rows] }
    }

    fn add(&mut self, row: usize, class: PlacementClass, sample: Sample) {
        if let Some(samples) = self.rows.get_mut(row) {
            samples[class as usize].add(sample);
        }
    }

    /// Returns the samples of a row in a class; `row` is below the number of rows.
    pub(crate) fn samples(&self, row: usize, class: PlacementClass) -> &Samples {
        &self.rows[row][class as usize]
    }

    fn any(&self) -> bool {
        self.rows.iter().flatten().any(|samples| samples.count() > 0)
    }

    /// Returns the number of samples of the class in the row that has the fewest, of the rows that the contestant
    /// measures.
    pub(crate) fn count(&self, class: PlacementClass) -> u32 {
        // A peer may measure only one of the rows.
        let measured = self.rows.iter().filter(|row| row.iter().any(|s| s.count() > 0));
        measured.map(|row| row[class as usize].count()).min().unwrap_or(0)
    }
}

/// The result of a row group.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<RowName>,
    /// The samples of each contestant, unetmap first.
    pub(crate) all_samples: Vec<ContestantSamples>,
    /// Errors of the peers that failed; their earlier samples are kept.
    pub(crate) failures: Vec<String>,
    /// A sentence for each class of which a contestant has too few samples.
    pub(crate) missing: Vec<String>,
    /// For each row the number that grows and the series that it belongs to; empty where nothing grows.
    pub(crate) series: Vec<Option<(u32, &'static str)>>,
}

impl Outcome {
    /// Returns true if no class has enough samples of all contestants that did not fail.
    pub(crate) fn is_short(&self, samples: u32) -> bool {
        let enough = |class| self.all_samples.iter().filter(|of| of.any()).all(|of| of.count(class) >= samples);
        !PlacementClass::ALL.into_iter().any(enough)
    }
}

/// Measures the contestants in turns. The first is unetmap: its failure is an error. A peer that fails gets no more
/// turns. `elapsed` returns the time since the start; `progress` is called after each turn.
pub(crate) fn run_turns(
    rows: Vec<RowName>,
    contestants: &mut [Box<dyn Contestant + '_>],
    goal: StopCondition,
    elapsed: &mut dyn FnMut() -> Duration,
    progress: &mut dyn FnMut(&[ContestantSamples], Duration),
) -> Result<Outcome, String> {
    let mut all_samples: Vec<ContestantSamples> =
        contestants.iter().map(|s| ContestantSamples::new(s.label(), rows.len())).collect();
    let mut active = vec![true; contestants.len()];
    let mut failures = Vec::new();
    'turns: loop {
        for i in 0..contestants.len() {
            if !active[i] {
                continue;
            }
            match contestants[i].turn() {
                Ok(turn) if turn.is_empty() => all_samples[i].repeated += 1,
                Ok(turn) => turn.into_iter().for_each(|(row, class, sample)| all_samples[i].add(row, class, sample)),
                Err(e) if i == 0 => return Err(e),
                Err(e) => {
                    active[i] = false;
                    failures.push(e);
                }
            }
            let now = elapsed();
            progress(&all_samples, now);
            if now >= goal.limit {
                break 'turns;
            }
        }
        let enough = |class| (0..contestants.len()).all(|i| !active[i] || all_samples[i].count(class) >= goal.samples);
        if PlacementClass::ALL.into_iter().any(enough) {
            break;
        }
    }
    let missing = missing(&all_samples, goal, elapsed());
    Ok(Outcome { rows, all_samples, failures, missing, series: Vec::new() })
}

/// A sentence for each class of which a contestant has too few samples: most machines have only one of the two.
fn missing(all_samples: &[ContestantSamples], goal: StopCondition, time: Duration) -> Vec<String> {
    let mut sentences = Vec::new();
    let seconds = time.as_secs_f64();
    let occurs = |class| all_samples.iter().any(|of| of.rows.iter().any(|row| row[class as usize].count() > 0));
    for class in PlacementClass::ALL {
        let few = all_samples.iter().filter(|of| of.count(class) < goal.samples);
        let few: Vec<String> = few.map(|of| format!("{} {}", of.label, of.count(class))).collect();
        let other = PlacementClass::ALL.into_iter().find(|other| *other != class && occurs(*other));
        let named = format!("class {class} ({})", class.meaning());
        if few.is_empty() {
            continue;
        }
        if let Some(other) = other.filter(|_| !occurs(class)) {
            sentences.push(format!("{named} did not occur in {seconds:.0} s, so all figures are of class {other}"));
        } else {
            let (samples, few) = (goal.samples, few.join(", "));
            sentences.push(format!(
                "{named}: fewer than {samples} samples in {seconds:.0} s ({few}); --seconds allows more"
            ));
        }
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Returns the same turns repeatedly.
    struct Script {
        label: &'static str,
        turns: Vec<Result<TurnSamples, String>>,
        next: usize,
    }

    impl Contestant for Script {
        fn turn(&mut self) -> Result<TurnSamples, String> {
            self.next += 1;
            self.turns[(self.next - 1) % self.turns.len()].clone()
        }

        fn label(&self) -> &str {
            self.label
        }
    }

    fn contestant(label: &'static str, turns: Vec<Result<TurnSamples, String>>) -> Box<dyn Contestant> {
        Box::new(Script { label, turns, next: 0 })
    }

    fn one(class: PlacementClass, value: f64) -> Result<TurnSamples, String> {
        Ok(vec![(0, class, Sample::one(value))])
    }

    fn hold_for(mut contestants: Vec<Box<dyn Contestant>>, samples: u32, turns: u64) -> Result<Outcome, String> {
        let rows = vec![RowName { name: "x".into(), unit: "Mpps" }];
        let goal = StopCondition { samples, limit: Duration::from_secs(turns) };
        let time = Cell::new(0);
        run_turns(rows, &mut contestants, goal, &mut || Duration::from_secs(time.get()), &mut |_, _| {
            time.set(time.get() + 1)
        })
    }

    fn counts(outcome: &Outcome, contestant: usize) -> [u32; 2] {
        PlacementClass::ALL.map(|class| outcome.all_samples[contestant].samples(0, class).count())
    }

    #[test]
    fn ends_when_all_have_enough_samples_of_one_class() {
        let ours = contestant("ours", vec![one(PlacementClass::L, 10.0), one(PlacementClass::R, 1.0)]);
        let peer = contestant("peer", vec![one(PlacementClass::R, 2.0), one(PlacementClass::R, 4.0), Ok(vec![])]);
        let outcome = hold_for(vec![ours, peer], 3, 1000).unwrap();
        // `ours` has three R samples after six turns, the peer after four.
        assert_eq!(counts(&outcome, 0), [3, 3]);
        assert_eq!(counts(&outcome, 1), [0, 4]);
        assert_eq!((outcome.all_samples[0].repeated, outcome.all_samples[1].repeated), (0, 2));
        assert!(!outcome.is_short(3) && outcome.is_short(5));
        assert_eq!(outcome.missing.len(), 1, "{:?}", outcome.missing);
        assert!(
            outcome.missing[0].starts_with("class L (the cores are near each other): fewer than 3 samples")
                && outcome.missing[0].contains("(peer 0)")
        );
        assert!(outcome.failures.is_empty());
    }

    #[test]
    fn a_sample_counts_as_its_n_measurements() {
        let nine = Ok(vec![(0, PlacementClass::L, Sample { n: 9, ..Sample::one(3.0) })]);
        let outcome = hold_for(
            vec![contestant("ours", vec![one(PlacementClass::L, 1.0)]), contestant("peer", vec![nine])],
            7,
            1000,
        )
        .unwrap();
        assert_eq!((counts(&outcome, 0), counts(&outcome, 1)), ([7, 0], [63, 0]));
    }

    #[test]
    fn ends_at_the_time_limit_and_names_the_missing_classes() {
        let ours = contestant("ours", vec![one(PlacementClass::L, 1.0)]);
        let peer = contestant("peer", vec![one(PlacementClass::R, 1.0)]);
        let outcome = hold_for(vec![ours, peer], 2, 9).unwrap();
        assert_eq!((counts(&outcome, 0), counts(&outcome, 1)), ([5, 0], [0, 5]));
        let [near, far] = &outcome.missing[..] else { panic!("{:?}", outcome.missing) };
        assert!(near.starts_with("class L (the cores are near each other): fewer than 2 samples in 10 s (peer 0);"));
        assert!(far.starts_with("class R (the cores are far from each other): fewer than 2 samples in 10 s (ours 0);"));
    }

    #[test]
    fn a_class_that_the_machine_does_not_have_is_no_lack() {
        let near = || contestant("any", vec![one(PlacementClass::L, 1.0)]);
        let outcome = hold_for(vec![near(), near()], 3, 1000).unwrap();
        let said = "class R (the cores are far from each other) did not occur in 6 s, so all figures are of class L";
        assert_eq!(outcome.missing, [said]);
        let outcome = hold_for(vec![contestant("ours", vec![Ok(vec![])])], 3, 5).unwrap();
        assert!(outcome.missing.len() == 2 && outcome.missing.iter().all(|said| said.contains("fewer than 3 samples")));
    }

    #[test]
    fn a_failed_peer_gets_no_more_turns_and_a_failure_of_the_first_ends_all() {
        let peer = || contestant("peer", vec![one(PlacementClass::L, 1.0), Err("it broke".into())]);
        let outcome = hold_for(vec![contestant("ours", vec![one(PlacementClass::L, 1.0)]), peer()], 5, 1000).unwrap();
        assert_eq!((counts(&outcome, 0), counts(&outcome, 1)), ([5, 0], [1, 0]));
        assert_eq!(outcome.failures, ["it broke"]);
        let ours = contestant("ours", vec![Err("no port".into())]);
        assert_eq!(hold_for(vec![ours, peer()], 5, 1000).unwrap_err(), "no port");
    }

    #[test]
    fn a_peer_may_measure_one_row_of_two() {
        let mut samples = ContestantSamples::new("peer", 2);
        assert_eq!(samples.count(PlacementClass::L), 0);
        samples.add(1, PlacementClass::L, Sample::one(1.0));
        samples.add(7, PlacementClass::L, Sample::one(1.0));
        assert_eq!((samples.count(PlacementClass::L), samples.count(PlacementClass::R)), (1, 0));
        samples.add(0, PlacementClass::R, Sample::one(1.0));
        assert_eq!((samples.count(PlacementClass::L), samples.count(PlacementClass::R)), (0, 0));
    }
}
