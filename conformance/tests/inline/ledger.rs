// SPDX-License-Identifier: BSD-2-Clause
//! Frames as the hosts' interfaces count them, and as unetmap counts those that were dropped.

use std::collections::BTreeMap;

use conformance::program;
use lab::Ns;
use serde::Serialize;
use serde_json::Value;

use crate::place::{Place, run};

/// Counters since the place was made.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Ledger {
    /// Frames that the hosts have sent and received.
    sent: u64,
    received: u64,
    /// Frames that are counted as lost, by counter.
    lost: BTreeMap<String, u64>,
    /// Frames that the kernel has forwarded in place of the program.
    bypassed: u64,
}

/// Frames of a fault.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Frames {
    /// Frames that one host sent and the other did not receive.
    pub lost: u64,
    /// Lost frames as they are counted, by counter.
    pub counted: BTreeMap<String, u64>,
    /// Frames that the kernel forwarded in place of the program.
    pub bypassed: u64,
}

impl Frames {
    /// Number of those that are counted as lost.
    pub(crate) fn sum(&self) -> u64 {
        self.counted.values().sum()
    }
}

impl Ledger {
    /// Reads all counters of a place between two hosts, between which nothing is on its way.
    pub(crate) fn of(place: &Place) -> Result<Ledger, String> {
        let mut ledger = Ledger::default();
        for (ns, interface) in [(&place.client, "c0"), (&place.server, "s0")] {
            let counters = ns.counters(interface)?;
            (ledger.sent, ledger.received) = (ledger.sent + counters.tx_packets, ledger.received + counters.rx_packets);
        }
        for interface in ["m0", "m1"] {
            let failure = &nic(place, &place.middle, interface)?["failure"];
            for key in ["dropped", "to_stack", "left_in_rings", "no_room"] {
                ledger.add(&format!("{interface} {key}"), failure[key].as_u64().unwrap_or(0));
            }
            ledger.bypassed += failure["bypassed"].as_u64().unwrap_or(0);
            // Those of a port end with it.
            ledger.add(&format!("{interface} not sent"), place.middle.counters(interface)?.tx_dropped);
        }
        for port in place.home.try_snapshot().ok_or("no daemon answers")?.ports {
            let received = port.rings.iter().filter(|ring| ring.dir == "rx");
            ledger.add(&format!("{} rings", port.name), received.map(|ring| ring.dropped).sum());
        }
        Ok(ledger)
    }

    fn add(&mut self, counter: &str, frames: u64) {
        *self.lost.entry(counter.to_owned()).or_default() += frames;
    }

    /// Differences to those of later.
    pub(crate) fn until(&self, later: &Ledger) -> Frames {
        let since = |(counter, now): (&String, &u64)| {
            let before = self.lost.get(counter).copied().unwrap_or(0);
            // Counters of a port end with it.
            let frames = now.checked_sub(before).unwrap_or(*now);
            (frames > 0).then(|| (counter.clone(), frames))
        };
        Frames {
            lost: (later.sent - self.sent).saturating_sub(later.received - self.received),
            counted: later.lost.iter().filter_map(since).collect(),
            bypassed: later.bypassed.saturating_sub(self.bypassed),
        }
    }
}

/// The object that `unetmap nic` prints about an interface.
fn nic(place: &Place, ns: &Ns, interface: &str) -> Result<Value, String> {
    let mut command = ns.command(program("unetmap"));
    let text = run(command.args(["nic", interface, "--json"]).env("UNETMAP_SOCKET", place.home.socket()))?;
    serde_json::from_str(&text).map_err(|e| e.to_string())
}
