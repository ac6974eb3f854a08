// SPDX-License-Identifier: BSD-2-Clause
//! The report of a search as a page: the result, charts, and then how it was measured.

use unetmap_page::{Lines, Page, Point, Scale, Series, Table, number};
use unetmap_streams::search::{Delay, Limit, Plan, SizeReport, Test, Trial};

use super::{FCS, as_seen, rows};

/// Label of the axis of sizes.
const SIZE: &str = "bytes of a frame, with FCS";
/// The mark of disturbed results in tables; in charts it is a ring.
const MARK: &str = "\u{2020}";
/// The meaning of the mark.
const DISTURBED: &str =
    "disturbed: in each attempt at a trial the sender stood still and caught up, so the value may be wrong";

/// A column of the table of results: its name, and the cell of a size.
type Column = (&'static str, Box<dyn Fn(&SizeReport) -> String>);

/// Returns the page; `ports` names the two, and `down` says of which the link was down.
pub(crate) fn html(plan: &Plan, ports: &str, reports: &[SizeReport], down: &[String]) -> String {
    let subtitle = format!("{ports}. Link {}bit/s. unetmap {}.", number(plan.link as f64), unetmap::version());
    let mut page = Page::new(&format!("{} between two ports", plan.rfc.name()), &subtitle);
    page.heading("Result");
    page.lead(&result(plan, reports));
    down.iter().for_each(|sentence| page.text(sentence));
    page.table(&results(reports));
    if reports.iter().any(is_disturbed) {
        page.text(&format!("{MARK} and a ring in the charts: {DISTURBED}."));
    }
    throughput(&mut page, reports);
    latency(&mut page, reports);
    loss(&mut page, reports);
    page.heading("How it was measured");
    page.text(&format!(
        "Trials of {} s and {} s until the last packet, resolution {} %, tolerated loss {} %. Traffic goes one way.",
        plan.trial as f64 / 1e9,
        plan.settle as f64 / 1e9,
        100.0 * plan.resolution,
        100.0 * plan.tolerance,
    ));
    let (header, cells) = rows(plan, reports);
    page.table(&Table { header, rows: cells, left: 0 });
    page.text(&as_seen(reports));
    page.text(
        "A frame has its FCS, as the RFCs count. The limit says what bounds the rate: loss at higher rates; the sender, \
         which did not hold a higher rate within 0.1 %, or which its port made wait; or the link. The receiver sees by \
         the times in the frames how the sender kept its rate in that trial: the rate seen, by how much it is off, the part of \
         the frames that left within a batch of 64 of their place in the schedule, and the longest bunch, in frames \
         beyond what the rate allows. A trial with a bunch longer than a batch is disturbed, and made again. Typical \
         latency is the median, the worst case the 99.9th percentile, the variation the worst case less the shortest; each is the \
         median of the repetitions.",
    );
    page.finish()
}

/// Whether a trial counts for this size although it was disturbed.
fn is_disturbed(report: &SizeReport) -> bool {
    report.disturbed > 0
}

/// The trial of the test of loss at the link's rate.
fn at_link_rate(report: &SizeReport) -> Option<&Trial> {
    report.loss.first()
}

/// The result in a sentence or two: of the throughput if that was searched, else of the other tests.
fn result(plan: &Plan, reports: &[SizeReport]) -> String {
    let tolerated = match plan.tolerance {
        tolerance if tolerance > 0.0 => format!("with at most {} % lost", 100.0 * tolerance),
        _ => "without loss".into(),
    };
    let each = |of: &dyn Fn(&SizeReport) -> Option<String>| -> String {
        let all = reports.iter().filter_map(|report| Some(format!("{} B: {}", report.size + FCS, of(report)?)));
        all.collect::<Vec<_>>().join("; ")
    };
    let rate = |report: &SizeReport, passed: bool| {
        let found = report.throughput.filter(|found| (found.pps > 0.0 && found.limit == Limit::Link) == passed)?;
        let share = 100.0 * found.pps / report.link_pps;
        let part = if passed { String::new() } else { format!(" ({share:.1} % of the link)") };
        Some(if found.pps > 0.0 { format!("{} frames/s{part}", number(found.pps)) } else { "none".into() })
    };
    let others = !plan.tests.contains(&Test::Throughput);
    let sentences = [
        ("The link's rate passed {}", each(&|report| rate(report, true))),
        ("Highest rate {}", each(&|report| rate(report, false))),
        (
            "Lost at the link's rate",
            each(&|report| {
                at_link_rate(report).filter(|_| others).map(|trial| format!("{:.3} %", 100.0 * trial.loss()))
            }),
        ),
        (
            "Longest burst without loss",
            each(&|report| {
                report.back_to_back.filter(|_| others).map(|bursts| format!("{:.0} frames", bursts.packets))
            }),
        ),
    ];
    let sentences = sentences.iter().filter(|(_, values)| !values.is_empty());
    let sentences: Vec<String> =
        sentences.map(|(begin, values)| format!("{}, by frame: {values}.", begin.replace("{}", &tolerated))).collect();
    if sentences.is_empty() { "No size was finished.".into() } else { sentences.join(" ") }
}

/// The results of each size with their units, and whether the link's rate passed.
fn results(reports: &[SizeReport]) -> Table {
    let has = |of: &dyn Fn(&SizeReport) -> bool| reports.iter().any(of);
    let us = |report: &SizeReport, value: fn(&Delay) -> f64| {
        report.median_delay(value).map_or("-".into(), |ns| format!("{:.1}", ns / 1e3))
    };
    let mut columns: Vec<Column> = vec![(
        "frame, B",
        Box::new(|report| format!("{}{}", report.size + FCS, if is_disturbed(report) { MARK } else { "" })),
    )];
    if has(&|report| report.throughput.is_some()) {
        let pps = |report: &SizeReport| report.throughput.map_or(0.0, |found| found.pps);
        columns.push(("link's rate", Box::new(|report| verdict(report).into())));
        columns.push(("frames/s", Box::new(move |report| format!("{:.0}", pps(report)))));
        let gbit = move |report: &SizeReport| pps(report) * 8e-9 * (report.size + FCS) as f64;
        columns.push(("Gbit/s", Box::new(move |report| format!("{:.3}", gbit(report)))));
        columns.push(("% of link", Box::new(move |report| format!("{:.2}", 100.0 * pps(report) / report.link_pps))));
    }
    if has(&|report| !report.delays.is_empty()) {
        columns.push(("typical latency, us", Box::new(move |report| us(report, |d| d.median as f64))));
        columns.push(("worst, us", Box::new(move |report| us(report, |d| d.p999 as f64))));
    }
    if has(&|report| !report.loss.is_empty()) {
        let lost =
            |report: &SizeReport| at_link_rate(report).map_or("-".into(), |t| format!("{:.3}", 100.0 * t.loss()));
        columns.push(("lost at link's rate, %", Box::new(lost)));
    }
    if has(&|report| report.back_to_back.is_some()) {
        let burst = |report: &SizeReport| report.back_to_back.map_or("-".into(), |b| format!("{:.0}", b.packets));
        columns.push(("burst, frames", Box::new(burst)));
    }
    columns.push(("disturbed trials", Box::new(|report| report.disturbed.to_string())));
    Table {
        header: columns.iter().map(|(name, _)| (*name).to_owned()).collect(),
        rows: reports.iter().map(|report| columns.iter().map(|(_, cell)| cell(report)).collect()).collect(),
        left: 0,
    }
}

/// Whether the link's rate passed, and if not why.
fn verdict(report: &SizeReport) -> &'static str {
    match report.throughput {
        None => "-",
        Some(found) if found.pps <= 0.0 => "fail: no rate passed",
        Some(found) => match found.limit {
            Limit::Link => "pass",
            Limit::Loss => "fail: frames lost",
            Limit::Sender => "open: sender too slow",
        },
    }
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
            unmarked(by_size("the link's rate", reports, |report| Some(report.link_pps / 1e6))),
        ],
        marked: DISTURBED.into(),
    });
    let gbit = |report: &SizeReport| report.throughput.map(|found| found.pps * 8e-9 * (report.size + FCS) as f64);
    page.lines(&Lines {
        title: "The same in bits".into(),
        x: SIZE.into(),
        y: "Gbit/s of frames".into(),
        x_scale: Scale::Log,
        series: vec![by_size("measured", reports, gbit)],
        marked: DISTURBED.into(),
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
        marked: DISTURBED.into(),
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
            .map(|trial| Point {
                x: 100.0 * trial.sent_pps / report.link_pps,
                y: 100.0 * trial.loss(),
                interval: None,
                marked: trial.disturbed(),
            })
            .collect(),
    });
    page.lines(&Lines {
        title: "Lost frames".into(),
        note: "By the rate at which the sender did send.".into(),
        x: "rate in percent of the link's".into(),
        y: "lost, %".into(),
        series: series.collect(),
        marked: DISTURBED.into(),
        ..Lines::default()
    });
}

