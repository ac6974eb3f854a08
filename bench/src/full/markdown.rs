// SPDX-License-Identifier: BSD-2-Clause
//! The figures of a report as tables in Markdown, for documents: report.md.

use std::fmt::Write as _;

use unetmap_page::{number, quantity};

use super::figures::{self, method};
use super::{Findings, higher_is_better};
use crate::report::{PeerResult, RowResult};

/// Returns the text.
pub(super) fn text(findings: &Findings) -> String {
    let mut text = String::new();
    for row in findings.machine.rows() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- {}: {}", row[0], row[1]);
    }
    let kind = if findings.quick { "A quick report" } else { "A report" };
    let _ = writeln!(text, "\n{kind}, which took {} s. {}\n", findings.seconds, method(findings));
    let singles = findings.rows.iter().filter(|row| !figures::in_series(row)).map(single);
    table(&mut text, &["row", "class", "unetmap", "peers: theirs, and how many times as good unetmap is"], singles);
    for chart in figures::charts(&findings.rows) {
        let mut header = vec![chart.x.as_str()];
        header.extend(chart.series.iter().map(|series| series.label.as_str()));
        let mut places: Vec<f64> = chart.series.iter().flat_map(|series| &series.points).map(|point| point.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let row = |x: f64| {
            let cell = |series: &unetmap_page::Series| {
                let found = series.points.iter().find(|point| point.x.total_cmp(&x).is_eq());
                found.map_or("-".into(), |point| number(point.y))
            };
            [vec![number(x)], chart.series.iter().map(cell).collect()].concat()
        };
        let _ = writeln!(text, "{}, {}. {}\n", chart.title, chart.y, chart.note);
        table(&mut text, &header, places.into_iter().map(row));
    }
    let absent = findings.absent.iter().map(|absent| vec![absent.peer.clone(), absent.why.clone()]);
    table(&mut text, &["not measured", "why"], absent);
    findings.notes.iter().for_each(|sentence| {
        let _ = writeln!(text, "- {sentence}");
    });
    text
}

fn table(text: &mut String, header: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    // A bar would end a cell.
    let escaped = |cells: Vec<String>| cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>();
    *text += &line(&escaped(header.iter().map(|cell| (*cell).to_owned()).collect()));
    *text += &format!("|{}\n", "---|".repeat(header.len()));
    rows.for_each(|row| *text += &line(&escaped(row)));
    text.push('\n');
}

/// A row of a single figure, with its peers, the best first.
fn single(row: &RowResult) -> Vec<String> {
    let higher = higher_is_better(&row.unit);
    let advantage = |peer: &PeerResult| if higher { peer.ratio } else { 1.0 / peer.ratio };
    let mut peers: Vec<_> = row.peers.iter().collect();
    peers.sort_by(|(_, a), (_, b)| advantage(a).total_cmp(&advantage(b)));
    let peers = peers.into_iter().map(|(label, peer)| {
        let times = advantage(peer);
        let times = if times.is_finite() { number(times) } else { "-".into() };
        format!("{label} {} ({times})", quantity(peer.median, &row.unit))
    });
    let [median, low, high] = [row.median, row.low, row.high].map(|value| quantity(value, &row.unit));
    // Ends in the unit of the median go without it.
    let bare = |end: String| match (end.split_once(' '), median.split_once(' ')) {
        (Some((figure, of)), Some((_, unit))) if of == unit => figure.to_owned(),
        _ => end,
    };
    let ours = format!("{median} ({} to {})", bare(low), bare(high));
    vec![row.name.clone(), row.class.clone(), ours, peers.collect::<Vec<_>>().join(", ")]
}
