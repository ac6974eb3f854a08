// SPDX-License-Identifier: BSD-2-Clause
//! Why a message with a descriptor cannot be sent.

use std::io;

use rustix::io::Errno;

/// Whether it may be possible later: a message before was not received yet, or the user has too many in flight.
pub fn is_passing(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::WouldBlock || Errno::from_io_error(e) == Some(Errno::TOOMANYREFS)
}

/// The reason, once it was tried for [`crate::ANSWER_LIMIT`].
pub fn why_unsent(e: &io::Error) -> String {
    match Errno::from_io_error(e) {
        Some(Errno::TOOMANYREFS) => {
            "too many descriptors of this user are on their way to processes that do not receive them: end those (a line \
             scm_fds in /proc/*/fdinfo/* has another number than 0), or raise the limit of open files"
                .into()
        }
        _ if e.kind() == io::ErrorKind::WouldBlock => {
            "the descriptor of an answer before was not received, by this peer or one that it followed; end the program \
             that has that connection open"
                .into()
        }
        _ => e.to_string(),
    }
}
