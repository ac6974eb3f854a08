// SPDX-License-Identifier: BSD-2-Clause
//! Control blocks (CSB): ring positions in two arrays of the program's own, and a loop that syncs the rings by them.
//!
//! ```text
//! atok[i]  written by the program    head cur appl_need_kick
//! ktoa[i]  written by the loop       hwcur hwtail kern_need_kick        i: transmit rings first
//! ```
//! While the loop runs nothing else syncs the port. It runs in the thread that started it, until another thread stops
//! it. Between two rounds it sleeps for a time; or, with an eventfd for each ring, until the program writes one
//! (`kern_need_kick` states whether it has to), or a ring's peer wakes it. With a second eventfd it notifies the
//! program of changes, if `appl_need_kick` requests that.
//!
//! The arrays may be any memory of the program, also memory that is unmapped later: the kernel reads and writes them on
//! behalf of the loop.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use unetmap_abi::{KloopEventfds, NR_EXCLUSIVE, NmCsbAtok, NmCsbKtoa};
use unetmap_mem::SyncState;
use unetmap_sys::event::{self, Epoll};
use unetmap_sys::{eventfd, process};
use zerocopy::{FromZeros, IntoBytes};

use crate::error::{Error, errno};
use crate::port::ring::Ring;
use crate::port::{Interest, Port};
use crate::sync::SyncError;
use crate::tuning::{LOOP_END_POLL, LOOP_LIFE_CHECK, MAX_BUSY_ROUNDS, MAX_POINTER_READS, SLEEP_LIMIT};

pub use crate::port::csb_cell::ControlBlocks;

/// Bytes of an entry of either array.
const ENTRY: usize = size_of::<NmCsbAtok>();
const _: () = assert!(size_of::<NmCsbKtoa>() == ENTRY);
/// Offsets of fields in an entry.
const APPL_NEED_KICK: usize = std::mem::offset_of!(NmCsbAtok, appl_need_kick);
const HWCUR: usize = std::mem::offset_of!(NmCsbKtoa, hwcur);
const HWTAIL: usize = std::mem::offset_of!(NmCsbKtoa, hwtail);
const KERN_NEED_KICK: usize = std::mem::offset_of!(NmCsbKtoa, kern_need_kick);

/// How a sync loop waits and notifies.
#[derive(Debug, Default)]
pub struct LoopOptions {
    /// Sleep between two rounds, unless every ring has an eventfd that wakes the loop.
    pub sleep: Duration,
    /// For each bound ring, transmit rings first: the eventfd that wakes the loop, and that which wakes the program;
    /// negative for none.
    pub eventfds: Option<Vec<KloopEventfds>>,
    /// For rings of these directions the program writes the eventfd at every move, without a request.
    pub direct: Interest,
}

/// For the C libraries.
#[doc(hidden)]
impl Port {
    /// Returns the number of rings that the port has bound.
    pub fn bound_rings(&self) -> usize {
        self.tx.len() + self.rx.len()
    }

    /// Sets the control blocks: from then on only a sync loop syncs the port, by the positions in `blocks`, which are
    /// set to the current ones. A second call replaces the arrays.
    ///
    /// # Errors
    /// `EBUSY` while a loop runs; `EINVAL` for a port that is not bound exclusively, or arrays that do not begin on a
    /// multiple of 64 bytes; `EFAULT` if the arrays are not mapped or too small for the rings.
    pub fn set_control_blocks(&self, blocks: ControlBlocks) -> Result<(), Error> {
        let refused = |errno, reason: &str| Error::refused(self.spec(), errno, reason);
        let Some(first) = self.first_state() else { return Ok(()) };
        if first.has_sync_loop() {
            return Err(refused(errno::EBUSY, "a sync loop runs by the current control blocks (stop it first)"));
        }
        if self.register().nr_flags & NR_EXCLUSIVE == 0 {
            return Err(refused(errno::EINVAL, "control blocks need the rings exclusively (NR_EXCLUSIVE)"));
        }
        if [blocks.atok, blocks.ktoa].iter().any(|array| !array.address().is_multiple_of(ENTRY as u64)) {
            return Err(refused(errno::EINVAL, "control blocks must begin on a multiple of 64 bytes"));
        }
        let no_memory =
            |_| refused(errno::EFAULT, "the control blocks are not in writable memory, or too small for the rings");
        blocks.atok.read(0, &mut vec![0; self.bound_rings() * ENTRY]).map_err(no_memory)?;
        for (i, ring) in self.all_rings().enumerate() {
            let positions = RingPositions::of(ring);
            let atok =
                NmCsbAtok { head: positions.hwcur, cur: positions.hwcur, appl_need_kick: 1, sync_flags: 1, ..zeroed() };
            let ktoa = NmCsbKtoa { hwcur: positions.hwcur, hwtail: positions.hwtail, kern_need_kick: 1, ..zeroed() };
            blocks.atok.write(i * ENTRY, atok.as_bytes()).map_err(no_memory)?;
            blocks.ktoa.write(i * ENTRY, ktoa.as_bytes()).map_err(no_memory)?;
        }
        self.csb.store(blocks);
        self.leave_to_loop();
        self.all_rings().for_each(|ring| ring.inner.state().hand_to_sync_loop());
        Ok(())
    }

