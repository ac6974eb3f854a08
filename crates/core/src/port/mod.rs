// SPDX-License-Identifier: BSD-2-Clause
//! An open port.

pub mod csb;
mod csb_cell;
pub mod device;
pub mod extmem;
pub mod file;
mod forward;
mod frames;
mod go_on;
mod interest;
mod link;
mod lock_holder;
mod many_rings;
mod monitors;
mod open;
mod poll;
mod poll_fast;
mod reconnect;
mod ring;
mod shape;
mod wait_sets;

pub use interest::Interest;
pub use link::{DownCause, LinkDown, link_down};
pub use open::{InDaemon, NR_SLOT_TIMES, OpenOptions, adopt};
pub use reconnect::{DaemonChange, observe_daemons, reconnect_by_default};
pub use ring::{Ring, SlotIter, SlotRef};

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use unetmap_abi::{NR_MONITOR_RX, NR_MONITOR_TX, NR_ZCOPY_MON, NmreqRegister};
use unetmap_mem::{BufIdx, Iface, Region, fence_before_sleep};
use unetmap_sys::{clock, event, process};

use self::csb_cell::CsbCell;
use self::lock_holder::{LockHolder, LockHolderCell};
use self::many_rings::ManyRings;
use self::reconnect::Reconnect;
use crate::control::client::Connection;
use crate::control::monitor::MonitorList;
use crate::error::Error;
use crate::sync::{Effort, SyncError, SyncRing, WallTime};
use crate::tuning::{LIFE_CHECK_NS, MAX_SYNCS_PER_CHECK};

/// In place of a holder ID, which is never 0: nothing can be synced at present, as the port waits for a daemon.
pub(crate) const NOT_NOW: u32 = 0;

/// Any of these: the port is a monitor.
const MONITOR: u64 = NR_MONITOR_TX | NR_MONITOR_RX | NR_ZCOPY_MON;

/// Returns whether the file by which a port was opened was shut down.
pub(crate) type IsShutDown = Box<dyn Fn() -> bool + Send + Sync>;

/// Where a port gets the list of its monitors.
pub(crate) struct MonitorSource {
    pub(crate) session: AtomicU64,
    pub(crate) key: AtomicU64,
    /// Of a port that the daemon runs itself.
    pub(crate) list: Option<Arc<MonitorList>>,
}

/// An open port: the rings that it bound, in a region of shared memory, and a connection to the daemon. The daemon
/// releases everything that the port holds when the connection closes, also if the process is killed. Dropping a `Port`
/// closes it.
///
/// Several threads, and forked children, may use a port: while one of them syncs a ring, the syncs of the others skip
/// it.
///
/// Its descriptor ([`AsFd`]) is the connection to the daemon: it becomes readable or hangs up when the daemon exits. To
/// wait for packets in an event loop use [`Port::arm`] and [`Port::wait_fds`].
pub struct Port {
    spec: String,
    pub(crate) connection: Connection,
    register: NmreqRegister,
    region: Arc<Region>,
    iface: Iface,
    pub(crate) tx: Vec<Ring>,
    pub(crate) rx: Vec<Ring>,
    /// Of ports with many rings.
    many: ManyRings,
    pub(crate) monitor_source: MonitorSource,
    /// Whether a switch moves its packets.
    pub(crate) is_switched: bool,
    /// The port on the host rings, if this one has none of its own: opened when it is needed; `None` inside if there is
    /// none.
    pub(crate) host_ring_peer: OnceLock<Option<Box<Port>>>,
    holder: LockHolderCell,
    /// The holder ID, and in the upper half its number of forks, read by each sync. One word (O4), so that no thread
    /// reads the parent's holder ID with the child's number of forks.
    holder_word: AtomicU64,
    /// Whether the daemon has exited.
    daemon_exited: AtomicBool,
    /// How it goes on with the next daemon, if it does.
    pub(crate) reconnect: Option<Box<Reconnect>>,
    /// See [`Port::watch_file`], and whether it returned `true`.
    pub(crate) file_is_shut_down: OnceLock<IsShutDown>,
    pub(crate) is_shut_down: AtomicBool,
    pub(crate) csb: CsbCell,
    /// Syncs until the next check of the daemon; syncs between two checks; time of the last check.
    checks_left: AtomicU32,
    check_every: AtomicU32,
    last_check: AtomicU64,
    /// See `poll`: whether another task ran when a waiting thread last yielded the CPU.
    pub(crate) cpu_is_shared: AtomicBool,
    /// Whether the last wait ended with a large batch.
    pub(crate) in_stream: AtomicBool,
    /// Whether the last wait that slept did so until its timeout.
    pub(crate) last_wait_timed_out: AtomicBool,
    /// See `poll`: the rx coalescing delay in spin hints; at an interface 1 if the next poll sleeps first.
    pub(crate) rx_coalescing: AtomicU32,
    /// See `poll`: whether receivers sleep between polls, and when the last poll was.
    pub(crate) sleeps_between_polls: bool,
    pub(crate) last_poll: AtomicU64,
}

