// SPDX-License-Identifier: BSD-2-Clause
//! Ports that get copies of packets, by rules `tee`.

use tool_common::forward::{check_headers, move_judged};
use tool_common::{Failure, port};
use unetmap::abi::{NR_ACCEPT_VNET_HDR, NR_TX_RINGS_ONLY};
use unetmap::{Port, Ring};
use unetmap_shape::held::PacketSlots;

/// A port that gets copies.
struct Tee {
    number: u16,
    port: Port,
    /// Whether it has copies that were not sent yet.
    has_unsent: bool,
    /// Whether its receiver had no room, and what it released since was looked at, in this batch.
    is_full: bool,
}

/// All such ports.
pub(crate) struct Tees(Vec<Tee>);

impl Tees {
    /// Opens the ports, for copies of packets of the two `ports`.
    ///
    /// # Errors
    /// As of the library, or a sentence about ports that do not fit.
    pub(crate) fn open(tees: &[(u16, String)], ports: [&Port; 2]) -> Result<Tees, Failure> {
        let open = |(number, spec): &(u16, String)| {
            let port = port::open(spec, port::RingConfig::default(), NR_ACCEPT_VNET_HDR | NR_TX_RINGS_ONLY)?;
            check_headers(ports[0], &port)?;
            let needed = ports[0].buf_size().max(ports[1].buf_size());
            if port.buf_size() < needed {
                return Err(Failure::Work(format!(
                    "--tee {number}={spec}: it has buffers of {} bytes, and packets may have {needed}; open it in the \
                     region of the other ports (@MEM_ID)",
                    port.buf_size()
                )));
            }
            Ok(Tee { number: *number, port, has_unsent: false, is_full: false })
        };
        tees.iter().map(open).collect::<Result<_, _>>().map(Tees)
    }

    /// Copies a packet from its slots in `from` to the port with this number. `head` are its first bytes after
    /// `header`, as they were evaluated. Returns false if the copy is lost.
    pub(crate) fn copy(&mut self, number: u16, from: &Ring, packet: &PacketSlots, header: usize, head: &[u8]) -> bool {
        let Some(tee) = self.0.iter_mut().find(|tee| tee.number == number) else { return false };
        let Some(to) = tee.port.tx_rings().first() else { return false };
        if to.space() < packet.slots && !tee.is_full {
            // A port that has failed takes nothing.
            let _ = tee.port.txsync();
            (tee.is_full, tee.has_unsent) = (to.space() < packet.slots, false);
        }
        if to.space() < packet.slots {
            return false;
        }
        move_judged(from.run(packet.start, packet.slots), &mut to.available(), false, header, Some(head));
        to.advance(packet.slots);
        tee.has_unsent = true;
        true
    }

    /// Sends the copies of a batch.
    pub(crate) fn send(&mut self) {
        for tee in &mut self.0 {
            if std::mem::take(&mut tee.has_unsent) {
                let _ = tee.port.txsync();
            }
            tee.is_full = false;
        }
    }

    /// The ports.
    pub(crate) fn ports(&self) -> Vec<&Port> {
        self.0.iter().map(|tee| &tee.port).collect()
    }
}
