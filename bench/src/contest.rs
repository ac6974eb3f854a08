//! Sides measured in turns until each has enough samples of one class.

use std::time::Duration;

use crate::stats::{Class, Sample, Samples};

/// What one turn of a side gave: samples of rows, by index, each with its class.
pub(crate) type Turn = Vec<(usize, Class, Sample)>;

/// A row of the results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowName {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
}

/// One of those who compete.
pub(crate) trait Side {
    /// Measures once. No samples: the cores moved meanwhile, so try again.
    fn turn(&mut self) -> Result<Turn, String>;

    fn label(&self) -> &str;
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// Samples that each side needs in one class, 1 or more.
    pub(crate) samples: u32,
    /// No turn begins after this time.
    pub(crate) limit: Duration,
}

/// The samples of one side, by row and class.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) label: String,
    rows: Vec<[Samples; Class::ALL.len()]>,
}

impl Tally {
    fn new(label: &str, rows: usize) -> Tally {
        Tally { label: label.into(), rows: vec![Default::default(); rows] }
    }

    fn add(&mut self, row: usize, class: Class, sample: Sample) {
        if let Some(samples) = self.rows.get_mut(row) {
            samples[class as usize].add(sample);
        }
    }

    /// The samples of a row in a class; `row` is below the number of rows.
    pub(crate) fn samples(&self, row: usize, class: Class) -> &Samples {
        &self.rows[row][class as usize]
    }

    /// Samples of the class in the row that has the fewest, of those that the side has at all.
    pub(crate) fn count(&self, class: Class) -> u32 {
        // A peer may measure only one of the rows.
        let measured = self.rows.iter().filter(|row| row.iter().any(|s| s.count() > 0));
        measured.map(|row| row[class as usize].count()).min().unwrap_or(0)
    }
}

/// How a contest ended.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<RowName>,
    /// Ours first.
    pub(crate) tallies: Vec<Tally>,
    /// Peers that failed and why; their samples up to then are kept.
    pub(crate) failures: Vec<String>,
    /// Classes that some side has too few samples of, each with a sentence about it.
    pub(crate) missing: Vec<String>,
}

/// Lets the sides take turns. The first is ours: its failure ends all. A peer that fails is left out from then on.
/// `elapsed` tells the time since the start, `progress` is called after each turn.
pub(crate) fn hold(
    rows: Vec<RowName>,
    sides: &mut [Box<dyn Side + '_>],
    goal: Goal,
    elapsed: &mut dyn FnMut() -> Duration,
    progress: &mut dyn FnMut(&[Tally], Duration),
) -> Result<Outcome, String> {
    let mut tallies: Vec<Tally> = sides.iter().map(|s| Tally::new(s.label(), rows.len())).collect();
    let mut playing = vec![true; sides.len()];
    let mut failures = Vec::new();
    'turns: loop {
        for i in 0..sides.len() {
            if !playing[i] {
                continue;
            }
            match sides[i].turn() {
                Ok(turn) => turn.into_iter().for_each(|(row, class, sample)| tallies[i].add(row, class, sample)),
                Err(e) if i == 0 => return Err(e),
                Err(e) => {
                    playing[i] = false;
                    failures.push(e);
                }
            }
            let now = elapsed();
            progress(&tallies, now);
            if now >= goal.limit {
                break 'turns;
            }
        }
        let enough = |class| (0..sides.len()).all(|i| !playing[i] || tallies[i].count(class) >= goal.samples);
        if Class::ALL.into_iter().any(enough) {
            break;
        }
    }
    let missing = missing(&tallies, goal, elapsed());
    Ok(Outcome { rows, tallies, failures, missing })
}

