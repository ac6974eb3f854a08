//! A client that writes anything anywhere: `scribbler NAME SEED [REGION]` opens the port NAME as requests carry it, in a
//! region of that number if it is given, without the library, and writes random words over all that a client can write
//! until it is killed: its rings, slots, interface and buffers, its end page, its third page, and the four rings of each
//! AF_XDP socket that it got. Now and then it has the kernel look at what it wrote.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use conformance::packet::Dice;
use conformance::raw::{Intruder, field};
use rustix::process::{Signal, set_parent_process_death_signal};
use unetmap::abi::NmreqRegister;
use unetmap::bound::Path;
use unetmap_sys::xsk::{self, RingMap};

/// Words between two lines of output.
const REPORT: u64 = 500;

fn main() -> ExitCode {
    // Nobody is left when the test dies.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (Some(socket), [name, seed, region @ ..]) = (std::env::var_os("UNETMAP_SOCKET"), &args[..]) else {
        eprintln!("usage: UNETMAP_SOCKET=PATH scribbler NAME SEED [REGION]");
        return ExitCode::FAILURE;
    };
    let nr_mem_id = region.first().and_then(|number| number.parse().ok()).unwrap_or(0);
    let who = Intruder::open_as(&PathBuf::from(socket), name, NmreqRegister { nr_mem_id, ..Default::default() });
    let mut maps = Vec::new();
    for (i, ring) in who.bound.rings.iter().enumerate() {
        if ring.path != Path::Nic as u32 {
            continue;
        }
        // Of the two descriptors of a ring the second is the queue's socket.
        let socket = &who.bells[2 * i + 1];
        let mapped = match ring.dir {
            0 => xsk::map_send_rings(socket, ring.slots),
            _ => xsk::map_receive_rings(socket, ring.slots),
        };
        let (one, two) = mapped.expect("a socket as the daemon says");
        maps.extend([one, two]);
    }
    scribble(&who, &maps, &mut Dice(seed.parse().unwrap_or(1) | 1))
}

fn scribble(who: &Intruder, maps: &[RingMap], dice: &mut Dice) -> ! {
    let rings = who.bound.rings.len() as u64;
    let bytes = |file: &std::fs::File| file.metadata().expect("a file").len();
    let (region, states, third) = (bytes(&who.region), bytes(&who.states), bytes(&who.lines));
    let mut words = 0;
    loop {
        let ring = dice.below(rings) as usize;
        let slots = who.bound.rings[ring].slots;
        let value = [0, 1, slots - 1, slots, dice.below(2048) as u32, dice.roll() as u32, u32::MAX];
        let value = value[dice.below(7) as usize];
        match dice.below(16) {
            0 => who.write_field(ring, [field::HEAD, field::CUR, field::TAIL][dice.below(3) as usize], value),
            1 => who.write_field(ring, 4 * dice.below(64) as usize, value),
            2..=4 => {
                let (slot, len, flags) = (dice.below(slots.into()) as u32, dice.roll() as u16, dice.roll() as u16);
                who.write_slot(ring, slot, value, len, flags);
            }
            5 => write(&who.states, 4 * dice.below(states / 4), value),
            6 => write(&who.lines, 4 * dice.below(third / 4), value),
            7 => who.write(4 * dice.below(region / 4), &value.to_ne_bytes()),
            // Interfaces, with the lists of extra buffers, come first in a region.
            8 => who.write(4 * dice.below(100 * 4608 / 4), &value.to_ne_bytes()),
            9..=13 if !maps.is_empty() => poke(&maps[dice.below(maps.len() as u64) as usize], dice, value),
            14 if !maps.is_empty() => kick(who, dice),
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

/// Writes a word of a ring of a socket: mostly one of the three that count.
fn poke(ring: &RingMap, dice: &mut Dice, value: u32) {
    let entries = ring.entries_at as u64 / 4..ring.map.len() as u64 / 4;
    let at = match dice.below(6) {
        0 => ring.producer,
        1 => ring.consumer,
        2 => ring.flags,
        _ => 4 * (entries.start + dice.below(entries.end - entries.start)) as usize,
    };
    // SAFETY: `at` is a multiple of 4 and lies in the mapping, which `ring` keeps; an atomic may be shared with the kernel.
    let word = unsafe { &*ring.map.as_ptr().cast::<u8>().add(at).cast::<AtomicU32>() };
    // A little more or less than what stands there does other harm than what cannot be.
    let near = word.load(Ordering::Relaxed).wrapping_add(value % 4096).wrapping_sub(2048);
    word.store(if dice.below(2) == 0 { near } else { value }, Ordering::Relaxed);
}

/// Has the kernel look at the rings.
fn kick(who: &Intruder, dice: &mut Dice) {
    let socket = who.bells[2 * dice.below(who.bound.rings.len() as u64) as usize + 1].as_fd();
    let _ = if dice.below(2) == 0 { xsk::kick_tx(socket) } else { xsk::kick_rx(socket) };
}
