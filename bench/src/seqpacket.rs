// SPDX-License-Identifier: BSD-2-Clause
//! The built-in peer: a UNIX socket of type SOCK_SEQPACKET, with 32 messages per system call.

use std::hint;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg, sendmmsg};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};
use unetmap_sys::clock;

use crate::probe::{self, Cores};
use crate::stats;

/// The peer's label in the results.
pub(crate) const LABEL: &str = "seqpacket";
/// Messages per system call.
const MESSAGES: usize = 32;
/// Bytes of one message, the same as the packets of the other benchmarks.
const BYTES: usize = 60;
/// Rounds between two reads of the clock.
const ROUNDS: u32 = 16;

type SocketPair = (OwnedFd, OwnedFd);

/// Time to run before the measurement, and time of the measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasureTimes {
    pub(crate) warm_up: Duration,
    pub(crate) measure: Duration,
}

fn failed(what: &str, e: impl std::fmt::Display) -> String {
    format!("{LABEL}: {what}: {e}")
}

fn pair(flags: SocketFlags) -> Result<SocketPair, String> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
        .map_err(|e| failed("socketpair", e))
}

/// The sending end, with preallocated message headers.
struct Sender {
    fd: OwnedFd,
    headers: MultiHeaders<()>,
}

impl Sender {
    fn new(fd: OwnedFd) -> Sender {
        Sender { fd, headers: MultiHeaders::preallocate(MESSAGES, None) }
    }

    /// Sends up to 32 messages; returns the number.
    fn send(&mut self) -> Result<usize, Errno> {
        let bytes = [0xff; BYTES];
        let slices = [[IoSlice::new(&bytes)]; MESSAGES];
        let none: [Option<()>; MESSAGES] = [None; MESSAGES];
        let sent = sendmmsg(self.fd.as_raw_fd(), &mut self.headers, &slices, none, [], MsgFlags::MSG_NOSIGNAL)?;
        Ok(sent.count())
    }
}

/// The receiving end, with preallocated headers and buffers.
struct Receiver {
    fd: OwnedFd,
    headers: MultiHeaders<()>,
    buffers: [[u8; 2048]; MESSAGES],
}

impl Receiver {
    fn new(fd: OwnedFd) -> Receiver {
        Receiver { fd, headers: MultiHeaders::preallocate(MESSAGES, None), buffers: [[0; 2048]; MESSAGES] }
    }

    /// Waits for a message and receives up to 32; returns the number of non-empty messages. 0 means that the peer has
    /// closed.
    fn receive(&mut self) -> Result<usize, Errno> {
        let mut slices = self.buffers.each_mut().map(|buffer| [IoSliceMut::new(buffer)]);
        let flags = MsgFlags::MSG_WAITFORONE;
        let got = recvmmsg(self.fd.as_raw_fd(), &mut self.headers, &mut slices, flags, None)?;
        Ok(got.filter(|message| message.bytes > 0).count())
    }
}

/// A counter on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Counter(AtomicU64);

/// One thread sends, another receives. Returns the receiver's rate in Mpps.
pub(crate) fn rate(cores: Cores, times: MeasureTimes) -> Result<f64, String> {
    let (near, far) = pair(SocketFlags::empty())?;
    // A shutdown of this descriptor ends both threads, wherever they wait.
    let shutdown_handle = near.try_clone().map_err(|e| failed("duplicating a socket", e))?;
    let counter = Counter::default();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sender = scope.spawn(|| -> Result<(), String> {
            let mut sender = Sender::new(near);
            probe::pin(cores.tx)?;
            loop {
                match sender.send() {
                    Ok(_) if !stop.load(Ordering::Relaxed) => {}
                    // The receiver has closed; ECONNRESET if it left messages unread.
                    Ok(_) | Err(Errno::EPIPE | Errno::ECONNRESET) => return Ok(()),
                    Err(e) => return Err(failed("sendmmsg", e)),
                }
            }
        });
        let receiver = scope.spawn(|| -> Result<(), String> {
            let mut receiver = Receiver::new(far);
            probe::pin(cores.rx)?;
            loop {
                match receiver.receive() {
                    Ok(0) => return Ok(()),
                    Ok(n) => counter.0.store(counter.0.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed),
                    Err(e) => return Err(failed("recvmmsg", e)),
                }
            }
        });
        thread::sleep(times.warm_up);
        let (start, before) = (Instant::now(), counter.0.load(Ordering::Relaxed));
        thread::sleep(times.measure);
        let (time, packets) = (start.elapsed(), counter.0.load(Ordering::Relaxed) - before);
        stop.store(true, Ordering::Relaxed);
        let off = shutdown(&shutdown_handle, Shutdown::Both).map_err(|e| failed("shutdown", e));
        join(sender.join())?;
        join(receiver.join())?;
        off?;
        Ok(packets as f64 / time.as_secs_f64() / 1e6)
    })
}

