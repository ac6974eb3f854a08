// SPDX-License-Identifier: BSD-2-Clause
//! The two formats that Prometheus reads, and the choice between them by a request's header `Accept`.

use std::fmt::Write as _;

use tool_common::metrics::Metric;
use unetmap::abi::printable::word;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus's own.
    Text,
    OpenMetrics,
}

impl Format {
    /// The formats that are offered. The first one is the default.
    const ALL: [Format; 2] = [Format::Text, Format::OpenMetrics];

    /// The format for a request: the one that its `Accept` prefers, by RFC 9110; of equals, the one that it names more
    /// exactly, else the default. A client that accepts neither gets the default, as from other exporters.
    pub(super) fn accepted(accept: &str) -> Format {
        let ranges: Vec<Range<'_>> = accept.split(',').filter_map(Range::parse).collect();
        let preference = |format: Format| {
            // A format is as welcome as the most exact range says that includes it.
            let exact = |range: &&Range<'_>| range.exactness;
            let best = ranges.iter().filter(|range| range.includes(format)).max_by_key(exact);
            best.map_or((0, 0), |range| (range.quality, range.exactness))
        };
        let [text, openmetrics] = Format::ALL.map(preference);
        if openmetrics > text && openmetrics.0 > 0 { Format::OpenMetrics } else { Format::Text }
    }

    /// The value of `Content-Type`.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The type, its part before the slash, and its version.
    fn names(self) -> [&'static str; 3] {
        match self {
            Format::Text => ["text/plain", "text/*", "0.0.4"],
            Format::OpenMetrics => ["application/openmetrics-text", "application/*", "1.0.0"],
        }
    }

    /// The metrics as text, with those of `histograms`, which are text already.
    pub(super) fn page(self, metrics: &[Metric], histograms: &str) -> String {
        let mut page = String::new();
        for Metric { name, help, is_counter, samples } in metrics {
            let (kind, suffix) = if *is_counter { ("counter", "_total") } else { ("gauge", "") };
            // In OpenMetrics the suffix belongs to the sample, in the older format to the name.
            let family = if self == Format::Text { suffix } else { "" };
            let _ = write!(page, "# HELP unetmap_{name}{family} {help}.\n# TYPE unetmap_{name}{family} {kind}\n");
            for (labels, value) in samples {
                let labels: Vec<String> =
                    labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
                let _ = writeln!(page, "unetmap_{name}{suffix}{{{}}} {value}", labels.join(","));
            }
        }
        page += histograms;
        if self == Format::OpenMetrics {
            page += "# EOF\n";
        }
        page
    }
}

/// The value of a label, which stands in quotes.
pub(super) fn escaped(value: &str) -> String {
    word(value).replace('\\', "\\\\").replace('"', "\\\"")
}

/// A range of an `Accept` header, such as `text/*;q=0.5`.
#[derive(Debug)]
struct Range<'a> {
    kind: &'a str,
    version: Option<&'a str>,
    /// Thousandths; 0: not accepted.
    quality: u16,
    /// 0: all types, 1: all of a group, 2: a type, 3: a version of it.
    exactness: u8,
}

impl Range<'_> {
    /// `None` for one that is not valid.
    fn parse(text: &str) -> Option<Range<'_>> {
        let mut parts = text.split(';').map(str::trim);
        let kind = parts.next().filter(|kind| kind.contains('/'))?;
        let (mut version, mut quality) = (None, 1000);
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match name.trim() {
                name if name.eq_ignore_ascii_case("q") => {
                    let q = value.parse::<f32>().ok().filter(|q| (0.0..=1.0).contains(q))?;
                    quality = (1000.0 * q).round() as u16;
                }
                name if name.eq_ignore_ascii_case("version") => version = Some(value),
                _ => {}
            }
        }
        let exactness = match kind {
            "*/*" => 0,
            _ if kind.ends_with("/*") => 1,
            _ => 2 + u8::from(version.is_some()),
        };
        Some(Range { kind, version, quality, exactness })
    }

    fn includes(&self, format: Format) -> bool {
        let [kind, group, version] = format.names();
        let is_kind = ["*/*", group, kind].iter().any(|kind| self.kind.eq_ignore_ascii_case(kind));
        is_kind && self.version.is_none_or(|asked| asked == version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_the_one_that_is_asked_for() {
        use Format::{OpenMetrics, Text};
        for (accept, format) in [
            ("", Text),
            ("*/*", Text),
            ("text/plain", Text),
            ("text/*", Text),
            ("application/openmetrics-text", OpenMetrics),
            ("application/openmetrics-text; version=1.0.0; charset=utf-8", OpenMetrics),
            ("Application/OpenMetrics-Text ; Version=\"1.0.0\"", OpenMetrics),
            ("application/*", OpenMetrics),
            ("application/openmetrics-text, */*", OpenMetrics),
            ("text/plain, */*", Text),
            ("application/openmetrics-text, text/plain", Text),
            ("application/openmetrics-text;q=0.4, text/plain;q=0.5", Text),
            ("application/openmetrics-text;q=0.5, text/plain;q=0.4", OpenMetrics),
            ("text/plain;version=0.0.4;q=0.3, application/openmetrics-text;version=1.0.0;q=0.301", OpenMetrics),
            // What Prometheus 2 and 3 send.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                OpenMetrics,
            ),
            // The most exact range decides on a type, whatever the order.
            ("*/*;q=0.9, application/openmetrics-text;q=0", Text),
            ("*/*;q=0.1, text/plain;q=0, application/openmetrics-text;q=0.1", OpenMetrics),
            ("text/*;q=0, */*", OpenMetrics),
            ("application/openmetrics-text;version=0.0.1", Text),
            ("application/openmetrics-text;version=2.0.0, text/plain;q=0.1", Text),
            // Neither is accepted, or nothing is understood.
            ("application/json", Text),
            ("text/plain;q=0, application/openmetrics-text;q=0", Text),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Text),
            ("application/openmetrics-text;q=2, ;;, /, nonsense", Text),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }
}
