//! Control blocks: positions in two arrays of the program's own, and a loop that syncs by them.
//!
//! ```text
//! atok[i]  written by the program    head cur appl_need_kick
//! ktoa[i]  written by the loop       hwcur hwtail kern_need_kick        i: transmit rings first
//! ```
//! From then on nothing else syncs the port. The loop runs in the thread that asked for it, until another asks it to end.
//! Between two rounds it sleeps for a time; or, with an eventfd for each ring, until the program writes one
//! (`kern_need_kick` says whether it has to), or a ring's partner wakes it. With another eventfd it tells the
//! program of news, where `appl_need_kick` asks for that.
//!
//! The arrays are any memory of the program's, or none any more: the kernel reads and writes them for us.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, fence};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use unetmap_abi::{KloopEventfds, NR_EXCLUSIVE, NmCsbAtok, NmCsbKtoa};
use unetmap_mem::RingState;
use unetmap_sys::event::{self, Epoll};
use unetmap_sys::user_memory::UserArray;
use unetmap_sys::{eventfd, process};
use zerocopy::{FromZeros, IntoBytes};

use crate::error::{Error, errno};
use crate::port::{Interest, Port};
use crate::port::ring::Ring;
use crate::sync::Trouble;

/// Bytes of an entry of either array.
const ENTRY: usize = size_of::<NmCsbAtok>();
const _: () = assert!(size_of::<NmCsbKtoa>() == ENTRY);
/// Where the program's `appl_need_kick` stands in its entry, and ours.
const APPL_NEED_KICK: usize = std::mem::offset_of!(NmCsbAtok, appl_need_kick);
const HWCUR: usize = std::mem::offset_of!(NmCsbKtoa, hwcur);
const HWTAIL: usize = std::mem::offset_of!(NmCsbKtoa, hwtail);
const KERN_NEED_KICK: usize = std::mem::offset_of!(NmCsbKtoa, kern_need_kick);

/// How long a loop sleeps without being woken: who died between a position and a bell woke nobody.
const LOOK_UP: Duration = Duration::from_millis(500);
/// How often who asked a loop to end looks whether it has.
const ENDED_YET: Duration = Duration::from_millis(1);
/// How often the loop looks at the daemon.
const LIFE: Duration = Duration::from_millis(100);
/// A program stores `cur` before `head`; who reads them in one go may see the later head alone.
const TORN_AT_MOST: u32 = 8;
/// Rounds in a row in which the program or a partner moved something, before the loop looks at anything else.
const ROUNDS: u32 = 64;

/// The arrays of a port.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    /// The program's: 64 bytes for each bound ring.
    pub atok: UserArray,
    /// Ours, as many.
    pub ktoa: UserArray,
}

/// The blocks of a port, if it has any.
#[derive(Default)]
pub(crate) struct Cell {
    given: AtomicBool,
    blocks: Mutex<Option<Blocks>>,
}

impl Cell {
    #[inline]
    pub(crate) fn is_given(&self) -> bool {
        self.given.load(Relaxed)
    }

    fn get(&self) -> Option<Blocks> {
        *self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, blocks: Blocks) {
        *self.blocks.lock().unwrap_or_else(PoisonError::into_inner) = Some(blocks);
        self.given.store(true, Relaxed);
    }
}

/// How a loop waits, and whom it tells.
#[derive(Debug, Default)]
pub struct LoopOptions {
    /// Between two rounds, unless every ring has an eventfd to wake the loop.
    pub sleep: Duration,
    /// For each bound ring, transmit rings first: the eventfd that wakes the loop, the one that wakes the program; negative
    /// for none.
    pub eventfds: Option<Vec<KloopEventfds>>,
    /// Rings of these directions: the program writes its eventfd whenever it moves, without being asked to.
    pub direct: Interest,
}

impl Port {
    /// How many rings the port has bound.
    pub fn bound_rings(&self) -> usize {
        self.tx.len() + self.rx.len()
    }