impl Port {
    #[allow(clippy::too_many_arguments)] // The one caller assembles exactly these parts.
    pub(crate) fn new(
        spec: &str,
        connection: Connection,
        holder: Arc<LockHolder>,
        register: NmreqRegister,
        region: Arc<Region>,
        iface: Iface,
        (tx, rx): (Vec<Ring>, Vec<Ring>),
        monitor_source: MonitorSource,
    ) -> Port {
        let sleeps = |ring: &Ring| ring.inner.backend.rx().is_some_and(|rx| rx.sleeps_between_polls());
        let sleeps_between_polls = rx.iter().any(sleeps);
        let many = ManyRings::new(&tx, &rx);
        Port {
            spec: spec.into(),
            connection,
            register,
            region,
            iface,
            tx,
            rx,
            many,
            monitor_source,
            is_switched: false,
            host_ring_peer: OnceLock::new(),
            holder_word: AtomicU64::new(holder.word()),
            holder: LockHolderCell::new(holder),
            daemon_exited: AtomicBool::new(false),
            reconnect: None,
            file_is_shut_down: OnceLock::new(),
            is_shut_down: AtomicBool::new(false),
            csb: CsbCell::default(),
            checks_left: AtomicU32::new(0),
            check_every: AtomicU32::new(1),
            last_check: AtomicU64::new(clock::now_ns()),
            cpu_is_shared: AtomicBool::new(false),
            in_stream: AtomicBool::new(false),
            last_wait_timed_out: AtomicBool::new(false),
            rx_coalescing: AtomicU32::new(0),
            sleeps_between_polls,
            last_poll: AtomicU64::new(0),
        }
    }

    /// Records the times of packets, slot by slot, from now on.
    pub(crate) fn record_times(&mut self) {
        self.tx.iter_mut().chain(&mut self.rx).for_each(Ring::record_times);
        self.many = ManyRings::new(&self.tx, &self.rx);
    }

    /// Returns the name that the port was opened with.
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// Returns the body of the reply to REGISTER: sizes, rings, offsets.
    pub fn register(&self) -> &NmreqRegister {
        &self.register
    }

    /// Returns the number of the region.
    pub fn mem_id(&self) -> u16 {
        self.reconnect.as_ref().map_or(self.register.nr_mem_id, |reconnect| reconnect.mem_id())
    }

    /// Returns how often the port went on with another daemon ([`OpenOptions::reconnect`]). A program that holds
    /// buffers outside of the rings, from the list of extra buffers, must take them anew when it has changed.
    pub fn reconnects(&self) -> u32 {
        self.reconnect.as_ref().map_or(0, |reconnect| reconnect.count())
    }

    /// Returns how many slots were lost with former daemons: filled and not sent, or received and not read. Those that
    /// were sent by a pipe are counted at its receiver. Those that a queue of an interface had, or the daemon, count as
    /// lost, though their packets may have been sent.
    pub fn lost_slots(&self) -> u64 {
        self.reconnect.as_ref().map_or(0, |reconnect| reconnect.lost())
    }

    /// Whether the port's daemon has ended and the port waits for the next one.
    pub fn awaits_daemon(&self) -> bool {
        self.daemon_has_exited() && self.reconnect.is_some() && !self.is_shut_down.load(Relaxed)
    }

    /// Whether buffers can be exchanged between the two ports.
    pub fn same_region(&self, other: &Port) -> bool {
        self.region.is_same_mapping(&other.region)
    }

    /// Returns the bytes of each buffer.
    pub fn buf_size(&self) -> u32 {
        self.region.limits().buf_size
    }

    /// Returns the region that contains the rings and buffers.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the transmit rings that this port bound.
    #[inline(always)]
    pub fn tx_rings(&self) -> &[Ring] {
        &self.tx
    }

