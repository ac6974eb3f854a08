// SPDX-License-Identifier: BSD-2-Clause
//! Descriptors for event loops that stay the same while the files that a port waits for are replaced: a set of each
//! direction, made when it is first waited for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use unetmap_sys::event::Epoll;

use crate::port::reconnect::Reconnect;
use crate::port::{Interest, Port};

const DIRECTIONS: [Interest; 2] = [Interest::TX, Interest::RX];

impl Port {
    /// Returns the sets of the wanted directions, of a port that goes on with other daemons; `None`: no descriptor is
    /// left for one.
    pub(super) fn wait_sets_of<'p>(&'p self, reconnect: &'p Reconnect, want: Interest) -> Option<Vec<BorrowedFd<'p>>> {
        let wanted = [want.tx(), want.rx()];
        let all = DIRECTIONS.into_iter().zip(&reconnect.sets).zip(wanted).filter(|(_, wanted)| *wanted);
        let fd_of = |((direction, set), _): ((Interest, &'p std::sync::OnceLock<Epoll>), bool)| {
            if set.get().is_none() {
                let _held = reconnect.hold();
                let new = Epoll::new().ok()?;
                new.add(&reconnect.timer, 0, true, false).ok()?;
                if !self.daemon_has_exited() {
                    self.add_files(&new, direction).ok()?;
                }
                let _ = set.set(new);
            }
            Some(set.get()?.as_fd())
        };
        all.map(fd_of).collect()
    }

    /// The daemon has ended: takes its files out of the sets. Only the timer stays.
    pub(super) fn clear_wait_sets(&self, reconnect: &Reconnect) {
        for (set, direction) in made(reconnect) {
            self.each_file(direction, |fd, _| {
                let _ = set.delete(fd);
                Ok(())
            })
            .unwrap_or_default();
        }
    }

    /// Adds the files of the next daemon.
    pub(super) fn fill_wait_sets(&self, reconnect: &Reconnect) {
        for (set, direction) in made(reconnect) {
            // Files that the kernel has no memory for are missed; a later call of the program finds what they tell.
            let _ = self.add_files(set, direction);
        }
    }

    fn add_files(&self, set: &Epoll, direction: Interest) -> io::Result<()> {
        self.each_file(direction, |fd, readable| set.add(fd, 0, readable, false))
    }

    /// Calls `f` with the connection, which only hangs up, and with the doorbells and sockets of a direction.
    fn each_file(
        &self,
        direction: Interest,
        mut f: impl FnMut(BorrowedFd<'_>, bool) -> io::Result<()>,
    ) -> io::Result<()> {
        f(self.connection.fd.as_fd(), false)?;
        for (_, source) in self.wakeup_sources(direction) {
            f(source.doorbell().as_fd(), true)?;
            source.socket().map_or(Ok(()), |socket| f(socket, true))?;
        }
        Ok(())
    }
}

fn made(reconnect: &Reconnect) -> impl Iterator<Item = (&Epoll, Interest)> {
    reconnect.sets.iter().zip(DIRECTIONS).filter_map(|(set, direction)| Some((set.get()?, direction)))
}
