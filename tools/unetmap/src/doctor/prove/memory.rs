// SPDX-License-Identifier: BSD-2-Clause
//! The memory of a queue's packets, with guards: pages that neither the kernel nor a device was ever given.
//!
//! ```text
//! page 0   1        2          3        4          5        ...   last pages
//! guard    guard    buffer 1   guard    buffer 3   guard    ...   guards
//! ```
//! A chunk of the socket is one page, so a device that writes beyond a buffer's chunk, or into another buffer than it
//! was given, nearly always writes into a guard. The memory is a file that outlives the process that opens the sockets:
//! it is read and written by system calls.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use unetmap_sys::xsk::{HEADROOM, Umem, ZERO_COPY_BUFFER};
use unetmap_sys::{Mapping, memfd};

use super::frames::fill;

/// Entries of the socket's rings. More buffers than drivers usually take at once.
pub(super) const TX: u32 = 64;
pub(super) const RX: u32 = 512;
const PAGE: usize = ZERO_COPY_BUFFER as usize;
/// Buffers of the socket, every second one of which is a guard.
const BUFFERS: u32 = 2 * (TX + RX) + 1;
/// A guard, the buffers, the rest of the last one, and a guard.
const PAGES: usize = BUFFERS as usize + 3;

/// The buffer of a transmit slot, and that of a receive slot.
pub(super) fn tx_buffer(slot: u32) -> u32 {
    2 * slot + 1
}

pub(super) fn rx_buffer(slot: u32) -> u32 {
    2 * (TX + slot) + 1
}

/// A queue's memory.
#[derive(Debug)]
pub(super) struct Memory {
    file: File,
    /// Distinguishes the patterns of one memory from those of others.
    seed: u64,
    /// All pages as they are while nobody writes them.
    image: Vec<u8>,
}

fn image(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGES * PAGE];
    fill(&mut bytes, seed);
    bytes
}

/// Whether a page was never given away.
fn is_guard(page: usize) -> bool {
    page % 2 == 1 || page == 0 || page > BUFFERS as usize
}

impl Memory {
    /// Creates it, with all guards.
    pub(super) fn create(seed: u64) -> io::Result<Memory> {
        let file = File::from(memfd::create_sealed("unetmap-prove", (PAGES * PAGE) as u64)?);
        let memory = Memory { file, seed, image: image(seed) };
        memory.file.write_all_at(&memory.image, 0)?;
        Ok(memory)
    }

    /// The file of another process's, by its path.
    pub(super) fn open(path: &Path, seed: u64) -> io::Result<Memory> {
        // Path: below /proc, of this program's own child.
        Ok(Memory { file: File::options().read(true).write(true).open(path)?, seed, image: image(seed) })
    }

    /// Where other processes of this user find its file.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }

    /// The seed of its patterns.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// Its buffers, for a socket.
    pub(super) fn umem(&self) -> io::Result<Umem> {
        let map = Arc::new(Mapping::new(self.file.as_fd(), PAGES * PAGE)?);
        let offset = PAGE + HEADROOM as usize;
        Ok(Umem { map, offset, bytes: BUFFERS as usize * PAGE, buffer: ZERO_COPY_BUFFER })
    }

    /// Number of buffers.
    pub(super) fn buffers() -> u32 {
        BUFFERS
    }

    /// Number of guards.
    pub(super) fn guards() -> usize {
        (0..PAGES).filter(|page| is_guard(*page)).count()
    }

    /// Reads all guards: the first difference, in words.
    pub(super) fn check_guards(&self) -> io::Result<Option<String>> {
        let mut all = vec![0; PAGES * PAGE];
        self.file.read_exact_at(&mut all, 0)?;
        let page_in = |bytes: &[u8], page: usize| bytes[page * PAGE..][..PAGE].to_vec();
        let differs = |page: &usize| all[page * PAGE..][..PAGE] != self.image[page * PAGE..][..PAGE];
        let Some(page) = (0..PAGES).filter(|page| is_guard(*page)).find(differs) else { return Ok(None) };
        let (has, should) = (page_in(&all, page), page_in(&self.image, page));
        let bytes: Vec<usize> = (0..PAGE).filter(|at| has[*at] != should[*at]).collect();
        let (first, last) = (bytes[0], bytes[bytes.len() - 1]);
        Ok(Some(format!(
            "a guard was written: page {page}, {} bytes from byte {first} to {last}, the first of them {:02x?}; page {} before \
             it is a buffer of the queue's",
            bytes.len(),
            &has[first..=last.min(first + 15)],
            page - 1,
        )))
    }

