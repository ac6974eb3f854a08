// SPDX-License-Identifier: BSD-2-Clause
//! A hostile process's possible steps on a pipe, and what must hold all the same: the model of the tests and of the
//! fuzz target `rings`.
#![cfg_attr(fuzzing, allow(dead_code, reason = "the tests use all of it"))]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, fallocate};
use unetmap_mem::{BufIdx, Span};

use super::test_pipe::{BUF_SIZE, TestPipe, TestRegion};
use crate::port::Ring;
use crate::sync::Effort;

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Writes a word: the file, the word of it, the value.
    Write { file: usize, word: u32, value: u32 },
    /// Copies a word of a file to another place: a plausible value.
    Copy { file: usize, from: u32, to: u32 },
    /// Removes a page, or all pages.
    Punch { file: usize, page: u32, all: bool },
    /// The honest program syncs one of its rings.
    Sync { tx: bool, effort: Effort },
    /// The honest program works on one of its rings through the API.
    Work { tx: bool, count: u32, seed: u64 },
}

pub(super) fn bytes(file: &File) -> u64 {
    file.metadata().unwrap().len()
}

/// Returns the offset of a word. Prefers words that matter: those of states and channels, and the rings of a region.
pub(super) fn place(pipe: &TestPipe, file: usize, word: u32) -> u64 {
    let (start, room) = match file {
        0 => {
            let rings = pipe.tx.inner.view.region().geometry().rings;
            if word.is_multiple_of(8) { (0, bytes(&pipe.files[0])) } else { (rings.offset, rings.bytes()) }
        }
        3 => (0, 512),
        _ => (0, 128),
    };
    start + u64::from(word) * 4 % room
}

pub(super) fn write(pipe: &TestPipe, file: usize, word: u32, value: u32) {
    pipe.files[file].write_all_at(&value.to_ne_bytes(), place(pipe, file, word)).unwrap();
}

pub(super) fn copy(pipe: &TestPipe, file: usize, from: u32, to: u32) {
    let mut value = [0; 4];
    pipe.files[file].read_exact_at(&mut value, place(pipe, file, from)).unwrap();
    pipe.files[file].write_all_at(&value, place(pipe, file, to)).unwrap();
}

/// Removes pages, as MADV_REMOVE on a mapping does.
pub(super) fn punch(file: &File, page: u32, all: bool) {
    let (at, len) = if all { (0, bytes(file)) } else { (u64::from(page) * 4096 % bytes(file), 4096) };
    fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len).unwrap();
}

/// Does everything that an honest program does with a ring.
pub(super) fn work(ring: &Ring, count: u32, seed: u64) {
    let n = ring.num_slots();
    assert!([ring.head(), ring.cur(), ring.tail()].iter().all(|p| p.raw() < n));
    assert!(ring.space() < n);
    let (mut seen, mut data) = (0, [0; 2 * BUF_SIZE as usize]);
    let mut last: Option<crate::SlotRef<'_>> = None;
    for slot in ring.available().take(count as usize) {
        assert!(slot.pos().raw() < n);
        let frame = slot.frame();
        assert!([0, BUF_SIZE as usize].contains(&frame.capacity()));
        assert!(frame.read((seed % 100) as usize, &mut data) <= frame.capacity());
        assert!(frame.write((seed % 90) as usize, &data) <= frame.capacity());
        match seed >> (seen % 60) & 7 {
            0 => drop(slot.replace_buf(BufIdx(2 + seen))),
            1 => last.iter().for_each(|last| slot.swap_from(last)),
            2 => slot.set_len_flags(seed as u16, (seed >> 16) as u16),
            _ => slot.set_ptr(seed),
        }
        if let Some(last) = &last {
            assert!(frame.copy_from(&last.frame(), usize::MAX) <= BUF_SIZE as usize);
        }
        last = Some(slot);
        seen += 1;
    }
    assert!(seen < n);
    ring.advance(seen);
    ring.set_cur(ring.tail());
    ring.pending();
}