    /// Leaves the port to a sync loop, by the positions in `blocks`, which are set to where the rings stand. A second call
    /// gives other arrays.
    ///
    /// # Errors
    /// `EBUSY` while a loop runs; `EINVAL` for a port that is not bound exclusively, or arrays that do not begin on a
    /// multiple of 64 bytes; `EFAULT` where there is no memory, or less than the rings need.
    pub fn give_blocks(&self, blocks: Blocks) -> Result<(), Error> {
        let refused = |errno, why: &str| Error::Refused { asked: self.spec().into(), errno, why: why.into() };
        let Some(first) = self.first_state() else { return Ok(()) };
        if first.has_loop() {
            return Err(refused(errno::EBUSY, "a sync loop runs by the control blocks that it has"));
        }
        if self.register().nr_flags & NR_EXCLUSIVE == 0 {
            return Err(refused(errno::EINVAL, "control blocks need the rings exclusively (NR_EXCLUSIVE)"));
        }
        if [blocks.atok, blocks.ktoa].iter().any(|array| !array.address().is_multiple_of(ENTRY as u64)) {
            return Err(refused(errno::EINVAL, "control blocks begin on a multiple of 64 bytes"));
        }
        let no_memory = |_| refused(errno::EFAULT, "the control blocks are not in memory that can be written");
        blocks.atok.read(0, &mut vec![0; self.bound_rings() * ENTRY]).map_err(no_memory)?;
        for (i, ring) in self.all_rings().enumerate() {
            let stand = Stand::of(ring);
            let atok = NmCsbAtok { head: stand.hwcur, cur: stand.hwcur, appl_need_kick: 1, sync_flags: 1, ..zeroed() };
            let ktoa = NmCsbKtoa { hwcur: stand.hwcur, hwtail: stand.hwtail, kern_need_kick: 1, ..zeroed() };
            blocks.atok.write(i * ENTRY, atok.as_bytes()).map_err(no_memory)?;
            blocks.ktoa.write(i * ENTRY, ktoa.as_bytes()).map_err(no_memory)?;
        }
        self.blocks.set(blocks);
        self.leave_to_loop();
        self.all_rings().for_each(|ring| ring.inner.state().leave_to_loop());
        Ok(())
    }

    /// Whether [`Port::run_loop`] can begin.
    ///
    /// # Errors
    /// `EINVAL` without control blocks; `EBUSY` when a loop runs.
    pub fn may_loop(&self) -> Result<(), Error> {
        let refused = |errno, why: &str| Error::Refused { asked: self.spec().into(), errno, why: why.into() };
        match self.first_state().filter(|_| self.blocks.is_given()) {
            None => Err(refused(errno::EINVAL, "a sync loop needs control blocks (the option CSB)")),
            Some(first) if first.has_loop() => Err(refused(errno::EBUSY, "a sync loop runs already")),
            Some(_) => Ok(()),
        }
    }

    /// Syncs all bound rings by the control blocks, again and again, until [`Port::end_loop`] is called.
    ///
    /// # Errors
    /// `EINVAL` without control blocks, or with a descriptor in place of an eventfd's that is none; `EBUSY` when a loop
    /// runs already; `EBADF` for an eventfd that is not open; `EFAULT` when the blocks' memory goes away; `ENXIO` when the
    /// port ends.
    pub fn run_loop(&self, options: &LoopOptions) -> Result<(), Error> {
        let refused = |errno, why: &str| Error::Refused { asked: self.spec().into(), errno, why: why.into() };
        let blocks = self.blocks.get();
        let Some((blocks, first)) = blocks.zip(self.first_state()) else {
            return Err(refused(errno::EINVAL, "a sync loop needs control blocks (the option CSB)"));
        };
        let lease = self.enter_loop()?;
        if !first.begin_loop(lease) {
            return Err(refused(errno::EBUSY, "a sync loop runs already"));
        }
        let result = Loop::new(self, blocks, lease, options).and_then(|mut running| running.run(first));
        first.end_loop(lease);
        result
    }

    /// Asks the loop to end, and waits until it has. One that begins later ends at once.
    pub fn end_loop(&self) {
        let Some(first) = self.first_state() else { return };
        first.ask_loop_to_end();
        while first.has_loop() {
            if let Some((_, sleeper)) = self.sleepers(Interest::BOTH).next() {
                sleeper.bell().notify();
            }
            std::thread::sleep(ENDED_YET);
        }
    }

    fn all_rings(&self) -> impl Iterator<Item = &Ring> {
        self.tx.iter().chain(&self.rx)
    }

    fn first_state(&self) -> Option<&RingState> {
        self.all_rings().next().map(|ring| ring.inner.state())
    }
}

fn zeroed<T: FromZeros>() -> T {
    T::new_zeroed()
}

/// Where a ring stands.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stand {
    hwcur: u32,
    hwtail: u32,
}

impl Stand {
    /// What cannot be is told as the start: the next sync says what is wrong.
    fn of(ring: &Ring) -> Stand {
        let positions = ring.inner.state().positions(ring.inner.view.shape().slots);
        positions
            .map_or(Stand { hwcur: 0, hwtail: 0 }, |(hwcur, hwtail)| Stand { hwcur: hwcur.raw(), hwtail: hwtail.raw() })
    }
}