pub(crate) fn join<T>(result: thread::Result<Result<T, String>>) -> Result<T, String> {
    result.unwrap_or_else(|_| Err(failed("measuring", "its thread panicked")))
}

/// One thread sends and receives in turn, on the first core. Returns Mpps.
pub(crate) fn rate_one_core(cpu: usize, times: MeasureTimes) -> Result<f64, String> {
    let (near, far) = pair(SocketFlags::empty())?;
    on_core(cpu, || {
        let (mut sender, mut receiver) = (Sender::new(near), Receiver::new(far));
        measure(times, || {
            let sent = sender.send().map_err(|e| failed("sendmmsg", e))?;
            let mut got = 0;
            while got < sent {
                got += receiver.receive().map_err(|e| failed("recvmmsg", e))?;
            }
            Ok(got as u64)
        })
    })
}

/// Runs `work` in a thread that is pinned to `cpu`.
pub(crate) fn on_core<T: Send>(cpu: usize, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    thread::scope(|scope| join(scope.spawn(|| probe::pin(cpu).and_then(|()| work())).join()))
}

/// Repeats `batch`, which returns the number of packets that it moved, for the given times; returns Mpps.
pub(crate) fn measure(times: MeasureTimes, mut batch: impl FnMut() -> Result<u64, String>) -> Result<f64, String> {
    let mut mpps = 0.0;
    for time in [times.warm_up, times.measure] {
        let limit = time.as_nanos() as u64;
        let (start, mut packets) = (clock::now_ns(), 0);
        let mut ns = 0;
        while ns < limit.max(1) {
            for _ in 0..ROUNDS {
                packets += batch()?;
            }
            ns = clock::now_ns() - start;
        }
        mpps = packets as f64 * 1e3 / ns as f64;
    }
    Ok(mpps)
}

/// Measures the mean round trip of one message in nanoseconds, with both sides busy-waiting: the peer of `pipe-rtt`.
pub(crate) fn mean_round_trip(cores: Cores, times: MeasureTimes) -> Result<f64, String> {
    // Converts millions of round trips per second to nanoseconds per round trip.
    with_echo(cores, |near| measure(times, || ping(near).map(|()| 1)).map(|rate| 1e3 / rate))
}

/// Measures the median and the 99th percentile of round trips of one message in nanoseconds, each timed separately: the
/// peer of `pipe-ping`.
pub(crate) fn round_trips(cores: Cores, durations: MeasureTimes) -> Result<Vec<f64>, String> {
    with_echo(cores, |near| {
        let (start, mut times) = (Instant::now(), Vec::new());
        while start.elapsed() < durations.warm_up + durations.measure {
            let sent = Instant::now();
            ping(near)?;
            let time = sent.elapsed();
            if start.elapsed() >= durations.warm_up {
                times.push(time.as_nanos() as f64);
            }
        }
        Ok(vec![stats::median(&times), stats::p99(&times)])
    })
}