fn by_size(label: &str, reports: &[SizeReport], value: impl Fn(&SizeReport) -> Option<f64>) -> Series {
    let mut points: Vec<Point> = reports
        .iter()
        .filter_map(|report| {
            let (x, y) = ((report.size + FCS) as f64, value(report).filter(|y| *y > 0.0)?);
            Some(Point { x, y, interval: None, marked: is_disturbed(report) })
        })
        .collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    Series { label: label.into(), points }
}

/// Removes the marks, for a series of values that were not measured.
fn unmarked(mut series: Series) -> Series {
    series.points.iter_mut().for_each(|point| point.marked = false);
    series
}

fn bounded_by_the_sender(reports: &[SizeReport]) -> String {
    let is_sender = |report: &&SizeReport| report.throughput.is_some_and(|found| found.limit == Limit::Sender);
    let sizes: Vec<String> = reports.iter().filter(is_sender).map(|report| (report.size + FCS).to_string()).collect();
    if sizes.is_empty() {
        return String::new();
    }
    format!("The sender bounds the rate at {} B: the device may be faster.", sizes.join(", "))
}

#[cfg(test)]
mod tests {
    use unetmap_streams::Pace;
    use unetmap_streams::search::{Offer, Rfc, Throughput};

    use super::*;

    fn report(size: usize, (part, limit): (f64, Limit), disturbed: u32) -> SizeReport {
        let link_pps = 1e6;
        let trial = |part: f64, burst: u64| Trial {
            offer: Offer { size, pps: part * link_pps, packets: 1000 },
            sent: 1000,
            sent_pps: part * link_pps,
            received: 900,
            duplicates: 0,
            reordered: 0,
            jitter: 0.0,
            latency: None,
            pace: Some(Pace { pps: part * link_pps, burst, in_step: 1.0 }),
        };
        SizeReport {
            size,
            link_pps,
            throughput: Some(Throughput { pps: part * link_pps, limit, pace: None }),
            delays: vec![Delay { min: 1000, median: 2000, mean: 2500.0, p999: 9000, max: 9900, jitter: 1.0 }],
            loss: vec![trial(1.0, 65), trial(0.9, 64)],
            back_to_back: None,
            repeated: 0,
            disturbed,
        }
    }

