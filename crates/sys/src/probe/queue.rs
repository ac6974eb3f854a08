// SPDX-License-Identifier: BSD-2-Clause
//! Opens a queue of an interface as a port does, and closes it at once.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crate::map::PAGE;
use crate::tuning::{CARRIER_LIMIT, CARRIER_POLL, TRIAL_RELEASE_LIMIT};
use crate::xdp::{Mode, Xdp};
use crate::xsk::{BindMode, Queue, Umem, UnboundXsk, ZERO_COPY_BUFFER, pool_offset_in_page};
use crate::{Mapping, link, memfd};

/// Packet buffers of the trial: 16; more than none. Not measured.
const BUFFERS: usize = 16;
/// Entries of each ring; a power of two.
const ENTRIES: u32 = 64;

/// The kernel's answers; `None`: not tried.
#[derive(Debug)]
pub struct QueueTrial {
    /// The queue.
    pub queue: u32,
    /// Attaching the XDP program in the driver.
    pub native: io::Result<()>,
    /// Attaching it before the network stack, if the driver refused it.
    pub generic: Option<io::Result<()>>,
    /// Binding a socket with zero copy, if that was to be tried, and the driver supports it and has the program.
    pub zero_copy: Option<io::Result<()>>,
    /// Binding a socket with the kernel's copy.
    pub copy: Option<io::Result<()>>,
    /// Receive queues while the program was attached, if the driver changed their number.
    pub queues_with_program: Option<u32>,
}

/// Attaches the XDP program, which passes all frames to the kernel, to interface `ifindex` of the calling thread's
/// network namespace, and binds a socket to its last receive queue: with zero copy if `zero_copy`, then with copy. Then
/// undoes all of it, and waits until the interface has a carrier again, if it had one.
///
/// # Errors
/// The interface cannot be looked up, or no memory can be allocated.
pub fn try_queue(ifindex: u32, zero_copy: bool) -> io::Result<QueueTrial> {
    let before = link::by_index(ifindex)?.ok_or(io::ErrorKind::NotFound)?;
    let queues = link::channels(&before.name)?.rx;
    // Buffers that are fit for zero copy are so for copies, too.
    let (bytes, offset) = (BUFFERS * ZERO_COPY_BUFFER as usize, pool_offset_in_page(ZERO_COPY_BUFFER) as usize);
    let length = (offset + bytes).next_multiple_of(PAGE);
    let memory = memfd::create_sealed("unetmap-trial", length as u64)?;
    let map = Arc::new(Mapping::new(memory.as_fd(), length)?);
    let mut trial = QueueTrial {
        queue: queues - 1,
        native: Ok(()),
        generic: None,
        zero_copy: None,
        copy: None,
        queues_with_program: None,
    };
    let features = link::xdp_features(ifindex)?;
    let native = match features {
        // Such drivers run programs, but cannot redirect frames to sockets.
        Some(known) if known.basic && !known.redirect => Err(io::ErrorKind::Unsupported.into()),
        _ => Xdp::attach(ifindex, queues, Mode::Native),
    };
    let attached = match native {
        Ok(xdp) => Some(xdp),
        Err(e) => {
            trial.native = Err(e);
            let generic = Xdp::attach(ifindex, queues, Mode::Generic);
            trial.generic = Some(generic.as_ref().map(drop).map_err(copied));
            generic.ok()
        }
    };
    if attached.is_some() {
        let now = link::channels(&before.name)?.rx;
        trial.queues_with_program = (now != queues).then_some(now);
        let bind = |mode| {
            let umem = Umem { map: map.clone(), offset, bytes, buffer: ZERO_COPY_BUFFER };
            let (tx_entries, rx_entries) = (ENTRIES, ENTRIES);
            let queue = Queue { ifindex, queue: trial.queue, tx_entries, rx_entries, mode, frags: false, headroom: 0 };
            UnboundXsk::new(queue, umem, None)?.bind().map(drop)
        };
        let offered = zero_copy && trial.native.is_ok() && features.is_some_and(|known| known.zerocopy);
        trial.zero_copy = offered.then(|| bind(BindMode::ZeroCopy));
        trial.copy = Some(bind_after(&trial.zero_copy, || bind(BindMode::Copy)));
    }
    drop(attached);
    if before.carrier {
        wait_for_carrier(ifindex)?;
    }
    Ok(trial)
}

/// Binds again. The kernel releases the queue of a socket with zero copy after it was closed, and on a slow machine
/// takes longer than [`UnboundXsk::bind`] waits for others.
fn bind_after(before: &Option<io::Result<()>>, bind: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match bind() {
            Err(e)
                if e.kind() == io::ErrorKind::ResourceBusy
                    && matches!(before, Some(Ok(())))
                    && start.elapsed() < TRIAL_RELEASE_LIMIT => {}
            bound => return bound,
        }
    }
}

/// The same `errno` once more.
fn copied(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
}

/// Some drivers negotiate the link again when a program is attached or detached.
fn wait_for_carrier(ifindex: u32) -> io::Result<()> {
    let start = Instant::now();
    while start.elapsed() < CARRIER_LIMIT && !link::by_index(ifindex)?.is_none_or(|link| link.carrier) {
        thread::sleep(CARRIER_POLL);
    }
    Ok(())
}
