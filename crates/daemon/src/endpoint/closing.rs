// SPDX-License-Identifier: BSD-2-Clause
//! Closing a receive ring that its last session has left in any state.

use unetmap_abi::NS_BUF_CHANGED;
use unetmap_mem::{ChannelPage, OWNED_BY_SYNC_LOOP, Pos, RingView, Span, SyncState};

use super::PortRing;

impl PortRing {
    /// Releases what the last session of a receive ring has read: the slots before its `head`, also if it has not
    /// synced that any more, and those up to the last buffer that it has exchanged with the producer, which gets these
    /// buffers.
    pub(super) fn release_read(
        &self,
        state: Option<&SyncState>,
        channels: Option<&ChannelPage>,
        producer: Option<&RingView>,
    ) {
        let slots = self.view.slots().slots();
        let Some(words) = self.channel_words(channels) else { return };
        let Some(sent) = words.positions(slots) else { return };
        let Some((_, hwtail)) = state.and_then(|state| state.positions(slots)) else { return };
        if !slots.between(sent.from, hwtail, sent.to) {
            return;
        }
        // A sync loop has its positions in other memory.
        let has_head = state.is_some_and(|state| state.status() & OWNED_BY_SYNC_LOOP == 0);
        let head = slots.pos(self.view.raw_head()).filter(|head| has_head && slots.between(sent.from, *head, hwtail));
        let unread = Span { from: sent.from, to: hwtail };
        let exchanged = producer.map_or(sent.from, |producer| self.return_exchanged(unread, producer));
        let read = head.filter(|head| slots.between(exchanged, *head, hwtail));
        words.release(read.unwrap_or(exchanged));
    }

    /// Returns the buffers to the producer that the last session of a receive ring has exchanged in these slots.
    /// Returns the position after the last of them.
    fn return_exchanged(&self, unread: Span, producer: &RingView) -> Pos {
        let (own, slots) = (self.view.slots(), self.view.slots().slots());
        let limits = self.view.region().limits();
        let mut end = unread.from;
        for p in slots.walk(unread) {
            let slot = own.load(p);
            if slot.flags & NS_BUF_CHANGED != 0 {
                if limits.index_ok(slot.buf_idx) {
                    producer.slots().set_buf_idx(p, slot.buf_idx);
                    producer.slots().set_flags(p, slot.flags);
                }
                own.set_flags(p, slot.flags & !NS_BUF_CHANGED);
                end = slots.next(p);
            } else if producer.slots().flags(p) & NS_BUF_CHANGED != 0 {
                // The process exited between returning the buffer and releasing the slot.
                end = slots.next(p);
            }
        }
        end
    }
}
