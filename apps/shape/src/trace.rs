// SPDX-License-Identifier: BSD-2-Clause
//! Traces of a link's opportunities to send, in Mahimahi's format: a line for each, with its time in milliseconds. The
//! trace is repeated, with the last time as its period.

use std::fmt;

use crate::{MILLISECOND, Nanos};

/// Bytes that an opportunity can send.
pub(crate) const OPPORTUNITY: u32 = 1504;

/// Times at which a link can send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// In order; not empty.
    times: Box<[Nanos]>,
    /// The last time, not 0.
    period: Nanos,
}

/// Why a text is no trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// From 1; 0 if the trace as a whole is wrong.
    pub line: usize,
    /// The fault.
    pub message: &'static str,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(self.message),
            line => write!(f, "line {line}: {}", self.message),
        }
    }
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(text: &str) -> Result<Trace, TraceError> {
        let mut times: Vec<Nanos> = Vec::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |message| TraceError { line: at + 1, message };
            let time: u32 =
                line.trim().parse().map_err(|_| wrong("give a time in milliseconds, a whole number below 2^32"))?;
            let time = u64::from(time) * MILLISECOND;
            if times.last().is_some_and(|last| time < *last) {
                return Err(wrong("the time is before that of the previous line"));
            }
            times.push(time);
        }
        match times.last() {
            None => Err(TraceError { line: 0, message: "the trace has no line" }),
            Some(0) => Err(TraceError { line: 0, message: "the last time, which is the trace's period, is 0" }),
            Some(&period) => Ok(Trace { times: times.into(), period }),
        }
    }

    /// Returns the time of an opportunity, counted from the begin of the trace and over its repetitions.
    pub(crate) fn time(&self, number: u64) -> Nanos {
        let n = self.times.len() as u64;
        number / n * self.period + self.times[(number % n) as usize]
    }

    /// Returns the number of the first opportunity at `time` or later.
    pub(crate) fn first_at(&self, time: Nanos) -> u64 {
        let (round, within) = (time / self.period, time % self.period);
        // The end of a round is the begin of the next: its last opportunities have the time 0 of this one.
        let n = self.times.len();
        if within == 0 && round > 0 {
            let last = self.times.partition_point(|&at| at < self.period);
            return (round - 1) * n as u64 + last as u64;
        }
        round * n as u64 + self.times.partition_point(|&at| at < within) as u64
    }

    /// Returns the mean bandwidth in bits per second.
    pub fn bandwidth(&self) -> f64 {
        self.times.len() as f64 * f64::from(OPPORTUNITY) * 8.0 * 1e9 / self.period as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_repeats() {
        let trace = Trace::parse("1\n1\n\n4\n").unwrap();
        let times: Vec<_> = (0..7).map(|number| trace.time(number) / MILLISECOND).collect();
        assert_eq!(times, [1, 1, 4, 5, 5, 8, 9]);
        for time in 0..30 * MILLISECOND / 100_000 {
            let time = time * 100_000;
            let expected = (0..).find(|&number| trace.time(number) >= time).unwrap();
            assert_eq!(trace.first_at(time), expected, "at {time}");
        }
        assert_eq!(trace.bandwidth(), 3.0 * 1504.0 * 8.0 * 250.0);
    }

    #[test]
    fn texts_that_are_no_trace_are_refused_with_the_line() {
        for (text, message) in [
            ("", "the trace has no line"),
            ("0\n0", "the last time, which is the trace's period, is 0"),
            ("1\nx", "line 2: give a time in milliseconds, a whole number below 2^32"),
            ("3\n\n2", "line 3: the time is before that of the previous line"),
            ("-1", "line 1: give a time in milliseconds, a whole number below 2^32"),
        ] {
            assert_eq!(Trace::parse(text).unwrap_err().to_string(), message);
        }
    }
}