/// A ring in the loop.
struct Turn<'a> {
    ring: &'a Ring,
    transmit: bool,
    /// What stands in `ktoa`: positions, and whether the program is to write its eventfd.
    told: Stand,
    wants_kick: bool,
    direct: bool,
    /// Wakes the program.
    irq: Option<OwnedFd>,
}

/// A loop that runs.
struct Loop<'a> {
    port: &'a Port,
    blocks: Blocks,
    lease: u32,
    turns: Vec<Turn<'a>>,
    /// All that wakes it; none: it sleeps for a time.
    events: Option<Epoll>,
    sleep: Duration,
    /// The program's eventfds, as long as they are waited for.
    _kicks: Vec<OwnedFd>,
    looked: Instant,
}

impl<'a> Loop<'a> {
    fn new(port: &'a Port, blocks: Blocks, lease: u32, options: &LoopOptions) -> Result<Loop<'a>, Error> {
        let host = |e: io::Error| Error::host(port.spec(), e);
        let given = options.eventfds.as_deref().unwrap_or_default();
        let by_events = !given.is_empty() && given.iter().all(|pair| pair.ioeventfd >= 0);
        let mut turns = Vec::new();
        let mut kicks = Vec::new();
        for (i, ring) in port.all_rings().enumerate() {
            let transmit = i < port.tx.len();
            let pair = given.get(i).copied().unwrap_or(KloopEventfds { ioeventfd: -1, irqfd: -1 });
            // As in the original, both are looked at, though only a loop that events wake rings the program's.
            let irq = (pair.irqfd >= 0).then(|| eventfd::duplicate(pair.irqfd)).transpose().map_err(host)?;
            if by_events {
                kicks.push(eventfd::duplicate(pair.ioeventfd).map_err(host)?);
            }
            let direct = if transmit { options.direct.tx() } else { options.direct.rx() };
            let (told, irq) = (Stand::of(ring), irq.filter(|_| by_events));
            turns.push(Turn { ring, transmit, told, wants_kick: true, direct, irq });
        }
        let events = by_events.then(|| event_set(port, &kicks)).transpose().map_err(host)?;
        let (sleep, looked) = (options.sleep, Instant::now());
        Ok(Loop { port, blocks, lease, turns, events, sleep, _kicks: kicks, looked })
    }

    fn run(&mut self, first: &RingState) -> Result<(), Error> {
        while first.loop_goes_on(self.lease) {
            self.look_at_daemon()?;
            self.want_kicks(false)?;
            if self.events.is_none() {
                self.round()?;
                match self.sleep {
                    Duration::ZERO => std::thread::yield_now(),
                    time => std::thread::sleep(time),
                }
                continue;
            }
            let mut rounds = 0;
            while self.round()? && rounds < ROUNDS {
                rounds += 1;
            }
            if rounds < ROUNDS && first.loop_goes_on(self.lease) {
                self.wait(first)?;
            }
        }
        Ok(())
    }

    /// Asks to be woken, looks once more, and sleeps.
    fn wait(&mut self, first: &RingState) -> Result<(), Error> {
        self.want_kicks(true)?;
        self.port.ask_for_wakeup(Interest::BOTH);
        // The program looks whether we want a kick after it moved; so we look after we said so.
        fence(std::sync::atomic::Ordering::SeqCst);
        if self.round()? || !first.loop_goes_on(self.lease) {
            return Ok(());
        }
        let Some(events) = &self.events else { return Ok(()) };
        let mut happened = Vec::new();
        match events.wait(&mut happened, Some(LOOK_UP)) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(Error::host(self.port.spec(), e)),
            _ => self.port.silence(Interest::BOTH),
        }
        Ok(())
    }

    /// Syncs every ring once by what the program wrote; whether anything moved.
    fn round(&mut self) -> Result<bool, Error> {
        let mut moved = false;
        for i in 0..self.turns.len() {
            moved |= self.turn(i)?;
        }
        Ok(moved)
    }

    fn turn(&mut self, i: usize) -> Result<bool, Error> {
        let ring = self.turns[i].ring;
        let stand = Stand::of(ring);
        let (mut head, mut cur) = self.read_pointers(i)?;
        for _ in 0..TORN_AT_MOST {
            if plausible(ring, stand, head, cur) {
                break;
            }
            (head, cur) = self.read_pointers(i)?;
        }
        match ring.inner.sync_elsewhere(self.lease, (head, cur)) {
            // The ring was set back, and stays so until the program's pointers make sense.
            Ok(()) | Err(Trouble::BadPointers | Trouble::Mute) => {}
            Err(Trouble::News) => self.port.renew_watchers(),
            Err(trouble @ (Trouble::Ended | Trouble::ByLoop)) => {
                let dir = if self.turns[i].transmit { "tx" } else { "rx" };
                return Err(self.port.explain(trouble, ring, dir));
            }
        }
        self.tell(i)
    }

