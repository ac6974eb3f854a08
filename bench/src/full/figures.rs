// SPDX-License-Identifier: BSD-2-Clause
//! The page of a report: ratios first, then netmap's figures redrawn, then everything as tables.
//!
//! The figures are those of L. Rizzo, "netmap: a novel framework for fast packet I/O", USENIX ATC 2012, measured there
//! on a four-core i7 with a 10 Gbit/s Intel 82599.

use unetmap_page::{Bar, Bars, Lines, Page, Point, Scale, Series, Table, number, quantity};

use super::compare::Moved;
use super::{Findings, higher_is_better};
use crate::labels;
use crate::report::RowResult;

/// A chart of rows named PREFIX-N by N.
struct Figure {
    title: &'static str,
    note: &'static str,
    x: &'static str,
    x_scale: Scale,
    y_scale: Scale,
    unit: &'static str,
    /// The rows, and what they are called.
    rows: &'static [(&'static str, &'static str)],
}

const FIGURES: [(&str, &str, &[Figure]); 4] = [
    (
        "Figure 5: rate by cycles that the program spends on a packet",
        "In the paper one core at 900 MHz fills the link with 14.88 Mpps of 60 B (some 60 cycles a packet), kernel \
         pktgen reaches about 4 Mpps and a UDP socket about 1 Mpps at 2.93 GHz; below, rates fall with the clock. A \
         virtual machine's clock cannot be set, so here the program spends cycles instead. The paper has a queue and a \
         core for each; here one sender and one receiver, each on a processor, have pipes with one, two and four \
         queues (ring pairs): what further queues cost is seen, not what further cores bring.",
        &[Figure {
            title: "A pipe, 60 B",
            note: "",
            x: "cycles of the program's own per packet",
            x_scale: Scale::Linear,
            y_scale: Scale::Linear,
            unit: "Mpps",
            rows: &[("pipe-cycles", "1 queue"), ("pipe-cycles-2q", "2 queues"), ("pipe-cycles-4q", "4 queues")],
        }],
    ),
    (
        "Figure 6: rate by size of the packets",
        "The paper's sender follows the link's rate from 60 B on, while its receiver loses a quarter at sizes that are \
         not multiples of 64 B, because the card then reads before it writes. There is no card and no link here: pipes \
         exchange buffers, so the size costs nothing unless the program touches the bytes; switches copy between \
         regions; veth pairs copy in the kernel.",
        &[
            Figure {
                title: "Pipes and switches",
                note: "",
                x: "bytes of a packet, without FCS",
                x_scale: Scale::Log,
                y_scale: Scale::Log,
                unit: "Mpps",
                rows: &[("pipe-size", "pipe"), ("vale-size", "switch")],
            },
            Figure {
                title: "An interface (veth), sending and receiving",
                note: "",
                x: "bytes of a packet, without FCS",
                x_scale: Scale::Log,
                y_scale: Scale::Log,
                unit: "Mpps",
                rows: &[("nic-tx-size", "send"), ("nic-rx-size", "receive")],
            },
        ],
    ),
    (
        "Figure 7: rate by batch",
        "In the paper a core at 900 MHz sends 2.45 Mpps with batches of 1 and fills the link with 14.88 Mpps from \
         batches of 8 on. Here no link bounds the rate.",
        &[
            Figure {
                title: "Pipes and switches, 60 B",
                note: "",
                x: "packets of a batch",
                x_scale: Scale::Log,
                y_scale: Scale::Log,
                unit: "Mpps",
                rows: &[("pipe-batch", "pipe"), ("vale-batch", "switch")],
            },
            Figure {
                title: "An interface (veth), 60 B",
                note: "",
                x: "packets of a batch",
                x_scale: Scale::Log,
                y_scale: Scale::Log,
                unit: "Mpps",
                rows: &[("nic-tx-batch", "send")],
            },
        ],
    ),
    (
        "By number of ports",
        "N ends of pipes are opened one after the other, and then left alone.",
        &[
            Figure {
                title: "Time to open one port",
                note: "The mean of N.",
                x: "ports",
                x_scale: Scale::Log,
                y_scale: Scale::Linear,
                unit: "us",
                rows: &[("ports", "open")],
            },
            Figure {
                title: "Memory of the daemon, without the regions",
                note: "",
                x: "ports",
                x_scale: Scale::Log,
                y_scale: Scale::Linear,
                unit: "MiB",
                rows: &[("ports-memory", "daemon")],
            },
        ],
    ),
];