    fn page(reports: &[SizeReport]) -> String {
        let plan = Plan::parse(Rfc::Rfc2544, "tests=throughput+latency+loss", 1_000_000_000).expect("a plan");
        html(&plan, "a to b", reports, &["netmap:a, after 2 of 9 trials: the link is down.".into()])
    }

    #[test]
    fn the_page_begins_with_the_result_and_ends_with_the_method() {
        let sizes = [(1.0, Limit::Link), (0.5, Limit::Loss), (0.25, Limit::Sender), (0.0, Limit::Loss)];
        let reports: Vec<_> = (1..).zip(sizes).map(|(i, found)| report(60 * i, found, 0)).collect();
        let html = page(&reports);
        let at = |part: &str| html.find(part).unwrap_or_else(|| panic!("no {part} in {html}"));
        let order = [
            "<h2>Result</h2>",
            "<p class=\"lead\">The link&apos;s rate passed without loss, by frame: 64 B: 1M frames/s. \
             Highest rate without loss, by frame: 124 B: 500k frames/s (50.0 % of the link); \
             184 B: 250k frames/s (25.0 % of the link); 244 B: none.</p>",
            "<td class=\"n\">pass</td><td class=\"n\">1000000</td><td class=\"n\">0.512</td><td class=\"n\">100.00</td>",
            "<td class=\"n\">fail: frames lost</td>",
            "<td class=\"n\">open: sender too slow</td>",
            "<td class=\"n\">fail: no rate passed</td>",
            "<svg",
            "<h2>How it was measured</h2>",
            "Trials of 60 s",
        ];
        let places = order.map(|part| at(&part.replace("&apos;", "'")));
        assert!(places.is_sorted(), "{places:?}");
        assert!(page(&[]).contains("No size was finished."));
        assert!(page(&[]).contains("<p>netmap:a, after 2 of 9 trials: the link is down.</p>"));
    }

    #[test]
    fn disturbed_results_are_marked_in_the_table_and_the_charts() {
        let quiet = page(&[report(60, (0.5, Limit::Loss), 0)]);
        let rings = |html: &str| html.matches("class=\"mark\"").count();
        // The first trial of the test of loss has a bunch of 65: its point and the legend, in both layouts.
        assert!(!quiet.contains(MARK) && rings(&quiet) == 2 * 2, "{quiet}");
        let html = page(&[report(60, (0.5, Limit::Loss), 3), report(1514, (0.5, Limit::Loss), 0)]);
        assert!(html.contains(&format!("<td class=\"n\">64{MARK}</td>")) && html.contains("<td class=\"n\">1518</td>"));
        assert!(html.contains(&format!("<p>{MARK} and a ring in the charts: {DISTURBED}.</p>")));
        // Two charts of throughput, of the first of which the link's rate is not marked, four latencies, two losses.
        let points = 1 + 1 + 4 + 2;
        assert_eq!(rings(&html), 2 * (points + 4), "each point and each legend, in both layouts");
    }
}
