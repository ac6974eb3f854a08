// SPDX-License-Identifier: BSD-2-Clause
//! Frames that are sent in one call, from the memory in which they are.
//!
//! ```text
//! message  [ header, a private copy | piece | piece .. ]      a frame of up to 64 KB in the buffers of a ring's slots
//! ```
//! The kernel reads each byte once, into memory of its own.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::{io, mem, ptr};

use super::{BATCH, HEADER};
use crate::Piece;

/// Most pieces of one frame: the kernel takes 1024, and the header is one.
pub const MAX_PIECES: usize = 1023;

/// Space for the descriptions of frames, to be used again and again.
#[derive(Default)]
pub struct Batch {
    headers: Vec<[u8; HEADER]>,
    /// Of each frame the end of its vectors.
    ends: Vec<usize>,
    /// Of each frame one for its header, which is set before the call, and its pieces.
    vectors: Vec<libc::iovec>,
}

// SAFETY: the addresses in it are used by [`Frames`] alone, within the lifetime of their memory; the next frames begin
// by removing them (K1).
unsafe impl Send for Batch {}

/// Frames that are to be sent, whose bytes live for `'a`.
pub struct Frames<'b, 'a> {
    batch: &'b mut Batch,
    _memory: PhantomData<&'a ()>,
}

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// The interface has no room now, or dropped it; the kernel does not tell which.
    NoRoom,
    /// The interface is down, or has gone.
    Down,
    /// It is too short or too long, or its virtio-net header does not match it.
    Invalid,
}

impl Batch {
    /// Begins anew.
    pub fn frames<'a>(&mut self) -> Frames<'_, 'a> {
        self.headers.clear();
        self.ends.clear();
        self.vectors.clear();
        Frames { batch: self, _memory: PhantomData }
    }
}

impl<'a> Frames<'_, 'a> {
    /// The end of the vectors of frames that are complete.
    fn complete(&self) -> usize {
        self.batch.ends.last().copied().unwrap_or(0)
    }

    /// Adds a piece to the frame that the next [`Frames::end`] completes.
    pub fn add(&mut self, piece: Piece<'a>) {
        if self.batch.vectors.len() == self.complete() {
            self.batch.vectors.push(libc::iovec { iov_base: ptr::null_mut(), iov_len: HEADER });
        }
        self.batch.vectors.push(piece.vector());
    }

    /// Completes a frame of at least one piece, before which it has this header. Returns `false`, and forgets its
    /// pieces, if it has none, or more than [`MAX_PIECES`].
    pub fn end(&mut self, header: [u8; HEADER]) -> bool {
        let all = self.batch.vectors.len();
        let is_valid = (2..=1 + MAX_PIECES).contains(&(all - self.complete()));
        if is_valid {
            self.batch.headers.push(header);
            self.batch.ends.push(all);
        } else {
            self.forget();
        }
        is_valid
    }

    /// Forgets the pieces of a frame that is not complete.
    pub fn forget(&mut self) {
        let complete = self.complete();
        self.batch.vectors.truncate(complete);
    }

    /// Number of frames that are complete.
    pub fn len(&self) -> usize {
        self.batch.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends at most `most` frames from number `first` on in one call. Returns how many of these were sent; 0: there
    /// are none.
    ///
    /// # Errors
    /// The reason why the first was not sent.
    pub fn send(&mut self, fd: BorrowedFd<'_>, first: usize, most: usize) -> Result<usize, NotSent> {
        let Batch { headers, ends, vectors } = &mut *self.batch;
        let mut begin = first.checked_sub(1).map_or(0, |before| ends[before]);
        // SAFETY: K9.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        let mut count = 0;
        for (((header, end), message), _) in headers[first..].iter().zip(&ends[first..]).zip(&mut messages).zip(0..most)
        {
            let vectors = &mut vectors[begin..*end];
            vectors[0].iov_base = header.as_ptr().cast_mut().cast();
            message.msg_hdr.msg_iovlen = vectors.len() as _;
            message.msg_hdr.msg_iov = vectors.as_mut_ptr();
            (begin, count) = (*end, count + 1);
        }
        if count == 0 {
            return Ok(0);
        }
        // SAFETY: K1, K5: messages, vectors and headers outlive the call, and so does the memory of the pieces, by
        // `'a`; the call only reads it.
        let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
        usize::try_from(sent).map_err(|_| match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => NotSent::NoRoom,
            Some(libc::ENETDOWN | libc::ENXIO) => NotSent::Down,
            _ => NotSent::Invalid,
        })
    }
}
