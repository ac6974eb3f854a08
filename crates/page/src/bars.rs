// SPDX-License-Identifier: BSD-2-Clause
//! Charts of ratios: bars that begin at 1, to the right where a ratio is above it.

use std::fmt::Write as _;

use crate::axis::{Axis, Scale};
use crate::{escape, number};

const WIDTH: f64 = 860.0;
/// Room for the names.
const LEFT: f64 = 270.0;
/// Room for the values.
const RIGHT: f64 = 110.0;
const ROW: f64 = 21.0;
const TOP: f64 = 26.0;

/// A ratio.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What is compared.
    pub label: String,
    /// The ratio, above 0.
    pub ratio: f64,
    /// The interval in which the ratio may be: [low, high].
    pub interval: Option<(f64, f64)>,
}

/// A chart of ratios.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// What is shown.
    pub title: String,
    /// A sentence beside the title.
    pub note: String,
    /// The bars, from the top.
    pub bars: Vec<Bar>,
}

impl Bars {
    pub(crate) fn svg(&self) -> String {
        let height = TOP + ROW * self.bars.len() as f64 + 8.0;
        let values = self.bars.iter().flat_map(|bar| [bar.ratio, bar.interval.map_or(1.0, |(low, _)| low)]);
        let ends = self.bars.iter().filter_map(|bar| bar.interval.map(|(_, high)| high));
        let axis = Axis::new(Scale::Log, values.chain(ends).chain([0.8, 1.25]), (LEFT, WIDTH - RIGHT));
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
            escape(&format!("{}: ratios", self.title))
        );
        // Writing to a String cannot fail.
        for tick in axis.ticks() {
            let at = axis.at(tick);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{height}\"/>\
                 <text class=\"dim mid\" x=\"{at:.1}\" y=\"{}\">{}</text>",
                TOP - 9.0,
                number(tick)
            );
        }
        let one = axis.at(1.0);
        for (i, bar) in self.bars.iter().enumerate() {
            let (y, end) = (TOP + ROW * i as f64 + 3.0, axis.at(bar.ratio));
            let class = if bar.ratio < 1.0 { "worse c1" } else { "bar c0" };
            let _ = writeln!(
                svg,
                "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>\
                 <rect class=\"{class}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"14\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT - 10.0,
                y + 11.0,
                escape(&bar.label),
                one.min(end),
                (end - one).abs().max(1.0),
                WIDTH - RIGHT + 10.0,
                y + 11.0,
                times(bar.ratio)
            );
            if let Some((low, high)) = bar.interval {
                let (low, high, middle) = (axis.at(low), axis.at(high), y + 7.0);
                let _ = writeln!(
                    svg,
                    "<line class=\"one\" x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>"
                );
            }
        }
        let _ = writeln!(svg, "<line class=\"one\" x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"{TOP}\" y2=\"{height}\"/>");
        svg + "</svg>\n"
    }
}

/// Formats a ratio.
fn times(ratio: f64) -> String {
    format!("\u{d7} {}", number(ratio))
}
