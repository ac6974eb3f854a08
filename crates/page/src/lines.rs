// SPDX-License-Identifier: BSD-2-Clause
//! Charts of lines: a value by another one, of several series.

use std::fmt::Write as _;

use crate::axis::{Axis, Scale};
use crate::layout::{Layout, wrap};
use crate::{escape, number};

/// Room for the names of the series: before them.
const BEFORE_NAME: f64 = 38.0;
/// Room for the labels of the x axis.
const BOTTOM: f64 = 48.0;
/// Room right of a chart with the names below it.
const RIGHT: f64 = 12.0;
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
    /// Whether it has a ring around it, see [`Lines::marked`].
    pub marked: bool,
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
    /// The title of the chart.
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
    /// The lines, the most important first.
    pub series: Vec<Series>,
    /// The meaning of a ring around a point; below the chart, if any has one.
    pub marked: String,
}

impl Lines {
    pub(crate) fn svg(&self, layout: &Layout) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (right, bottom) = (self.right(layout), layout.top + layout.plot);
        let x = Axis::new(self.x_scale, points().map(|p| p.x), (layout.left, right));
        let highest = points().map(|p| p.interval.map_or(p.y, |(_, high)| high));
        let y = Axis::new(self.y_scale, points().map(|p| p.y).chain(highest), (bottom, layout.top));
        let mut body = String::new();
        self.axes(&mut body, layout, &x, &y);
        let mut labels = Vec::new();
        for (i, series) in self.series.iter().enumerate() {
            self.draw(&mut body, (i, series), &x, &y);
            if let Some(last) = series.points.last() {
                labels.push((y.at(last.y), x.at(last.x), i, &series.label));
            }
        }
        let mut height = bottom + BOTTOM;
        if layout.beside {
            put_labels(&mut body, layout, labels, right);
        } else {
            let names = labels.iter().map(|(_, _, i, label)| (Sign::Series(*i), &***label));
            put_legend(&mut body, layout, &mut height, names);
        }
        if points().any(|point| point.marked) {
            put_legend(&mut body, layout, &mut height, std::iter::once((Sign::Ring, &*self.marked)));
        }
        format!(
            "<svg class=\"{}\" viewBox=\"0 0 {} {height}\" role=\"img\" aria-label=\"{}\">\n{body}</svg>\n",
            layout.class,
            layout.width,
            escape(&format!("{}: {} by {}", self.title, self.y, self.x))
        )
    }

    /// Where the chart ends, and the names of the series begin if they are beside it.
    fn right(&self, layout: &Layout) -> f64 {
        if !layout.beside {
            return layout.width - RIGHT;
        }
        let longest = self.series.iter().map(|series| series.label.chars().count()).max().unwrap_or(0);
        // A chart keeps half of the width.
        (layout.width - BEFORE_NAME - layout.character * longest as f64).max(layout.width / 2.0)
    }

    fn axes(&self, svg: &mut String, layout: &Layout, x: &Axis, y: &Axis) {
        let (left, top, right) = (layout.left, layout.top, self.right(layout));
        let bottom = top + layout.plot;
        // Writing to a String cannot fail.
        for tick in y.ticks() {
            let (at, text) = (y.at(tick), number(tick));
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"dim end\" x=\"{}\" y=\"{:.1}\">{text}</text>",
                left - 7.0,
                at + 4.0
            );
        }
        let mut free = f64::NEG_INFINITY;
        for tick in self.x_ticks(x) {
            let at = x.at(tick);
            let _ = writeln!(svg, "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>");
            if at >= free {
                let _ = writeln!(
                    svg,
                    "<text class=\"dim mid\" x=\"{at:.1}\" y=\"{}\">{}</text>",
                    bottom + 20.0,
                    number(tick)
                );
                free = at + TICK_ROOM;
            }
        }
        let _ = writeln!(
            svg,
            "<text class=\"dim mid\" x=\"{:.1}\" y=\"{}\">{}</text>",
            f64::midpoint(left, right),
            bottom + BOTTOM - 10.0,
            escape(&self.x)
        );
        let name = escape(&self.y);
        let _ = if layout.beside {
            let middle = f64::midpoint(top, bottom);
            writeln!(svg, "<text class=\"dim mid\" transform=\"translate(13 {middle:.1}) rotate(-90)\">{name}</text>")
        } else {
            writeln!(svg, "<text class=\"dim\" x=\"4\" y=\"12\">{name}</text>")
        };
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
            if point.marked {
                let _ = writeln!(svg, "{}", ring(px, py));
            }
            let mark = if point.marked { format!(", {}", self.marked) } else { String::new() };
            let text = format!("{}: {} at {}{mark}", series.label, number(point.y), number(point.x));
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

/// Returns the ring around a point.
fn ring(x: f64, y: f64) -> String {
    format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"8\"/>")
}

/// The sign at which a line of a legend begins.
enum Sign {
    Series(usize),
    Ring,
}

/// Writes a legend below the chart, from `height` on, which then is its end.
fn put_legend<'t>(svg: &mut String, layout: &Layout, height: &mut f64, entries: impl Iterator<Item = (Sign, &'t str)>) {
    const TEXT: f64 = 48.0;
    for (sign, text) in entries {
        let at = *height + 8.0;
        let class = match sign {
            Sign::Series(i) => {
                let (colour, dash) = (i % COLOURS, DASHES[i % DASHES.len()]);
                let _ = writeln!(
                    svg,
                    "<g class=\"c{colour}\"><line class=\"s\" x1=\"6\" x2=\"38\" y1=\"{at}\" y2=\"{at}\" \
                     stroke-dasharray=\"{dash}\"/><path class=\"m\" d=\"{}\"/></g>",
                    marker(i, 22.0, at)
                );
                format!("label c{colour}")
            }
            Sign::Ring => {
                let _ = writeln!(svg, "{}", ring(22.0, at));
                "dim".into()
            }
        };
        for line in wrap(text, layout.width - TEXT, layout.character) {
            let _ = writeln!(
                svg,
                "<text class=\"{class}\" x=\"{TEXT}\" y=\"{:.1}\">{}</text>",
                *height + 12.0,
                escape(&line)
            );
            *height += layout.line;
        }
        *height += 4.0;
    }
}

/// Writes the names of the series right of the chart, each near its last point, without overlaps.
fn put_labels(svg: &mut String, layout: &Layout, mut labels: Vec<(f64, f64, usize, &String)>, right: f64) {
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (step, top) = (layout.line, layout.top);
    let room = step * labels.len() as f64;
    let mut free = top;
    for (n, (y, x, i, label)) in labels.into_iter().enumerate() {
        // The names that follow need their room, too.
        let lowest = top + layout.plot - room + step * (n as f64 + 1.0);
        let at = y.min(lowest.max(free)).max(free);
        free = at + step;
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
