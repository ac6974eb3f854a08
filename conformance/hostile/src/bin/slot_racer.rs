// SPDX-License-Identifier: BSD-2-Clause
//! A client of a switch that changes slots and packets while the switch reads them (time of check to time of use):
//! `slot_racer NAME SEED REGION OFFSETS` opens the port NAME without the library, in the region of that number (0: its
//! own), with offsets up to OFFSETS bytes (0: none), and sends as much as it can until it is killed. Unlike `scribbler`
//! it mostly writes valid values.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use conformance::packet::Rng;
use conformance_hostile::raw::ControlConnection;
use rustix::process::{Signal, set_parent_process_death_signal};
use unetmap::abi::*;
use unetmap_core::control::binding::{Binding, BoundPool, BoundRing};
use unetmap_core::control::request::NetmapRequest;
use unetmap_sys::Mapping;
use zerocopy::IntoBytes as _;

const RING: u64 = size_of::<NetmapRing>() as u64;
const SLOT: u64 = size_of::<NetmapSlot>() as u64;
/// Bytes of a channel's words, and the offsets of `prod`, `cons` and the two wake-up requests in them.
const CHANNEL: u64 = 512;
const WORDS: [u64; 4] = [0, 128, 256, 384];
/// Offsets of the words with the processors of producer and consumer.
const PROCESSORS: [u64; 2] = [24, 132];
/// Number of buffers that most slots refer to.
const BUFFERS: u64 = 256;
/// Bytes at the start of a packet that are rewritten.
const BEGIN: usize = 128;

/// Memory shared with the daemon.
struct Shared(Mapping);

impl Shared {
    /// `T` must be an atomic type.
    fn at<T>(&self, at: u64) -> &T {
        let at = at as usize;
        assert!(at.is_multiple_of(align_of::<T>()) && at + size_of::<T>() <= self.0.len());
        // SAFETY: the address is aligned and inside the mapping, which outlives the reference; atomics may be shared
        // with any process.
        unsafe { &*self.0.as_ptr().cast::<u8>().add(at).cast::<T>() }
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        self.at(at)
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        bytes.iter().zip(at..).for_each(|(byte, at)| self.at::<AtomicU8>(at).store(*byte, Relaxed));
    }
}

struct Racer {
    region: Shared,
    channels: Shared,
    rings: Vec<BoundRing>,
    buffers: BoundPool,
    /// Keeps the port open.
    _raw: ControlConnection,
}

fn main() -> ExitCode {
    // The program is killed when the test exits.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = args.iter().skip(1).filter_map(|text| text.parse().ok()).collect();
    let (Some(socket), Some(name), [seed, region, offsets]) =
        (std::env::var_os("UNETMAP_SOCKET"), args.first(), &numbers[..])
    else {
        eprintln!("usage: UNETMAP_SOCKET=PATH slot_racer NAME SEED REGION OFFSETS");
        return ExitCode::FAILURE;
    };
    let racer = open(&PathBuf::from(socket), name, *region as u16, *offsets);
    let rng = |n: u64| Rng(seed.wrapping_mul(2 * n + 1) | 1);
    std::thread::scope(|scope| {
        scope.spawn(|| forever(rng(1), |rng| racer.positions(rng)));
        scope.spawn(|| forever(rng(2), |rng| racer.slot(rng)));
        forever(rng(3), |rng| racer.packet(rng))
    })
}

fn forever(mut rng: Rng, mut what: impl FnMut(&mut Rng)) -> ! {
    loop {
        what(&mut rng);
    }
}

fn open(socket: &std::path::Path, name: &str, nr_mem_id: u16, offsets: u64) -> Racer {
    let raw = ControlConnection::connect(socket).expect("a daemon that listens");
    let register = NmreqRegister {
        nr_mode: NR_REG_ALL_NIC,
        nr_flags: NR_ACCEPT_VNET_HDR,
        nr_mem_id,
        nr_tx_rings: 2,
        nr_rx_rings: 2,
        ..Default::default()
    };
    let mut request = NetmapRequest::new(NETMAP_REQ_REGISTER, name, register.as_bytes()).expect("a short name");
    if offsets > 0 {
        let option = NmreqOptOffsets {
            nro_opt: NmreqOption { nro_reqtype: NETMAP_REQ_OPT_OFFSETS, ..Default::default() },
            nro_max_offset: offsets,
            nro_initial_offset: offsets / 2,
            nro_offset_bits: 16,
            ..Default::default()
        };
        request.options.push(option.as_bytes().to_vec());
    }
    let (errno, answer, fds) = raw.request(&request);
    assert_eq!(errno, 0, "{name}: {answer:?}");
    let bound = Binding::decode(&answer.expect("an answer").binding).expect("a well-formed answer");
    let mut maps = fds.iter().take(3).map(|fd| {
        let bytes = rustix::fs::fstat(fd).expect("a file").st_size as usize;
        Shared(Mapping::new(fd.as_fd(), bytes).expect("memory"))
    });
    let (Some(region), Some(_), Some(channels)) = (maps.next(), maps.next(), maps.next()) else {
        panic!("three files")
    };
    Racer { region, channels, rings: bound.rings, buffers: bound.head.pools[2], _raw: raw }
}

