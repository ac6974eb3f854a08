// SPDX-License-Identifier: BSD-2-Clause
//! Messages of IPFIX over a connection (RFC 7011, 10.4): a thread keeps it, so that a collector that is gone or slow
//! costs records, which are counted, and no time of packets.
//!
//! ```text
//! Exporter --Message--> queue --> thread: connect, templates, messages with their sequence numbers --> collector
//! ```
//! Messages wait in the queue while there is no connection. Each connection begins with the templates, and its sequence
//! numbers from 0.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tool_common::note;

use super::collector::Sent;
use super::connection::{Connection, Connector};
use super::message::Ended;

/// Messages that wait to be sent: 12 MB.
const QUEUE: usize = if cfg!(test) { 64 } else { 8192 };
/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);
/// Time between two looks at an idle connection.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A collector that took nothing for so long is not waited for, neither at the program's end nor while files are read.
const GIVEN_UP: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 5000 });
/// A connection that took nothing for so long is given up.
const STALLED: Duration = Duration::from_secs(30);
/// Pause of those that wait for the queue.
const PAUSE: Duration = Duration::from_millis(1);

/// A message of an observation domain.
pub(super) struct Message {
    bytes: Vec<u8>,
    /// Index of the domain.
    domain: usize,
    /// Its data records, those of options included, and its flows.
    data: u32,
    flows: u64,
}

impl Message {
    pub(super) fn new(domain: usize, message: &Ended<'_>) -> Message {
        Message { bytes: message.bytes.to_vec(), domain, data: message.data, flows: message.flows }
    }

    /// Writes a word of the header: 1 the time of its making, in seconds since 1970; 2 the sequence number.
    fn put(&mut self, word: usize, value: u32) {
        if let Some(bytes) = self.bytes.get_mut(4 * word..4 * word + 4) {
            bytes.copy_from_slice(&value.to_be_bytes());
        }
    }
}

/// Of the path and the thread.
#[derive(Default)]
struct Shared {
    sent: Mutex<Sent>,
    /// The collector has taken nothing for [`GIVEN_UP`].
    is_hopeless: AtomicBool,
    /// The program ends.
    ends: AtomicBool,
}

impl Shared {
    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes for how long the collector has taken nothing; returns whether it is given up.
    fn is_over(&self, since: Instant) -> bool {
        let is_hopeless = since.elapsed() >= GIVEN_UP;
        self.is_hopeless.store(is_hopeless, Relaxed);
        is_hopeless && self.ends.load(Relaxed)
    }
}

/// The path's end of the queue.
pub(super) struct Session {
    queue: Option<SyncSender<Message>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// A full queue is waited for: no port waits for the program.
    pub(super) waits: bool,
}

impl Session {
    /// Starts the thread, which connects. `templates`: a message of each domain.
    ///
    /// # Errors
    /// A sentence: the name has no address, or a file of TLS is wrong.
    pub(super) fn start(connector: Connector, templates: Vec<Message>) -> Result<Session, String> {
        connector.to.addresses()?;
        let (queue, messages) = sync_channel(QUEUE);
        let shared = Arc::new(Shared::default());
        let sender = Sender {
            sequences: vec![0; templates.len()],
            templates,
            connector,
            connection: None,
            since: Instant::now(),
            has_said: false,
            shared: Arc::clone(&shared),
        };
        let thread = thread::spawn(move || sender.run(&messages));
        Ok(Session { queue: Some(queue), shared, thread: Some(thread), waits: false })
    }

    pub(super) fn send(&mut self, domain: usize, message: Ended<'_>) {
        let Some(queue) = &self.queue else { return };
        let mut message = Message::new(domain, &message);
        loop {
            message = match queue.try_send(message) {
                Ok(()) => return,
                Err(TrySendError::Full(message) | TrySendError::Disconnected(message)) => message,
            };
            if !self.waits || self.shared.is_hopeless.load(Relaxed) {
                return self.shared.sent().lose(message.flows);
            }
            thread::sleep(PAUSE);
        }
    }

    pub(super) fn sent(&self) -> Sent {
        *self.shared.sent()
    }

    /// Waits until all is sent, unless the collector takes nothing.
    pub(super) fn finish(&mut self) {
        self.shared.ends.store(true, Relaxed);
        self.queue = None;
        // The thread does not panic.
        self.thread.take().map(JoinHandle::join);
    }
}

/// The thread.
struct Sender {
    connector: Connector,
    templates: Vec<Message>,
    connection: Option<Connection>,
    /// Of the connection, by domain.
    sequences: Vec<u32>,
    /// When the collector last took something, or the thread began.
    since: Instant,
    /// The user knows that there is no connection.
    has_said: bool,
    shared: Arc<Shared>,
}