    /// Checks whether [`Port::run_loop`] can begin.
    ///
    /// # Errors
    /// `EINVAL` without control blocks; `EBUSY` if a loop runs.
    pub fn may_loop(&self) -> Result<(), Error> {
        let refused = |errno, reason: &str| Error::refused(self.spec(), errno, reason);
        match self.first_state().filter(|_| self.csb.is_set()) {
            None => Err(refused(errno::EINVAL, "a sync loop needs control blocks (the option CSB)")),
            Some(first) if first.has_sync_loop() => Err(refused(errno::EBUSY, "a sync loop runs already")),
            Some(_) => Ok(()),
        }
    }

    /// Syncs all bound rings by the control blocks, repeatedly, until [`Port::end_loop`] is called.
    ///
    /// # Errors
    /// `EINVAL` without control blocks, or for a descriptor that is not an eventfd; `EBUSY` if a loop runs already;
    /// `EBADF` for an eventfd that is not open; `EFAULT` if the memory of the blocks is unmapped; `ENXIO` if the port
    /// ends.
    pub fn run_loop(&self, options: &LoopOptions) -> Result<(), Error> {
        let refused = |errno, reason: &str| Error::refused(self.spec(), errno, reason);
        let blocks = self.csb.get();
        let Some((blocks, first)) = blocks.zip(self.first_state()) else {
            return Err(refused(errno::EINVAL, "a sync loop needs control blocks (the option CSB)"));
        };
        let holder = self.enter_loop()?;
        if !first.begin_sync_loop(holder) {
            return Err(refused(errno::EBUSY, "a sync loop runs already"));
        }
        let result = SyncLoop::new(self, blocks, holder, options).and_then(|mut running| running.run(first));
        first.end_sync_loop(holder);
        result
    }

    /// Stops the loop and waits until it has ended. A loop that begins later ends at once.
    pub fn end_loop(&self) {
        let Some(first) = self.first_state() else { return };
        first.request_sync_loop_stop();
        while first.has_sync_loop() {
            if let Some((_, source)) = self.wakeup_sources(Interest::BOTH).next() {
                source.doorbell().notify();
            }
            std::thread::sleep(LOOP_END_POLL);
        }
    }

    fn all_rings(&self) -> impl Iterator<Item = &Ring> {
        self.tx.iter().chain(&self.rx)
    }

    fn first_state(&self) -> Option<&SyncState> {
        self.all_rings().next().map(|ring| ring.inner.state())
    }
}

fn zeroed<T: FromZeros>() -> T {
    T::new_zeroed()
}

/// The positions of a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
struct RingPositions {
    hwcur: u32,
    hwtail: u32,
}

impl RingPositions {
    /// Reads the positions; invalid ones become 0, and the next sync reports them.
    fn of(ring: &Ring) -> RingPositions {
        let positions = ring.inner.state().positions(ring.inner.view.shape().slots);
        positions.map_or(RingPositions { hwcur: 0, hwtail: 0 }, |(hwcur, hwtail)| RingPositions {
            hwcur: hwcur.raw(),
            hwtail: hwtail.raw(),
        })
    }
}

/// A ring of the loop.
struct LoopRing<'a> {
    ring: &'a Ring,
    transmit: bool,
    /// The contents of `ktoa`: positions, and whether the program has to write its eventfd.
    published: RingPositions,
    needs_kick: bool,
    direct: bool,
    /// Wakes the program.
    irq: Option<OwnedFd>,
}

/// A running loop.
struct SyncLoop<'a> {
    port: &'a Port,
    blocks: ControlBlocks,
    holder: u32,
    rings: Vec<LoopRing<'a>>,
    /// Everything that wakes the loop; `None`: it sleeps for a time.
    events: Option<Epoll>,
    sleep: Duration,
    /// The program's eventfds, kept open while the loop waits for them.
    _kicks: Vec<OwnedFd>,
    last_check: Instant,
}

