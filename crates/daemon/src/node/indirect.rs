// SPDX-License-Identifier: BSD-2-Clause
//! Packets of switch ports whose data is in the memory of the program (`NS_INDIRECT`), read before the sync: reading
//! may block at a page fault of the program, and a sync holds the ring's lock.

use unetmap_core::ProgramData;
use unetmap_sys::fuse::Requester;
use unetmap_sys::memory_helper::Piece;
use unetmap_sys::thread::RemoteThread;

use super::file::File;
use super::memory::{MemoryHelpers, ProgramMemory};
use crate::tuning::node::MAX_INDIRECT_BYTES;

/// Reads the data that the file's unsent slots refer to from the thread that requests the sync. Slots whose data cannot
/// be read are missing, and their packets are dropped and counted. `None`: reading was cut off.
pub(super) fn read(helpers: &MemoryHelpers, file: &File, from: &Requester) -> Option<ProgramData> {
    // Only of the user who opened the file: a process that holds a duplicate may be another user's, whose memory the
    // program may not send.
    let thread = (from.uid == file.uid).then(|| RemoteThread::of(from.tid).ok()).flatten();
    let (Some(thread), Some(port)) = (thread, file.port()) else { return Some(ProgramData::new()) };
    let mut left = MAX_INDIRECT_BYTES;
    let mut pieces: Vec<Piece> =
        port.indirect_data().into_iter().map(|(at, len)| Piece { at, len: len.into() }).collect();
    pieces.retain(|piece| match left.checked_sub(piece.len as usize) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    });
    let read = ProgramMemory::new(helpers, &thread, file.uid).read_pieces(&pieces);
    if read.is_err() && helpers.is_cut_off() {
        return None;
    }
    let read = pieces.iter().zip(read.unwrap_or_default());
    Some(read.filter_map(|(piece, bytes)| Some((piece.at, bytes.ok()?))).collect())
}
