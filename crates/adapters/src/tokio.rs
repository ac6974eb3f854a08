// SPDX-License-Identifier: BSD-2-Clause
//! A port whose methods wait as tasks of tokio do: the thread runs other tasks meanwhile.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use ::tokio::io::Interest as IoInterest;
use ::tokio::io::unix::AsyncFd;
use unetmap::{Interest, Port};

/// A port in a runtime of tokio with I/O enabled. It is used by one task at a time.
pub struct AsyncPort {
    port: Port,
}

impl AsyncPort {
    /// Opens a port by its name.
    ///
    /// # Errors
    /// As of [`Port::open`].
    pub fn open(spec: &str) -> io::Result<AsyncPort> {
        Port::open(spec).map(AsyncPort::new).map_err(io::Error::other)
    }

    /// Takes a port that was opened with options.
    pub fn new(port: Port) -> AsyncPort {
        AsyncPort { port }
    }

    /// The port, for all that does not wait.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Syncs, and waits until a ring of this direction has slots for the program. It is safe to cancel.
    ///
    /// # Errors
    /// As of [`Port::arm`].
    // Its replacement is unsafe, for descriptors that may close; a `BorrowedFd` stays open.
    #[allow(deprecated, reason = "see the comment")]
    pub async fn ready(&self, want: Interest) -> io::Result<()> {
        while self.port.arm(want).map_err(io::Error::other)?.is_none() {
            let wait_fds = self.port.wait_fds(want).into_iter();
            let fds = wait_fds.map(|fd| AsyncFd::with_interest(fd, IoInterest::READABLE));
            let fds = fds.collect::<io::Result<Vec<_>>>()?;
            let is_ready = |cx: &mut Context<'_>| fds.iter().any(|fd| fd.poll_read_ready(cx).is_ready());
            poll_fn(|cx| if is_ready(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
        }
        Ok(())
    }

    /// Waits for frames, and calls `each` with a copy of every frame that has arrived in one ring, as
    /// [`Port::recv_batch`] does. Returns the number of frames, at least 1.
    ///
    /// # Errors
    /// As of [`Port::recv_batch`].
    pub async fn recv_batch(&self, buf: &mut [u8], mut each: impl FnMut(&[u8])) -> io::Result<usize> {
        loop {
            self.ready(Interest::RX).await?;
            match self.port.recv_batch(buf, Some(Duration::ZERO), &mut each).map_err(io::Error::other)? {
                0 => {}
                frames => return Ok(frames),
            }
        }
    }

    /// Sends frames in order, and waits for room as often as need be.
    ///
    /// # Errors
    /// As of [`Port::send_batch`].
    pub async fn send_batch(&self, frames: &[&[u8]]) -> io::Result<()> {
        let mut left = frames;
        while !left.is_empty() {
            let frames = left.iter().copied();
            let sent = self.port.send_batch(frames, Some(Duration::ZERO)).map_err(io::Error::other)?;
            left = &left[sent..];
            if !left.is_empty() {
                self.ready(Interest::TX).await?;
            }
        }
        Ok(())
    }
}