impl<'a> SyncLoop<'a> {
    fn new(port: &'a Port, blocks: ControlBlocks, holder: u32, options: &LoopOptions) -> Result<SyncLoop<'a>, Error> {
        let host = |e: io::Error| Error::host(port.spec(), e);
        let given = options.eventfds.as_deref().unwrap_or_default();
        let by_events = !given.is_empty() && given.iter().all(|pair| pair.ioeventfd >= 0);
        let mut rings = Vec::new();
        let mut kicks = Vec::new();
        for (i, ring) in port.all_rings().enumerate() {
            let transmit = i < port.tx.len();
            let pair = given.get(i).copied().unwrap_or(KloopEventfds { ioeventfd: -1, irqfd: -1 });
            // As in netmap both are checked, although only a loop that events wake notifies the program.
            let irq = (pair.irqfd >= 0).then(|| eventfd::duplicate(pair.irqfd)).transpose().map_err(host)?;
            if by_events {
                kicks.push(eventfd::duplicate(pair.ioeventfd).map_err(host)?);
            }
            let direct = if transmit { options.direct.tx() } else { options.direct.rx() };
            let (published, irq) = (RingPositions::of(ring), irq.filter(|_| by_events));
            rings.push(LoopRing { ring, transmit, published, needs_kick: true, direct, irq });
        }
        let events = by_events.then(|| event_set(port, &kicks)).transpose().map_err(host)?;
        let (sleep, last_check) = (options.sleep, Instant::now());
        Ok(SyncLoop { port, blocks, holder, rings, events, sleep, _kicks: kicks, last_check })
    }

    fn run(&mut self, first: &SyncState) -> Result<(), Error> {
        while first.sync_loop_may_continue(self.holder) {
            self.check_daemon()?;
            self.request_kicks(false)?;
            if self.events.is_none() {
                self.round()?;
                match self.sleep {
                    Duration::ZERO => std::thread::yield_now(),
                    time => std::thread::sleep(time),
                }
                continue;
            }
            let mut rounds = 0;
            while self.round()? && rounds < MAX_BUSY_ROUNDS {
                rounds += 1;
            }
            if rounds < MAX_BUSY_ROUNDS && first.sync_loop_may_continue(self.holder) {
                self.wait(first)?;
            }
        }
        Ok(())
    }

    /// Requests a wake-up, checks once more, and sleeps.
    fn wait(&mut self, first: &SyncState) -> Result<(), Error> {
        self.request_kicks(true)?;
        self.port.request_wakeup(Interest::BOTH);
        // The program reads kern_need_kick after it moved head; so the loop reads head after it set kern_need_kick.
        fence(Ordering::SeqCst);
        if self.round()? || !first.sync_loop_may_continue(self.holder) {
            return Ok(());
        }
        let Some(events) = &self.events else { return Ok(()) };
        let mut happened = Vec::new();
        match events.wait(&mut happened, Some(SLEEP_LIMIT)) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(Error::host(self.port.spec(), e)),
            _ => self.port.clear_doorbells(Interest::BOTH),
        }
        Ok(())
    }

    /// Syncs every ring once by the pointers of the program. Returns whether anything moved.
    fn round(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        for i in 0..self.rings.len() {
            moved |= self.sync_ring(i)?;
        }
        Ok(moved)
    }

    fn sync_ring(&mut self, i: usize) -> Result<bool, Error> {
        let ring = self.rings[i].ring;
        let positions = RingPositions::of(ring);
        let (mut head, mut cur) = self.read_pointers(i)?;
        for _ in 0..MAX_POINTER_READS {
            if plausible(ring, positions, head, cur) {
                break;
            }
            (head, cur) = self.read_pointers(i)?;
        }
        match ring.inner.sync_by_csb(self.holder, (head, cur)) {
            // The ring was reset, and stays so until the program's pointers are valid.
            Ok(()) | Err(SyncError::BadPointers | SyncError::ReadOnly) => {}
            Err(SyncError::MonitorsChanged) => self.port.renew_monitors(),
            Err(error @ (SyncError::Ended | SyncError::OwnedBySyncLoop)) => {
                let dir = if self.rings[i].transmit { "tx" } else { "rx" };
                return Err(self.port.explain(error, ring, dir));
            }
        }
        self.publish(i)
    }

