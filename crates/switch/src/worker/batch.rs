//! One batch, and the ways in which its packets move: in [`runs`], [`spread`] over many stations, or [`one_by_one`]; by
//! the owner's rules where these have a say ([`ruled`]).

use unetmap_mem::Span;

use crate::forward::{Cut, Lists, Lost, Memory, Packet, SHORT_RUN, Target, decide};
use crate::worker::backpressure::Patience;
use crate::port::{Attached, Outgoing, Sent, Served};
use super::{Spread, View, policed, fanout};

/// Slots ahead of which the headers of packets that are decided one by one are fetched.
pub(crate) const AHEAD: u32 = 8;

/// Moves a batch of a ring's, which has a port and a number; returns how many slots that were.
pub(crate) fn serve(
    (lists, spread): (&mut Lists, &mut Spread),
    view: &View,
    (port, number, ring): (&Attached, usize, &Outgoing),
    patience: &Patience,
) -> u32 {
    let Some(mut state) = ring.lock() else { return 0 };
    let Some(batch) = ring.take(&state, view.rules.turn()) else { return 0 };
    patience.takes(batch.len);
    let sent = &mut *state;
    let served = Served { port, ring, number, batch, patience };
    if view.rules.concerns(port.index) {
        let done = policed::serve(lists, view, &served, sent);
        ring.release(sent, done, patience);
        return done;
    }
    // What precedes the addresses, wherever, or who watches, is not for runs.
    let plain = port.header() == 0 && batch.offsets.mask == 0 && !ring.watchers.any();
    let mut done = if plain { runs(view, &served, sent) } else { 0 };
    if plain && done < batch.len && !batch.bad && sent.cutter.at_start() {
        done += fanout::serve(spread, view, &served.from(done), sent);
    }
    if done < batch.len {
        done += one_by_one(lists, view, &served.from(done), sent);
    }
    ring.release(sent, done, patience);
    done
}

/// Moves the packets of a batch that follow each other from one station to another. Returns how many slots that were; the
/// next packet is one of its own.
fn runs(view: &View, served: &Served<'_>, sent: &mut Sent) -> u32 {
    let len = served.batch.len;
    let (mut done, mut fresh) = (0, false);
    while done < len && sent.cutter.at_start() {
        if let Some((addresses, to)) = sent.memory.run(&view.table) {
            let to = match to {
                Target::Port(to) => view.member(to),
                _ => view.only_other(served.port.index),
            };
            let Some(to) = to.filter(|to| to.header() == 0 && to.begins_at_start(served.number)) else { break };
            let packets = to.deliver_run(served, (addresses, done));
            done += packets;
            if fresh && packets < SHORT_RUN {
                break;
            }
        } else if fresh {
            break;
        }
        // What ended the run may begin another.
        fresh = true;
        if done < len {
            target(view, served, &mut sent.memory, Packet { at: done as u16, frags: 1 });
        }
    }
    done
}

/// Moves the packets of a batch, wherever each goes. Returns how many slots that were: what is left is the beginning of a
/// packet.
fn one_by_one(lists: &mut Lists, view: &View, served: &Served<'_>, sent: &mut Sent) -> u32 {
    let Served { port, ring, batch, .. } = served;
    lists.clear();
    let done = sent.cutter.cut(
        batch.len,
        batch.all,
        |i| batch.slots.flags(batch.at(i)),
        |cut| match cut {
            Cut::Packet(packet) => {
                port.region.fetch(batch.slots.buf_idx(batch.at((u32::from(packet.at) + AHEAD).min(batch.len))));
                match target(view, served, &mut sent.memory, packet) {
                    Target::Port(to) => lists.add(packet, Some(to)),
                    Target::All => lists.add(packet, None),
                    Target::Nowhere(why) => ring.lose(why),
                }
            }
            Cut::Long { first } => {
                if first {
                    ring.lose(Lost::Long);
                }
            }
        },
    );
    show(served, done);
    deliver(lists, view, served);
    done
}

/// Shows the monitors of the ring the first `n` slots of a batch.
#[inline]
pub(crate) fn show(Served { port, ring, batch, .. }: &Served<'_>, n: u32) {
    if ring.watchers.any() {
        let span = Span { from: batch.start, to: batch.at(n) };
        ring.watchers.show(&port.region, (batch.slots, batch.offsets), span);
    }
}

/// Where a packet goes.
#[inline(always)]
pub(crate) fn target(
    view: &View,
    Served { port, batch, .. }: &Served<'_>,
    memory: &mut Memory,
    packet: Packet,
) -> Target {
    let first = batch.slots.load(batch.at(u32::from(packet.at)));
    if batch.bad {
        let mut all = (0..packet.frags).map(|i| batch.slots.buf_idx(batch.at(u32::from(packet.at + i))));
        if all.any(|idx| !port.region.limits().index_ok(idx)) {
            return Target::Nowhere(Lost::Bad);
        }
    }
    let (len, header) = match port.header() {
        0 => (first.len, batch.frame(&port.region, first).header()),
        bytes => port.behind_header(batch, packet, bytes),
    };
    #[cfg(debug_assertions)]
    fault::inject(header);
    match decide(&view.table, memory, port.index, (len, first.flags), (header, 0)) {
        Target::Port(to) if view.member(to).is_none() => Target::Nowhere(Lost::Nobody),
        target => target,
    }
}

/// Delivers what is listed to where it goes. What goes to several is copied, and with it the rest of its batch.
fn deliver(lists: &Lists, view: &View, served: &Served<'_>) {
    if !lists.any_to_all() {
        for &to in lists.ports() {
            if let Some(to) = view.member(to) {
                to.deliver(served, (lists.of(to.index), true));
            }
        }
        return;
    }
    let mut others = 0;
    for to in view.members.iter().flatten().filter(|to| to.index != served.port.index) {
        to.deliver(served, (lists.of(to.index), view.pair.is_some()));
        others += 1;
    }
    if others == 0 {
        lists.to_all().for_each(|_| served.ring.lose(Lost::Nobody));
    }
}

/// In debug builds: a fault that tests can ask for.
#[cfg(debug_assertions)]
mod fault {
    use std::sync::LazyLock;

    /// Frames to this station make the thread panic.
    const TO: [u8; 6] = [2, 0xfa, 0x17, 0xfa, 0x17, 0xfa];

    /// The daemon was started with `UNETMAP_FAULT=switch`.
    static ASKED: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("UNETMAP_FAULT").is_some_and(|what| what == "switch"));

    pub(crate) fn inject(header: [u8; 16]) {
        if *ASKED && header[..6] == TO {
            // A panic of which no hook is told: tests look for others in the daemon's log.
            std::panic::resume_unwind(Box::new("a fault that a test asked for"));
        }
    }
}
