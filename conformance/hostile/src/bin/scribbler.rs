// SPDX-License-Identifier: BSD-2-Clause
//! A client that writes random words to all memory that a client can write: `scribbler NAME SEED [REGION]` opens the
//! port NAME without the library, in the region of that number if one is given, and writes until it is killed to its
//! rings, slots, interface and buffers, its endpoint state page, its channel page, and the four rings of each AF_XDP
//! socket that it got. Sometimes it notifies the kernel, which then reads the rings.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use conformance::packet::Rng;
use conformance_hostile::raw::{RawPort, field};
use rustix::process::{Signal, set_parent_process_death_signal};
use unetmap::abi::NmreqRegister;
use unetmap_core::control::binding::BackendKind;
use unetmap_sys::xsk::{self, RingMap};

/// Words between two lines of output.
const REPORT: u64 = 500;

fn main() -> ExitCode {
    // The program is killed when the test exits.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(socket), [name, seed, region @ ..]) = (std::env::var_os("UNETMAP_SOCKET"), &args[..]) else {
        eprintln!("usage: UNETMAP_SOCKET=PATH scribbler NAME SEED [REGION]");
        return ExitCode::FAILURE;
    };
    let nr_mem_id = region.first().and_then(|number| number.parse().ok()).unwrap_or(0);
    let raw_port = RawPort::open_as(&PathBuf::from(socket), name, NmreqRegister { nr_mem_id, ..Default::default() });
    let mut maps = Vec::new();
    for (i, ring) in raw_port.bound.rings.iter().enumerate() {
        if ring.backend != BackendKind::Nic as u32 {
            continue;
        }
        // The second of the two descriptors of a ring is the queue's socket.
        let socket = &raw_port.doorbells[2 * i + 1];
        let mapped = match ring.dir {
            0 => xsk::map_send_rings(socket, ring.slots),
            _ => xsk::map_receive_rings(socket, ring.slots),
        };
        let (one, two) = mapped.expect("a socket with the rings that the daemon described");
        maps.extend([one, two]);
    }
    scribble(&raw_port, &maps, &mut Rng(seed.parse().unwrap_or(1) | 1))
}

fn scribble(raw_port: &RawPort, maps: &[RingMap], rng: &mut Rng) -> ! {
    let rings = raw_port.bound.rings.len() as u64;
    let bytes = |file: &std::fs::File| file.metadata().expect("a file").len();
    let (region, states, channels) =
        (bytes(&raw_port.region), bytes(&raw_port.endpoint_states), bytes(&raw_port.channels));
    let mut words = 0;
    loop {
        let ring = rng.below(rings) as usize;
        let slots = raw_port.bound.rings[ring].slots;
        let value = [0, 1, slots - 1, slots, rng.below(2048) as u32, rng.next_u64() as u32, u32::MAX];
        let value = value[rng.below(7) as usize];
        match rng.below(16) {
            0 => raw_port.write_field(ring, [field::HEAD, field::CUR, field::TAIL][rng.below(3) as usize], value),
            1 => raw_port.write_field(ring, 4 * rng.below(64) as usize, value),
            2..=4 => {
                let (slot, len, flags) = (rng.below(slots.into()) as u32, rng.next_u64() as u16, rng.next_u64() as u16);
                raw_port.write_slot(ring, slot, value, len, flags);
            }
            5 => write(&raw_port.endpoint_states, 4 * rng.below(states / 4), value),
            6 => write(&raw_port.channels, 4 * rng.below(channels / 4), value),
            7 => raw_port.write(4 * rng.below(region / 4), &value.to_ne_bytes()),
            // Interfaces, with the heads of the extra-buffer lists, are at the start of a region.
            8 => raw_port.write(4 * rng.below(100 * 4608 / 4), &value.to_ne_bytes()),
            9..=13 if !maps.is_empty() => poke(&maps[rng.below(maps.len() as u64) as usize], rng, value),
            14 if !maps.is_empty() => kick(raw_port, rng),
            _ => {}
        }
        words += 1;
        if words % REPORT == 0 {
            println!("{words}");
        }
    }
}

fn write(file: &std::fs::File, at: u64, value: u32) {
    use std::os::unix::fs::FileExt as _;
    file.write_all_at(&value.to_ne_bytes(), at).expect("inside the file");
}

/// Writes a word of a ring of a socket: mostly producer, consumer or flags.
fn poke(ring: &RingMap, rng: &mut Rng, value: u32) {
    let entries = ring.entries_at as u64 / 4..ring.map.len() as u64 / 4;
    let at = match rng.below(6) {
        0 => ring.producer,
        1 => ring.consumer,
        2 => ring.flags,
        _ => 4 * (entries.start + rng.below(entries.end - entries.start)) as usize,
    };
    // SAFETY: `at` is a multiple of 4 and lies in the mapping, which `ring` keeps; an atomic may be shared with the
    // kernel.
    let word = unsafe { &*ring.map.as_ptr().cast::<u8>().add(at).cast::<AtomicU32>() };
    // A value near the current one tests other checks than one out of range.
    let near = word.load(Ordering::Relaxed).wrapping_add(value % 4096).wrapping_sub(2048);
    word.store(if rng.below(2) == 0 { near } else { value }, Ordering::Relaxed);
}

/// Notifies the kernel, which reads the rings.
fn kick(raw_port: &RawPort, rng: &mut Rng) {
    let socket = raw_port.doorbells[2 * rng.below(raw_port.bound.rings.len() as u64) as usize + 1].as_fd();
    let _ = if rng.below(2) == 0 { xsk::kick_tx(socket) } else { xsk::kick_rx(socket) };
}
