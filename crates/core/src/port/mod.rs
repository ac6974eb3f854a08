//! An open port.

pub mod csb;
pub mod extmem;
pub mod file;
pub(crate) mod forward;
mod lease;
pub(crate) mod open;
mod poll;
pub(crate) mod ring;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use unetmap_abi::{NR_MONITOR_RX, NR_MONITOR_TX, NR_NO_TX_POLL, NR_ZCOPY_MON, NmreqRegister};
use unetmap_mem::{BufIdx, Iface, Region};
use unetmap_sys::{clock, event, process};

use crate::backend::Sleeper;
use crate::control::client::Connection;
use crate::error::Error;
use crate::port::forward::Forwarder;
use crate::port::lease::Lease;
use crate::port::open::OpenOptions;
use crate::port::ring::Ring;
use crate::sync::{Effort, SyncRing, Trouble, WallTime};
use crate::sync::mirror::Source;

/// Directions to wait for, or found ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Interest(u8);

impl Interest {
    /// Nothing.
    pub const NONE: Interest = Interest(0);
    /// Packets to read.
    pub const RX: Interest = Interest(1);
    /// Slots to fill.
    pub const TX: Interest = Interest(2);
    /// Either.
    pub const BOTH: Interest = Interest(3);

    /// Whether receiving is part of it.
    #[inline(always)]
    pub fn rx(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether transmitting is part of it.
    #[inline(always)]
    pub fn tx(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether it is nothing.
    #[inline(always)]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl std::ops::BitOr for Interest {
    type Output = Interest;
    #[inline(always)]
    fn bitor(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for Interest {
    #[inline(always)]
    fn bitor_assign(&mut self, other: Interest) {
        *self = *self | other;
    }
}

/// How often a busy program looks whether the daemon still lives.
const LIFE_CHECK_NS: u64 = 100_000_000;

/// How often one sync asks who watches.
const NEWS_AT_MOST: u32 = 4;

/// Any of these: the port is a monitor.
const MONITOR: u64 = NR_MONITOR_TX | NR_MONITOR_RX | NR_ZCOPY_MON;

/// Whether the file by which a port was opened has ended.
pub(crate) type FileEnded = Box<dyn Fn() -> bool + Send + Sync>;

/// An open port: rings of a region, and a connection whose end releases everything that the port held, however the
/// process ends. Dropping it closes the port.
///
/// A port may be used by several threads, and by forked children: a ring that one of them is syncing is skipped by the
/// others.
pub struct Port {
    spec: String,
    pub(crate) connection: Connection,
    register: NmreqRegister,
    region: Arc<Region>,
    iface: Iface,
    pub(crate) tx: Vec<Ring>,
    pub(crate) rx: Vec<Ring>,
    /// Where it asks who watches it.
    pub(crate) source: Source,
    pub(crate) forwarder: Forwarder,
    lease: lease::Kept,
    /// The lease's number, and how often this process was forked when it got it: what a sync needs of the lease.
    lease_number: AtomicU32,
    lease_forks: AtomicU32,
    dead: AtomicBool,
    /// See [`Port::watch_file`], and whether it said so.
    pub(crate) file_ended: OnceLock<FileEnded>,
    pub(crate) is_shut: AtomicBool,
    pub(crate) blocks: csb::Cell,
    /// Syncs until the next look at the daemon, how many there were since the last, and when that was.
    checks_left: AtomicU32,
    check_every: AtomicU32,
    last_check: AtomicU64,
    /// See `wait`: whether somebody else wanted the processor when a waiting thread last offered it.
    pub(crate) crowded: AtomicBool,
    /// The last wait brought much at once.
    pub(crate) in_stream: AtomicBool,
    /// Whether the last wait that slept did so until its time was over.
    pub(crate) in_vain: AtomicBool,
    /// See `wait`: how long receivers hold back between looks.
    pub(crate) hold_back: AtomicU32,
    /// See `wait`: whether receivers rest between looks, and when the last look was.
    pub(crate) rests: bool,
    pub(crate) last_look: AtomicU64,
}

impl Port {
    #[allow(clippy::too_many_arguments)] // The one caller assembles exactly these parts.
    pub(crate) fn new(
        spec: &str,
        connection: Connection,
        lease: Arc<Lease>,
        register: NmreqRegister,
        region: Arc<Region>,
        iface: Iface,
        (tx, rx): (Vec<Ring>, Vec<Ring>),
        source: Source,
    ) -> Port {
        let rests = rx.iter().any(|ring| ring.inner.path.rx().is_some_and(|rx| rx.rests()));
        Port {
            spec: spec.into(),
            connection,
            register,
            region,
            iface,
            tx,
            rx,
            source,
            forwarder: Forwarder::default(),
            lease_number: AtomicU32::new(lease.number),
            lease_forks: AtomicU32::new(lease.forks),
            lease: lease::Kept::new(lease),
            dead: AtomicBool::new(false),
            file_ended: OnceLock::new(),
            is_shut: AtomicBool::new(false),
            blocks: csb::Cell::default(),
            checks_left: AtomicU32::new(0),
            check_every: AtomicU32::new(1),
            last_check: AtomicU64::new(clock::now_ns()),
            crowded: AtomicBool::new(false),
            in_stream: AtomicBool::new(false),
            in_vain: AtomicBool::new(false),
            hold_back: AtomicU32::new(0),
            rests,
            last_look: AtomicU64::new(0),
        }
    }

    /// Opens the port that `spec` names, with defaults. See [`OpenOptions::open`].
    ///
    /// # Errors
    /// A bad name, a refusal of the daemon, or no daemon.
    pub fn open(spec: &str) -> Result<Port, Error> {
        Port::options().open(spec)
    }

    /// How to open a port otherwise than with defaults.
    pub fn options() -> OpenOptions {
        OpenOptions::default()
    }

    /// The name that the port was opened with.
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// The request as the daemon answered it: sizes, rings, offsets.
    pub fn register(&self) -> &NmreqRegister {
        &self.register
    }

    /// The number of the region.
    pub fn mem_id(&self) -> u16 {
        self.register.nr_mem_id
    }

    /// Whether buffers can be exchanged between the two ports.
    pub fn same_region(&self, other: &Port) -> bool {
        self.region.same(&other.region)
    }

    /// Bytes in each buffer.
    pub fn buf_size(&self) -> u32 {
        self.region.limits().buf_size
    }

    /// The region that rings and buffers lie in.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The transmit rings that this port bound.
    #[inline(always)]
    pub fn tx_rings(&self) -> &[Ring] {
        &self.tx
    }

    /// The receive rings that this port bound.
    #[inline(always)]
    pub fn rx_rings(&self) -> &[Ring] {
        &self.rx
    }

    /// How many extra buffers were granted.
    pub fn extra_bufs(&self) -> u32 {
        self.register.nr_extra_bufs
    }

    /// Takes a buffer from the port's list of extra buffers; `None` when it is empty, or spoilt by another process.
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

    /// Sends what was handed over on all transmit rings, and learns what is finished. Never waits.
    ///
    /// # Errors
    /// [`Error::DaemonGone`]; [`Error::InterfaceGone`]; [`Error::BadPointers`] (the other rings were synced).
    pub fn txsync(&self) -> Result<(), Error> {
        self.sync_all(&self.tx, "tx")
    }

    /// Gives back what was read on all receive rings, and takes what has come. Never waits.
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn rxsync(&self) -> Result<(), Error> {
        self.sync_all(&self.rx, "rx")
    }

    fn sync_all(&self, rings: &[Ring], dir: &str) -> Result<(), Error> {
        let lease = self.enter()?;
        let mut result = Ok(());
        for ring in rings {
            if let Err(trouble) = self.sync_ring(ring, lease, Effort::Full, None) {
                result = Err(self.explain(trouble, ring, dir));
            }
        }
        result
    }

    /// Syncs one ring. News of who watches it are asked for first, so that its monitors see all that it moves from then on.
    #[inline(always)]
    pub(crate) fn sync_ring(
        &self,
        ring: &Ring,
        lease: u32,
        effort: Effort,
        now: Option<WallTime>,
    ) -> Result<(), Trouble> {
        if ring.inner.forwards() {
            return self.sync_forwarding(ring, lease, effort, now);
        }
        match ring.inner.sync(lease, effort, now) {
            Err(Trouble::News) => self.with_news(ring, || ring.inner.sync(lease, effort, now)),
            other => other,
        }
    }

    /// Syncs a ring, and asks for news as often as there are some.
    #[cold]
    pub(crate) fn with_news(&self, ring: &Ring, sync: impl Fn() -> Result<(), Trouble>) -> Result<(), Trouble> {
        for _ in 0..=NEWS_AT_MOST {
            match sync() {
                Err(Trouble::News) => self.renew_watchers(),
                other => return other,
            }
        }
        // Somebody who shares the port makes news up. What is known has to do; who gets buffers might have gone, and so nobody
        // gets any: then it is as if somebody else were syncing the ring.
        match ring.inner.watchers.regardless(sync) {
            Err(Trouble::News) => Ok(()),
            other => other,
        }
    }

    /// The region, as all ports of this process share it.
    pub(crate) fn shared_region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The lease of this very process.
    pub(crate) fn current_lease(&self) -> Result<Arc<Lease>, Error> {
        match self.lease.get(process::fork_count()) {
            Some(lease) => Ok(lease),
            None => lease::of_this_process(&self.connection.socket),
        }
    }

    /// Syncs what a poll syncs, without waiting, and tells what is ready.
    #[inline]
    pub(crate) fn look(&self, want: Interest, now: Option<WallTime>) -> Result<Interest, Error> {
        let lease = self.enter()?;
        let mut ready = Interest::NONE;
        // A poll also transmits, whatever it waits for, unless the program asked for the contrary.
        if want.tx() || self.register.nr_flags & NR_NO_TX_POLL == 0 {
            for ring in &self.tx {
                if !ring.inner.send_quickly(lease)
                    && ring.inner.due(want.tx())
                    && let Err(trouble) = self.sync_ring(ring, lease, Effort::IfNeeded, now)
                {
                    return Err(self.explain(trouble, ring, "tx"));
                }
                if want.tx() && ring.inner.ready() {
                    ready |= Interest::TX;
                }
            }
        }
        if want.rx() {
            for ring in &self.rx {
                if ring.inner.due(true)
                    && let Err(trouble) = self.sync_ring(ring, lease, Effort::IfNeeded, now)
                {
                    return Err(self.explain(trouble, ring, "rx"));
                }
                if ring.inner.ready() {
                    ready |= Interest::RX;
                }
            }
        }
        Ok(ready)
    }

    /// Syncs all rings as a poll does and, unless something that is wanted is ready, waits until it is, or until
    /// `timeout` (`None`: no limit). What is ready comes back; nothing means that the time is over or a signal came.
    ///
    /// A ring is ready when `cur != tail`. Handed-over slots are sent even when only [`Interest::RX`] is wanted.
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

    /// Whether the one transmit ring was all that a poll for [`Interest::TX`] had to see to, and slots are left in it.
    #[inline(always)]
    fn sends(&self, quickly: impl Fn(&SyncRing, u32) -> bool) -> bool {
        let [ring] = &self.tx[..] else { return false };
        self.enter_quickly().is_some_and(|lease| quickly(&ring.inner, lease))
    }

    /// The same where it is not a single packet, kept out of what programs have in their loops.
    #[inline(never)]
    fn sends_several(&self) -> bool {
        self.sends(SyncRing::send_quickly)
    }

    /// For event loops: syncs, and if nothing that is wanted is ready, asks to be woken: then one of
    /// [`Port::wait_fds`] becomes readable, and `arm` is to be called again. If something is ready, it comes back and
    /// no wake-up was asked for.
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn arm(&self, want: Interest) -> Result<Interest, Error> {
        let ready = self.look(want, None)?;
        if !ready.is_none() {
            return Ok(ready);
        }
        self.silence(want);
        self.ask_for_wakeup(want);
        // Between the look and the request something may have come: nobody would wake us for that.
        let ready = self.look(want, None)?;
        if !ready.is_none() {
            self.wake_sharers(want);
            return Ok(ready);
        }
        // A ring that is due and not ready is in somebody else's sync, whose end rings no bell: the wait ends at once.
        self.sleepers(want).filter(|(ring, _)| ring.inner.due(true)).for_each(|(_, sleeper)| sleeper.bell().notify());
        Ok(ready)
    }

    /// What to wait on after [`Port::arm`] found nothing ready: readable, or closed by the daemon's end.
    pub fn wait_fds(&self, want: Interest) -> Vec<BorrowedFd<'_>> {
        let mut fds = vec![self.connection.fd.as_fd()];
        for (_, sleeper) in self.sleepers(want) {
            fds.push(sleeper.bell().as_fd());
            fds.extend(sleeper.socket());
        }
        fds
    }

    /// The rings of the wanted directions that can wake a sleeper.
    pub(crate) fn sleepers(&self, want: Interest) -> impl Iterator<Item = (&Ring, &dyn Sleeper)> {
        let tx = self.tx.iter().filter(move |_| want.tx());
        let rx = self.rx.iter().filter(move |_| want.rx());
        tx.chain(rx).filter_map(|ring| {
            let path = &ring.inner.path;
            let sleeper = path.tx().and_then(|tx| tx.sleeper()).or_else(|| path.rx()?.sleeper());
            Some((ring, sleeper?))
        })
    }

    pub(crate) fn ask_for_wakeup(&self, want: Interest) {
        self.sleepers(want).for_each(|(_, sleeper)| sleeper.arm());
    }

    /// Takes back bells that rang.
    pub(crate) fn silence(&self, want: Interest) {
        for (_, sleeper) in self.sleepers(want) {
            sleeper.bell().clear();
        }
    }

    #[cold]
    pub(crate) fn explain(&self, trouble: Trouble, ring: &Ring, dir: &str) -> Error {
        let asked = self.spec.clone();
        match trouble {
            Trouble::BadPointers => Error::BadPointers { asked, ring: format!("{dir} {}", ring.id()) },
            Trouble::Ended if self.register.nr_flags & MONITOR != 0 => Error::WatchedGone { asked },
            Trouble::Ended => Error::InterfaceGone { asked },
            Trouble::ByLoop => Error::ByLoop { asked },
            // The latter is asked for before anybody is told.
            Trouble::Mute | Trouble::News => Error::OnlyWatches { asked },
        }
    }

    /// What each sync begins with: the daemon lives, and this very process has a lease.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Result<u32, Error> {
        if self.lease_forks.load(Relaxed) != process::fork_count() {
            self.renew_lease()?;
        }
        let left = self.checks_left.load(Relaxed);
        if left == 0 {
            self.check_life()?;
        } else {
            self.checks_left.store(left - 1, Relaxed);
        }
        Ok(self.lease_number.load(Relaxed))
    }

    /// The same for who leaves it to [`Port::enter`] where something is to be renewed or looked at.
    #[inline(always)]
    pub(crate) fn enter_quickly(&self) -> Option<u32> {
        let left = self.checks_left.load(Relaxed);
        if left == 0 || self.lease_forks.load(Relaxed) != process::fork_count() {
            return None;
        }
        self.checks_left.store(left - 1, Relaxed);
        Some(self.lease_number.load(Relaxed))
    }

    /// Looks at the connection about every 100 ms, without asking for the time at each sync: the number of syncs between
    /// two looks follows the program's pace.
    #[cold]
    fn check_life(&self) -> Result<(), Error> {
        if self.is_shut.load(Relaxed) {
            return Err(Error::FileEnded { asked: self.spec.clone() });
        }
        let gone = || Error::DaemonGone { asked: self.spec.clone() };
        if self.dead.load(Relaxed) {
            return Err(gone());
        }
        if self.blocks.is_given() {
            return Err(Error::ByLoop { asked: self.spec.clone() });
        }
        let (now, every) = (clock::now_ns(), self.check_every.load(Relaxed));
        let elapsed = now.saturating_sub(self.last_check.load(Relaxed));
        if elapsed < LIFE_CHECK_NS {
            // Too early: look at the clock again later, at most ten times as late.
            let next = if elapsed < LIFE_CHECK_NS / 10 { (every * 2).min(4096) } else { every };
            self.check_every.store(next, Relaxed);
            self.checks_left.store(next, Relaxed);
            return Ok(());
        }
        let next = if elapsed > 2 * LIFE_CHECK_NS { 1 } else { every };
        self.check_every.store(next, Relaxed);
        self.last_check.store(now, Relaxed);
        if event::hung_up(self.connection.fd.as_fd()) {
            self.mark_dead();
            return Err(gone());
        }
        if self.file_ended.get().is_some_and(|ended| ended()) {
            return Err(self.shut_down());
        }
        self.checks_left.store(next, Relaxed);
        Ok(())
    }

    /// The daemon has gone: every call fails from now on.
    pub(crate) fn mark_dead(&self) {
        self.dead.store(true, Relaxed);
        self.checks_left.store(0, Relaxed);
    }

    /// Every sync but the loop's fails from now on.
    pub(crate) fn leave_to_loop(&self) {
        self.checks_left.store(0, Relaxed);
    }

    /// Whether the lease is not that of a process that was forked so often.
    pub(crate) fn lease_is_of_another(&self, forks: u32) -> bool {
        self.lease_forks.load(Relaxed) != forks
    }

    /// The number by which locks name this process.
    pub(crate) fn lease_number(&self) -> u32 {
        self.lease_number.load(Relaxed)
    }

    #[cold]
    pub(crate) fn renew_lease(&self) -> Result<(), Error> {
        unetmap_mem::register_publisher();
        let lease = lease::of_this_process(&self.connection.socket)?;
        self.lease_number.store(lease.number, Relaxed);
        self.lease_forks.store(lease.forks, Relaxed);
        self.lease.keep(lease);
        Ok(())
    }
}
