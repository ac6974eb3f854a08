//! A port without a data path: memory, rings, and syncs that move nothing (`NR_REG_NULL`).

use unetmap_mem::{Pos, Span};

use super::{Filled, Nonsense, Rx, Sleeper, Tx};

/// Both directions of it.
pub(crate) struct Null;

impl Tx for Null {
    fn send(&self, _window: Span) -> u32 {
        0
    }

    fn finished(&self, known: Pos, _sent: Pos) -> Result<Pos, Nonsense> {
        Ok(known)
    }

    fn moved(&self, _known: Pos) -> Option<u32> {
        None
    }

    fn sleeper(&self) -> Option<&dyn Sleeper> {
        None
    }
}

impl Rx for Null {
    fn release(&self, _window: Span) -> u32 {
        0
    }

    fn fill(&self, _held: Pos, taken: Pos) -> Result<Filled, Nonsense> {
        Ok(Filled { to: taken, bad: 0 })
    }

    fn moved(&self, _known: Pos) -> Option<u32> {
        None
    }

    fn sleeper(&self) -> Option<&dyn Sleeper> {
        None
    }
}