impl Racer {
    /// Publishes all slots of one ring; rarely writes an impossible position.
    fn positions(&self, rng: &mut Rng) {
        let ring = &self.rings[rng.below(self.rings.len() as u64) as usize];
        let channel = |at: u64| self.channels.word(u64::from(ring.channel) * CHANNEL + at);
        let (mine, theirs) = if ring.dir == 0 { (WORDS[0], WORDS[1]) } else { (WORDS[1], WORDS[0]) };
        let there = channel(theirs).load(Relaxed);
        let full = if ring.dir == 0 { ring.slots - 1 } else { 0 };
        let value = match rng.below(40) {
            0 => rng.next_u64() as u32,
            1 => rng.below(ring.slots.into()) as u32,
            _ => (there.wrapping_add(full)) % ring.slots,
        };
        channel(mine).store(value, Relaxed);
        let word = |rng: &mut Rng| [0, 1, 2, 3, u32::MAX, rng.next_u64() as u32][rng.below(6) as usize];
        match rng.below(200) {
            at @ 0..2 => channel(WORDS[2 + at as usize]).store(word(rng), Relaxed),
            at @ 2..4 => channel(PROCESSORS[at as usize - 2]).store(word(rng), Relaxed),
            4..8 => std::thread::yield_now(),
            _ => {}
        }
    }

    /// Changes a slot, mostly to a valid packet or fragment.
    fn slot(&self, rng: &mut Rng) {
        let ring = &self.rings[rng.below(self.rings.len() as u64) as usize];
        let at = ring.offset + RING + SLOT * rng.below(ring.slots.into());
        let idx = match rng.below(200) {
            0 => rng.next_u64() as u32,
            1 => [0, 1, self.buffers.count, u32::MAX][rng.below(4) as usize],
            _ => self.buffer(rng),
        };
        let len = match rng.below(60) {
            0 => rng.next_u64() as u16,
            1 => [0, 12, 13, 14, 25, 26, self.buffers.size as u16, self.buffers.size as u16 + 1][rng.below(8) as usize],
            2..40 => 26 + rng.below(120) as u16,
            _ => 64 + rng.below(1500) as u16,
        };
        let flags = match rng.below(6) {
            0 => rng.next_u64() as u16,
            1 => NS_MOREFRAG,
            2 => (rng.below(6) as u16) << 8,
            _ => 0,
        };
        let head = u64::from(idx) | u64::from(len) << 32 | u64::from(flags) << 48;
        let ptr = [0, 64, 512, 513, 65535, rng.next_u64()][rng.below(6) as usize];
        match rng.below(3) {
            0 => self.region.word(at).store(idx, Relaxed),
            1 => self.region.at::<AtomicU64>(at).store(head, Relaxed),
            _ => self.region.at::<AtomicU64>(at + 8).store(ptr, Relaxed),
        }
    }

    /// Writes the start of a packet into a buffer, with or without a virtio-net header of random contents.
    fn packet(&self, rng: &mut Rng) {
        let pick = |rng: &mut Rng, of: &[u8]| of[rng.below(of.len() as u64) as usize];
        let mut bytes = vec![0; [0, 10, 12][rng.below(3) as usize]];
        if let [flags, gso, words @ ..] = &mut bytes[..] {
            (*flags, *gso) = (pick(rng, &[0, 1, 1, 1, 255]), pick(rng, &[0, 1, 3, 4, 5, 0x81, 77]));
            for word in words[..8].chunks_mut(2) {
                let value = [0, 1, 8, 14, 20, 34, 54, 100, 1460, 0xffff, rng.next_u64() as u16][rng.below(11) as usize];
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        let last = pick(rng, &[1, 2, 3, 4]);
        bytes.extend([[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [2, 0, 0, 0, 0x70, last]][rng.below(3) as usize]);
        bytes.extend([2, 0, 0, 0, 0x70, pick(rng, &[1, 2, 3, 4])]);
        (0..rng.below(3)).for_each(|_| bytes.extend([0x81, 0, rng.next_u64() as u8, rng.next_u64() as u8]));
        let (lens, protocol) = ([rng.next_u64() as u8, rng.next_u64() as u8], pick(rng, &[6, 17, 1]));
        match rng.below(2) {
            0 => bytes.extend([8, 0, pick(rng, &[0x45, 0x4f, 0x40]), 0, lens[0], lens[1], 0, 0, 0, 0, 64, protocol]),
            _ => bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, lens[0], lens[1], protocol, 64]),
        }
        bytes.resize_with(BEGIN, || [0x50, 0xf0, rng.next_u64() as u8, 0][rng.below(4) as usize]);
        let (buffer, behind) = (u64::from(self.buffer(rng)), [0, 0, 64, 512][rng.below(4) as usize]);
        self.region.write(self.buffers.offset + buffer * u64::from(self.buffers.size) + behind, &bytes);
    }

    /// One of few buffers, so that each changes often.
    fn buffer(&self, rng: &mut Rng) -> u32 {
        2 + rng.below(u64::from(self.buffers.count - 2).min(BUFFERS)) as u32
    }
}
