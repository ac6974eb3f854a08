//! Back ends: how the slots of one ring move. One file each; the smallest is `null`.
//!
//! A sync shows a back end windows of slots and asks for bulk work, under the ring's lock. A back end never sees the
//! program's pointers: they were judged before.

use std::os::fd::BorrowedFd;

use unetmap_mem::{Pos, Span};
use unetmap_sys::Doorbell;

pub(crate) mod monitor;
pub(crate) mod nic;
pub(crate) mod null;
pub(crate) mod pipe;
pub(crate) mod vale;

/// A position that the other party wrote and that cannot be: it is ignored, and counted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Nonsense;

/// How a program that is about to sleep is woken.
pub(crate) trait Sleeper {
    /// Asks the other party for a wake-up. The caller looks once more before it sleeps.
    fn arm(&self);

    /// Becomes readable when the program, armed, is woken.
    fn bell(&self) -> &Doorbell;

    /// Before that: gives this processor to the other party, if that needs it, until something moved or for a few
    /// milliseconds. `known` is the position for which the caller waits to change. Returns whether it did.
    fn give_way(&self, known: Pos) -> bool {
        let _ = known;
        false
    }

    /// What else becomes readable, by itself, and stays so as long as there is something to be had.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The transmit side of one ring.
pub(crate) trait Tx: Send + Sync {
    /// The program handed over the slots of `window`: sends them, and wakes who waits for them. Returns how many slots
    /// are not sent, because they broke the limits.
    fn send(&self, window: Span) -> u32;

    /// Whether something handed over waits for another try, which a sync makes.
    fn waits(&self) -> bool {
        false
    }

    /// How far the slots handed over are finished. They were, up to `known`; they cannot be beyond `sent`.
    fn finished(&self, known: Pos, sent: Pos) -> Result<Pos, Nonsense>;

    /// Without the lock, and not judged: where the other party says it is, if that is not `known`.
    fn moved(&self, known: Pos) -> Option<u32>;

    /// How to wait until more slots are finished; `None` when that never happens.
    fn sleeper(&self) -> Option<&dyn Sleeper>;
}

/// What an [`Rx::fill`] delivered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    /// One past the last slot delivered.
    pub(crate) to: Pos,
    /// Slots among them that were delivered empty, because they broke the limits.
    pub(crate) bad: u32,
}

/// The receive side of one ring.
pub(crate) trait Rx: Send + Sync {
    /// The program is done with the slots of `window`: gives them back, and wakes who waits for them. Returns how many
    /// buffers could not be given back, because they do not exist.
    fn release(&self, window: Span) -> u32;

    /// Delivers what has come: the program holds `[held, taken)`, the slots from `taken` to before `held` are free.
    fn fill(&self, held: Pos, taken: Pos) -> Result<Filled, Nonsense>;

    /// Whether packets come by the kernel's work, which each look delays: then a receiver in a stream rests between looks,
    /// and does not spin.
    fn rests(&self) -> bool {
        false
    }

    /// Whether the other party was on the caller's processor last: then it sends nothing while the caller is there.
    fn is_near(&self) -> bool {
        false
    }

    /// Without the lock, and not judged: where the other party says it is, if that is not `taken`.
    fn moved(&self, taken: Pos) -> Option<u32>;

    /// Of a port that has ended: whether the program may go on, as there is still something to be had. `unread`: it has
    /// slots beyond its wake-up point.
    fn left(&self, unread: bool) -> bool {
        let _ = unread;
        false
    }

    /// How to wait until something comes; `None` when nothing ever does.
    fn sleeper(&self) -> Option<&dyn Sleeper>;
}