/// Runs `pinger` on the first core with one end of a socket pair; a thread on the second core echoes its messages.
fn with_echo<T: Send>(cores: Cores, pinger: impl FnOnce(&OwnedFd) -> Result<T, String> + Send) -> Result<T, String> {
    let (near, far) = pair(SocketFlags::NONBLOCK)?;
    thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<(), String> {
            let far = far;
            probe::pin(cores.rx)?;
            while receive_one(&far)? {
                send_one(&far)?;
            }
            Ok(())
        });
        let pinger = scope.spawn(|| {
            // Closed when this thread ends, which ends the other thread.
            let near = near;
            probe::pin(cores.tx)?;
            pinger(&near)
        });
        let ns = join(pinger.join());
        // The error of the echo thread comes first, because it causes that of the pinger.
        join(echo.join())?;
        ns
    })
}

/// Sends one message and receives the echo.
fn ping(fd: &OwnedFd) -> Result<(), String> {
    send_one(fd)?;
    if receive_one(fd)? { Ok(()) } else { Err(failed("round trip", "the other side closed")) }
}

/// Sends one message; the socket buffer always has room for it.
fn send_one(fd: &OwnedFd) -> Result<(), String> {
    match send(fd, &[0xff; BYTES], SendFlags::NOSIGNAL) {
        // The other side has closed, which ends the measurement.
        Ok(_) | Err(rustix::io::Errno::PIPE) => Ok(()),
        Err(e) => Err(failed("send", e)),
    }
}

/// Busy-waits for one message; returns false if the peer has closed.
fn receive_one(fd: &OwnedFd) -> Result<bool, String> {
    let mut buffer = [0; 2048];
    loop {
        match recv(fd, &mut buffer, RecvFlags::empty()) {
            Ok((_, bytes)) => return Ok(bytes > 0),
            Err(rustix::io::Errno::AGAIN) => hint::spin_loop(),
            Err(rustix::io::Errno::CONNRESET) => return Ok(false),
            Err(e) => return Err(failed("recv", e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: MeasureTimes = MeasureTimes { warm_up: Duration::from_millis(1), measure: Duration::from_millis(5) };

    #[test]
    fn batches_arrive_complete() {
        let (near, far) = pair(SocketFlags::empty()).unwrap();
        let (mut sender, mut receiver) = (Sender::new(near), Receiver::new(far));
        assert_eq!(sender.send(), Ok(MESSAGES));
        assert_eq!(receiver.receive(), Ok(MESSAGES));
        assert_eq!(receiver.buffers[MESSAGES - 1][..BYTES + 1], [[0xff; BYTES].as_slice(), &[0]].concat());
        drop(sender);
        assert_eq!(receiver.receive(), Ok(0));
    }

    /// Measures longer each time: on a busy machine a thread may not run for some time.
    #[track_caller]
    fn until_positive(measure: impl Fn(MeasureTimes) -> Result<f64, String>) {
        let mut times = TINY;
        loop {
            let figure = measure(times).unwrap();
            assert!(figure >= 0.0 && figure.is_finite(), "{figure}");
            if figure > 0.0 {
                return;
            }
            times.measure *= 2;
            assert!(times.measure < Duration::from_secs(60));
        }
    }

    #[test]
    fn each_measurement_returns_a_positive_figure() {
        until_positive(|times| rate_one_core(0, times));
        let Ok(cores) = Cores::first_two() else {
            eprintln!("skipped in part: this machine has one processor");
            return;
        };
        until_positive(|times| rate(cores, times));
        until_positive(|times| mean_round_trip(cores, times));
        let both = round_trips(cores, TINY).unwrap();
        assert!(both[0] > 0.0 && both[0] <= both[1] && both[1].is_finite(), "{both:?}");
    }

    #[test]
    fn a_missing_processor_is_an_error() {
        let cores = Cores { tx: 0, rx: 1 << 20 };
        for cores in [cores, Cores { tx: cores.rx, rx: cores.tx }] {
            assert!(rate(cores, TINY).unwrap_err().contains("processor 1048576"));
            assert!(mean_round_trip(cores, TINY).unwrap_err().contains("processor 1048576"));
            assert!(round_trips(cores, TINY).unwrap_err().contains("processor 1048576"));
        }
    }
}