    fn read_pointers(&self, i: usize) -> Result<(u32, u32), Error> {
        let mut words = [0u32; 2];
        self.blocks.atok.read(i * ENTRY, words.as_mut_bytes()).map_err(|e| self.lost(e))?;
        // What the slots say comes after that.
        fence(std::sync::atomic::Ordering::Acquire);
        Ok((words[0], words[1]))
    }

    /// Writes where the ring stands now, and tells the program if it wants to know; whether that is news.
    fn tell(&mut self, i: usize) -> Result<bool, Error> {
        let turn = &self.turns[i];
        let now = Stand::of(turn.ring);
        if now == turn.told {
            return Ok(false);
        }
        let more = now.hwtail != turn.told.hwtail;
        fence(std::sync::atomic::Ordering::Release);
        // hwcur first: who reads them the other way round never sees it behind hwtail.
        self.blocks.ktoa.write(i * ENTRY + HWCUR, &now.hwcur.to_ne_bytes()).map_err(|e| self.lost(e))?;
        fence(std::sync::atomic::Ordering::Release);
        self.blocks.ktoa.write(i * ENTRY + HWTAIL, &now.hwtail.to_ne_bytes()).map_err(|e| self.lost(e))?;
        fence(std::sync::atomic::Ordering::SeqCst);
        if more && let Some(irq) = &turn.irq {
            let mut wants = 0u32;
            self.blocks.atok.read(i * ENTRY + APPL_NEED_KICK, wants.as_mut_bytes()).map_err(|e| self.lost(e))?;
            if wants != 0 {
                eventfd::signal(irq);
            }
        }
        self.turns[i].told = now;
        Ok(true)
    }

    /// Whether the program is to write the eventfds of rings that it could do something about.
    fn want_kicks(&mut self, wanted: bool) -> Result<(), Error> {
        for i in 0..self.turns.len() {
            let turn = &self.turns[i];
            // A receive ring with room waits for its partner, not for the program.
            let useful = turn.transmit || !has_room(turn.ring, turn.told);
            let wants = turn.direct || wanted && useful;
            if wants != turn.wants_kick {
                let word = u32::from(wants).to_ne_bytes();
                self.blocks.ktoa.write(i * ENTRY + KERN_NEED_KICK, &word).map_err(|e| self.lost(e))?;
                self.turns[i].wants_kick = wants;
            }
        }
        Ok(())
    }

    fn look_at_daemon(&mut self) -> Result<(), Error> {
        if self.looked.elapsed() < LIFE {
            return Ok(());
        }
        self.looked = Instant::now();
        if event::hung_up(self.port.connection.fd.as_fd()) {
            self.port.mark_dead();
            return Err(Error::DaemonGone { asked: self.port.spec().into() });
        }
        Ok(())
    }

    #[cold]
    fn lost(&self, _: io::Error) -> Error {
        let why = "the control blocks are not in memory any more".into();
        Error::Refused { asked: self.port.spec().into(), errno: errno::EFAULT, why }
    }
}

/// Whether a sync would take such pointers.
fn plausible(ring: &Ring, stand: Stand, head: u32, cur: u32) -> bool {
    let slots = ring.inner.view.shape().slots;
    let positions = slots.pos(stand.hwcur).zip(slots.pos(stand.hwtail));
    positions.is_none_or(|(hwcur, hwtail)| crate::sync::judge(slots, hwcur, hwtail, head, cur).is_some())
}

/// Whether a receive ring can take another packet.
fn has_room(ring: &Ring, told: Stand) -> bool {
    let slots = ring.inner.view.shape().slots;
    let positions = slots.pos(told.hwcur).zip(slots.pos(told.hwtail));
    positions.is_none_or(|(hwcur, hwtail)| hwtail != slots.prev(hwcur))
}

/// Everything that wakes a loop. The program's eventfds wake it each time that they are written, and are never read.
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
    /// What each loop begins with: this very process has a lease.
    fn enter_loop(&self) -> Result<u32, Error> {
        if self.lease_is_of_another(process::fork_count()) {
            self.renew_lease()?;
        }
        Ok(self.lease_number())
    }
}
