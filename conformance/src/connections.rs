// SPDX-License-Identifier: BSD-2-Clause
//! Running TCP connections through a wire under test: each sends bytes that follow from their position, which its peer
//! returns, and checks them.

use std::io::{ErrorKind, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lab::Ns;

/// Bytes that a connection sends at a time.
const PIECE: usize = 100;
/// Most bytes that a connection has sent and not received back.
const OUTSTANDING: u64 = 1 << 16;
/// Ticks between two pieces of a connection.
const TICKS: usize = 10;
/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Connections from one namespace to another.
pub struct Connections {
    pairs: Mutex<Vec<Pair>>,
    states: Vec<State>,
}

/// Both ends of a connection.
struct Pair {
    near: TcpStream,
    far: TcpStream,
    /// Bytes that the far end has received and not sent back.
    returning: Vec<u8>,
}

/// Progress of a connection.
#[derive(Default)]
struct State {
    sent: AtomicU64,
    returned: AtomicU64,
    broken: Mutex<Option<String>>,
}

impl State {
    fn is_broken(&self) -> bool {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl Connections {
    /// Makes `n` connections to `address` and a free port there.
    ///
    /// # Errors
    /// The peer is not reached.
    pub fn new(from: &Ns, (to, address): (&Ns, &str), n: usize) -> Result<Connections, String> {
        let told = |e: std::io::Error| format!("a connection to {address}: {e}");
        let listener = to.run(|| TcpListener::bind((address, 0)))?.map_err(told)?;
        let at = listener.local_addr().map_err(told)?;
        let connect = || {
            let near = TcpStream::connect_timeout(&at, CONNECT_LIMIT)?;
            let far = listener.accept()?.0;
            for end in [&near, &far] {
                end.set_nonblocking(true)?;
                end.set_nodelay(true)?;
            }
            Ok(Pair { near, far, returning: Vec::new() })
        };
        let pairs = from.run(|| (0..n).map(|_| connect()).collect::<Result<Vec<_>, _>>())?.map_err(told)?;
        Ok(Connections { pairs: Mutex::new(pairs), states: (0..n).map(|_| State::default()).collect() })
    }

    /// Moves bytes of all connections: called about every 10 ms, with the number of the call. Nothing new is
    /// sent while `pauses`.
    pub fn tick(&self, number: usize, pauses: bool) {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        for (i, (pair, state)) in pairs.iter_mut().zip(&self.states).enumerate() {
            if !state.is_broken()
                && let Err(why) = pair.tick(state, !pauses && (i + number).is_multiple_of(TICKS))
            {
                *state.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
            }
        }
    }

    /// How many bytes each has sent so far.
    pub fn sent(&self) -> Vec<u64> {
        self.states.iter().map(|state| state.sent.load(Relaxed)).collect()
    }

    /// Number of connections that have not received back more than `sent` bytes, and are not broken.
    pub fn behind(&self, sent: &[u64]) -> usize {
        let is_behind = |(state, sent): (&State, &u64)| state.returned.load(Relaxed) <= *sent && !state.is_broken();
        self.states.iter().zip(sent).filter(|pair| is_behind(*pair)).count()
    }

    /// Whether all that was sent has returned, but for broken connections.
    pub fn all_returned(&self) -> bool {
        let returned = |state: &State| state.returned.load(Relaxed) == state.sent.load(Relaxed) || state.is_broken();
        self.states.iter().all(returned)
    }

    /// Why connections are broken.
    pub fn broken(&self) -> Vec<String> {
        let why = |state: &State| state.broken.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.states.iter().filter_map(why).collect()
    }
}

impl Pair {
    fn tick(&mut self, state: &State, sends: bool) -> Result<(), String> {
        let (sent, returned) = (state.sent.load(Relaxed), state.returned.load(Relaxed));
        if sends && sent - returned < OUTSTANDING {
            let piece: Vec<u8> = (sent..).take(PIECE).map(byte_at).collect();
            state.sent.fetch_add(written(&mut self.near, &piece)? as u64, Relaxed);
        }
        let (mut bytes, all) = ([0; 4096], self.returning.len());
        let n = read(&mut self.far, &mut bytes)?;
        self.returning.extend_from_slice(&bytes[..n]);
        if all + n > 0 {
            let n = written(&mut self.far, &self.returning)?;
            self.returning.drain(..n);
        }
        let n = read(&mut self.near, &mut bytes)?;
        if let Some(at) = (returned..).zip(&bytes[..n]).position(|(at, byte)| byte_at(at) != *byte) {
            return Err(format!("byte {} is another one", returned + at as u64));
        }
        state.returned.fetch_add(n as u64, Relaxed);
        Ok(())
    }
}

/// The byte at a position of a stream.
fn byte_at(at: u64) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8
}

fn read(from: &mut impl Read, bytes: &mut [u8]) -> Result<usize, String> {
    match from.read(bytes) {
        Ok(0) => Err("its peer has closed it".into()),
        Ok(n) => Ok(n),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(0),
        Err(e) => Err(e.to_string()),
    }
}

fn written(to: &mut TcpStream, bytes: &[u8]) -> Result<usize, String> {
    match to.write(bytes) {
        Ok(n) => Ok(n),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(0),
        Err(e) => Err(e.to_string()),
    }
}
