// SPDX-License-Identifier: BSD-2-Clause
//! The plan of a search, as it is written, checked.

use unetmap_quantity::{bytes, share};

use super::{Offer, SECOND};
use crate::file::parse_spec;
use crate::schedule::FRAMING;
use crate::stream::Stream;
use crate::units;

/// Bytes of the FCS, which the RFCs count.
const FCS: usize = 4;
/// Bytes of the shortest packets that have a signature: with IPv4 and with IPv6.
const SHORTEST: [usize; 2] = [60, 80];

/// A document that defines tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rfc {
    /// RFC 2544, with IPv4 unless addresses say otherwise.
    Rfc2544,
    /// RFC 8219, with IPv6.
    Rfc8219,
}

impl Rfc {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Rfc::Rfc2544 => "RFC 2544",
            Rfc::Rfc8219 => "RFC 8219",
        }
    }

    /// Returns its sizes of frames on Ethernet, with FCS.
    fn sizes(self) -> &'static [usize] {
        match self {
            Rfc::Rfc2544 => &[64, 128, 256, 512, 1024, 1280, 1518],
            Rfc::Rfc8219 => &[84, 128, 256, 512, 768, 1024, 1280, 1518],
        }
    }
}

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// The highest rate without loss.
    Throughput,
    /// Latencies at that rate.
    Latency,
    /// Loss by rate.
    Loss,
    /// The longest burst without loss.
    BackToBack,
}

impl Test {
    /// All tests, in their order.
    pub const ALL: [Test; 4] = [Test::Throughput, Test::Latency, Test::Loss, Test::BackToBack];

    /// Returns its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Test::Throughput => "throughput",
            Test::Latency => "latency",
            Test::Loss => "loss",
            Test::BackToBack => "back-to-back",
        }
    }
}

/// The plan of a search.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The document.
    pub rfc: Rfc,
    /// The tests, in the order of [`Test::ALL`].
    pub tests: Vec<Test>,
    /// Sizes of packets, without FCS.
    pub sizes: Vec<usize>,
    /// Bits per second of the link: no higher rate is tried.
    pub link: u64,
    /// Duration of a trial, in nanoseconds.
    pub trial: u64,
    /// After a trial, packets that are on their way are awaited for this long, in nanoseconds.
    pub settle: u64,
    /// Repetitions in place of the document's.
    pub repeat: Option<u32>,
    /// Attempts at a trial that is disturbed, the first included.
    pub attempts: u32,
    /// The part of the packets that may be lost in the search for the throughput.
    pub tolerance: f64,
    /// A search ends at this part of the rate.
    pub resolution: f64,
    /// The packets, as words of a stream.
    packet: Vec<String>,
}