    /// Returns the receive rings that this port bound.
    #[inline(always)]
    pub fn rx_rings(&self) -> &[Ring] {
        &self.rx
    }

    /// Returns the number of extra buffers that were granted.
    pub fn extra_bufs(&self) -> u32 {
        self.register.nr_extra_bufs
    }

    /// Takes a buffer from the port's list of extra buffers; `None` if it is empty, or was overwritten by another
    /// process.
    pub fn take_extra_buf(&self) -> Option<BufIdx> {
        let idx = self.iface.bufs_head();
        if !self.region.limits().index_ok(idx) {
            return None;
        }
        let mut next = [0; 4];
        self.region.frame(idx).read(0, &mut next);
        self.iface.set_bufs_head(BufIdx(u32::from_ne_bytes(next)));
        Some(idx)
    }

    /// Puts a buffer at the head of the port's list of extra buffers.
    pub fn give_extra_buf(&self, idx: BufIdx) {
        self.region.frame(idx).write(0, &self.iface.bufs_head().0.to_ne_bytes());
        self.iface.set_bufs_head(idx);
    }

    /// Syncs all transmit rings: sends the slots before `head` and frees completed ones. Never waits.
    ///
    /// # Errors
    /// [`Error::DaemonGone`]; [`Error::InterfaceGone`]; [`Error::BadPointers`] (the other rings were synced).
    pub fn txsync(&self) -> Result<(), Error> {
        self.sync_all(&self.tx, "tx")
    }

    /// Syncs all receive rings: releases the slots before `head` and delivers packets that have arrived. Never waits.
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn rxsync(&self) -> Result<(), Error> {
        self.sync_all(&self.rx, "rx")
    }

    /// Returns the addresses and lengths of the data in the program's memory that unsent slots refer to
    /// (`NS_INDIRECT`), in the order in which [`Port::txsync`] sends them. For a process that syncs the port of
    /// another.
    #[doc(hidden)]
    pub fn indirect_data(&self) -> Vec<(u64, u16)> {
        self.tx.iter().flat_map(|ring| ring.inner.indirect_data()).collect()
    }

    fn sync_all(&self, rings: &[Ring], dir: &str) -> Result<(), Error> {
        let holder = self.enter()?;
        let mut result = Ok(());
        if holder == NOT_NOW {
            return result;
        }
        for ring in rings {
            if let Err(error) = self.sync_ring(ring, holder, Effort::Full, None) {
                result = Err(self.explain(error, ring, dir));
            }
        }
        result
    }

    /// Syncs one ring. If its monitors have changed, renews their list first, so that they see every packet that the
    /// sync moves.
    #[inline(always)]
    pub(crate) fn sync_ring(
        &self,
        ring: &Ring,
        holder: u32,
        effort: Effort,
        now: Option<WallTime>,
    ) -> Result<(), SyncError> {
        if ring.inner.forwards() {
            return self.sync_forwarding(ring, holder, effort, now);
        }
        match ring.inner.sync(holder, effort, now) {
            Err(SyncError::MonitorsChanged) => {
                self.sync_renewing_monitors(ring, || ring.inner.sync(holder, effort, now))
            }
            other => other,
        }
    }

    /// Returns the region, shared by all ports of this process: it stays mapped as long as the caller has a clone, also
    /// when the port is closed.
    pub fn shared_region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns this process as a lock holder.
    pub(crate) fn current_lock_holder(&self) -> Result<Arc<LockHolder>, Error> {
        match self.holder.get(process::fork_count()) {
            Some(holder) => Ok(holder),
            None => lock_holder::of_this_process(&self.connection.socket),
        }
    }

    /// Syncs all rings and waits until one of the wanted directions is ready, or until `timeout` (`None`: no limit).
    /// Returns what is ready; [`Interest::NONE`] after the timeout or a signal.
    ///
    /// A ring is ready when `cur != tail`. Slots before `head` are sent even if only [`Interest::RX`] is wanted.
    ///
    /// # Errors
    /// As [`Port::txsync`].
    #[inline(always)]
    pub fn poll(&self, want: Interest, timeout: Option<Duration>) -> Result<Interest, Error> {
        if want == Interest::TX && (self.sends(SyncRing::send_one) || self.sends_several()) {
            return Ok(Interest::TX);
        }
        self.wait(want, timeout)
    }

