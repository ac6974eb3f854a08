// SPDX-License-Identifier: BSD-2-Clause
//! Sending and receiving whole frames, for programs that need no control over rings and slots.

use std::time::Duration;

use unetmap_abi::NS_MOREFRAG;

use crate::error::{Error, errno};
use crate::port::ring::Ring;
use crate::port::{Interest, Port};

impl Port {
    /// Sends one frame: copies it into a free slot and syncs. Waits for a free slot, at most for `timeout` (`None`: no
    /// limit). Returns `false` after the timeout or a signal.
    ///
    /// # Errors
    /// `EMSGSIZE` if the frame is empty or longer than a slot's ([`Ring::slot_size`]); `EINVAL` if the port has no
    /// transmit rings; as [`Port::txsync`].
    pub fn send(&self, frame: &[u8], timeout: Option<Duration>) -> Result<bool, Error> {
        Ok(self.send_batch([frame], timeout)? == 1)
    }

    /// Sends frames in order: copies as many as there are free slots, syncs, and continues. Waits for free slots, at
    /// most for `timeout` each time (`None`: no limit). Returns the number of frames sent; fewer than given after a
    /// timeout or a signal. Allocates no memory.
    ///
    /// # Errors
    /// As [`Port::send`]; frames before the one that failed may have been sent.
    pub fn send_batch<'a>(
        &self,
        frames: impl IntoIterator<Item = &'a [u8]>,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        let mut frames = frames.into_iter().peekable();
        let mut sent = 0;
        while frames.peek().is_some() {
            let Some(ring) = self.free_ring(timeout)? else { break };
            let most = ring.slot_size().min(u32::from(u16::MAX)) as usize;
            let mut copied = 0;
            let mut invalid = false;
            for slot in ring.available() {
                let Some(frame) = frames.next() else { break };
                let buffer = slot.frame();
                invalid = frame.is_empty() || frame.len() > buffer.capacity().min(most);
                if invalid {
                    break;
                }
                buffer.write(0, frame);
                slot.set_len_flags(frame.len() as u16, 0);
                copied += 1;
            }
            ring.advance(copied);
            self.poll(Interest::TX, Some(Duration::ZERO))?;
            sent += copied as usize;
            if invalid {
                let reason = format!("a frame must have 1 to {most} bytes");
                return Err(Error::refused(self.spec(), errno::EMSGSIZE, reason));
            }
        }
        Ok(sent)
    }

    /// Receives one frame: copies it into `buf` and returns its length. Bytes that do not fit into `buf` are discarded;
    /// the returned length is that of the whole frame. Waits for a frame, at most for `timeout` (`None`: no limit).
    /// Returns `None` after the timeout or a signal.
    ///
    /// The slot returns to the sender with the sync of a later call, when all received slots have been read.
    ///
    /// # Errors
    /// `EINVAL` if the port has no receive rings; as [`Port::rxsync`].
    pub fn recv(&self, buf: &mut [u8], timeout: Option<Duration>) -> Result<Option<usize>, Error> {
        let Some(ring) = self.filled_ring(timeout)? else { return Ok(None) };
        let (len, slots) = copy_frame(ring, buf);
        ring.advance(slots);
        Ok(Some(len))
    }

    /// Receives all frames that have arrived, at most those of one ring: copies each into `buf` and calls `each` with
    /// the copy, truncated to `buf`. Waits for the first frame, at most for `timeout` (`None`: no limit). Returns the
    /// number of frames; 0 after the timeout or a signal. Allocates no memory.
    ///
    /// # Errors
    /// As [`Port::recv`].
    pub fn recv_batch(
        &self,
        buf: &mut [u8],
        timeout: Option<Duration>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<usize, Error> {
        let Some(ring) = self.filled_ring(timeout)? else { return Ok(0) };
        let (mut left, mut frames) = (ring.space(), 0);
        while left > 0 {
            let (len, slots) = copy_frame(ring, buf);
            each(&buf[..len.min(buf.len())]);
            ring.advance(slots);
            left = left.saturating_sub(slots.max(1));
            frames += 1;
        }
        Ok(frames)
    }

    /// Returns a transmit ring with free slots, after waiting for one.
    fn free_ring(&self, timeout: Option<Duration>) -> Result<Option<&Ring>, Error> {
        self.ready_ring(&self.tx, "transmit", Interest::TX, timeout)
    }

    /// Returns a receive ring with packets, after waiting for one.
    fn filled_ring(&self, timeout: Option<Duration>) -> Result<Option<&Ring>, Error> {
        self.ready_ring(&self.rx, "receive", Interest::RX, timeout)
    }

    #[inline]
    fn ready_ring<'a>(
        &self,
        rings: &'a [Ring],
        direction: &str,
        want: Interest,
        timeout: Option<Duration>,
    ) -> Result<Option<&'a Ring>, Error> {
        if rings.is_empty() {
            return Err(Error::refused(self.spec(), errno::EINVAL, format!("the port has no {direction} rings")));
        }
        let ready = || rings.iter().find(|ring| !ring.is_empty());
        if let Some(ring) = ready() {
            return Ok(Some(ring));
        }
        self.poll(want, timeout)?;
        Ok(ready())
    }
}

/// Copies the first frame of a ring that is not empty into `buf`. Returns the length of the frame and its slots.
fn copy_frame(ring: &Ring, buf: &mut [u8]) -> (usize, u32) {
    let (mut len, mut slots) = (0, 0);
    for slot in ring.available() {
        let (bytes, flags) = slot.len_flags();
        let frame = slot.frame();
        let bytes = usize::from(bytes).min(frame.capacity());
        if let Some(rest) = buf.get_mut(len..) {
            let n = bytes.min(rest.len());
            frame.read(0, &mut rest[..n]);
        }
        len += bytes;
        slots += 1;
        if flags & NS_MOREFRAG == 0 {
            break;
        }
    }
    (len, slots)
}
