// SPDX-License-Identifier: BSD-2-Clause
//! A picture of a lab: hosts and switches on a circle, links between them.

use std::collections::BTreeMap;
use std::f64::consts::{FRAC_PI_2, PI, TAU};
use std::fmt::Write as _;

use unetmap_page::escape;

use crate::model::{End, Lab, Link};
use crate::show::options;

/// Distance of neighbours on the circle, and of the picture's edge from it, in pixels.
const SPACING: f64 = 230.0;
const MARGIN: f64 = 110.0;
const LEAST_RADIUS: f64 = 200.0;
/// Size of a box: its height, and its width for each letter.
const HEIGHT: f64 = 34.0;
const LETTER: f64 = 8.5;
/// Distance of links between the same two from each other, at their middle.
const APART: f64 = 60.0;
/// Where on a link the text of an end stands, between 0 and 1.
const END: f64 = 0.26;
const LINE: f64 = 15.0;

const STYLE: &str = "\
svg { background: #fff; color: #1b1f24; font: 13px system-ui, sans-serif } \
path { fill: none; stroke: #6b7480; stroke-width: 1.6 } path.shaped { stroke-dasharray: 6 4 } \
rect { fill: #e8f0fb; stroke: #2f6db3; stroke-width: 1.6 } rect.switch { fill: #fbf0e0; stroke: #a86a10 } \
text { fill: currentColor; text-anchor: middle; paint-order: stroke; stroke: #fff; stroke-width: 4px } \
text.small { font-size: 11px } rect + text { stroke: none; font-weight: 600 } \
@media (prefers-color-scheme: dark) { svg { background: #15191e; color: #e6e9ed } text { stroke: #15191e } \
path { stroke: #98a2ad } rect { fill: #1d3350; stroke: #6ea8e8 } rect.switch { fill: #45310f; stroke: #e0a84a } }";

type Point = (f64, f64);

/// Returns the picture as SVG.
pub(crate) fn svg(lab: &Lab) -> String {
    let count = lab.hosts.len() + lab.switches.len();
    let radius = if count < 2 { 0.0 } else { (SPACING * count as f64 / TAU).max(LEAST_RADIUS) };
    // Two stand side by side.
    let begin = if count == 2 { PI } else { -FRAC_PI_2 };
    let middle = radius + MARGIN;
    let place = |i: usize| {
        let angle = begin + TAU * i as f64 / count as f64;
        (middle + radius * angle.cos(), middle + radius * angle.sin())
    };
    let node = |end: &End| match end {
        End::Host { host, .. } => *host,
        End::Switch(switch) => lab.hosts.len() + switch,
    };
    let size = 2.0 * middle;
    let title = format!(
        "The lab {}: {} hosts, {} switches, {} links",
        lab.name,
        lab.hosts.len(),
        lab.switches.len(),
        lab.links.len()
    );
    let title = escape(&title);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {size:.0} {size:.0}\" width=\"{size:.0}\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n"
    );
    let mut between: BTreeMap<[usize; 2], usize> = BTreeMap::new();
    for link in &lab.links {
        let mut ends = [node(&link.ends[0]), node(&link.ends[1])];
        let (from, to) = (place(ends[0]), place(ends[1]));
        let is_turned = ends[0] > ends[1];
        ends.sort_unstable();
        let before = between.entry(ends).or_default();
        // The first is straight, the others are on its two sides in turns.
        let side = before.div_ceil(2) as f64 * if *before % 2 == 1 { 1.0 } else { -1.0 };
        *before += 1;
        draw_link(&mut text, link, [from, to], APART * side * if is_turned { -1.0 } else { 1.0 });
    }
    let hosts = lab.hosts.iter().map(|host| (&host.name, ""));
    let switches = lab.switches.iter().map(|switch| (&switch.name, " class=\"switch\""));
    for (i, (name, class)) in hosts.chain(switches).enumerate() {
        let ((x, y), width) = (place(i), (name.len() as f64 * LETTER + 22.0).max(58.0));
        let corner = if class.is_empty() { 5.0 } else { HEIGHT / 2.0 };
        let (left, top, base) = (x - width / 2.0, y - HEIGHT / 2.0, y + 4.5);
        let _ = writeln!(
            text,
            "<rect{class} x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{HEIGHT}\" rx=\"{corner}\"/>\
             <text x=\"{x:.1}\" y=\"{base:.1}\">{}</text>",
            escape(name)
        );
    }
    text + "</svg>\n"
}

/// Draws a link as a curve whose middle is `bend` beside the straight line.
fn draw_link(to: &mut String, link: &Link, [a, b]: [Point; 2], bend: f64) {
    let (dx, dy) = (b.0 - a.0, b.1 - a.1);
    let length = dx.hypot(dy).max(1.0);
    let control = ((a.0 + b.0) / 2.0 - dy / length * 2.0 * bend, (a.1 + b.1) / 2.0 + dx / length * 2.0 * bend);
    let class = if link.is_emulated() { " class=\"shaped\"" } else { "" };
    let _ = writeln!(
        to,
        "<path{class} d=\"M{:.1} {:.1} Q{:.1} {:.1} {:.1} {:.1}\"/>",
        a.0, a.1, control.0, control.1, b.0, b.1
    );
    let at = |t: f64| {
        let of = |a: f64, c: f64, b: f64| (1.0 - t).powi(2) * a + 2.0 * t * (1.0 - t) * c + t.powi(2) * b;
        (of(a.0, control.0, b.0), of(a.1, control.1, b.1))
    };
    let mut middle = options(link);
    middle.extend(link.is_captured.then(|| "captured".to_owned()));
    write_lines(to, at(0.5), &middle);
    for (end, t) in link.ends.iter().zip([END, 1.0 - END]) {
        if let End::Host { interface, addresses, .. } = end {
            write_lines(to, at(t), &[std::slice::from_ref(interface), addresses].concat());
        }
    }
}

/// Writes lines of text, centred at a point.
fn write_lines(to: &mut String, (x, y): Point, lines: &[String]) {
    let top = y - LINE * (lines.len().saturating_sub(1)) as f64 / 2.0 + 4.0;
    for (i, line) in lines.iter().enumerate() {
        let y = top + LINE * i as f64;
        let _ = writeln!(to, "<text class=\"small\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_drawn_and_text_is_escaped() {
        let text = "name = \"l\"\n[host.a]\n[host.b]\n[switch.s]\n[[link]]\nends = [\"a 10.0.0.1/24\", \"b\"]\n\
                    delay = \"1ms..2ms\"\n[[link]]\nends = [\"b\", \"a\"]\n[[link]]\nends = [\"a\", \"s\"]\n\
                    [[capture]]\nat = \"b:eth0\"\nfile = \"f\"\n";
        let mut lab = crate::file::parsed(text);
        let picture = svg(&lab);
        for (part, count) in [
            ("<path", 3),
            ("<rect", 3),
            ("class=\"switch\"", 1),
            (">10.0.0.1/24<", 1),
            (">delay 1ms..2ms<", 1),
            (">captured<", 1),
            (">eth1<", 2),
            (">eth2<", 1),
        ] {
            assert_eq!(picture.matches(part).count(), count, "{part}: {picture}");
        }
        // Links between the same two do not cover each other.
        let paths: Vec<&str> = picture.lines().filter(|line| line.starts_with("<path")).collect();
        assert_ne!(paths[0].split('Q').nth(1), paths[1].split('Q').nth(1));
        lab.links[0].emulation[0].1 = Some("<&\u{202e}".into());
        assert!(svg(&lab).contains("delay &lt;&amp;\\u202e"), "{}", svg(&lab));
    }
}
