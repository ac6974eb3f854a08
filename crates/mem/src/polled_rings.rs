// SPDX-License-Identifier: BSD-2-Clause
//! The words that a poll reads of each of many rings, side by side.
//!
//! A poll looks at all rings of a port. On the way through a ring's parts each load waits for the one before, and a
//! dozen cache lines are touched; here it is three pointers, and three lines of shared memory that hardly change.

use std::ptr::NonNull;

use crate::channel::ChannelWords;
use crate::endpoint::{SyncState, SyncStateRef};
use crate::mapped_range::SharedRef;
use crate::ring::{ProgramPointers, RingView};

/// The words of one channel, for [`PolledRings::push`].
#[derive(Clone)]
pub struct ChannelRef(pub(crate) SharedRef<ChannelWords>);

/// Rings of one direction, in the order of their numbers.
#[derive(Default)]
pub struct PolledRings {
    words: Vec<Words>,
    /// Keep what `words` points to mapped.
    mapped: Vec<(SyncStateRef, SharedRef<ProgramPointers>, ChannelRef)>,
}

struct Words {
    state: NonNull<SyncState>,
    program: NonNull<ProgramPointers>,
    channel: NonNull<ChannelWords>,
}

// SAFETY: the pointers refer to atomics (M1) that `mapped` keeps mapped (M2), which any thread may use.
unsafe impl Send for PolledRings {}
// SAFETY: as above (M1, M2).
unsafe impl Sync for PolledRings {}

impl PolledRings {
    /// Adds the next ring.
    pub fn push(&mut self, state: &SyncStateRef, view: &RingView, channel: ChannelRef) {
        let Some(program) = view.program_pointers() else { return };
        let words = Words {
            state: NonNull::from(&**state),
            program: NonNull::from(&*program),
            channel: NonNull::from(&*channel.0),
        };
        self.words.push(words);
        self.mapped.push((state.clone(), program, channel));
    }

    /// True if there are no rings.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// True if a poll for packets has nothing to do at receive ring `number`: the program released nothing and has
    /// nothing to read, and the producer sent nothing. False if there is no such ring. A hint (O3).
    #[inline(always)]
    pub fn is_idle_rx(&self, number: usize) -> bool {
        let Some((state, program, channel)) = self.get(number) else { return false };
        let prod = channel.raw_prod();
        let [head, cur, tail] = program.raw();
        state.status() == 0 && [head, cur, tail] == [prod; 3] && state.hwcur_is(prod) && state.hwtail_is(prod)
    }

    /// True if a poll that does not wait for slots has nothing to do at transmit ring `number`: the program released
    /// nothing. False if there is no such ring. A hint (O3).
    #[inline(always)]
    pub fn is_idle_tx(&self, number: usize) -> bool {
        let Some((state, program, _)) = self.get(number) else { return false };
        state.status() == 0 && state.hwcur_is(program.raw()[0])
    }

    #[inline(always)]
    fn get(&self, number: usize) -> Option<(&SyncState, &ProgramPointers, &ChannelWords)> {
        let words = self.words.get(number)?;
        // SAFETY: the pointers come from references that `push` got, and `mapped` keeps the memory mapped (M2); atomics
        // only (M1).
        Some(unsafe { (words.state.as_ref(), words.program.as_ref(), words.channel.as_ref()) })
    }
}
