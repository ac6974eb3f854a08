// SPDX-License-Identifier: BSD-2-Clause
//! Receives packets in an async program, with tokio: `async_receiver [PORT [COUNT]]`, by default 1000 from
//! `netmap:demo}1`.
//!
//! [`ready`] is all that an async runtime needs. While it waits, the thread runs other tasks.
#![forbid(unsafe_code)]

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use tokio::io::unix::AsyncFd;
use unetmap::{Interest, Port};

const READABLE: tokio::io::Interest = tokio::io::Interest::READABLE;

/// Waits until the port is ready.
#[allow(deprecated)] // Its replacement is unsafe, for descriptors that may close; a `BorrowedFd` stays open.
async fn ready(port: &Port, want: Interest) -> io::Result<()> {
    while port.arm(want).map_err(io::Error::other)?.is_none() {
        let fds = port.wait_fds(want).into_iter().map(|fd| AsyncFd::with_interest(fd, READABLE));
        let fds = fds.collect::<io::Result<Vec<_>>>()?;
        let is_ready = |cx: &mut Context<'_>| fds.iter().any(|fd| fd.poll_read_ready(cx).is_ready());
        poll_fn(|cx| if is_ready(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
    Ok(())
}

async fn receive(spec: &str, count: u64) -> Result<(), Box<dyn Error>> {
    let port = Port::open(spec)?;
    let (mut packets, mut bytes) = (0, 0);
    while packets < count {
        ready(&port, Interest::RX).await?;
        for ring in port.rx_rings() {
            bytes += ring.available().map(|slot| u64::from(slot.len())).sum::<u64>();
            packets += u64::from(ring.advance(ring.space()));
        }
    }
    port.rxsync()?;
    println!("{spec}: received {packets} packets, {bytes} bytes");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let spec = args.next().unwrap_or("netmap:demo}1".into());
    let count = args.next().unwrap_or("1000".into()).parse()?;
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(receive(&spec, count))
}