/// Points of the paper's figures 6 and 7: the number in the names of our rows, what it is, and the rate.
type PaperPoints = &'static [(u32, &'static str, &'static str)];
/// Its points, by the ends of the names of our rows and the place of the figure in [`FIGURES`].
const PAPER_POINTS: [(usize, &str, PaperPoints); 2] = [
    (1, "size", &[(60, "60 B", "14.88 sent: the link"), (1514, "1514 B", "0.81 sent: the link")]),
    (
        2,
        "batch",
        &[
            (1, "batches of 1", "2.45 sent, at 900 MHz"),
            (8, "batches of 8", "14.88 sent: the link"),
            (512, "batches of 512", "14.88 sent: the link"),
        ],
    ),
];

/// The paper's table of forwarders, in Mpps of 60 B.
const PAPER_FORWARDING: [(&str, &str); 8] = [
    ("netmap-fwd (1.733 GHz)", "14.88"),
    ("netmap-fwd, libpcap on netmap", "7.50"),
    ("Click, netmap", "3.95"),
    ("Click EtherSwitch, netmap", "3.10"),
    ("Open vSwitch, netmap", "3.00"),
    ("Open vSwitch, native libpcap", "0.78"),
    ("FreeBSD's bridge", "0.75"),
    ("Click, native libpcap", "0.49"),
];

/// Returns the page.
pub(super) fn page(findings: &Findings, moved: Option<&(Vec<Moved>, usize)>) -> String {
    let kind = if findings.quick { "Quick report" } else { "Report" };
    let subtitle = format!("{kind}, measured in {} s. {}", findings.seconds, method(findings));
    let mut page = Page::new("unetmap, measured beside its peers", &subtitle);
    if let Some((moved, common)) = moved {
        comparison(&mut page, moved, *common);
    }
    tcp(&mut page, &findings.rows);
    ratios(&mut page, &findings.rows);
    percentiles(&mut page, &findings.rows);
    for (i, (title, text, charts)) in FIGURES.iter().enumerate() {
        let drawn: Vec<Lines> = charts.iter().filter_map(|figure| draw(figure, &findings.rows)).collect();
        if !drawn.is_empty() {
            page.heading(title);
            page.text(text);
            drawn.iter().for_each(|chart| page.lines(chart));
            beside_the_paper(&mut page, i, &findings.rows);
        }
        // The paper's order: its figure 8 follows its figure 7.
        if i == 2 {
            forwarding(&mut page, &findings.rows);
        }
    }
    page.heading("All rows");
    page.table(&all_rows(&findings.rows));
    page.heading("Not measured");
    let absent = findings.absent.iter().map(|absent| vec![absent.peer.clone(), absent.why.clone()]);
    page.table(&Table { header: words(&["what", "why"]), rows: absent.collect(), left: 2 });
    findings.notes.iter().for_each(|sentence| page.text(sentence));
    page.heading("The machine");
    page.table(&Table { header: words(&["", ""]), rows: findings.machine.rows(), left: 2 });
    page.finish()
}

