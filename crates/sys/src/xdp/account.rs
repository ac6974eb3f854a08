// SPDX-License-Identifier: BSD-2-Clause
//! The account of an interface's frames: what the programs counted, and what is kept in the policy of closed sockets.
//!
//! ```text
//! received - received_before = failed + refused + frames of closed sockets + frames of open sockets
//! ```
//! A frame that goes to a socket is counted by the socket alone: the way to a program has no counter.

use std::io;
use std::thread;
use std::time::Duration;

use super::attach::Xdp;
use super::failure::counts;
use super::policy::{Account, Failed, SocketFrames};
use super::translate::REFUSED;
use crate::bpf;
use crate::link;

/// How often the counters are read anew, because a frame came meanwhile.
const TRIES: usize = 20;
/// Time between two readings.
const BATCH: Duration = Duration::from_micros(50);

impl Xdp {
    pub(super) fn write_policy(&self) -> io::Result<()> {
        // SAFETY: K5: the elements of `policies` in xdp.c are of type `struct policy`.
        unsafe { bpf::array_set(&self.policies, &self.policy) }
    }

    /// Returns the account.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn account(&self) -> io::Result<Account> {
        let counts = counts(&self.failed, &self.policy)?;
        Ok(Account {
            received_before: self.policy.received_before,
            failed: Failed::of(counts, &self.policy),
            refused: counts[REFUSED as usize],
            closed_sockets: self.policy.closed_sockets,
            is_shared: self.is_member,
        })
    }

    /// Adds the frames of sockets that get no more of them.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn add_closed_sockets(&mut self, frames: SocketFrames) -> io::Result<()> {
        self.policy.closed_sockets = self.policy.closed_sockets.and(frames);
        self.write_policy()
    }

    /// Begins the account of a program that was attached to interface `ifindex` and has no socket yet.
    pub(super) fn begin_account(&mut self, ifindex: u32) -> io::Result<()> {
        let (received, counted) = self.at_one_time(ifindex)?;
        self.policy.received_before = received.wrapping_sub(counted);
        self.write_policy()
    }

    /// Takes the frames of sockets that ended with the processes that had them for frames that went to programs.
    pub(super) fn settle_ended_sockets(&mut self, ifindex: u32) -> io::Result<()> {
        let counts = self.at_one_time(ifindex)?;
        self.settle(ifindex, counts)
    }

    /// The same, by counts of which frames that come at this time may be in one alone.
    pub(super) fn settle_at_once(&mut self, ifindex: u32) -> io::Result<()> {
        let counts = self.received_and_counted(ifindex)?;
        self.settle(ifindex, counts)
    }

    fn settle(&mut self, ifindex: u32, (received, counted): (u64, u64)) -> io::Result<()> {
        match received.checked_sub(self.policy.received_before) {
            Some(came) => {
                let to_programs = came.saturating_sub(counted);
                self.add_closed_sockets(SocketFrames { to_programs, ..SocketFrames::default() })
            }
            // The interface counts anew.
            None => self.begin_account(ifindex),
        }
    }

    /// The frames that the interface has received, and those of them that are in the account.
    fn received_and_counted(&self, ifindex: u32) -> io::Result<(u64, u64)> {
        let received = link::frame_counts(ifindex)?.map_or(0, |counts| counts.received);
        let counts = counts(&self.failed, &self.policy)?;
        Ok((received, counts.iter().sum::<u64>().wrapping_add(self.policy.closed_sockets.sum())))
    }

    /// The same, while no frame comes.
    fn at_one_time(&self, ifindex: u32) -> io::Result<(u64, u64)> {
        let mut last = self.received_and_counted(ifindex)?;
        for _ in 0..TRIES {
            // A driver counts a batch of frames when it has handled all of them.
            thread::sleep(BATCH);
            let now = self.received_and_counted(ifindex)?;
            if now == last {
                break;
            }
            last = now;
        }
        Ok(last)
    }
}
