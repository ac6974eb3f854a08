// SPDX-License-Identifier: BSD-2-Clause
//! Pages that people look at: one HTML file with text, tables and charts, which loads nothing from elsewhere.
//!
//! Colours follow the reader's choice of light or dark (`prefers-color-scheme`), and paper. Nothing is told by colour
//! alone: each series also has a marker, a dash pattern, and its name beside its last point, or in a legend. A page
//! fits a screen of 320 px: charts are drawn for narrow screens as well, and wide tables scroll.
#![forbid(unsafe_code)]

mod axis;
mod bars;
mod layout;
mod lines;

use std::fmt::Write as _;

use unetmap_abi::printable;

use layout::{Layout, NARROW, WIDE};

pub use axis::Scale;
pub use bars::{Bar, Bars};
pub use lines::{Lines, Point, Series};

const STYLE: &str = include_str!("style.css");

/// A page that is being written.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
}

/// A table. Cells are text.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Names of the columns.
    pub header: Vec<String>,
    /// Rows, each with as many cells as the header.
    pub rows: Vec<Vec<String>>,
    /// Columns that are aligned to the left; those after them have numbers.
    pub left: usize,
}

impl Page {
    /// Begins a page. `subtitle` stands below its title.
    pub fn new(title: &str, subtitle: &str) -> Page {
        let body = format!("<h1>{}</h1>\n<p class=\"sub\">{}</p>\n", escape(title), escape(subtitle));
        Page { title: title.into(), body }
    }

    /// Begins a section.
    pub fn heading(&mut self, text: &str) {
        self.put(format_args!("<h2>{}</h2>\n", escape(text)));
    }

    /// Adds the paragraph that says the result, in larger letters.
    pub fn lead(&mut self, text: &str) {
        self.put(format_args!("<p class=\"lead\">{}</p>\n", escape(text)));
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: &str) {
        self.put(format_args!("<p>{}</p>\n", escape(text)));
    }

    /// Adds a table.
    pub fn table(&mut self, table: &Table) {
        let row = |cells: &[String], tag: &str| {
            let cell = |(i, text): (usize, &String)| {
                let class = if i < table.left { "" } else { " class=\"n\"" };
                format!("<{tag}{class}>{}</{tag}>", escape(text))
            };
            format!("<tr>{}</tr>\n", cells.iter().enumerate().map(cell).collect::<String>())
        };
        let rows: String = table.rows.iter().map(|cells| row(cells, "td")).collect();
        let head = row(&table.header, "th");
        self.put(format_args!(
            "<div class=\"wide\"><table>\n<thead>{head}</thead>\n<tbody>{rows}</tbody></table></div>\n"
        ));
    }

    /// Adds a chart of lines.
    pub fn lines(&mut self, chart: &Lines) {
        self.figure(&chart.title, &chart.note, |layout| chart.svg(layout));
    }

    /// Adds a chart of bars.
    pub fn bars(&mut self, chart: &Bars) {
        self.figure(&chart.title, &chart.note, |layout| chart.svg(layout));
    }

    fn figure(&mut self, title: &str, note: &str, svg: impl Fn(&Layout) -> String) {
        let (title, note, svg) = (escape(title), escape(note), [WIDE, NARROW].map(|layout| svg(&layout)).concat());
        self.put(format_args!("<figure><figcaption><b>{title}</b> {note}</figcaption>\n{svg}</figure>\n"));
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.body.write_fmt(text);
    }

    /// Returns the HTML.
    pub fn finish(self) -> String {
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
             <title>{}</title>\n<style>\n{STYLE}</style></head>\n<body><main>\n{}</main></body></html>\n",
            escape(&self.title),
            self.body
        )
    }
}

/// Returns text as it is written in HTML and in SVG.
pub fn escape(text: &str) -> String {
    printable::text(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Formats a number with three significant digits, with a prefix from a thousand on.
pub fn number(value: f64) -> String {
    let (scaled, prefix) = match value.abs() {
        n if n >= 1e9 => (value / 1e9, "G"),
        n if n >= 1e6 => (value / 1e6, "M"),
        n if n >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        n if n >= 100.0 => 0,
        n if n >= 10.0 => 1,
        n if n >= 1.0 => 2,
        n if n > 0.0 => (2.0 - n.log10().floor()).min(6.0) as usize,
        _ => 0,
    };
    let text = format!("{scaled:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{prefix}")
}

/// Formats a value with its unit: times in the unit in which they are from 1 to 1000, others as [`number`] does.
pub fn quantity(value: f64, unit: &str) -> String {
    const TIMES: [&str; 4] = ["ns", "us", "ms", "s"];
    let Some(first) = TIMES.iter().position(|time| *time == unit) else {
        return format!("{} {unit}", number(value));
    };
    let mut value = value;
    let mut at = first;
    while value.abs() >= 1000.0 && at + 1 < TIMES.len() {
        value /= 1000.0;
        at += 1;
    }
    format!("{} {}", number(value), TIMES[at])
}

#[cfg(test)]
mod tests;