pub(super) fn method(findings: &Findings) -> String {
    let repeated: u32 = findings.rows.iter().map(|row| row.repeated).sum();
    format!(
        "Each row was measured in turns with its peers, in samples of 60 ms. Class L: the two cores were near each other \
         (a cache line makes a round trip in less than 200 ns), class R: far; classes are not compared. Figures are \
         medians, with the interval in which the median is with a probability of 95 % or more. {repeated} samples were \
         disturbed (the distance changed, or the hypervisor took the processor) and repeated."
    )
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns how many times as good as the peer unetmap is, with the interval.
fn advantage(row: &RowResult, label: &str) -> Option<Bar> {
    let peer = row.peers.get(label)?;
    if row.median <= 0.0 || peer.median <= 0.0 || row.low <= 0.0 || peer.low <= 0.0 {
        return None;
    }
    let (ratio, low, high) = (row.median / peer.median, row.low / peer.high, row.high / peer.low);
    let higher = higher_is_better(&row.unit);
    let (ratio, low, high) = if higher { (ratio, low, high) } else { (1.0 / ratio, 1.0 / high, 1.0 / low) };
    Some(Bar { label: format!("{} ({}) / {label}", row.name, row.class), ratio, interval: Some((low, high)) })
}

/// Returns true if a row is a point of a chart.
pub(super) fn in_series(row: &RowResult) -> bool {
    FIGURES.iter().flat_map(|(.., all)| *all).any(|figure| points(figure, row).is_some())
}

/// Returns the charts for which there are rows.
pub(super) fn charts(rows: &[RowResult]) -> Vec<Lines> {
    FIGURES.iter().flat_map(|(.., all)| *all).filter_map(|figure| draw(figure, rows)).collect()
}

/// Rows of TCP between two stacks.
fn is_tcp(row: &RowResult) -> bool {
    row.name.starts_with("tcp-")
}

/// The first that a user measures: ratios of the rates, and a table with processor time and packets sent again.
fn tcp(page: &mut Page, rows: &[RowResult]) {
    let rates: Vec<&RowResult> = rows.iter().filter(|row| is_tcp(row) && row.unit == "Gbit/s").collect();
    if rates.is_empty() {
        return;
    }
    page.heading("TCP between two stacks, by iperf3");
    page.text(
        "One stream, offloads as the kernel has them. tcp-switch: two persistent ports of a switch, as they are made by \
         default; tcp-switch-kernel: with the knob vale_kernel, the kernel forwards; tcp-switch-worker: the switch's \
         threads have whole packets. tcp-bridge and tcp-fw: a program between two veth pairs, by packet sockets with \
         virtio-net headers.",
    );
    page.bars(&Bars {
        title: "How many times as fast as the kernel's bridge between two veth pairs".into(),
        note: "The line through a bar is the interval.".into(),
        bars: rates.iter().flat_map(|row| row.peers.keys().filter_map(move |label| advantage(row, label))).collect(),
        ..Bars::default()
    });
    let mut cells = Vec::new();
    for row in rates {
        let more = ["-cpu", "-repeated"].map(|end| {
            let name = format!("{}{end}", row.name);
            rows.iter().find(|more| more.name == name && more.class == row.class)
        });
        let ours = more.map(|more| more.map_or("-".into(), |more| number(more.median)));
        let first = words(&[&format!("{} ({})", row.name, row.class), labels::UNETMAP, &number(row.median)]);
        cells.push([first, ours.to_vec()].concat());
        for (label, peer) in &row.peers {
            let of = |more: Option<&RowResult>| Some(number(more?.peers.get(label)?.median));
            let its = more.map(|more| of(more).unwrap_or("-".into()));
            cells.push([words(&["", label, &number(peer.median)]), its.to_vec()].concat());
        }
    }
    let header = words(&["row", "contestant", "Gbit/s", "processor time, ms a Gbit", "packets sent again, a Gbit"]);
    page.table(&Table { header, rows: cells, left: 2 });
}

/// Rows of single figures; those of series are in charts, and TCP's in their own section.
fn ratios(page: &mut Page, rows: &[RowResult]) {
    let singles = rows.iter().filter(|row| !in_series(row) && !is_tcp(row));
    let all: Vec<Bar> = singles
        .flat_map(|row| row.peers.keys().filter_map(|label| advantage(row, label)).collect::<Vec<_>>())
        .collect();
    page.heading("Ratios");
    page.bars(&Bars {
        title: "How many times as good as the peer".into(),
        note: "Rates by rates, and the peer's times by ours: above 1 unetmap is better. The line through a bar is the \
               interval. \"mediated\" is unetmap through its daemon, as users without privileges have it."
            .into(),
        bars: all,
        ..Bars::default()
    });
}

/// A table of the times of which there is a 99th percentile, in a row NAME-p99.
fn percentiles(page: &mut Page, rows: &[RowResult]) {
    let mut cells = Vec::new();
    for row in rows {
        let far = rows.iter().find(|far| far.name == format!("{}-p99", row.name) && far.class == row.class);
        let Some(far) = far else { continue };
        let mut add = |name: &str, label: &str, median: f64, p99: Option<f64>| {
            let p99 = p99.map_or("-".into(), |p99| quantity(p99, &row.unit));
            cells.push(vec![name.to_owned(), label.to_owned(), quantity(median, &row.unit), p99]);
        };
        add(&format!("{} ({})", row.name, row.class), labels::UNETMAP, row.median, Some(far.median));
        for (label, peer) in &row.peers {
            add("", label, peer.median, far.peers.get(label).map(|peer| peer.median));
        }
    }
    if cells.is_empty() {
        return;
    }
    page.heading("Round trips, opening and closing: percentiles");
    page.text(
        "Of the times in a sample the median and the 99th percentile, and of these the medians over the samples. Asleep: \
         500 pings a second, between which all processes sleep. A pipe is closed when the call returns; the daemon frees \
         its memory after that.",
    );
    let header = words(&["time", "contestant", "median", "99th percentile"]);
    page.table(&Table { header, rows: cells, left: 2 });
}

/// Returns the place of a row on the x axis of a figure, and which of the figure's kinds it is.
fn points(figure: &Figure, row: &RowResult) -> Option<(usize, f64)> {
    let of = |prefix: &str| row.name.strip_prefix(prefix)?.strip_prefix('-')?.parse::<u32>().ok();
    let found = figure.rows.iter().enumerate().find_map(|(kind, (prefix, _))| Some((kind, f64::from(of(prefix)?))));
    found.filter(|_| row.unit == figure.unit)
}

fn draw(figure: &Figure, rows: &[RowResult]) -> Option<Lines> {
    let class = common_class(figure, rows)?;
    let mut series: Vec<Series> = Vec::new();
    let mut add = |label: String, point: Point| match series.iter_mut().find(|series| series.label == label) {
        Some(series) => series.points.push(point),
        None => series.push(Series { label, points: vec![point] }),
    };
    for row in rows.iter().filter(|row| row.class == class) {
        let Some((kind, x)) = points(figure, row) else { continue };
        let (_, what) = figure.rows[kind];
        add(
            format!("{} {what}", labels::UNETMAP),
            Point { x, y: row.median, interval: Some((row.low, row.high)), marked: false },
        );
        for (label, peer) in &row.peers {
            add(
                format!("{label} {what}"),
                Point { x, y: peer.median, interval: Some((peer.low, peer.high)), marked: false },
            );
        }
    }
    series.iter_mut().for_each(|series| series.points.sort_by(|a, b| a.x.total_cmp(&b.x)));
    // unetmap's first, as the most important.
    series.sort_by_key(|series| !series.label.starts_with(labels::UNETMAP));
    Some(Lines {
        title: figure.title.into(),
        note: format!("{} Class {class}.", figure.note).trim().into(),
        x: figure.x.into(),
        y: figure.unit.into(),
        x_scale: figure.x_scale,
        y_scale: figure.y_scale,
        series,
        marked: String::new(),
    })
}

/// Returns the class in which a figure has the most rows.
fn common_class(figure: &Figure, rows: &[RowResult]) -> Option<String> {
    let of_figure = || rows.iter().filter(|row| points(figure, row).is_some());
    let count = |class: &str| of_figure().filter(|row| row.class == class).count();
    of_figure().map(|row| row.class.clone()).max_by_key(|class| count(class))
}

/// A table of what the paper says of points of a figure, and what was measured there.
fn beside_the_paper(page: &mut Page, figure: usize, rows: &[RowResult]) {
    let Some((_, end, points)) = PAPER_POINTS.into_iter().find(|(of, ..)| *of == figure) else { return };
    let here = |what: &str, n: u32| {
        let name = format!("{what}-{end}-{n}");
        let cells: Vec<String> = rows
            .iter()
            .filter(|row| row.name == name)
            .map(|row| format!("{} ({})", number(row.median), row.class))
            .collect();
        if cells.is_empty() { "-".into() } else { cells.join(", ") }
    };
    let row = |(n, point, paper): &(u32, &str, &str)| {
        let measured = ["pipe", "vale", "nic-tx", "nic-rx"].map(|what| here(what, *n));
        [words(&[point, paper]), measured.to_vec()].concat()
    };
    let header = words(&["Mpps", "the paper's card", "pipe", "switch", "veth, sending", "veth, receiving"]);
    page.table(&Table { header, rows: points.iter().map(row).collect(), left: 2 });
}

fn forwarding(page: &mut Page, rows: &[RowResult]) {
    let found: Vec<&RowResult> = rows.iter().filter(|row| row.name == "nic-fwd").collect();
    if found.is_empty() {
        return;
    }
    page.heading("Figure 8: forwarding from one interface to another");
    page.text(
        "The paper's rates are those of a 10 Gbit/s link and two ports of a card; here two veth pairs in network \
         namespaces forward in the kernel, and one core does the work of sender and forwarder for all contestants. So \
         only the order and the ratios compare. Open vSwitch has its data path in user space \
         here, on AF_PACKET, and with DPDK's driver for AF_XDP.",
    );
    let mut table = Vec::new();
    for row in found {
        let name = |label: &str| format!("{label} ({})", row.class);
        table.push(vec![name("bridge of unetmap"), number(row.median)]);
        table.extend(row.peers.iter().map(|(label, peer)| vec![name(label), number(peer.median)]));
    }
    page.table(&Table { header: words(&["here", "Mpps"]), rows: table, left: 1 });
    let paper = PAPER_FORWARDING.iter().map(|(name, mpps)| words(&[name, mpps]));
    page.table(&Table { header: words(&["in the paper", "Mpps"]), rows: paper.collect(), left: 1 });
}

fn all_rows(rows: &[RowResult]) -> Table {
    let header = words(&["row", "class", "contestant", "unit", "median", "from", "to", "samples", "ours/its"]);
    let mut cells = Vec::new();
    for row in rows {
        let first = words(&[&row.name, &row.class, labels::UNETMAP, &row.unit]);
        let figures = [row.median, row.low, row.high].map(number);
        cells.push([first, figures.to_vec(), vec![row.n.to_string(), String::new()]].concat());
        for (label, peer) in &row.peers {
            let first = words(&["", "", label, &row.unit]);
            let figures = [peer.median, peer.low, peer.high].map(number);
            cells.push([first, figures.to_vec(), vec![peer.n.to_string(), number(peer.ratio)]].concat());
        }
    }
    Table { header, rows: cells, left: 4 }
}

fn comparison(page: &mut Page, moved: &[Moved], common: usize) {
    page.heading("Compared with the earlier report");
    if moved.is_empty() {
        page.text(&format!("Of {common} rows that both reports have, none moved beyond noise."));
        return;
    }
    page.text(&format!(
        "Of {common} rows that both reports have, {} moved beyond noise: the intervals do not touch, in the same \
         direction against each common peer. Ratios to peers cancel the speed of the machine.",
        moved.len()
    ));
    let row = |m: &Moved| {
        let verdict = if m.better { "better" } else { "WORSE" };
        let change = format!("\u{d7} {}", number(m.change));
        vec![
            m.name.clone(),
            m.class.clone(),
            verdict.into(),
            m.by.clone(),
            m.unit.clone(),
            number(m.before),
            number(m.after),
            change,
        ]
    };
    page.table(&Table {
        header: words(&["row", "class", "", "compared by", "unit", "before", "after", "change"]),
        rows: moved.iter().map(row).collect(),
        left: 5,
    });
}