fn missing(tallies: &[Tally], goal: Goal, time: Duration) -> Vec<String> {
    let mut sentences = Vec::new();
    for class in Class::ALL {
        let few: Vec<String> = tallies
            .iter()
            .filter(|t| t.count(class) < goal.samples)
            .map(|t| format!("{} {}", t.label, t.count(class)))
            .collect();
        if !few.is_empty() {
            sentences.push(format!(
                "class {class}: fewer than {} samples in {:.0} s ({})",
                goal.samples,
                time.as_secs_f64(),
                few.join(", ")
            ));
        }
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Gives the same turns over and over.
    struct Script {
        label: &'static str,
        turns: Vec<Result<Turn, String>>,
        next: usize,
    }

    impl Side for Script {
        fn turn(&mut self) -> Result<Turn, String> {
            self.next += 1;
            self.turns[(self.next - 1) % self.turns.len()].clone()
        }

        fn label(&self) -> &str {
            self.label
        }
    }

    fn side(label: &'static str, turns: Vec<Result<Turn, String>>) -> Box<dyn Side> {
        Box::new(Script { label, turns, next: 0 })
    }

    fn one(class: Class, value: f64) -> Result<Turn, String> {
        Ok(vec![(0, class, Sample::one(value))])
    }

    fn hold_for(mut sides: Vec<Box<dyn Side>>, samples: u32, turns: u64) -> Result<Outcome, String> {
        let rows = vec![RowName { name: "x".into(), unit: "Mpps" }];
        let goal = Goal { samples, limit: Duration::from_secs(turns) };
        let time = Cell::new(0);
        hold(rows, &mut sides, goal, &mut || Duration::from_secs(time.get()), &mut |_, _| time.set(time.get() + 1))
    }

    fn counts(outcome: &Outcome, side: usize) -> [u32; 2] {
        Class::ALL.map(|class| outcome.tallies[side].samples(0, class).count())
    }

    #[test]
    fn ends_when_both_have_enough_of_one_class() {
        let ours = side("ours", vec![one(Class::L, 10.0), one(Class::R, 1.0)]);
        let peer = side("peer", vec![one(Class::R, 2.0), one(Class::R, 4.0), Ok(vec![])]);
        let outcome = hold_for(vec![ours, peer], 3, 1000).unwrap();
        // Ours has three R after six turns, the peer three R after four.
        assert_eq!(counts(&outcome, 0), [3, 3]);
        assert_eq!(counts(&outcome, 1), [0, 4]);
        assert_eq!(outcome.missing.len(), 1, "{:?}", outcome.missing);
        assert!(
            outcome.missing[0].starts_with("class L: fewer than 3 samples") && outcome.missing[0].ends_with("(peer 0)")
        );
        assert!(outcome.failures.is_empty());
    }

    #[test]
    fn a_row_of_many_counts_as_many() {
        let nine = Ok(vec![(0, Class::L, Sample { n: 9, ..Sample::one(3.0) })]);
        let outcome =
            hold_for(vec![side("ours", vec![one(Class::L, 1.0)]), side("peer", vec![nine])], 7, 1000).unwrap();
        assert_eq!((counts(&outcome, 0), counts(&outcome, 1)), ([7, 0], [63, 0]));
    }

    #[test]
    fn ends_when_the_time_is_up_and_says_what_is_missing() {
        let ours = side("ours", vec![one(Class::L, 1.0)]);
        let peer = side("peer", vec![one(Class::R, 1.0)]);
        let outcome = hold_for(vec![ours, peer], 2, 9).unwrap();
        assert_eq!((counts(&outcome, 0), counts(&outcome, 1)), ([5, 0], [0, 5]));
        assert_eq!(
            outcome.missing,
            ["class L: fewer than 2 samples in 10 s (peer 0)", "class R: fewer than 2 samples in 10 s (ours 0)"]
        );
    }

    #[test]
    fn a_peer_that_fails_is_left_out_and_we_are_not() {
        let peer = || side("peer", vec![one(Class::L, 1.0), Err("it broke".into())]);
        let outcome = hold_for(vec![side("ours", vec![one(Class::L, 1.0)]), peer()], 5, 1000).unwrap();
        assert_eq!((counts(&outcome, 0), counts(&outcome, 1)), ([5, 0], [1, 0]));
        assert_eq!(outcome.failures, ["it broke"]);
        let ours = side("ours", vec![Err("no port".into())]);
        assert_eq!(hold_for(vec![ours, peer()], 5, 1000).unwrap_err(), "no port");
    }

    #[test]
    fn a_peer_may_measure_one_row_of_two() {
        let mut tally = Tally::new("peer", 2);
        assert_eq!(tally.count(Class::L), 0);
        tally.add(1, Class::L, Sample::one(1.0));
        tally.add(7, Class::L, Sample::one(1.0));
        assert_eq!((tally.count(Class::L), tally.count(Class::R)), (1, 0));
        tally.add(0, Class::R, Sample::one(1.0));
        assert_eq!((tally.count(Class::L), tally.count(Class::R)), (0, 0));
    }
}
