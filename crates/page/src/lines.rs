// SPDX-License-Identifier: BSD-2-Clause
//! Charts of lines: a value by another one, of several series.

use std::fmt::Write as _;

use crate::axis::{Axis, Scale};
use crate::{escape, number};

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 62.0;
/// Room for the names of the series: before them, and for each character, which is bold.
const BEFORE_NAME: f64 = 38.0;
const CHARACTER: f64 = 8.8;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 48.0;
/// Distance of two names of series.
const LABEL_STEP: f64 = 15.0;
/// Room that a label of the x axis needs.
const TICK_ROOM: f64 = 36.0;
const COLOURS: usize = 8;
const DASHES: [&str; 5] = ["", "7 4", "2 3", "9 3 2 3", "14 4"];

/// A value with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Place on the x axis.
    pub x: f64,
    /// Value.
    pub y: f64,
    /// The interval in which the value may be: [low, high].
    pub interval: Option<(f64, f64)>,
}

/// The values of one subject.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name, beside its last point.
    pub label: String,
    /// In ascending order of `x`.
    pub points: Vec<Point>,
}

/// A chart of lines.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// What is shown.
    pub title: String,
    /// A sentence beside the title.
    pub note: String,
    /// Label of the x axis, with its unit.
    pub x: String,
    /// Label of the y axis, with its unit.
    pub y: String,
    /// Scale of the x axis.
    pub x_scale: Scale,
    /// Scale of the y axis.
    pub y_scale: Scale,
    /// What is drawn, the most important first.
    pub series: Vec<Series>,
}

impl Lines {
    pub(crate) fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (right, bottom) = (self.right(), HEIGHT - BOTTOM);
        let x = Axis::new(self.x_scale, points().map(|p| p.x), (LEFT, right));
        let highest = points().map(|p| p.interval.map_or(p.y, |(_, high)| high));
        let y = Axis::new(self.y_scale, points().map(|p| p.y).chain(highest), (bottom, TOP));
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escape(&format!("{}: {} by {}", self.title, self.y, self.x))
        );
        self.axes(&mut svg, &x, &y);
        let mut labels = Vec::new();
        for (i, series) in self.series.iter().enumerate() {
            self.draw(&mut svg, (i, series), &x, &y);
            if let Some(last) = series.points.last() {
                labels.push((y.at(last.y), x.at(last.x), i, &series.label));
            }
        }
        put_labels(&mut svg, labels, right);
        svg + "</svg>\n"
    }

    /// Where the chart ends and the names of the series begin.
    fn right(&self) -> f64 {
        let longest = self.series.iter().map(|series| series.label.chars().count()).max().unwrap_or(0);
        // A chart keeps half of the width.
        (WIDTH - BEFORE_NAME - CHARACTER * longest as f64).max(WIDTH / 2.0)
    }

    fn axes(&self, svg: &mut String, x: &Axis, y: &Axis) {
        let (right, bottom) = (self.right(), HEIGHT - BOTTOM);
        // Writing to a String cannot fail.
        for tick in y.ticks() {
            let (at, text) = (y.at(tick), number(tick));
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"dim end\" x=\"{}\" y=\"{:.1}\">{text}</text>",
                LEFT - 7.0,
                at + 4.0
            );
        }
        let mut free = f64::NEG_INFINITY;
        for tick in self.x_ticks(x) {
            let at = x.at(tick);
            let _ = writeln!(svg, "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>");
            if at >= free {
                let _ = writeln!(
                    svg,
                    "<text class=\"dim mid\" x=\"{at:.1}\" y=\"{}\">{}</text>",
                    bottom + 17.0,
                    number(tick)
                );
                free = at + TICK_ROOM;
            }
        }
        let _ = writeln!(
            svg,
            "<text class=\"dim mid\" x=\"{:.1}\" y=\"{}\">{}</text>\
             <text class=\"dim mid\" transform=\"translate(13 {:.1}) rotate(-90)\">{}</text>",
            f64::midpoint(LEFT, right),
            HEIGHT - 10.0,
            escape(&self.x),
            f64::midpoint(TOP, bottom),
            escape(&self.y)
        );
    }

    /// Labels the measured values if they are few, else round ones.
    fn x_ticks(&self, x: &Axis) -> Vec<f64> {
        let mut measured: Vec<f64> = self.series.iter().flat_map(|s| &s.points).map(|p| p.x).collect();
        measured.sort_by(f64::total_cmp);
        measured.dedup();
        if measured.len() <= 14 { measured } else { x.ticks() }
    }

    fn draw(&self, svg: &mut String, (i, series): (usize, &Series), x: &Axis, y: &Axis) {
        let places: Vec<_> = series.points.iter().map(|p| (x.at(p.x), y.at(p.y), p)).collect();
        let path: Vec<String> = places.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let (colour, dash) = (i % COLOURS, DASHES[i % DASHES.len()]);
        let _ = writeln!(
            svg,
            "<g class=\"c{colour}\"><polyline class=\"s\" stroke-dasharray=\"{dash}\" points=\"{}\"/>",
            path.join(" ")
        );
        for (px, py, point) in places {
            if let Some((low, high)) = point.interval {
                let (low, high) = (y.at(low), y.at(high));
                let _ = writeln!(
                    svg,
                    "<line class=\"ci\" x1=\"{px:.1}\" x2=\"{px:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>"
                );
            }
            let text = format!("{}: {} at {}", series.label, number(point.y), number(point.x));
            let _ =
                writeln!(svg, "<path class=\"m\" d=\"{}\"><title>{}</title></path>", marker(i, px, py), escape(&text));
        }
        svg.push_str("</g>\n");
    }
}

/// Returns the path of the marker of series `i`.
fn marker(i: usize, x: f64, y: f64) -> String {
    match i % 6 {
        0 => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", x - 4.0),
        1 => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
        2 => format!("M{x:.1} {:.1}l4.6 8h-9.2z", y - 5.0),
        3 => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5z", y - 5.0),
        4 => format!("M{:.1} {:.1}l8 8m0 -8l-8 8", x - 4.0, y - 4.0),
        _ => format!("M{x:.1} {:.1}l4.6 -8h-9.2z", y + 5.0),
    }
}

/// Writes the names of the series right of the chart, each near its last point, without overlaps.
fn put_labels(svg: &mut String, mut labels: Vec<(f64, f64, usize, &String)>, right: f64) {
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let room = LABEL_STEP * labels.len() as f64;
    let mut free = TOP;
    for (n, (y, x, i, label)) in labels.into_iter().enumerate() {
        // The names that follow need their room, too.
        let lowest = (HEIGHT - BOTTOM) - room + LABEL_STEP * (n as f64 + 1.0);
        let at = y.min(lowest.max(free)).max(free);
        free = at + LABEL_STEP;
        let (name, colour) = (right + 26.0, i % COLOURS);
        let _ = writeln!(
            svg,
            "<g class=\"c{colour}\"><line class=\"ci\" x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" \
             stroke-dasharray=\"1 3\"/><path class=\"m\" d=\"{}\"/>\
             <text class=\"label\" x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
            x + 5.0,
            name - 8.0,
            marker(i, name, at),
            name + 9.0,
            at + 4.0,
            escape(label)
        );
    }
}
