// SPDX-License-Identifier: BSD-2-Clause
//! The end of a connection.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use unetmap_sys::socket;

use super::Server;

impl Server {
    /// Closes a connection, and all that it had.
    pub(crate) fn disconnect(&mut self, token: u64) {
        let Some(client) = self.clients.remove(&token) else { return };
        if !self.leave_in_flight(client.peer.uid, token, &client.fd) {
            let _ = self.epoll.delete(&client.fd);
        }
        if let Some(store) = &mut self.store {
            // The store has a duplicate until it is told.
            socket::shut_down(&client.fd);
            store.changed();
        }
        self.end_wait(token);
        if let Some(holder) = &client.holder {
            if let Some(pidfd) = &holder.pidfd {
                let _ = self.epoll.delete(pidfd);
            }
            self.lock_holders.free(holder);
            let broken = self.daemon.registry.break_locks(holder.id);
            if broken > 0 {
                tracing::debug!(
                    pid = client.peer.pid,
                    broken,
                    "the process exited while it synced: its locks are broken"
                );
            }
        }
        if let Some(session) = client.session {
            tracing::debug!(pid = client.peer.pid, session, fd = client.fd.as_raw_fd(), "session closed");
            self.daemon.close(session);
        }
        self.close_connection(client.peer.uid, client.fd);
    }

    /// Closes the descriptor of a connection: in another thread if there may be descriptors in its queue.
    pub(super) fn close_connection(&self, uid: u32, fd: Arc<OwnedFd>) {
        // No request is being answered: nothing else has it, unless something is in flight there.
        if let Some(fd) = Arc::into_inner(fd).filter(|_| !self.fds_are_refused) {
            self.closer.close(uid, fd);
        }
    }
}
