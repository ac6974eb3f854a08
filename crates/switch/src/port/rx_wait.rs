// SPDX-License-Identifier: BSD-2-Clause
//! Waiting for a client whose receive ring has no room, before its packets are dropped (see `backpressure`).

use std::thread::yield_now;

use unetmap_mem::Pos;
use unetmap_sys::clock::{now_ns, spin_hint};
use unetmap_sys::thread::current_cpu;

use super::cpu::CpuLocality;
use super::rx_ring::PortRx;
use crate::backpressure::Backpressure;
use crate::tuning::{BUSY_WAIT_NS, FUTILE_WAIT_WEIGHT, MAX_FUTILE_WAITS};

impl PortRx {
    /// The ring has no room: lets the client run, or waits for it, if that is worth it and the budget allows it. True
    /// if it did, so that the ring should be checked again. The caller holds no lock that others wait for.
    #[cold]
    pub(crate) fn wait_for_room(&self, backpressure: &Backpressure) -> bool {
        if !self.may_wait(backpressure.batch()) {
            return false;
        }
        if backpressure.flush_wakeups() && self.is_half_free() {
            return true;
        }
        let locality = self.locality(current_cpu());
        match locality {
            CpuLocality::SameCpu => backpressure.spend(locality.wait_cost(), || self.futex_wait()),
            CpuLocality::OtherCpu => self.keeps_up() && backpressure.spend(locality.wait_cost(), || self.busy_wait()),
            CpuLocality::Unknown => backpressure.spend(locality.wait_cost(), yield_now),
        }
    }

    /// True if the client may be waited for in this batch: once in each, and not if many waits were futile.
    fn may_wait(&self, batch: u32) -> bool {
        let mut state = self.lock();
        if state.waited_in_batch == batch {
            return false;
        }
        state.waited_in_batch = batch;
        state.futile_waits += u32::from(state.futile_waits < MAX_FUTILE_WAITS);
        state.futile_waits < MAX_FUTILE_WAITS
    }

    /// True if the client had read most of its ring when its position was last read. A function of its own, so that the
    /// lock is released before a wait.
    fn keeps_up(&self) -> bool {
        self.lock().keeps_up
    }

    /// Reads the client's position; true if at least half of the ring is free.
    fn is_half_free(&self) -> bool {
        let n = self.channel.slots().slots();
        let mut state = self.lock();
        let mut next = *state;
        self.refresh(&mut next);
        *state = next;
        next.room(n) >= n.get() / 2
    }

    /// Waits on a futex until the client, which has the same CPU, sleeps with an empty ring, or for 5 ms.
    #[cold]
    fn futex_wait(&self) {
        let known = self.lock().cons;
        self.channel.words().producer_futex_wait(known, true);
        self.after_wait(known, true);
    }

    /// Polls until three quarters of the ring are free, for [`BUSY_WAIT_NS`] at most.
    #[cold]
    fn busy_wait(&self) {
        let n = self.channel.slots().slots();
        let known = self.lock().cons;
        let end = now_ns() + BUSY_WAIT_NS;
        while now_ns() < end {
            (0..16).for_each(|_| spin_hint());
            let mut state = *self.lock();
            self.refresh(&mut state);
            if state.room(n) >= n.get() / 4 * 3 {
                break;
            }
        }
        self.after_wait(known, false);
    }

    fn after_wait(&self, known: Pos, keeps_up: bool) {
        let mut state = self.lock();
        let mut next = *state;
        self.refresh(&mut next);
        if next.cons == known {
            next.futile_waits = (next.futile_waits + FUTILE_WAIT_WEIGHT).min(MAX_FUTILE_WAITS);
        }
        next.keeps_up = keeps_up;
        *state = next;
    }
}