impl Plan {
    /// Parses `KEY=VALUE[,KEY=VALUE...]`; an empty text is the document's plan.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(rfc: Rfc, text: &str, link: u64) -> Result<Plan, String> {
        let mut plan = Plan {
            rfc,
            tests: Test::ALL.to_vec(),
            sizes: Vec::new(),
            link,
            trial: 60 * SECOND,
            settle: 2 * SECOND,
            repeat: None,
            attempts: 5,
            tolerance: 0.0,
            resolution: 1e-3,
            packet: Vec::new(),
        };
        let mut sizes = rfc.sizes().to_vec();
        for word in text.split(',').filter(|_| !text.is_empty()) {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is not KEY=VALUE"))?;
            let number =
                |what: &str| value.parse::<u32>().map_err(|_| format!("{key}: `{value}` is not a number of {what}"));
            match key {
                "tests" => plan.tests = tests(value)?,
                "sizes" => {
                    let all = value.split('+').map(|size| usize::try_from(bytes(size).ok()?).ok());
                    let all: Option<Vec<usize>> = all.collect();
                    sizes = all.ok_or_else(|| format!("sizes: `{value}` is not a list of bytes, as in 64+1518"))?;
                }
                "trial" => plan.trial = units::time(value).map_err(|e| format!("trial: {e}"))?,
                "settle" => plan.settle = units::time(value).map_err(|e| format!("settle: {e}"))?,
                "repeat" => plan.repeat = Some(number("repetitions")?),
                "attempts" => plan.attempts = number("attempts")?,
                "tolerance" => plan.tolerance = percentage(key, value)?,
                "resolution" => plan.resolution = percentage(key, value)?,
                "rate" | "count" | "size" | "start" | "stop" | "burst" | "name" => {
                    return Err(format!("{key}: the search itself determines it"));
                }
                _ => plan.packet.push(word.into()),
            }
        }
        let has_address = plan.packet.iter().any(|word| word.starts_with("src=") || word.starts_with("dst="));
        if rfc == Rfc::Rfc8219 && !has_address {
            plan.packet.extend(["src=fd00::1", "dst=fd00::2"].map(String::from));
        }
        if !plan.packet.iter().any(|word| word.starts_with("dmac=")) {
            // Not to all: a switch would copy each packet to all its ports.
            plan.packet.push("dmac=02:00:00:00:00:02".into());
        }
        plan.check(sizes)
    }

    fn check(mut self, sizes: Vec<usize>) -> Result<Plan, String> {
        if self.trial == 0 || self.repeat == Some(0) || self.attempts == 0 {
            return Err("a trial takes longer than 0, and there is at least one (trial, repeat, attempts)".into());
        }
        if !(1e-6..=0.5).contains(&self.resolution) {
            return Err("resolution: give 0.0001% to 50%".into());
        }
        let v6 = self.packet.iter().any(|word| word.contains("::") || word.matches(':').count() == 7);
        let shortest = SHORTEST[usize::from(v6)];
        for size in sizes {
            let bytes = size.checked_sub(FCS).filter(|bytes| *bytes >= shortest).ok_or_else(|| {
                let least = shortest + FCS;
                format!("sizes: frames of {size} bytes are too short: headers, signature and FCS need {least}")
            })?;
            self.sizes.push(bytes);
        }
        // The packets are the same in all trials: what is wrong with them is said before the first.
        let largest = self.sizes.iter().max().copied().unwrap_or(shortest);
        self.stream(&Offer { size: largest, pps: 1.0, packets: 1 })?;
        Ok(self)
    }

    /// Returns the packets per second that the link can carry.
    pub fn link_pps(&self, size: usize) -> f64 {
        self.link as f64 / (8 * (size as u64 + FRAMING)) as f64
    }

    pub(crate) fn repeats(&self, test: Test) -> u32 {
        // RFC 2544, 26.2 and 26.4.
        self.repeat.unwrap_or(if test == Test::Latency { 20 } else { 50 })
    }

    /// Returns the offer that fills a trial at a rate.
    pub(crate) fn offer(&self, size: usize, pps: f64) -> Offer {
        Offer { size, pps, packets: (pps * self.trial as f64 / SECOND as f64).ceil().max(1.0) as u64 }
    }

    /// Returns the stream of an offer.
    ///
    /// # Errors
    /// A sentence about the words that describe the packets.
    pub fn stream(&self, offer: &Offer) -> Result<Stream, String> {
        let Offer { size, pps, packets } = offer;
        let mut words = vec![format!("rate={:.6}pps,size={size},count={packets}", pps.max(0.001))];
        words.extend(self.packet.iter().cloned());
        parse_spec(&words.join(","), 1, self.link)
    }
}

fn tests(value: &str) -> Result<Vec<Test>, String> {
    let names = || Test::ALL.map(Test::name).join("+");
    let find = |name: &str| Test::ALL.into_iter().find(|test| test.name() == name);
    let wanted: Option<Vec<Test>> = value.split('+').map(find).collect();
    let wanted = wanted.ok_or_else(|| format!("tests: `{value}` is not a list of {}", names()))?;
    Ok(Test::ALL.into_iter().filter(|test| wanted.contains(test)).collect())
}

fn percentage(key: &str, value: &str) -> Result<f64, String> {
    // A number alone may mean percent or a part of 1.
    let parsed = if value.ends_with('%') { share(value).ok() } else { None };
    parsed.ok_or_else(|| format!("{key}: `{value}` is not a percentage, as in 0.1%"))
}
