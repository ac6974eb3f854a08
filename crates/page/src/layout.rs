// SPDX-License-Identifier: BSD-2-Clause
//! The two layouts of a chart: one for wide screens and paper, one for screens as narrow as a phone's. The page
//! contains both, and its style shows the one that fits, so that text is 11 px or larger in each.

/// Where the parts of a chart are, in the units of its view box. The style shows a unit as about one pixel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The class of the drawing, by which the style knows it.
    pub(crate) class: &'static str,
    pub(crate) width: f64,
    /// Width of a character of text, at most.
    pub(crate) character: f64,
    /// Distance of two lines of text.
    pub(crate) line: f64,
    /// Height of the part of a chart of lines between its axes, and the room left of it and above it.
    pub(crate) plot: f64,
    pub(crate) left: f64,
    pub(crate) top: f64,
    /// Whether names are beside what they name; else they are above or below.
    pub(crate) beside: bool,
}

pub(crate) const WIDE: Layout = Layout {
    class: "on-wide",
    width: 860.0,
    character: 8.8,
    line: 15.0,
    plot: 318.0,
    left: 62.0,
    top: 14.0,
    beside: true,
};

pub(crate) const NARROW: Layout = Layout {
    class: "on-narrow",
    width: 340.0,
    character: 8.4,
    line: 18.0,
    plot: 230.0,
    left: 50.0,
    top: 28.0,
    beside: false,
};

/// Breaks text between words into lines of at most `room` units; a longer word has a line of its own.
pub(crate) fn wrap(text: &str, room: f64, character: f64) -> Vec<String> {
    let most = (room / character).max(1.0) as usize;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}
