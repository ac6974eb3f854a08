//! Constants that tune the daemon's waiting, batching and limits.

/// Mediator threads.
pub(crate) mod mediator {
    use std::time::Duration;

    /// Time without packets after which a thread sleeps instead of polling.
    pub(crate) const SPIN: Duration = Duration::from_micros(50);
    /// Longest sleep.
    pub(crate) const MAX_SLEEP: Duration = Duration::from_millis(500);
    /// Longest time that a thread which is stopped waits for the interface to send.
    pub(crate) const EXIT_FLUSH_LIMIT: Duration = Duration::from_millis(20);
    /// Slots moved at once: as many as the kernel sends in one call. Measured on veth, as a fraction of a direct sender's
    /// rate: 0.75 with 64, 0.84 with 256; forwarding 0.41 and 0.87.
    pub(crate) const BATCH: u32 = 256;
    /// Sleep between polls of a fast stream.
    pub(crate) const REST: Duration = Duration::from_micros(50);
    /// How long that sleep may take in fact.
    pub(crate) const REST_MAX: Duration = Duration::from_micros(110);
    /// Packets that must be expected during the sleep.
    pub(crate) const REST_MIN_PACKETS: u128 = 32;
    /// Pause after a program set invalid ring pointers.
    pub(crate) const BAD_POINTERS_PAUSE: Duration = Duration::from_millis(1);
}

/// Interfaces.
pub(crate) mod nic {
    use std::time::Duration;

    /// Slots of a transmit ring for which the request says 0: enough to keep a link busy. The buffers of more slots, which all
    /// begin at the same few positions of a CPU cache, evict each other.
    pub(crate) const DEFAULT_TX_SLOTS: u32 = 512;
    /// Slots of a receive ring for which the request says 0: room for packets that arrive while the program is busy.
    pub(crate) const DEFAULT_RX_SLOTS: u32 = 1024;
    /// Interval at which the kernel's programs are notified that the daemon runs.
    pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(200);
    /// Time after the last such call for which the kernel's programs still redirect packets. Longer than the interval, so that
    /// a daemon that is delayed keeps its interfaces.
    pub(crate) const KEEPALIVE_TIMEOUT: Duration = Duration::from_millis(1750);

    const _: () = assert!(KEEPALIVE_TIMEOUT.as_millis() > KEEPALIVE_INTERVAL.as_millis());
}

/// The control socket.
pub(crate) mod server {
    /// Most connections of a user other than the daemon's: a session and a lease each, so about as many ports.
    pub(crate) const MAX_CONNECTIONS_OF_USER: usize = 512;
    /// Most connections accepted at once, so that a stream of new ones delays no other client.
    pub(crate) const MAX_ACCEPTS: u32 = 64;
}