impl Sender {
    fn run(mut self, messages: &Receiver<Message>) {
        let mut next = None;
        loop {
            if !self.has_connection() && !self.connect() {
                if self.gives_up(messages, &mut next) {
                    break;
                }
                continue;
            }
            let message = match next.take().map_or_else(|| messages.recv_timeout(LOOK_EVERY), Ok) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => {
                    self.since = Instant::now();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.connection.take().into_iter().for_each(Connection::close);
                    break;
                }
            };
            next = self.send(message);
            if next.is_some() && self.shared.is_over(self.since) {
                break;
            }
        }
        for message in next.into_iter().chain(messages.try_iter()) {
            self.shared.sent().lose(message.flows);
        }
    }

    /// Waits for the time of the next attempt to connect; returns whether there will be none, as the program ends.
    fn gives_up(&self, messages: &Receiver<Message>, next: &mut Option<Message>) -> bool {
        let until = Instant::now() + RETRY;
        loop {
            if next.is_none() && self.shared.ends.load(Relaxed) {
                *next = messages.try_recv().ok();
                if next.is_none() {
                    return true;
                }
            }
            if self.shared.is_over(self.since) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(10 * PAUSE);
        }
    }

    /// Whether there is a connection, which the collector has not closed.
    fn has_connection(&mut self) -> bool {
        if self.connection.as_mut().is_some_and(|connection| !connection.is_open()) {
            let why = format!("{}: the collector has ended the connection", self.connector.to);
            self.lose(&why);
        }
        self.connection.is_some()
    }

    /// Connects, and sends the templates.
    fn connect(&mut self) -> bool {
        match self.connector.connect() {
            Ok(connection) => self.connection = Some(connection),
            Err(why) => {
                self.shared.sent().refused += 1;
                self.lose(&why);
                return false;
            }
        }
        self.sequences.fill(0);
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as u32;
        for mut templates in std::mem::take(&mut self.templates) {
            templates.put(1, seconds);
            if self.connection.is_some() {
                self.write(&mut templates);
            }
            self.templates.push(templates);
        }
        if self.connection.is_none() {
            return false;
        }
        self.shared.sent().connections += 1;
        self.since = Instant::now();
        if std::mem::take(&mut self.has_said) {
            note(&format!("flows: {}: connected", self.connector.to));
        }
        true
    }

    /// Sends a message; returns it if the connection has ended before.
    fn send(&mut self, mut message: Message) -> Option<Message> {
        if !self.write(&mut message) {
            return Some(message);
        }
        let mut sent = self.shared.sent();
        sent.messages += 1;
        sent.records += message.flows;
        None
    }

    /// Writes a message with the sequence number that it has in this connection; returns whether it was taken.
    fn write(&mut self, message: &mut Message) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        message.put(2, self.sequences[message.domain]);
        let mut since = Instant::now();
        let taken = connection.send(&message.bytes, |progress| {
            if progress {
                since = Instant::now();
            }
            !self.shared.is_over(since) && since.elapsed() < STALLED
        });
        match taken {
            Ok(()) => {
                let sequence = &mut self.sequences[message.domain];
                *sequence = sequence.wrapping_add(message.data);
                self.since = Instant::now();
                self.shared.is_hopeless.store(false, Relaxed);
                true
            }
            Err(e) => {
                self.since = since;
                let why = self.connector.to.failed(&e);
                self.lose(&why);
                false
            }
        }
    }

    /// Ends the connection, if there is one, and says once why there is none.
    fn lose(&mut self, why: &str) {
        self.connection = None;
        if !std::mem::replace(&mut self.has_said, true) && !self.shared.ends.load(Relaxed) {
            note(&format!("flows: {why}; tried again each second"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use super::*;
    use crate::export::collector::{Destination, Security};

    fn session(listener: &TcpListener) -> Session {
        let to = Destination::parse(&format!("tcp:{}", listener.local_addr().unwrap())).unwrap();
        let templates = Message { bytes: vec![1; 20], domain: 0, data: 3, flows: 0 };
        Session::start(Connector::new(to, &Security::default()).unwrap(), vec![templates]).unwrap()
    }

    /// Sends more than the queue and the kernel take. Each record is counted once.
    #[test]
    fn a_collector_that_does_not_read_costs_records_and_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for waits in [false, true] {
            let mut session = session(&listener);
            session.waits = waits;
            for _ in 0..QUEUE + 2000 {
                session.send(0, Ended { bytes: &[2; 60_000], data: 3, flows: 2 });
            }
            session.finish();
            let sent = session.sent();
            assert_eq!((sent.records + sent.unsent, sent.messages), (2 * (QUEUE as u64 + 2000), sent.records / 2));
            assert!(sent.unsent > 0 && sent.messages > 0 && sent.connections > 0, "{sent:?}");
        }
    }

    /// Each connection begins with the templates, and its sequence numbers from 0. The message that was begun when the
    /// collector was lost is sent whole.
    #[test]
    fn connections_are_streams_of_their_own() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut session = session(&listener);
        for round in 0..3u8 {
            let mut collector = listener.accept().unwrap().0;
            let mut read = |bytes: usize| {
                let mut message = vec![0; bytes];
                collector.read_exact(&mut message).unwrap();
                message
            };
            let templates = read(20);
            assert!(templates[4..8] != [1; 4] && templates[8..12] == [0; 4] && templates[12..] == [1; 8]);
            for number in 0..3u8 {
                session.send(0, Ended { bytes: &[round; 50], data: 7, flows: 7 });
                let message = read(50);
                assert_eq!((&message[..8], &message[8..12]), (&[round; 8][..], &[0, 0, 0, 3 + 7 * number][..]));
            }
        }
        session.finish();
        let sent = session.sent();
        assert_eq!((sent.records, sent.unsent), (63, 0), "{sent:?}");
        // Also one after the last collector has gone, if there was time.
        assert!((3..=4).contains(&sent.connections), "{sent:?}");
    }
}