/// Returns the region's bytes with those of the pipe's two rings set to 0.
pub(super) fn surroundings(pipe: &TestPipe) -> Vec<u8> {
    let mut all = vec![0; bytes(&pipe.files[0]) as usize];
    pipe.files[0].read_exact_at(&mut all, 0).unwrap();
    let size = pipe.tx.inner.view.region().geometry().rings.size as usize;
    for ring in [&pipe.tx, &pipe.rx] {
        let at = ring.inner.view.shape().offset as usize;
        all[at..at + size].fill(0);
    }
    all
}

/// Makes one sync, while nothing else writes.
pub(super) fn sync(pipe: &TestPipe, tx: bool, effort: Effort) {
    let ring = if tx { &pipe.tx } else { &pipe.rx };
    let slots = ring.inner.view.shape().slots;
    let before = surroundings(pipe);
    let head = ring.inner.view.raw_head();
    let (state, batches) = (ring.inner.state(), |ring: &Ring| ring.inner.state().batches.load(Ordering::Relaxed));
    let (positions, done) = (state.positions(slots), batches(ring));
    let result = if tx { pipe.txsync(effort) } else { pipe.rxsync(effort) };
    assert!(surroundings(pipe) == before, "a sync touches its two rings only");
    if result.is_err() {
        return;
    }
    if !tx && batches(ring) != done {
        // Slots were delivered.
        let (from, to) =
            (positions.expect("validated by the sync").1, state.positions(slots).expect("written by the sync").1);
        assert_eq!(ring.inner.view.raw_tail(), to.raw());
        let limits = ring.inner.view.region().limits();
        let held = slots.pos(head).expect("validated by the sync");
        assert!(slots.between(from, to, slots.prev(held)), "nothing is delivered into slots that the program holds");
        for p in slots.walk(Span { from, to }) {
            let slot = ring.slot(p).get();
            assert!(limits.allow(slot), "{slot:?} was delivered");
        }
    }
}

/// Returns a pipe between two others, whose rings and buffers must not change.
pub(super) fn surrounded(n: u32) -> TestPipe {
    let mut region = TestRegion::new(3, n, 8);
    region.pipe(n, 0);
    let pipe = region.pipe(n, n / 2);
    pipe.bias(1);
    region.pipe(n, 0);
    pipe
}

impl Step {
    /// Executes the step.
    pub(super) fn run(&self, pipe: &TestPipe) {
        match *self {
            Step::Write { file, word, value } => write(pipe, file, word, value),
            Step::Copy { file, from, to } => copy(pipe, file, from, to),
            Step::Punch { file, page, all } => punch(&pipe.files[file], page, all),
            Step::Sync { tx, effort } => sync(pipe, tx, effort),
            Step::Work { tx, count, seed } => work(if tx { &pipe.tx } else { &pipe.rx }, count, seed),
        }
    }
}

/// Executes the steps that any bytes stand for: a byte that chooses the pipe's size, then 7 bytes for each step.
///
/// # Panics
/// One of the checks of a step failed.
#[cfg(fuzzing)]
pub fn run(bytes: &[u8]) {
    let Some((size, bytes)) = bytes.split_first() else { return };
    let pipe = surrounded([2, 3, 5, 8, 17, 64][usize::from(*size) % 6]);
    for step in bytes.chunks_exact(7).take(300) {
        let &[kind, flags, a, b, c, d, e] = step else { return };
        let (file, tx) = (usize::from(flags) % 4, flags & 4 != 0);
        let word = u32::from_le_bytes([a, b, 0, 0]);
        let value = u32::from_le_bytes([c, d, e, if flags & 8 != 0 { e } else { 0 }]);
        // Most values that matter are small.
        let value = if flags & 16 != 0 { value % 70 } else { value };
        let effort = if flags & 8 != 0 { Effort::Full } else { Effort::IfNeeded };
        let seed = u64::from_le_bytes([kind, flags, a, b, c, d, e, kind]);
        let step = match kind % 16 {
            0..=4 => Step::Write { file, word, value },
            5 => Step::Copy { file, from: word, to: value },
            6 => Step::Punch { file, page: word, all: flags & 8 != 0 },
            7..=11 => Step::Sync { tx, effort },
            _ => Step::Work { tx, count: value % 20, seed },
        };
        step.run(&pipe);
    }
}
