//! The quick way of a poll's sync.
//!
//! A sender that polls with each packet costs what the instructions of its poll cost: where both cores are near each other
//! that is several times what the transfer itself takes. The usual case is therefore a way of its own: a pipe that nobody
//! watches, packets to be sent, and free slots left. It judges what `sync` judges, and leaves everything else to that.

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::Span;

use super::{Path, SyncRing, judge};

impl SyncRing {
    /// Sends what the program handed over, as a poll's sync would, if nothing else is to be done; `false`: nothing was done.
    #[inline(always)]
    pub(crate) fn send_quickly(&self, lease: u32) -> bool {
        let Path::PipeTx(tx) = &self.path else { return false };
        let (state, slots) = (self.state(), self.view.shape().slots);
        if state.hwcur_is(self.view.raw_head()) || state.notice() != 0 {
            return false;
        }
        let Some(_guard) = state.try_lock(lease) else { return false };
        let Some((hwcur, hwtail)) = state.positions(slots) else { return false };
        let (head, cur) = (self.view.raw_head(), self.view.raw_cur());
        let Some(asked) = judge(slots, hwcur, hwtail, head, cur) else { return false };
        if asked.head == hwcur || asked.cur == hwtail || self.view.raw_tail() != hwtail.raw() {
            return false;
        }
        if tx.line.slots().flags(slots.prev(asked.head)) & NS_MOREFRAG != 0 {
            return false;
        }
        tx.send_whole(Span { from: hwcur, to: asked.head });
        state.set_hwcur(asked.head);
        state.count(slots.distance(hwcur, asked.head));
        true
    }
}