    fn read_pointers(&self, i: usize) -> Result<(u32, u32), Error> {
        let mut words = [0u32; 2];
        self.blocks.atok.read(i * ENTRY, words.as_mut_bytes()).map_err(|e| self.lost(e))?;
        // The slots are read after that.
        fence(Ordering::Acquire);
        Ok((words[0], words[1]))
    }

    /// Writes the positions of a ring, and notifies the program if it requested that. Returns whether they changed.
    fn publish(&mut self, i: usize) -> Result<bool, Error> {
        let this = &self.rings[i];
        let now = RingPositions::of(this.ring);
        if now == this.published {
            return Ok(false);
        }
        let more = now.hwtail != this.published.hwtail;
        fence(Ordering::Release);
        // hwcur first: a program that reads them in the opposite order never sees hwcur behind hwtail.
        self.blocks.ktoa.write(i * ENTRY + HWCUR, &now.hwcur.to_ne_bytes()).map_err(|e| self.lost(e))?;
        fence(Ordering::Release);
        self.blocks.ktoa.write(i * ENTRY + HWTAIL, &now.hwtail.to_ne_bytes()).map_err(|e| self.lost(e))?;
        fence(Ordering::SeqCst);
        if more && let Some(irq) = &this.irq {
            let mut requested = 0u32;
            self.blocks.atok.read(i * ENTRY + APPL_NEED_KICK, requested.as_mut_bytes()).map_err(|e| self.lost(e))?;
            if requested != 0 {
                eventfd::signal(irq);
            }
        }
        self.rings[i].published = now;
        Ok(true)
    }

    /// Sets `kern_need_kick`: whether the program has to write the eventfds of rings that it can make progress on.
    fn request_kicks(&mut self, wanted: bool) -> Result<(), Error> {
        for i in 0..self.rings.len() {
            let this = &self.rings[i];
            // A receive ring with room waits for its peer, not for the program.
            let useful = this.transmit || !has_room(this.ring, this.published);
            let needs_kick = this.direct || wanted && useful;
            if needs_kick != this.needs_kick {
                let word = u32::from(needs_kick).to_ne_bytes();
                self.blocks.ktoa.write(i * ENTRY + KERN_NEED_KICK, &word).map_err(|e| self.lost(e))?;
                self.rings[i].needs_kick = needs_kick;
            }
        }
        Ok(())
    }

    fn check_daemon(&mut self) -> Result<(), Error> {
        if self.last_check.elapsed() < LOOP_LIFE_CHECK {
            return Ok(());
        }
        self.last_check = Instant::now();
        if event::hung_up(self.port.connection.fd.as_fd()) {
            self.port.mark_daemon_exited();
            return Err(Error::DaemonGone { subject: self.port.spec().into() });
        }
        Ok(())
    }

    #[cold]
    fn lost(&self, _: io::Error) -> Error {
        Error::refused(self.port.spec(), errno::EFAULT, "the memory of the control blocks was unmapped")
    }
}

/// Whether a sync would accept these pointers.
fn plausible(ring: &Ring, positions: RingPositions, head: u32, cur: u32) -> bool {
    let slots = ring.inner.view.shape().slots;
    let positions = slots.pos(positions.hwcur).zip(slots.pos(positions.hwtail));
    positions.is_none_or(|(hwcur, hwtail)| crate::sync::validate(slots, hwcur, hwtail, head, cur).is_some())
}

/// Whether a receive ring can take another packet.
fn has_room(ring: &Ring, published: RingPositions) -> bool {
    let slots = ring.inner.view.shape().slots;
    let positions = slots.pos(published.hwcur).zip(slots.pos(published.hwtail));
    positions.is_none_or(|(hwcur, hwtail)| hwtail != slots.prev(hwcur))
}

/// Returns the set of everything that wakes a loop. The program's eventfds wake it each time that they are written, and
/// are never read.
fn event_set(port: &Port, kicks: &[OwnedFd]) -> io::Result<Epoll> {
    let set = Epoll::new()?;
    for (token, kick) in kicks.iter().enumerate() {
        set.add_edge(kick, token as u64)?;
    }
    for (i, fd) in port.wait_fds(Interest::BOTH).into_iter().enumerate() {
        set.add(fd, (kicks.len() + i) as u64, true, false)?;
    }
    Ok(set)
}

impl Port {
    /// Begins a loop: makes sure that this process has a holder ID.
    fn enter_loop(&self) -> Result<u32, Error> {
        if self.holder_is_another_process(process::fork_count()) {
            self.renew_lock_holder()?;
        }
        Ok(self.holder_id())
    }
}
