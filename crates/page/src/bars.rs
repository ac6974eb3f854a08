// SPDX-License-Identifier: BSD-2-Clause
//! Charts of ratios: bars that begin at 1, to the right where a ratio is above it. And of amounts: bars that begin at
//! 0.

use std::fmt::Write as _;

use crate::axis::{Axis, Scale};
use crate::layout::{Layout, wrap};
use crate::{escape, number, quantity};

/// Room for the names beside the bars, and for the values.
const NAMES: f64 = 270.0;
const VALUES: f64 = 110.0;
const TOP: f64 = 26.0;
/// Height of a bar with the space around it.
const ROW: f64 = 21.0;
/// Room that a label of the axis needs.
const TICK_ROOM: f64 = 36.0;

/// A ratio, or an amount.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The name of the thing compared.
    pub label: String,
    /// The ratio, above 0; or the amount.
    pub ratio: f64,
    /// The interval in which the ratio may be: [low, high].
    pub interval: Option<(f64, f64)>,
}

/// A chart of ratios or amounts.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// The title of the chart.
    pub title: String,
    /// A sentence beside the title.
    pub note: String,
    /// The bars, from the top.
    pub bars: Vec<Bar>,
    /// Whether they are amounts of this unit; else they are ratios.
    pub unit: Option<&'static str>,
}

impl Bars {
    pub(crate) fn svg(&self, layout: &Layout) -> String {
        let (left, right) = match layout.beside {
            true => (NAMES, layout.width - VALUES),
            false => (6.0, layout.width - 10.0 * layout.character),
        };
        // A name above its bar may need several lines.
        let names = |bar: &Bar| match layout.beside {
            true => vec![bar.label.clone()],
            false => wrap(&bar.label, layout.width, layout.character),
        };
        let above = |bar: &Bar| if layout.beside { 0.0 } else { layout.line * names(bar).len() as f64 };
        let height = TOP + self.bars.iter().map(|bar| ROW + above(bar)).sum::<f64>() + 8.0;
        let values = self.bars.iter().map(|bar| bar.ratio);
        let intervals = self.bars.iter().filter_map(|bar| bar.interval).flat_map(|(low, high)| [low, high]);
        let (scale, least, base): (_, &[f64], _) = match self.unit {
            None => (Scale::Log, &[0.8, 1.25], 1.0),
            Some(_) => (Scale::Linear, &[], 0.0),
        };
        let axis = Axis::new(scale, values.chain(intervals).chain(least.iter().copied()), (left, right));
        let mut svg = format!(
            "<svg class=\"{}\" viewBox=\"0 0 {} {height}\" role=\"img\" aria-label=\"{}\">\n",
            layout.class,
            layout.width,
            escape(&format!("{}: {}", self.title, self.unit.unwrap_or("ratios")))
        );
        put_grid(&mut svg, &axis, height);
        let one = axis.at(base);
        // Above the lines that cross them.
        let mut texts = String::new();
        let mut y = TOP + 3.0;
        for bar in &self.bars {
            // Writing to a String cannot fail.
            for name in names(bar) {
                let (class, x) = if layout.beside { ("end", left - 10.0) } else { ("name", left) };
                let _ =
                    writeln!(texts, "<text class=\"{class}\" x=\"{x}\" y=\"{:.1}\">{}</text>", y + 11.0, escape(&name));
                y += if layout.beside { 0.0 } else { layout.line };
            }
            let (end, class) = (axis.at(bar.ratio), if bar.ratio < base { "worse c1" } else { "bar c0" });
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"14\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                one.min(end),
                (end - one).abs().max(1.0),
                right + 10.0,
                y + 11.0,
                self.unit.map_or_else(|| times(bar.ratio), |unit| quantity(bar.ratio, unit))
            );
            if let Some((low, high)) = bar.interval {
                let (low, high, middle) = (axis.at(low), axis.at(high), y + 7.0);
                let _ = writeln!(
                    svg,
                    "<line class=\"one\" x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>"
                );
            }
            y += ROW;
        }
        let _ = writeln!(svg, "<line class=\"one\" x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"{TOP}\" y2=\"{height}\"/>");
        svg + &texts + "</svg>\n"
    }
}

/// Writes the lines of the axis, and as many of its values as have room.
fn put_grid(svg: &mut String, axis: &Axis, height: f64) {
    let mut free = f64::NEG_INFINITY;
    for tick in axis.ticks() {
        let at = axis.at(tick);
        let _ = writeln!(svg, "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{height}\"/>");
        if at >= free {
            let (y, text) = (TOP - 9.0, number(tick));
            let _ = writeln!(svg, "<text class=\"dim mid\" x=\"{at:.1}\" y=\"{y}\">{text}</text>");
            free = at + TICK_ROOM;
        }
    }
}

/// Formats a ratio.
fn times(ratio: f64) -> String {
    format!("\u{d7} {}", number(ratio))
}
