// SPDX-License-Identifier: BSD-2-Clause
//! The report of a search as a page.

use unetmap_page::{Lines, Page, Point, Scale, Series, Table};
use unetmap_streams::search::{Delay, Limit, Plan, SizeReport};

use super::{FCS, as_seen, rows};

/// Label of the axis of sizes.
const SIZE: &str = "bytes of a frame, with FCS";

/// Returns the page; `ports` names the two.
pub(crate) fn html(plan: &Plan, ports: &str, reports: &[SizeReport]) -> String {
    let link = unetmap_page::number(plan.link as f64);
    let (trial, settle) = (plan.trial as f64 / 1e9, plan.settle as f64 / 1e9);
    let subtitle = format!(
        "{ports}. Link {link}bit/s, trials of {trial} s and {settle} s until the last packet, resolution {} %, \
         tolerated loss {} %. unetmap {}.",
        100.0 * plan.resolution,
        100.0 * plan.tolerance,
        unetmap::version()
    );
    let mut page = Page::new(&format!("{} between two ports", plan.rfc.name()), &subtitle);
    let (header, cells) = rows(plan, reports);
    page.heading("Results");
    page.table(&Table { header, rows: cells, left: 0 });
    page.text(&as_seen(reports));
    page.text(
        "A frame has its FCS, as the RFCs count. The limit says what bounds the rate: loss at higher rates; the sender, \
         which did not hold a higher rate within 0.1 %, or which its port made wait; or the link. The receiver sees by \
         the times in the frames how the sender kept its rate in that trial: the rate seen, by how much it is off, the part of \
         the frames that left within a batch of 64 of their place in the schedule, and the longest bunch, in frames \
         beyond what the rate allows. A trial with a bunch longer than a batch is disturbed, and made again. Typical \
         latency is the median, the worst case the 99.9th percentile, the variation the worst case less the shortest; each is the \
         median of the repetitions. Traffic goes one way.",
    );
    throughput(&mut page, reports);
    latency(&mut page, reports);
    loss(&mut page, reports);
    page.finish()
}

fn throughput(page: &mut Page, reports: &[SizeReport]) {
    if !reports.iter().any(|report| report.throughput.is_some()) {
        return;
    }
    page.heading("Throughput");
    let found = |report: &SizeReport| report.throughput.map(|found| found.pps / 1e6);
    page.lines(&Lines {
        title: "Highest rate without loss".into(),
        note: bounded_by_the_sender(reports),
        x: SIZE.into(),
        y: "million frames per second".into(),
        x_scale: Scale::Log,
        y_scale: Scale::Log,
        series: vec![
            by_size("measured", reports, found),
            by_size("the link's rate", reports, |report| Some(report.link_pps / 1e6)),
        ],
    });
    let gbit = |report: &SizeReport| report.throughput.map(|found| found.pps * 8e-9 * (report.size + FCS) as f64);
    page.lines(&Lines {
        title: "The same in bits".into(),
        x: SIZE.into(),
        y: "Gbit/s of frames".into(),
        x_scale: Scale::Log,
        series: vec![by_size("measured", reports, gbit)],
        ..Lines::default()
    });
}

fn latency(page: &mut Page, reports: &[SizeReport]) {
    if !reports.iter().any(|report| !report.delays.is_empty()) {
        return;
    }
    page.heading("Latency at that rate");
    let us = |report: &SizeReport, value: fn(&Delay) -> f64| report.median_delay(value).map(|ns| ns / 1e3);
    page.lines(&Lines {
        title: "Latency by size".into(),
        note: "Medians of the repetitions.".into(),
        x: SIZE.into(),
        y: "microseconds".into(),
        x_scale: Scale::Log,
        y_scale: Scale::Log,
        series: vec![
            by_size("typical (median)", reports, |report| us(report, |d| d.median as f64)),
            by_size("worst case (99.9 %)", reports, |report| us(report, |d| d.p999 as f64)),
            by_size("longest", reports, |report| us(report, |d| d.max as f64)),
            by_size("shortest", reports, |report| us(report, |d| d.min as f64)),
        ],
    });
}

fn loss(page: &mut Page, reports: &[SizeReport]) {
    if !reports.iter().any(|report| !report.loss.is_empty()) {
        return;
    }
    page.heading("Loss by rate");
    let series = reports.iter().map(|report| Series {
        label: format!("{} B", report.size + FCS),
        points: report
            .loss
            .iter()
            .rev()
            .map(|trial| point(100.0 * trial.sent_pps / report.link_pps, 100.0 * trial.loss()))
            .collect(),
    });
    page.lines(&Lines {
        title: "Lost frames".into(),
        note: "By the rate at which the sender did send.".into(),
        x: "rate in percent of the link's".into(),
        y: "lost, %".into(),
        series: series.collect(),
        ..Lines::default()
    });
}

fn point(x: f64, y: f64) -> Point {
    Point { x, y, interval: None }
}

fn by_size(label: &str, reports: &[SizeReport], value: impl Fn(&SizeReport) -> Option<f64>) -> Series {
    let mut points: Vec<Point> = reports
        .iter()
        .filter_map(|report| Some(point((report.size + FCS) as f64, value(report).filter(|y| *y > 0.0)?)))
        .collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    Series { label: label.into(), points }
}

fn bounded_by_the_sender(reports: &[SizeReport]) -> String {
    let is_sender = |report: &&SizeReport| report.throughput.is_some_and(|found| found.limit == Limit::Sender);
    let sizes: Vec<String> = reports.iter().filter(is_sender).map(|report| (report.size + FCS).to_string()).collect();
    if sizes.is_empty() {
        return String::new();
    }
    format!("The sender bounds the rate at {} B: the device may be faster.", sizes.join(", "))
}
