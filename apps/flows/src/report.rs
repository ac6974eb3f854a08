// SPDX-License-Identifier: BSD-2-Clause
//! Records as lines: JSON and CSV, printed by a thread, as the reader of standard output may be slow.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use serde_json::json;
use tool_common::print;

use crate::cache::Flow;
use crate::export::Record;
use crate::packet::{Key, family};
use crate::tunnel::Kind;

/// Records of a batch that is printed at once, and batches that wait to be printed: 4 MB.
const BATCH: usize = 512;
const BATCHES: usize = 16;

/// The form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Csv,
}

/// The titles of CSV.
const TITLES: &str = "interface,first,last,source,destination,protocol,source_port,destination_port,vlan,inner_vlan,\
    ethertype,tos,tcp_flags,packets,octets,frame_octets,reverse_packets,reverse_octets,reverse_frame_octets,\
    reverse_tcp_flags,end,tunnel,tunnel_id\n";

/// An address of the key's family, as people write it.
pub(crate) fn address(key: &Key, address: u128) -> String {
    match key.family {
        family::V4 => Ipv4Addr::from_bits(address as u32).to_string(),
        family::V6 => Ipv6Addr::from_bits(address).to_string(),
        _ => (address as u64).to_be_bytes()[2..].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"),
    }
}

/// A record that a line is made of, away from the packets' path.
struct Copied {
    flow: Flow,
    end: &'static str,
}

impl Copied {
    fn line(&self, names: &[String], format: Format) -> String {
        let (flow, key) = (&self.flow, self.flow.directed());
        let name = names.get(usize::from(key.source)).map_or("", |name| name);
        let (src, dst) = (address(&key, key.src), address(&key, key.dst));
        let [[sport, dport], [outer, inner]] = [key.transport_ports(), key.vlans];
        if format == Format::Csv {
            // Names of files may have what ends a field.
            let name = name.replace('"', "\"\"");
            let Flow { packets, octets, frames, tcp_flags, tos, first, last, .. } = flow;
            return format!(
                "\"{name}\",{first},{last},{src},{dst},{},{sport},{dport},{outer},{inner},{},{tos},{},{},{},{},{},{},{},{},{},{},{}\n",
                key.proto,
                key.ethertype(),
                tcp_flags[0],
                packets[0],
                octets[0],
                frames[0],
                packets[1],
                octets[1],
                frames[1],
                tcp_flags[1],
                self.end,
                flow.tunnel.name(),
                key.tunnel
            );
        }
        let mut object = json!({
            "event": "flow", "interface": name, "first": flow.first, "last": flow.last,
            "source": src, "destination": dst, "protocol": key.proto, "source_port": sport, "destination_port": dport,
            "vlan": outer, "inner_vlan": inner, "tos": flow.tos, "tcp_flags": flow.tcp_flags[0],
            "packets": flow.packets[0], "octets": flow.octets[0], "frame_octets": flow.frames[0], "end": self.end,
        });
        if key.family == family::OTHER {
            object["ethertype"] = key.ethertype().into();
        }
        if flow.tunnel != Kind::None {
            object["tunnel"] = json!({"kind": flow.tunnel.name(), "id": key.tunnel});
        }
        if flow.packets[1] > 0 {
            object["reverse"] = json!({"packets": flow.packets[1], "octets": flow.octets[1],
                "frame_octets": flow.frames[1], "tcp_flags": flow.tcp_flags[1]});
        }
        format!("{object}\n")
    }
}

/// Prints records.
pub(crate) struct Lines {
    sender: Option<SyncSender<Vec<Copied>>>,
    batch: Vec<Copied>,
    printer: Option<JoinHandle<()>>,
    /// A full queue is waited for: no port waits for the program.
    pub(crate) waits: bool,
    /// Records that were not printed, as the reader is too slow.
    pub(crate) lost: u64,
}

impl Lines {
    /// `names`: of the sources.
    pub(crate) fn new(format: Format, names: Vec<String>) -> Lines {
        let (sender, batches): (_, Receiver<Vec<Copied>>) = sync_channel(BATCHES);
        let printer = std::thread::spawn(move || {
            if format == Format::Csv {
                print(TITLES);
            }
            for batch in batches {
                print(&batch.iter().map(|record| record.line(&names, format)).collect::<String>());
            }
        });
        Lines { sender: Some(sender), batch: Vec::new(), printer: Some(printer), waits: false, lost: 0 }
    }

    pub(crate) fn add(&mut self, Record { flow, end }: Record<'_>) {
        self.batch.push(Copied { flow: *flow, end: end.name() });
        if self.batch.len() >= BATCH {
            self.flush();
        }
    }

    /// Has what was added printed.
    pub(crate) fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let Some(sender) = self.sender.as_ref().filter(|_| !batch.is_empty()) else { return };
        let lost = match self.waits {
            true => sender.send(batch).map_err(|unsent| unsent.0),
            false => sender.try_send(batch).map_err(|unsent| match unsent {
                TrySendError::Full(batch) | TrySendError::Disconnected(batch) => batch,
            }),
        };
        self.lost += lost.map_or_else(|batch| batch.len() as u64, |()| 0);
    }

    /// Waits until all is printed.
    pub(crate) fn finish(&mut self) {
        self.waits = true;
        self.flush();
        self.sender = None;
        // The thread ends after the last batch; it does not panic.
        self.printer.take().map(JoinHandle::join);
    }
}
