// SPDX-License-Identifier: BSD-2-Clause
//! Formats the results as JSON lines and as a table.

use std::collections::BTreeMap;

use serde::Serialize;
use tool_common::table::align;

use crate::scale;
use crate::stats::{PlacementClass, Sample};
use crate::turns::{ContestantSamples, Outcome};

/// The result of one row in one class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RowResult {
    pub(crate) name: String,
    pub(crate) class: String,
    pub(crate) unit: String,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// The interval of the median ([`crate::stats::Samples::interval`]).
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) n: u32,
    /// Turns of all contestants that were disturbed and repeated.
    pub(crate) repeated: u32,
    /// How the figures of this series grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<&'static str>,
    pub(crate) peers: BTreeMap<String, PeerResult>,
}

/// A peer's result in the same class of the same run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PeerResult {
    pub(crate) median: f64,
    /// The interval of the median.
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) n: u32,
    /// unetmap's median divided by the peer's: above 1 is better for rates, below 1 for times.
    pub(crate) ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<&'static str>,
    #[serde(skip)]
    all: Sample,
}

/// Returns one result per row and class in which unetmap has samples, with the peers that have samples in that class.
pub(crate) fn row_results(outcome: &Outcome) -> Vec<RowResult> {
    let Some((ours, peers)) = outcome.all_samples.split_first() else {
        return Vec::new();
    };
    let mut results = Vec::new();
    for (row, name) in outcome.rows.iter().enumerate() {
        for class in PlacementClass::ALL {
            let Some((our, (low, high))) = figures(ours, row, class) else {
                continue;
            };
            let peers = peers.iter().filter_map(|tally| {
                let (all, (low, high)) = figures(tally, row, class)?;
                let ratio = round(our.median / all.median);
                let growth = growth(outcome, tally, (row, class));
                let (median, low, high) = (round(all.median), round(low), round(high));
                Some((tally.label.clone(), PeerResult { median, low, high, n: all.n, ratio, growth, all }))
            });
            results.push(RowResult {
                name: name.name.clone(),
                class: class.to_string(),
                unit: name.unit.into(),
                median: round(our.median),
                min: round(our.min),
                max: round(our.max),
                low: round(low),
                high: round(high),
                n: our.n,
                repeated: outcome.all_samples.iter().map(|of| of.repeated).sum(),
                growth: growth(outcome, ours, (row, class)),
                peers: peers.collect(),
            });
        }
    }
    results
}

/// Returns the summary of a contestant's samples, and the interval of the median.
fn figures(of: &ContestantSamples, row: usize, class: PlacementClass) -> Option<(Sample, (f64, f64))> {
    let samples = of.samples(row, class);
    Some((samples.summary()?, samples.interval()?))
}

/// Returns how the figures of the series of this row grow for a contestant; `None` if the row is in no series.
fn growth(
    outcome: &Outcome,
    contestant: &ContestantSamples,
    (row, class): (usize, PlacementClass),
) -> Option<&'static str> {
    let (_, of) = outcome.series.get(row).copied().flatten()?;
    let of_series = outcome.series.iter().enumerate().filter_map(|(row, series)| Some((row, (*series)?)));
    let figures: Vec<(u32, f64)> = of_series
        .filter(|(_, series)| series.1 == of)
        .filter_map(|(row, (n, _))| Some((n, contestant.samples(row, class).summary()?.median)))
        .collect();
    scale::growth(outcome.rows.get(row)?.unit, &figures)
}

/// Rounds to three decimals, which exceeds the accuracy of the measurements.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Formats a result as one line of JSON.
pub(crate) fn json(result: &RowResult) -> Result<String, String> {
    serde_json::to_string(result).map_err(|e| format!("bench: formatting JSON: {e}"))
}

/// Formats an aligned table: for each result a line for unetmap, then one for each peer.
pub(crate) fn table(results: &[RowResult]) -> String {
    let header = ["bench", "class", "contestant", "unit", "median", "min", "max", "n", "ours/its"];
    let mut rows = vec![header.map(String::from).to_vec()];
    let grows = results.iter().any(|result| result.growth.is_some());
    if grows {
        rows[0].push("growth".into());
    }
    let mut row = |name: &str, class: &str, (label, unit): (&str, &str), all: Sample, (ratio, growth): (String, _)| {
        let mut cells = [name, class, label, unit].map(String::from).to_vec();
        cells.extend([all.median, all.min, all.max].map(|v| format!("{v:.2}")));
        cells.extend([all.n.to_string(), ratio]);
        cells.extend(grows.then(|| Option::unwrap_or(growth, "").to_string()));
        rows.push(cells);
    };
    for f in results {
        let ours = Sample { median: f.median, min: f.min, max: f.max, n: f.n };
        row(&f.name, &f.class, (crate::labels::UNETMAP, &f.unit), ours, (String::new(), f.growth));
        for (label, peer) in &f.peers {
            row("", "", (label, &f.unit), peer.all, (format!("{:.3}", peer.ratio), peer.growth));
        }
    }
    align(&rows, 4)
}

