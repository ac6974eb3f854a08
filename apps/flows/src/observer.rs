// SPDX-License-Identifier: BSD-2-Clause
//! Flow records of a program that forwards packets: what passes is counted where it is, without a copy of it.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tool_common::Failure;
use tool_common::forward::Counts;
use unetmap::Ring;
use unetmap_filter::{HEADER_BYTES, NatChange, NatEvent};
use unetmap_quantity::{count, within};

use crate::cache::{SWEEP, Timeouts};
use crate::clock::Clock;
use crate::export::{Destination, Domain, Exporter, Form, Protocol, Second, Security};
use crate::input::read_slots;
use crate::meter::Meter;
use crate::packet::Keys;
use crate::sampler::{Choice, Sampling};

/// Longest time between two looks at what is due, while no packets come.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Calls of [`Observer::tick`] of which one looks at the clock, while packets come.
const TICKS: u32 = 64;
/// Time-outs of records, as the defaults of `unetmap flows`.
const TIMEOUTS: Timeouts = Timeouts { idle: 15_000, active: 60_000, sweep: SWEEP };

/// Options of programs that forward.
#[derive(Clone, Debug, Args)]
pub struct ObserverArgs {
    /// Send records of the flows that pass to this collector, by IPFIX: HOST:PORT (UDP), tcp:HOST:PORT or
    /// tls:HOST:PORT, as `unetmap flows --to` does
    #[arg(long = "flows", value_name = "HOST:PORT", value_parser = Destination::parse)]
    to: Option<Destination>,

    /// --flows: count one packet of N; records say so
    #[arg(long = "flows-sample", value_name = "N", default_value = "1", requires = "to", value_parser = within::<u64, u32>(count, 1..=u64::from(u32::MAX)), allow_hyphen_values = true)]
    sample: u32,

    /// --flows: how the packets are chosen that are counted
    #[arg(long = "flows-sample-by", value_enum, default_value_t = Choice::Random, requires = "to")]
    sample_by: Choice,

    /// --flows: the flow of a packet in a tunnel is that of the inner packet
    #[arg(long = "flows-inner", requires = "to")]
    inner: bool,

    /// --flows: flows that have a place at once; 176 bytes for each
    #[arg(long = "flows-cache", value_name = "N", default_value = "256k", requires = "to", value_parser = within::<u64, usize>(count, 1..=1 << 28), allow_hyphen_values = true)]
    flows: usize,
}

/// Events that a program reports besides the packets that come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// It drops packets, and records say how many, and why.
    pub drops: bool,
    /// It translates addresses, and sends a record of each connection when it begins and when it ends.
    pub nat: bool,
}

impl ObserverArgs {
    /// Makes an observer, if there is to be one. `ports`: those that packets come from; their observation domains are
    /// numbered from `first` on. `header`: bytes of virtio-net header before each packet.
    ///
    /// # Errors
    /// A sentence: the collector has no address.
    pub fn start(
        &self,
        ports: &[&str],
        first: u32,
        header: usize,
        Reported { drops, nat }: Reported,
    ) -> Result<Option<Observer>, Failure> {
        let Some(to) = &self.to else { return Ok(None) };
        let sampling = Sampling { n: self.sample, by: self.sample_by };
        let mut meter =
            Meter::new(self.flows, TIMEOUTS, sampling, Keys { both: false, inner: self.inner }, ports.len());
        let domains: Vec<_> =
            (first..).zip(ports).map(|(number, name)| Domain { number, name: (*name).to_owned() }).collect();
        let form = Form { second: if drops { Second::Dropped } else { Second::None }, inner: self.inner, nat };
        let exporter = Exporter::new((to, &Security::default()), Protocol::Ipfix, &domains, sampling, form);
        meter.outputs.exporter = Some(exporter.map_err(|why| format!("--flows {why}"))?);
        Ok(Some(Observer { meter, clock: Clock::new(), header, ticks: 0, nat: nat.then_some([0; 3]) }))
    }
}

/// Where packets come from, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Index of their port.
    pub port: u16,
    /// Why they are dropped, as IPFIX's `forwardingStatus`; 0: they are not.
    pub dropped: u8,
}

/// Counts the packets that a program forwards, by flow.
pub struct Observer {
    meter: Meter,
    clock: Clock,
    header: usize,
    /// Calls of [`Observer::tick`] until it looks at the clock.
    ticks: u32,
    /// Connections of NAT that have begun, and that have ended, and reports of some that were not made. `None`: these
    /// are not reported.
    nat: Option<[u64; 3]>,
}

