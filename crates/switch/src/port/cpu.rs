// SPDX-License-Identifier: BSD-2-Clause
//! Where a port's client runs, as its channels' words say, relative to the thread's CPU.

use std::sync::atomic::Ordering::Relaxed;

use unetmap_mem::ChannelWords;

use super::SwitchPort;
use super::rx_ring::PortRx;
use super::tx_ring::PortTx;
use crate::tuning::{MAX_FUTILE_YIELDS, OTHER_CPU_WAIT_COST, SAME_CPU_WAIT_COST};

/// Where a client is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CpuLocality {
    /// On the thread's CPU.
    SameCpu,
    /// On another CPU, or asleep.
    OtherCpu,
    /// It has not published its CPU.
    Unknown,
}

impl CpuLocality {
    /// Returns the price of waiting for such a client: nanoseconds of work for each nanosecond.
    pub(crate) fn wait_cost(self) -> i64 {
        match self {
            CpuLocality::SameCpu | CpuLocality::Unknown => SAME_CPU_WAIT_COST,
            CpuLocality::OtherCpu => OTHER_CPU_WAIT_COST,
        }
    }
}

impl SwitchPort {
    /// True if a thread on CPU `cpu` that has no work should yield it to the client: the client ran there last, waits
    /// for nothing, and makes progress with the CPU time that it is given. Counts the yields without progress.
    pub(crate) fn needs_cpu(&self, cpu: u32) -> bool {
        if !self.ring_pairs().any(|(tx, rx)| runs_on(tx, rx, cpu)) {
            return false;
        }
        let positions = self.ring_pairs().fold(0, |hash: u32, (tx, rx)| {
            let tx = tx.map_or(0, |tx| tx.channel.words().raw_prod());
            let rx = rx.map_or(0, |rx| rx.channel.words().raw_cons());
            hash.wrapping_mul(31).wrapping_add(tx).wrapping_mul(31).wrapping_add(rx)
        });
        if self.positions_at_yield.swap(positions, Relaxed) != positions {
            self.futile_yields.store(0, Relaxed);
        }
        self.futile_yields.fetch_add(1, Relaxed) < MAX_FUTILE_YIELDS
    }

    /// True if the client, which just received packets, may reply while the thread polls: it is awake on a CPU other
    /// than `cpu`.
    pub(crate) fn may_reply(&self, cpu: u32) -> bool {
        self.rx.iter().any(|rx| rx.channel.words().consumer_runs_on_other_cpu(cpu))
    }

    /// Returns each transmit ring with the receive ring of the same number: one program or thread probably uses both.
    fn ring_pairs(&self) -> impl Iterator<Item = (Option<&PortTx>, Option<&PortRx>)> {
        (0..self.tx.len().max(self.rx.len())).map(|i| (self.tx.get(i), self.rx.get(i)))
    }
}

impl PortRx {
    /// Returns where the client is, seen from CPU `cpu`.
    pub(crate) fn locality(&self, cpu: u32) -> CpuLocality {
        let words = self.channel.words();
        if words.consumer_runs_on(cpu) {
            CpuLocality::SameCpu
        } else if words.consumer_cpu_is_known() {
            CpuLocality::OtherCpu
        } else {
            CpuLocality::Unknown
        }
    }
}

/// True if the client of two rings is on CPU `cpu` and waits for neither.
fn runs_on(tx: Option<&PortTx>, rx: Option<&PortRx>, cpu: u32) -> bool {
    let (tx, rx) = (tx.map(|tx| tx.channel.words()), rx.map(|rx| rx.channel.words()));
    (tx.is_some_and(|tx| tx.producer_runs_on(cpu)) || rx.is_some_and(|rx| rx.consumer_runs_on(cpu)))
        && !tx.is_some_and(ChannelWords::producer_waits)
        && !rx.is_some_and(ChannelWords::consumer_waits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_an_unknown_cpu_costs_as_much_as_for_the_same_cpu() {
        let costs = [CpuLocality::SameCpu, CpuLocality::Unknown, CpuLocality::OtherCpu].map(CpuLocality::wait_cost);
        assert_eq!(costs, [1, 1, 7]);
    }
}
