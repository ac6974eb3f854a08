// SPDX-License-Identifier: BSD-2-Clause
//! Clients of a server that have connected, and of which none has the server's one place yet.
//!
//! To an abstract name each process of the network namespace can connect, and to a path those of one user. The place is
//! that of the first client whose user is admitted and whose `INIT` is right. Until then several are heard at once, one
//! of each user, so that clients that say nothing, or something wrong, keep nobody else waiting.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use tool_common::host::socket::{self, FdSender};

use super::{Config, Session};
use crate::device::Connection as _;
use crate::tuning::{ACCEPTED_AT_ONCE, MAX_CANDIDATES};

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Candidates {
    waiting: Vec<(u32, Session)>,
    /// Users whose refusals were told of, at most [`MAX_CANDIDATES`] of them, and all refusals since a client had the
    /// place.
    noted: BTreeSet<u32>,
    refused: u64,
}

impl Candidates {
    /// Accepts clients and hears them. Returns the first that has begun its set-up; the others are disconnected.
    ///
    /// # Errors
    /// The kernel's, other than that nobody has connected.
    pub(crate) fn accept(
        &mut self,
        listener: &UnixListener,
        (config, pairs): (&Config, u16),
        note: &dyn Fn(&str),
    ) -> io::Result<Option<Session>> {
        for _ in 0..ACCEPTED_AT_ONCE {
            if let Some(session) = self.hear(note) {
                return Ok(Some(session));
            }
            // The longest silence makes room within a second.
            if self.waiting.len() >= MAX_CANDIDATES {
                break;
            }
            match listener.accept() {
                Ok((client, _)) => self.add(client, (config, pairs), note),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(self.hear(note))
    }

    /// The sockets on which clients are heard.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.waiting.iter().map(|(_, session)| session.socket())
    }

    /// Whether another client can be accepted now.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < MAX_CANDIDATES
    }

    /// Returns how many were refused since a client had the place.
    pub(crate) fn take_refused(&mut self) -> u64 {
        self.noted.clear();
        std::mem::take(&mut self.refused)
    }

    fn add(&mut self, client: UnixStream, (config, pairs): (&Config, u16), note: &dyn Fn(&str)) {
        let Ok(peer) = socket::peer(client.as_fd()) else { return };
        if let Err(why) = config.check_user(peer.uid) {
            Session::refuse(client, &why);
            return self.note_refused(peer.uid, &why, note);
        }
        // An error: it has gone.
        let Ok(session) = Session::new(client, config, pairs) else { return };
        // The one before of this user, if it had something to say, has said it.
        self.waiting.retain(|(uid, _)| *uid != peer.uid);
        self.waiting.push((peer.uid, session));
    }

    fn hear(&mut self, note: &dyn Fn(&str)) -> Option<Session> {
        // A server sends no descriptor.
        let mut sender = FdSender::default();
        let mut at = 0;
        while let Some((uid, session)) = self.waiting.get_mut(at) {
            match session.process_messages(&mut sender) {
                Ok(true) if session.has_begun() => {
                    let (_, session) = self.waiting.swap_remove(at);
                    self.waiting.clear();
                    return Some(session);
                }
                Ok(true) => at += 1,
                heard => {
                    let uid = *uid;
                    self.waiting.remove(at);
                    if let Err(why) = heard {
                        self.note_refused(uid, &why, note);
                    }
                }
            }
        }
        None
    }

    /// Tells of a refusal, once for each user until a client has the place.
    fn note_refused(&mut self, uid: u32, why: &str, note: &dyn Fn(&str)) {
        self.refused += 1;
        if self.noted.len() < MAX_CANDIDATES && self.noted.insert(uid) {
            note(&format!("a client of user {uid} is refused: {why}"));
        }
    }
}
