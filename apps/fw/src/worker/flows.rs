// SPDX-License-Identifier: BSD-2-Clause
//! Records of flows, and of the connections that NAT makes and ends.

use std::sync::atomic::Ordering::Relaxed;

use serde_json::Value;
use unetmap_flows::Observer;

use super::Worker;

/// Looks at expired connections in a round in which the clock is read: also an idle firewall ends them in time.
const SWEEPS: u32 = 64;

impl Worker<'_> {
    /// Sends what is due.
    #[inline]
    pub(super) fn tick(&mut self) {
        let Some(observer) = self.observer.as_mut() else { return };
        if !observer.tick() {
            return;
        }
        self.totals.unsent_records.store(observer.unsent(), Relaxed);
        if self.nat_events.is_some() {
            let millis = self.shared.millis();
            (0..SWEEPS).for_each(|_| self.engine.sweep(0, millis));
            self.send_nat_events();
            self.publish_tables();
        }
    }

    /// Sends records of the connections that NAT has made and ended.
    #[inline]
    pub(super) fn send_nat_events(&mut self) {
        let (Some(events), Some(observer)) = (&mut self.nat_events, &mut self.observer) else { return };
        self.engine.take_nat_events(events);
        observer.nat(events, self.shared.millis());
    }

    /// Ends all records, and in the last worker the connections of NAT. Returns the summary, as JSON and for people.
    pub(crate) fn finish(mut self) -> Option<(Value, String)> {
        let is_last = self.shared.end_worker();
        if let (Some(events), Some(observer), true) = (&mut self.nat_events, &mut self.observer, is_last) {
            observer.pace();
            let millis = self.shared.millis();
            let mut may_have_more = true;
            while may_have_more {
                may_have_more = self.engine.end_nat(millis, events);
                observer.nat(events, millis);
            }
        }
        self.observer.map(Observer::finish)
    }
}
