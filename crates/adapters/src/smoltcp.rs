// SPDX-License-Identifier: BSD-2-Clause
//! A port as a device of smoltcp: an Ethernet interface of a TCP/IP stack in the program.
//!
//! ```text
//! loop {
//!     interface.poll(now, device, sockets)
//!     ... sockets ...
//!     interface.poll(now, device, sockets)
//!     device.wait(interface.poll_delay(..))     what was written is sent, and what arrives is taken
//! }
//! ```
//! The stack reads and writes copies of frames. What it has written is in the transmit rings until [`Device::sync`] or
//! [`Device::wait`], or until [`BATCH`] frames are there, so that many frames are sent at once.
//!
//! TCP sockets of smoltcp delay acknowledgements by 10 ms and use Nagle's algorithm. Each of a program's sockets that
//! sends more than its peer answers wants both off: the last frame of a full buffer is not a full one, so it waits for
//! the acknowledgement of those before, and that waits for the 10 ms.

use std::time::Duration;

use ::smoltcp::phy::{self, DeviceCapabilities, Medium};
use ::smoltcp::time::Instant;
use unetmap::abi::NR_NO_TX_POLL;
use unetmap::{Error, Interest, Port, Ring};

/// Bytes of the longest frame without a VLAN tag on Ethernet: 1500 of payload and 14 of header, FCS excluded.
pub const ETHERNET_FRAME: usize = 1514;

/// Frames after which the device sends without being asked, so that the peer works on them while the stack writes more.
pub const BATCH: u32 = 32;

/// A port, and buffers for a frame each way.
pub struct Device {
    port: Port,
    mtu: usize,
    received: Vec<u8>,
    sent: Vec<u8>,
    /// Frames in the transmit rings that no sync has sent.
    unsent: u32,
}

impl Device {
    /// Returns the device of a port with frames of at most [`ETHERNET_FRAME`] bytes, or of a buffer if that is less.
    pub fn new(port: Port) -> Device {
        Device::with_mtu(port, ETHERNET_FRAME)
    }

    /// Returns the device of a port with frames of at most `mtu` bytes, the Ethernet header included, or of a buffer if
    /// that is less. Pipes and switches carry what a buffer holds; an interface, its own MTU and 14 bytes.
    pub fn with_mtu(port: Port, mtu: usize) -> Device {
        let mtu = mtu.min(port.buf_size() as usize);
        Device { port, mtu, received: vec![0; mtu], sent: vec![0; mtu], unsent: 0 }
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Sends the frames that the stack has written, and takes those that have arrived. Never waits.
    ///
    /// # Errors
    /// As of [`Port::poll`]: the port is closed, since the daemon or the interface has gone.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.wait(Some(Duration::ZERO))
    }

    /// Sends what the stack has written, and waits until a frame has arrived, at most for `timeout` (`None`: no limit).
    ///
    /// # Errors
    /// As of [`Device::sync`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        // A poll for frames sends, too, without a look at which slots are free again.
        if self.unsent > 0 && self.port.register().nr_flags & NR_NO_TX_POLL != 0 {
            self.send()?;
        }
        self.unsent = 0;
        self.port.poll(Interest::RX, timeout).map(drop)
    }

    /// Sends what is in the transmit rings, and takes free slots back.
    fn send(&mut self) -> Result<(), Error> {
        self.unsent = 0;
        self.port.poll(Interest::TX, Some(Duration::ZERO)).map(drop)
    }

    /// Copies the next frame that has arrived; one that is too long for the device is dropped.
    fn take_frame(&mut self) -> Option<usize> {
        loop {
            self.port.rx_rings().iter().find(|ring| !ring.is_empty())?;
            // A frame has arrived, so this waits for nothing, and no sync is made.
            let len = self.port.recv(&mut self.received, Some(Duration::ZERO)).ok()??;
            if len <= self.mtu {
                return Some(len);
            }
        }
    }

    /// Sends a full batch, and full rings. Returns `None` if no transmit ring has room then, either.
    fn make_room(&mut self) -> Option<()> {
        let has_room = |port: &Port| port.tx_rings().iter().any(|ring| !ring.is_empty());
        if self.unsent >= BATCH || !has_room(&self.port) {
            // An error is that of the next sync, too.
            let _ = self.send();
        }
        has_room(&self.port).then_some(())
    }
}

impl phy::Device for Device {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        let len = self.take_frame()?;
        // Two stacks whose rings are full must go on to receive: without room, an answer to this very frame is dropped
        // (a reset, or the repetition of an acknowledgement). The stack's sockets write by `transmit`.
        self.make_room();
        let Device { port, received, sent, unsent, .. } = self;
        let ring = port.tx_rings().iter().find(|ring| !ring.is_empty());
        Some((RxToken { frame: &received[..len] }, TxToken { ring, frame: sent, unsent }))
    }

    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_>> {
        self.make_room()?;
        let Device { port, sent, unsent, .. } = self;
        let ring = port.tx_rings().iter().find(|ring| !ring.is_empty())?;
        Some(TxToken { ring: Some(ring), frame: sent, unsent })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

/// A frame that has arrived.
pub struct RxToken<'a> {
    frame: &'a [u8],
}

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, use_frame: F) -> R {
        use_frame(self.frame)
    }
}

/// Room for a frame.
pub struct TxToken<'a> {
    /// `None`: the frame is dropped.
    ring: Option<&'a Ring>,
    frame: &'a mut Vec<u8>,
    unsent: &'a mut u32,
}

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let frame = &mut self.frame[..len];
        let result = write(frame);
        if let Some(ring) = self.ring {
            let slot = ring.slot(ring.head());
            slot.frame().write(0, frame);
            slot.set_len_flags(len as u16, 0);
            ring.advance(1);
            *self.unsent += 1;
        }
        result
    }
}
