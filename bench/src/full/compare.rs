// SPDX-License-Identifier: BSD-2-Clause
//! Comparison with an earlier report: what moved beyond noise.
//!
//! The speed of a machine changes, above all of a virtual one. So a row with peers is compared by its ratios, in which
//! that cancels out, and moved only if it did against each peer that both reports have. A row without peers is compared
//! by its own figures. The intervals of the medians must not touch.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::report::RowResult;

/// Changes below this part are not shown, however small the intervals are.
const LEAST: f64 = 0.03;

/// A row that moved.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Moved {
    pub(crate) name: String,
    pub(crate) class: String,
    pub(crate) unit: String,
    pub(crate) before: f64,
    pub(crate) after: f64,
    /// After over before: of the ratio if there are peers, else of the figure.
    pub(crate) change: f64,
    /// How it was compared.
    pub(crate) by: String,
    pub(crate) better: bool,
}

/// A median with its interval.
#[derive(Clone, Copy, Debug)]
struct Figure {
    median: f64,
    low: f64,
    high: f64,
}

impl Figure {
    fn of(row: &Value) -> Option<Figure> {
        let number = |key: &str| row[key].as_f64();
        let median = number("median")?;
        // Reports of other programs may lack the interval.
        let (low, high) = (number("low").or(number("min")), number("high").or(number("max")));
        Some(Figure { median, low: low.unwrap_or(median), high: high.unwrap_or(median) })
    }

    fn over(self, other: Figure) -> Figure {
        let least = |n: f64| n.max(f64::MIN_POSITIVE);
        Figure {
            median: self.median / least(other.median),
            low: self.low / least(other.high),
            high: self.high / least(other.low),
        }
    }

    fn differs(self, other: Figure) -> bool {
        let apart = self.low > other.high || self.high < other.low;
        apart && (self.median / other.median.max(f64::MIN_POSITIVE) - 1.0).abs() > LEAST
    }
}

/// Returns the rows that moved between a report in JSON and `rows`, and how many rows both have.
pub(crate) fn moved(old: &Value, rows: &[RowResult]) -> Result<(Vec<Moved>, usize), String> {
    let old = old["rows"].as_array().ok_or("it has no member `rows`: give the report.json of an earlier report")?;
    let key = |row: &Value| (row["name"].to_string(), row["class"].to_string(), row["unit"].to_string());
    let old: BTreeMap<_, _> = old.iter().map(|row| (key(row), row)).collect();
    let (mut moved, mut common) = (Vec::new(), 0);
    for row in rows {
        let new = serde_json::to_value(row).map_err(|e| e.to_string())?;
        let Some(before) = old.get(&key(&new)) else { continue };
        let (Some(then), Some(now)) = (Figure::of(before), Figure::of(&new)) else { continue };
        common += 1;
        let peers: Vec<(String, Figure, Figure)> = new["peers"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(label, peer)| {
                let (then_peer, now_peer) = (Figure::of(&before["peers"][label])?, Figure::of(peer)?);
                Some((label.clone(), then.over(then_peer), now.over(now_peer)))
            })
            .collect();
        let (by, pairs): (String, Vec<(Figure, Figure)>) = if peers.is_empty() {
            ("the figure itself".into(), vec![(then, now)])
        } else {
            let labels: Vec<_> = peers.iter().map(|(label, ..)| label.as_str()).collect();
            (format!("ratio to {}", labels.join(", ")), peers.iter().map(|(_, then, now)| (*then, *now)).collect())
        };
        let ups = pairs.iter().map(|(then, now)| now.median > then.median);
        let one_way = ups.clone().all(|up| up) || ups.clone().all(|up| !up);
        if !one_way || !pairs.iter().all(|(then, now)| now.differs(*then)) {
            continue;
        }
        let Some((first, last)) = pairs.first() else { continue };
        let change = last.median / first.median.max(f64::MIN_POSITIVE);
        let text = |key: &str| new[key].as_str().unwrap_or_default().to_owned();
        let unit = text("unit");
        moved.push(Moved {
            name: text("name"),
            class: text("class"),
            better: super::higher_is_better(&unit) == (change > 1.0),
            unit,
            before: then.median,
            after: now.median,
            change,
            by,
        });
    }
    Ok((moved, common))
}
