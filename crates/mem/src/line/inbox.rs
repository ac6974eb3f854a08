//! A line whose producer writes into the consumer's slots.

use super::{LinePage, LineWords};
use crate::pos::Span;
use crate::slot::SlotRing;
use crate::take::claim;
use crate::window::Found;

/// The consumer's side of a line whose producer, trusted, writes straight into the consumer's own slots.
///
/// ```text
/// slots (the consumer's)    ... [ cons ........ prod ) ...
///                                 to be read           free: the producer fills them, into the buffers that it finds there
/// ```
#[derive(Clone)]
pub struct Inbox {
    words: Found<LineWords>,
    slots: SlotRing,
}

impl Inbox {
    /// Joins line `index` of `page` as the owner of `slots`; `None` when the page has no such line.
    pub fn new(page: &LinePage, index: usize, slots: SlotRing) -> Option<Inbox> {
        Some(Inbox { words: page.join(index)?, slots })
    }

    /// The words of the line.
    #[inline(always)]
    pub fn words(&self) -> &LineWords {
        &self.words
    }

    /// The consumer's own slots.
    #[inline(always)]
    pub fn slots(&self) -> &SlotRing {
        &self.slots
    }

    /// Claims the cache lines of `span`, which must lie in `[cons, prod)`: the next thing that happens to them is that the
    /// producer writes them again.
    #[inline]
    pub fn claim(&self, span: Span) {
        claim(&self.slots, span);
    }
}