    /// Whether the port has one transmit ring, `send` did all the work of a poll for [`Interest::TX`], and free slots
    /// are left.
    #[inline(always)]
    fn sends(&self, send: impl Fn(&SyncRing, u32) -> bool) -> bool {
        let [ring] = &self.tx[..] else { return false };
        self.enter_fast().is_some_and(|holder| send(&ring.inner, holder))
    }

    /// [`Port::sends`] for several packets; not inlined into the loops of programs.
    #[inline(never)]
    fn sends_several(&self) -> bool {
        self.sends(SyncRing::send_fast)
    }

    /// For event loops: syncs, and returns what is ready. If nothing is, requests a wake-up: one of [`Port::wait_fds`]
    /// becomes readable when the port may be ready; then call `arm` again.
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn arm(&self, want: Interest) -> Result<Interest, Error> {
        let ready = self.poll_once(want, None)?;
        if !ready.is_none() || self.awaits_daemon() {
            return Ok(ready);
        }
        self.clear_doorbells(want);
        self.request_wakeup(want);
        // Packets may have arrived between the poll and the request; the peer notifies only after the request.
        let ready = self.poll_once(want, None)?;
        if !ready.is_none() {
            self.wake_sharers(want);
            return Ok(ready);
        }
        // A ring that needs a sync and is not ready is being synced by another thread, which does not notify when it
        // ends: the wait ends at once.
        self.wakeup_sources(want)
            .filter(|(ring, _)| ring.inner.needs_sync(true))
            .for_each(|(_, source)| source.doorbell().notify());
        Ok(ready)
    }

