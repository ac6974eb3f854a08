// SPDX-License-Identifier: BSD-2-Clause
//! Slow requests: those that need the main thread, or a program's memory. None begins while the daemon is being
//! replaced (`paused`).

use std::sync::Arc;
use std::thread;

use unetmap_core::errno::{EAGAIN, EIO};
use unetmap_core::{Interest, Port, ProgramData, defer_program_data, with_program_data};
use unetmap_sys::fuse::Requester;
use unetmap_sys::memory_helper::Piece;
use unetmap_sys::thread::RemoteThread;

use super::file::{File, Poll, SlowOp, SlowRequest, interest};
use super::ioctl;
use super::memory::{MemoryHelpers, ProgramMemory};
use super::serve::{Running, has_indirect_data, sync};
use super::shared::Shared;
use crate::threads;
use crate::tuning::node::{MAX_INDIRECT_BYTES, MAX_TRIES_WITH_DATA, RING_BUSY_RETRY};

/// Runs a request that was kept, in a thread of its own. Refuses it if there is none.
pub(super) fn run_kept(shared: &Arc<Shared>, request: SlowRequest) {
    let (running, id) = (Running::new(shared), request.id.clone());
    let run = move || {
        defer_program_data();
        request.run(&running.0);
    };
    if let Err(e) = threads::start("node request", run) {
        tracing::warn!("no thread for a request: {e}");
        shared.finish(&id, || drop(id.mount.dev.reply_error(id.unique, EAGAIN)));
    }
}

impl SlowRequest {
    /// Answers it, or keeps it for later.
    pub(super) fn run(self, shared: &Shared) {
        let mut again = Some(self);
        while let Some(request) = again {
            again = request.run_once(shared);
        }
    }

    /// The same; returns it if it is to be run again.
    fn run_once(self, shared: &Shared) -> Option<SlowRequest> {
        let id = self.id.clone();
        match &self.op {
            SlowOp::Open => {
                let begun = self.begin(shared)?;
                shared.finish(&id, || shared.open_slow(&id, begun.from.uid));
            }
            SlowOp::Indirect(..) => {
                let begun = shared.hold_back(self)?;
                let SlowOp::Indirect(file, _) = &begun.op else { return None };
                let Some(data) = read_program_data(&shared.helpers, file, &begun.from) else { return Some(begun) };
                let SlowOp::Indirect(file, poll) = begun.op else { return None };
                shared.finish(&id, || {
                    let result = with_program_data(data, || sync_with_data(&file, poll));
                    // The program may send again as soon as it has the answer: syncs from then on have no data.
                    match poll {
                        Some(poll) => drop(shared.poll(id.clone(), poll, &file, begun.from.tid, false)),
                        None => {
                            let _ = file.mount.dev.reply_ioctl(id.unique, result, &[]);
                            shared.answer_held_polls(&file);
                        }
                    }
                });
            }
            SlowOp::Control(file, ..) => {
                let file = file.clone();
                let mut turn = file.begin(self);
                while let Some(request) = turn {
                    let mut again = Some(request);
                    while let Some(begun) = again.and_then(|request| request.begin(shared)) {
                        again = shared.is_pending(&begun.id).then(|| ioctl::answer(shared, begun)).flatten();
                    }
                    turn = file.next();
                }
            }
        }
        None
    }

    /// Returns the request when it begins; `None`: it is kept for later.
    fn begin(mut self, shared: &Shared) -> Option<SlowRequest> {
        loop {
            self = shared.hold_back(self)?;
            if shared.catch_up(&self.id.mount) {
                return Some(self);
            }
        }
    }
}

/// Does the sync of a poll, or else of `NIOCTXSYNC`, whose result it returns, with the data of the program's packets.
/// Not once only: a sync of another thread, which leaves such packets, may be under way, and then this one skips the
/// ring.
fn sync_with_data(file: &File, poll: Option<Poll>) -> i32 {
    let want = poll.map(|poll| interest(poll.events));
    let attempt = || match want {
        Some(want) => file.poll_now(want).map_or(-EIO, |_| 0),
        None => -sync(file, Port::txsync),
    };
    let (mut result, mut tries) = (attempt(), 1);
    while result == 0 && want.is_none_or(Interest::tx) && has_indirect_data(file) && tries < MAX_TRIES_WITH_DATA {
        thread::sleep(RING_BUSY_RETRY);
        (result, tries) = (attempt(), tries + 1);
    }
    result
}

/// Reads the data that the file's unsent slots refer to (`NS_INDIRECT`) from the thread that requests the sync: before
/// it, as reading may block at a page fault of the program, and a sync holds the ring's lock. Slots whose data cannot
/// be read are missing, and their packets are dropped and counted. `None`: reading was cut off.
fn read_program_data(helpers: &MemoryHelpers, file: &File, from: &Requester) -> Option<ProgramData> {
    // Only of the user who opened the file: a process that holds a duplicate may be another user's, whose memory the
    // program may not send.
    let thread = (from.uid == file.uid).then(|| RemoteThread::of(from.tid).ok()).flatten();
    let (Some(thread), Some(port)) = (thread, file.port()) else { return Some(ProgramData::new()) };
    let mut left = MAX_INDIRECT_BYTES;
    let mut pieces: Vec<Piece> =
        port.indirect_data().into_iter().map(|(at, len)| Piece { at, len: len.into() }).collect();
    pieces.retain(|piece| left.checked_sub(piece.len as usize).inspect(|rest| left = *rest).is_some());
    let read = ProgramMemory::new(helpers, &thread, file.uid).read_pieces(&pieces);
    if read.is_err() && helpers.is_cut_off() {
        return None;
    }
    let read = pieces.iter().zip(read.unwrap_or_default());
    Some(read.filter_map(|(piece, bytes)| Some((piece.at, bytes.ok()?))).collect())
}