    /// The page of a buffer, as a place in the file. A packet begins [`HEADROOM`] bytes into it.
    fn page_of(buffer: u32) -> usize {
        (buffer as usize + 1) * PAGE
    }

    /// A buffer's pattern.
    fn pattern(&self, buffer: u32) -> &[u8] {
        &self.image[Memory::page_of(buffer)..][..PAGE]
    }

    /// Gives a buffer its pattern, so that a packet that nobody wrote there is none.
    pub(super) fn clear(&self, buffer: u32) -> io::Result<()> {
        self.file.write_all_at(self.pattern(buffer), Memory::page_of(buffer) as u64)
    }

    /// Writes a packet into a buffer, with its pattern around the packet.
    pub(super) fn write(&self, buffer: u32, packet: &[u8]) -> io::Result<()> {
        self.file.write_all_at(&self.with_packet(buffer, packet), Memory::page_of(buffer) as u64)
    }

    /// Whether the buffer is as [`Memory::write`] left it; with no packet, as [`Memory::clear`] did.
    pub(super) fn still_has(&self, buffer: u32, packet: &[u8]) -> io::Result<bool> {
        let mut page = vec![0; PAGE];
        self.file.read_exact_at(&mut page, Memory::page_of(buffer) as u64)?;
        Ok(page == self.with_packet(buffer, packet))
    }

    fn with_packet(&self, buffer: u32, packet: &[u8]) -> Vec<u8> {
        let mut page = self.pattern(buffer).to_vec();
        page[HEADROOM as usize..][..packet.len()].copy_from_slice(packet);
        page
    }

    /// Reads a received packet.
    pub(super) fn read(&self, buffer: u32, bytes: usize) -> io::Result<Vec<u8>> {
        let mut packet = vec![0; bytes.min(PAGE - HEADROOM as usize)];
        self.file.read_exact_at(&mut packet, Memory::page_of(buffer) as u64 + u64::from(HEADROOM))?;
        Ok(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(buffer: u32) -> u64 {
        Memory::page_of(buffer) as u64
    }

    #[test]
    fn each_byte_of_a_guard_is_watched_and_no_byte_of_a_buffer() {
        let memory = Memory::create(5).unwrap();
        assert_eq!(memory.check_guards().unwrap(), None);
        let end = rx_buffer(RX - 1);
        assert_eq!(end, BUFFERS - 2);
        for buffer in [tx_buffer(0), tx_buffer(TX - 1), rx_buffer(0), end] {
            memory.file.write_all_at(&[0; PAGE], page(buffer)).unwrap();
            assert_eq!(memory.check_guards().unwrap(), None, "buffer {buffer}");
            // The first byte behind the buffer, and the last before it.
            for at in [page(buffer) + PAGE as u64, page(buffer) - 1] {
                let mut byte = [0];
                memory.file.read_exact_at(&mut byte, at).unwrap();
                memory.file.write_all_at(&[!byte[0]], at).unwrap();
                let why = memory.check_guards().unwrap().unwrap();
                assert!(why.contains("1 bytes from byte"), "{why}");
                memory.file.write_all_at(&byte, at).unwrap();
            }
        }
        assert_eq!(Memory::guards(), (BUFFERS as usize).div_ceil(2) + 3);
    }

    #[test]
    fn a_sent_buffer_is_compared_as_a_whole() {
        let memory = Memory::create(9).unwrap();
        memory.write(1, b"packet").unwrap();
        assert!(memory.still_has(1, b"packet").unwrap());
        assert_eq!(memory.read(1, 6).unwrap(), b"packet");
        for at in [0, 255, 256, 4095] {
            let mut byte = [0];
            memory.file.read_exact_at(&mut byte, page(1) + at).unwrap();
            memory.file.write_all_at(&[!byte[0]], page(1) + at).unwrap();
            assert!(!memory.still_has(1, b"packet").unwrap(), "byte {at}");
            memory.write(1, b"packet").unwrap();
        }
    }

    #[test]
    fn the_memory_is_one_for_a_socket() {
        let memory = Memory::create(1).unwrap();
        assert_eq!(memory.umem().unwrap().receive_bytes(0), 3840);
        let other = Memory::open(&memory.path(), 1).unwrap();
        other.clear(1).unwrap();
        assert_eq!(other.check_guards().unwrap(), None);
    }
}