    /// Returns the descriptors to wait for after [`Port::arm`] found nothing ready. They become readable, or hang up
    /// when the daemon exits.
    pub fn wait_fds(&self, want: Interest) -> Vec<BorrowedFd<'_>> {
        if let Some(sets) = self.reconnect.as_ref().and_then(|reconnect| self.wait_sets_of(reconnect, want)) {
            return sets;
        }
        let mut fds = vec![self.connection.fd.as_fd()];
        for (_, source) in self.wakeup_sources(want) {
            fds.push(source.doorbell().as_fd());
            fds.extend(source.socket());
        }
        fds
    }

    /// Requests wake-ups. A check of the rings must follow before the caller sleeps.
    pub(crate) fn request_wakeup(&self, want: Interest) {
        // One fence for all rings: it interrupts all CPUs.
        if self.wakeup_sources(want).fold(false, |any, (_, source)| any | source.request_wakeup()) {
            fence_before_sleep();
        }
    }

    /// Clears the doorbells.
    pub(crate) fn clear_doorbells(&self, want: Interest) {
        self.wakeup_sources(want).for_each(|(_, source)| source.doorbell().clear());
    }

    #[cold]
    pub(crate) fn explain(&self, error: SyncError, ring: &Ring, dir: &str) -> Error {
        let subject = self.spec.clone();
        match error {
            SyncError::BadPointers => Error::BadPointers { subject, ring: format!("{dir} {}", ring.id()) },
            SyncError::Ended if self.register.nr_flags & MONITOR != 0 => Error::MonitoredPortClosed { subject },
            SyncError::Ended => Error::InterfaceGone { subject },
            SyncError::OwnedBySyncLoop => Error::OwnedBySyncLoop { subject },
            // MonitorsChanged is handled before errors are returned to the program.
            SyncError::ReadOnly | SyncError::MonitorsChanged => Error::ReadOnly { subject },
        }
    }

    /// Begins a sync: checks that the daemon is alive and that this process has a holder ID. Returns that, or
    /// [`NOT_NOW`].
    #[inline(always)]
    pub(crate) fn enter(&self) -> Result<u32, Error> {
        let mut holder = self.holder_word.load(Relaxed);
        if lock_holder::forks_in(holder) != process::fork_count() {
            match self.renew_lock_holder() {
                Err(Error::DaemonGone { .. }) if self.reconnect.is_some() => self.mark_daemon_exited(),
                renewed => renewed?,
            }
            holder = self.holder_word.load(Relaxed);
        }
        let left = self.checks_left.load(Relaxed);
        if left == 0 {
            if !self.check_life()? {
                return Ok(NOT_NOW);
            }
            holder = self.holder_word.load(Relaxed);
        } else {
            self.checks_left.store(left - 1, Relaxed);
        }
        Ok(lock_holder::id_in(holder))
    }

    /// Begins a sync of the fast path; `None` if a check or a renewal is due, which [`Port::enter`] makes.
    #[inline(always)]
    pub(crate) fn enter_fast(&self) -> Option<u32> {
        let (left, holder) = (self.checks_left.load(Relaxed), self.holder_word.load(Relaxed));
        if left == 0 || lock_holder::forks_in(holder) != process::fork_count() {
            return None;
        }
        self.checks_left.store(left - 1, Relaxed);
        Some(lock_holder::id_in(holder))
    }

    /// Checks the connection about every 100 ms without reading the clock at each sync: the number of syncs between two
    /// checks follows the rate of the program. Returns `false` while the port waits for the next daemon.
    #[cold]
    fn check_life(&self) -> Result<bool, Error> {
        if self.is_shut_down.load(Relaxed) {
            return Err(Error::FileShutDown { subject: self.spec.clone() });
        }
        let gone = || match &self.reconnect {
            Some(reconnect) if !self.csb.is_set() => self.await_daemon(reconnect),
            _ => Err(Error::DaemonGone { subject: self.spec.clone() }),
        };
        if self.daemon_has_exited() {
            return gone();
        }
        if self.csb.is_set() {
            return Err(Error::OwnedBySyncLoop { subject: self.spec.clone() });
        }
        let (now, every) = (clock::now_ns(), self.check_every.load(Relaxed));
        let elapsed = now.saturating_sub(self.last_check.load(Relaxed));
        if elapsed < LIFE_CHECK_NS {
            // Too early: reads the clock again later, at most ten times as late.
            let next = if elapsed < LIFE_CHECK_NS / 10 { (every * 2).min(MAX_SYNCS_PER_CHECK) } else { every };
            self.check_every.store(next, Relaxed);
            self.checks_left.store(next, Relaxed);
            return Ok(true);
        }
        let next = if elapsed > 2 * LIFE_CHECK_NS { 1 } else { every };
        self.check_every.store(next, Relaxed);
        self.last_check.store(now, Relaxed);
        if event::hung_up(self.connection.fd.as_fd()) {
            self.mark_daemon_exited();
            return gone();
        }
        if self.file_is_shut_down.get().is_some_and(|is_shut_down| is_shut_down()) {
            let error = self.shut_down();
            return if self.awaits_daemon() { gone() } else { Err(error) };
        }
        self.checks_left.store(next, Relaxed);
        Ok(true)
    }

    pub(crate) fn daemon_has_exited(&self) -> bool {
        self.daemon_exited.load(Relaxed)
    }

    /// From now on this process is another lock holder, and the port another session.
    fn serve_again(&self, holder: Arc<LockHolder>, (session, key): (u64, u64)) {
        self.monitor_source.session.store(session, Relaxed);
        self.monitor_source.key.store(key, Relaxed);
        self.holder_word.store(holder.word(), Relaxed);
        self.holder.replace(holder);
    }

    /// The port goes on with another daemon.
    fn daemon_is_back(&self) {
        self.last_check.store(clock::now_ns(), Relaxed);
        self.daemon_exited.store(false, Relaxed);
    }

    /// Marks the port as unusable after the daemon has exited: every call fails, or the port waits for the next daemon.
    pub(crate) fn mark_daemon_exited(&self) {
        self.daemon_exited.store(true, Relaxed);
        self.checks_left.store(0, Relaxed);
    }

    /// Makes every sync fail except those of the sync loop.
    pub(crate) fn leave_to_loop(&self) {
        self.checks_left.store(0, Relaxed);
    }

    /// Whether the holder ID belongs to a process with another number of forks.
    pub(crate) fn holder_is_another_process(&self, forks: u32) -> bool {
        lock_holder::forks_in(self.holder_word.load(Relaxed)) != forks
    }

    /// Returns the number that identifies this process in locks.
    pub(crate) fn holder_id(&self) -> u32 {
        lock_holder::id_in(self.holder_word.load(Relaxed))
    }

    #[cold]
    pub(crate) fn renew_lock_holder(&self) -> Result<(), Error> {
        unetmap_mem::register_publisher();
        let holder = lock_holder::of_this_process(&self.connection.socket)?;
        self.holder_word.store(holder.word(), Relaxed);
        self.holder.set(holder);
        Ok(())
    }
}

impl AsFd for Port {
    /// Returns the connection to the daemon.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.fd.as_fd()
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("spec", &self.spec)
            .field("mem_id", &self.mem_id())
            .field("tx_rings", &self.tx.len())
            .field("rx_rings", &self.rx.len())
            .finish_non_exhaustive()
    }
}