impl Observer {
    /// Counts the packets in the first slots of a ring. `counts`: of these slots. Only chosen packets are read.
    #[inline]
    pub fn observe(&mut self, ring: &Ring, slots: u32, counts: Counts, from: Origin) {
        let headers = counts.packets * self.header as u64;
        self.meter.see(from.port, counts.packets, counts.bytes.saturating_sub(headers));
        if let Some(skipped) = self.meter.sampler.skip(counts.packets) {
            self.read(ring, slots, (counts.packets, skipped), from);
        }
    }

    /// Counts the chosen packets, the first of which follows `skipped` others.
    #[inline(never)]
    fn read(&mut self, ring: &Ring, slots: u32, (packets, skipped): (u64, u64), Origin { port, dropped }: Origin) {
        self.advance();
        let (meter, header, mut at, mut next) = (&mut self.meter, self.header, 0, Some(skipped));
        if u64::from(slots) != packets || meter.sampler.sampling.reads_many() {
            read_slots(ring, slots, (port, header, dropped), meter, |meter| {
                let is_chosen = next == Some(at);
                at += 1;
                if is_chosen {
                    next = meter.sampler.skip(packets - at).map(|skipped| at + skipped);
                }
                is_chosen
            });
            return;
        }
        while let Some(skipped) = next {
            at += skipped;
            // Each packet has a slot, and positions in a ring are below 2^32.
            if let Some(slot) = ring.run(ring.add(ring.head(), at as u32), 1).next() {
                let mut head = [0; HEADER_BYTES];
                let len = usize::from(slot.len()).saturating_sub(header);
                let have = slot.frame().read(header, &mut head[..len.min(HEADER_BYTES)]);
                meter.count(&head[..have], len, port, dropped);
            }
            at += 1;
            next = meter.sampler.skip(packets - at);
        }
    }

    /// Takes note of a packet of `len` bytes, without its virtio-net header; returns whether it is to be
    /// [counted](Observer::count).
    #[inline]
    pub fn chooses(&mut self, len: usize, port: u16) -> bool {
        self.meter.see(port, 1, len as u64);
        self.meter.sampler.takes()
    }

    /// Counts a chosen packet that begins with `bytes`.
    pub fn count(&mut self, bytes: &[u8], len: usize, from: Origin) {
        self.meter.count(bytes, len, from.port, from.dropped);
    }

    /// Sends events of NAT. `millis`: the time by the clock that they have.
    pub fn nat(&mut self, events: &mut Vec<NatEvent>, millis: u64) {
        let (Some(exporter), Some(counts)) = (&mut self.meter.outputs.exporter, &mut self.nat) else { return };
        if events.is_empty() {
            return;
        }
        let now = self.clock.now();
        for event in events.drain(..) {
            exporter.add_nat(&event, now - millis.saturating_sub(event.millis).min(now), now);
            let count = match event.change {
                NatChange::Begins => 0,
                NatChange::Ends => 1,
                NatChange::NoPort | NatChange::Full(_) => 2,
            };
            counts[count] += 1;
        }
    }

    /// Sends what is due, now and then; returns whether this was such a time. Call it in each round, also while no
    /// packets come.
    #[inline]
    pub fn tick(&mut self) -> bool {
        let is_time = self.ticks == 0;
        if is_time {
            self.advance();
        } else {
            self.ticks -= 1;
        }
        is_time
    }

    /// Returns how many records the collector did not get.
    pub fn unsent(&self) -> u64 {
        self.meter.outputs.exporter.as_ref().map_or(0, |exporter| exporter.sent().unsent)
    }

    fn advance(&mut self) {
        self.ticks = TICKS;
        self.meter.advance(self.clock.now());
    }

    /// Returns for how long a program may sleep before the next [`Observer::tick`], which looks at the clock then.
    pub fn sleeps(&mut self) -> Duration {
        self.ticks = 0;
        LOOK_EVERY
    }

    /// Gives the collector time from now on: no port waits for the program.
    pub fn pace(&mut self) {
        self.meter.wait_for_readers();
    }

    /// Ends all records, sends them, and returns the summary, as JSON and for people.
    pub fn finish(mut self) -> (Value, String) {
        self.meter.advance(self.clock.now());
        self.meter.finish();
        let (mut summary, mut text) = (self.meter.summary(), format!("flows: {}", self.meter.summary_text()));
        if let Some([begun, ended, refused]) = self.nat {
            summary["nat"] = json!({"begun": begun, "ended": ended, "refused": refused});
            text += &format!("; {begun} connections of NAT begun, {ended} ended, {refused} reports of some refused");
        }
        (summary, text)
    }
}
