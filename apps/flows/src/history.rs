// SPDX-License-Identifier: BSD-2-Clause
//! The whole time that the program ran, as a page: rates over time, and the addresses, ports, protocols and flows of
//! most bytes. It takes as much memory after a year as after an hour.

use std::time::Duration;

use unetmap_page::{Bar, Bars, Lines, Page, Point, Series, Table, number, quantity};

use crate::cache::Flow;
use crate::meter::Volume;
use crate::top::{Ranking, Ranks};

/// Intervals of the charts. With more, two become one.
const MAX_INTERVALS: usize = 256;

/// Sums since the program began.
pub(crate) struct History {
    ranks: Ranks,
    /// Milliseconds of an interval.
    step: u64,
    /// Times of the first packet and of the last one, in milliseconds.
    began: u64,
    ended: u64,
    intervals: Vec<Volume>,
    /// All packets until the last call of [`History::note`].
    noted: Volume,
}

impl History {
    pub(crate) fn new(interval: Duration, rows: usize) -> History {
        History {
            ranks: Ranks::new(rows),
            step: interval.as_millis().max(1) as u64,
            began: 0,
            ended: 0,
            intervals: Vec::new(),
            noted: Volume::default(),
        }
    }

    /// Adds a flow that has ended.
    pub(crate) fn add(&mut self, flow: &Flow) {
        self.ranks.add(flow.directed(), Volume::of(flow));
    }

    /// `seen`: all packets until `time`, in milliseconds, which does not go back.
    pub(crate) fn note(&mut self, time: u64, seen: Volume) {
        if self.intervals.is_empty() {
            self.began = time;
        }
        self.ended = time;
        let since = time.saturating_sub(self.began);
        while since / self.step >= MAX_INTERVALS as u64 {
            self.step = self.step.saturating_mul(2);
            let pairs = self.intervals.chunks(2).map(|pair| {
                pair.iter().fold(Volume::default(), |mut sum, volume| {
                    sum.add(*volume);
                    sum
                })
            });
            self.intervals = pairs.collect();
        }
        let at = (since / self.step) as usize;
        if at >= self.intervals.len() {
            self.intervals.resize(at + 1, Volume::default());
        }
        self.intervals[at].add(seen.since(self.noted));
        self.noted = seen;
    }

    /// Returns the rates of the intervals: their middles in seconds, and what a second had. An interval that had only
    /// begun has none.
    fn rates(&self, of: impl Fn(Volume) -> f64) -> Vec<Point> {
        let length = self.ended.saturating_sub(self.began) + 1;
        let rate = |(i, volume): (u64, &Volume)| {
            let begin = i * self.step;
            let part = (length - begin.min(length)).min(self.step);
            let has_only_begun = i > 0 && part < self.step / 2;
            let seconds = part.max(1) as f64 / 1e3;
            let x = begin as f64 / 1e3 + seconds / 2.0;
            (!has_only_begun).then(|| Point { x, y: of(*volume) / seconds, interval: None, marked: false })
        };
        (0..).zip(&self.intervals).filter_map(rate).collect()
    }

    /// Returns the page about packets of these ports or files; `seen` are all, `note` a sentence about the chosen ones.
    pub(crate) fn page(&mut self, names: &str, seen: Volume, note: &str) -> String {
        let (chosen, rankings) = self.ranks.take();
        let seconds = (self.ended.saturating_sub(self.began) as f64 / 1e3).max(1e-3);
        let mut page = Page::new("Flows", &format!("{names}. unetmap {}.", unetmap::version()));
        page.lead(&format!(
            "{} packets, {} in {}: {} a second, {}.",
            number(seen.packets as f64),
            quantity(seen.bytes as f64, "bytes"),
            quantity(seconds, "s"),
            number(seen.packets as f64 / seconds),
            quantity(seen.bytes as f64 * 8.0 / seconds, "bit/s"),
        ));
        if !note.is_empty() {
            page.text(note);
        }
        page.heading("Rates");
        let every = format!("Means over {}.", quantity(self.step as f64 / 1e3, "s"));
        let chart = |title: &str, y: &str, points: Vec<Point>| Lines {
            title: title.into(),
            note: every.clone(),
            x: "time since the first packet, s".into(),
            y: y.into(),
            series: vec![Series { label: "all".into(), points }],
            ..Lines::default()
        };
        page.lines(&chart("Bits a second", "bit/s", self.rates(|volume| volume.bytes as f64 * 8.0)));
        page.lines(&chart("Packets a second", "packets/s", self.rates(|volume| volume.packets as f64)));
        for ranking in &rankings {
            rank(&mut page, ranking, chosen);
        }
        page.text(
            "Bytes are those of frames. A packet counts for both of its addresses, and for the lower one of its ports. \
             Of each kind 65536 are told apart; all others are one row.",
        );
        page.finish()
    }
}

/// Adds a section: a chart, but not of flows, whose names are long; and a table.
fn rank(page: &mut Page, ranking: &Ranking, all: Volume) {
    let (heading, has_chart) = match ranking.title {
        "address" => ("Addresses", true),
        "port" => ("Ports", true),
        "protocol" => ("Protocols", true),
        _ => ("Flows", false),
    };
    if ranking.rows.is_empty() {
        return;
    }
    page.heading(heading);
    if has_chart {
        let bar =
            |(name, volume): (&str, Volume)| Bar { label: name.into(), ratio: volume.bytes as f64, interval: None };
        page.bars(&Bars {
            title: format!("{heading} of most bytes"),
            bars: ranking.all().map(bar).collect(),
            unit: Some("B"),
            ..Bars::default()
        });
    }
    let row = |(name, volume): (&str, Volume)| {
        let share = 100.0 * volume.bytes as f64 / all.bytes.max(1) as f64;
        vec![name.into(), volume.packets.to_string(), volume.bytes.to_string(), format!("{share:.2}")]
    };
    page.table(&Table {
        header: [ranking.title, "packets", "bytes", "% of bytes"].map(String::from).to_vec(),
        rows: ranking.all().map(row).collect(),
        left: 1,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet each second for a day, and one a century later.
    #[test]
    fn intervals_are_few_and_lose_nothing() {
        let mut history = History::new(Duration::from_secs(1), 10);
        let seen = |packets: u64| Volume { packets, bytes: packets * 100 };
        (0..86_400).for_each(|second| history.note(5000 + second * 1000, seen(second + 1)));
        let sum = |history: &History| history.intervals.iter().map(|volume| volume.packets).sum::<u64>();
        assert_eq!((history.step, sum(&history)), (512_000, 86_400));
        let rates = history.rates(|volume| volume.packets as f64);
        assert!(rates.len() <= MAX_INTERVALS && rates.iter().all(|point| (point.y - 1.0).abs() < 0.01), "{rates:?}");
        history.note(u64::MAX, seen(86_401));
        assert!(history.intervals.len() <= MAX_INTERVALS && sum(&history) == 86_401);
        assert!(history.rates(|volume| volume.packets as f64).iter().all(|point| point.y.is_finite()));
    }
}