#[cfg(test)]
impl RowResult {
    /// Makes a row of class L, with intervals of a hundredth on both sides.
    pub(crate) fn of_figures(name: &str, unit: &str, median: f64, peers: &[(&str, f64)]) -> RowResult {
        let ends = |median: f64| (median * 0.99, median * 1.01);
        let (low, high) = ends(median);
        let peer = |&(label, its): &(&str, f64)| {
            let (low, high) = ends(its);
            let all = Sample { median: its, min: low, max: high, n: 7 };
            (label.to_owned(), PeerResult { median: its, low, high, n: 7, ratio: median / its, growth: None, all })
        };
        RowResult {
            name: name.into(),
            class: PlacementClass::L.to_string(),
            unit: unit.into(),
            median,
            min: low,
            max: high,
            low,
            high,
            n: 7,
            repeated: 1,
            growth: None,
            peers: peers.iter().map(peer).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::{Contestant, RowName, StopCondition, TurnSamples, run_turns};
    use std::time::Duration;

    struct Fixed(&'static str, TurnSamples);

    impl Contestant for Fixed {
        fn turn(&mut self) -> Result<TurnSamples, String> {
            Ok(self.1.clone())
        }

        fn label(&self) -> &str {
            self.0
        }
    }

    fn sample(median: f64, min: f64, max: f64, n: u32) -> Sample {
        Sample { median, min, max, n }
    }

    fn outcome() -> Outcome {
        let rows =
            vec![RowName { name: "pipe".into(), unit: "Mpps" }, RowName { name: "pipe-cycles".into(), unit: "cycles" }];
        let mut sides: Vec<Box<dyn Contestant>> = vec![
            Box::new(Fixed(
                "unetmap",
                vec![
                    (0, PlacementClass::L, Sample::one(300.0)),
                    (0, PlacementClass::R, Sample::one(90.12345)),
                    (1, PlacementClass::L, Sample::one(6.0)),
                ],
            )),
            Box::new(Fixed(
                "seqpacket",
                vec![(0, PlacementClass::L, Sample::one(0.75)), (1, PlacementClass::R, Sample::one(9.0))],
            )),
            Box::new(Fixed(
                "ceiling",
                vec![
                    (0, PlacementClass::L, sample(400.0, 390.0, 410.0, 9)),
                    (0, PlacementClass::R, sample(100.0, 1.0, 101.0, 3)),
                ],
            )),
        ];
        let goal = StopCondition { samples: 1, limit: Duration::ZERO };
        // The clock does not advance in the first round, so that each contestant has one turn.
        let mut ticks = 0;
        let mut elapsed = || {
            ticks += 1;
            Duration::from_secs(u64::from(ticks > 2))
        };
        run_turns(
            rows,
            &mut sides,
            StopCondition { limit: Duration::from_secs(1), ..goal },
            &mut elapsed,
            &mut |_, _| {},
        )
        .unwrap()
    }

    #[test]
    fn json_has_the_documented_members() {
        let lines: Vec<String> = row_results(&outcome()).iter().map(|f| json(f).unwrap()).collect();
        assert_eq!(
            lines,
            [
                r#"{"name":"pipe","class":"L","unit":"Mpps","median":300.0,"min":300.0,"max":300.0,"low":300.0,"high":300.0,"n":1,"repeated":0,"peers":{"ceiling":{"median":400.0,"low":390.0,"high":410.0,"n":9,"ratio":0.75},"seqpacket":{"median":0.75,"low":0.75,"high":0.75,"n":1,"ratio":400.0}}}"#,
                r#"{"name":"pipe","class":"R","unit":"Mpps","median":90.123,"min":90.123,"max":90.123,"low":90.123,"high":90.123,"n":1,"repeated":0,"peers":{"ceiling":{"median":100.0,"low":1.0,"high":101.0,"n":3,"ratio":0.901}}}"#,
                r#"{"name":"pipe-cycles","class":"L","unit":"cycles","median":6.0,"min":6.0,"max":6.0,"low":6.0,"high":6.0,"n":1,"repeated":0,"peers":{}}"#,
            ]
        );
    }

    #[test]
    fn the_table_is_aligned() {
        assert_eq!(
            table(&row_results(&outcome())),
            "\
bench        class  contestant  unit    median     min     max  n  ours/its
pipe         L      unetmap     Mpps    300.00  300.00  300.00  1
                    ceiling     Mpps    400.00  390.00  410.00  9     0.750
                    seqpacket   Mpps      0.75    0.75    0.75  1   400.000
pipe         R      unetmap     Mpps     90.12   90.12   90.12  1
                    ceiling     Mpps    100.00    1.00  101.00  3     0.901
pipe-cycles  L      unetmap     cycles    6.00    6.00    6.00  1
"
        );
    }
}
