//! Batches of which the owner's rules say something.
//!
//! What a rule says must be true of the very bytes that arrive. So each packet is first copied to where nobody else can
//! write, judged there, and sent on from there. Where a switch has VLANs a held frame has no tag; who is to get one gets it
//! on the way out.

use std::cell::RefCell;

use crate::forward::{Cut, HEADER, Lists, Lost, Memory, Packet, Target, decide};
use crate::port::staged::{Held, Scratch, TAG, TAG_TYPE, strip};
use crate::port::{Sent, Served};
use crate::policy::{Book, Direction, Gate, Vlan};
use super::View;
use super::batch::show;

/// Bytes that a thread keeps for the next batch.
const KEPT: usize = 4 << 20;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Moves the packets of a batch, as far as the rules let them. Returns how many slots that were.
#[cold]
pub(crate) fn serve(lists: &mut Lists, view: &View, served: &Served<'_>, sent: &mut Sent) -> u32 {
    let Served { port, ring, batch, .. } = served;
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        lists.clear();
        let mut gate = view.rules.of(port.index).map(|ruled| ruled.gate(Direction::In));
        let done = sent.cutter.cut(
            batch.len,
            batch.all,
            |i| batch.slots.flags(batch.at(i)),
            |cut| {
                let packet = match cut {
                    Cut::Packet(packet) => packet,
                    Cut::Long { first: true } => return ring.lose(Lost::Long),
                    Cut::Long { first: false } => return,
                };
                let held = Packet { at: scratch.packets.len() as u16, frags: 1 };
                match judge(view, served, scratch, &mut gate, (&mut sent.memory, packet)) {
                    Ok(Target::Port(to)) => lists.add(held, Some(to)),
                    Ok(Target::All) => lists.add(held, None),
                    Ok(Target::Nowhere(why)) | Err(why) => ring.lose(why),
                }
            },
        );
        drop(gate);
        show(served, done);
        deliver(lists, view, served, scratch);
        scratch.shrink(KEPT);
        done
    })
}

/// Copies a packet, and decides where it goes; the copy stays only if it goes anywhere.
fn judge(
    view: &View,
    Served { port, batch, .. }: &Served<'_>,
    scratch: &mut Scratch,
    gate: &mut Option<Gate<'_>>,
    (memory, packet): (&mut Memory, Packet),
) -> Result<Target, Lost> {
    // Once: who set it may change it meanwhile.
    let header_bytes = port.header();
    let header = usize::from(header_bytes);
    let flags = batch.slots.flags(batch.at(u32::from(packet.at)));
    let from = scratch.bytes.len();
    let judged = port.hold(&mut scratch.bytes, batch, packet, header).and_then(|()| {
        let frame = scratch.bytes.get(from + header..).filter(|frame| frame.len() >= usize::from(HEADER));
        let frame = frame.ok_or(Lost::Short)?;
        if let Some(gate) = gate {
            gate.admits(frame)?;
        }
        let tag = tag_of(&view.rules, port.index, frame)?;
        if let Some(Tag { remove: true, .. }) = tag {
            strip(&mut scratch.bytes, from, header);
        }
        let frame = &scratch.bytes[from + header..];
        let mut start = [0; 16];
        let known = frame.len().min(start.len());
        start[..known].copy_from_slice(&frame[..known]);
        let vlan = tag.map_or(0, |tag| tag.vlan());
        let len = frame.len().min(usize::from(u16::MAX)) as u16;
        let target = match decide(&view.table, memory, port.index, (len, flags), (start, vlan)) {
            Target::Port(to) if view.member(to).is_none() => return Err(Lost::Nobody),
            Target::Port(to) if !view.rules.carries(to, vlan) => return Err(Lost::Vlan),
            Target::Nowhere(why) => return Err(why),
            target => target,
        };
        if let Some(gate) = gate {
            if target == Target::All {
                gate.calm()?;
            }
            gate.within(frame.len())?;
        }
        let range = from..scratch.bytes.len();
        scratch.packets.push(Held {
            range,
            header: header_bytes,
            tag: tag.map_or(0, |tag| tag.control),
            reached: false,
        });
        Ok(target)
    });
    judged.inspect_err(|_| scratch.bytes.truncate(from))
}

/// What a frame's tag says, or its port for it.
#[derive(Clone, Copy)]
struct Tag {
    /// Priority and number.
    control: u16,
    /// It stands in the frame.
    remove: bool,
}

impl Tag {
    fn vlan(self) -> u16 {
        self.control & 0xfff
    }
}

/// The VLAN of a frame that `port` sent; `None`: it is in none.
fn tag_of(rules: &Book, port: u8, frame: &[u8]) -> Result<Option<Tag>, Lost> {
    if !rules.has_vlans() {
        return Ok(None);
    }
    // Behind a tag comes at least another type.
    let tagged = frame.len() >= usize::from(HEADER) + TAG && frame[12..14] == TAG_TYPE;
    let found = tagged.then(|| Tag { control: u16::from_be_bytes([frame[14], frame[15]]), remove: true });
    match (rules.vlan_of(port), found) {
        (Some(Vlan::Access(vlan)), None) => Ok(Some(Tag { control: *vlan, remove: false })),
        // Only a priority.
        (Some(Vlan::Access(vlan)), Some(tag)) if tag.vlan() == 0 => {
            Ok(Some(Tag { control: tag.control | vlan, remove: true }))
        }
        (Some(Vlan::Trunk(all)), Some(tag)) if all.has(tag.vlan()) => Ok(Some(tag)),
        (Some(_), _) => Err(Lost::Vlan),
        (None, tag) => Ok(tag.filter(|tag| tag.vlan() != 0)),
    }
}

/// Writes what is listed into the receivers' rings.
fn deliver(lists: &Lists, view: &View, served: &Served<'_>, scratch: &mut Scratch) {
    for to in view.members.iter().flatten().filter(|to| to.index != served.port.index) {
        if lists.any_to_all() || lists.ports().contains(&to.index) {
            let listed = lists.of(to.index).map(|packet| usize::from(packet.at));
            to.deliver_held(&view.rules, served, scratch, listed);
        }
    }
    for packet in lists.to_all() {
        if !scratch.packets[usize::from(packet.at)].reached {
            served.ring.lose(Lost::Nobody);
        }
    }
}
