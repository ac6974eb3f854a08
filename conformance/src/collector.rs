// SPDX-License-Identifier: BSD-2-Clause
//! A collector of flow records: receives messages of IPFIX (RFC 7011) and NetFlow version 9 (RFC 3954), and decodes
//! them strictly. What no exporter may send panics.

use std::collections::{BTreeMap, HashMap};
use std::io::{ErrorKind, Read as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::home::LIMIT;
use crate::until;

/// Bytes of messages that wait to be received, where the kernel grants them.
const BUFFER: usize = 16 << 20;

/// A record: its fields by enterprise and number.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The observation domain.
    pub domain: u32,
    /// It is about the exporter, and no flow.
    pub is_option: bool,
    fields: BTreeMap<(u32, u16), Vec<u8>>,
}

impl Record {
    /// The bytes of a field; none if the record does not have it.
    pub fn bytes(&self, id: u16) -> &[u8] {
        self.fields.get(&(0, id)).map_or(&[], |bytes| bytes)
    }

    /// A field as a number; panics if there is none.
    #[track_caller]
    pub fn number(&self, id: u16) -> u64 {
        self.of(0, id)
    }

    /// A field of the reverse direction (RFC 5103).
    #[track_caller]
    pub fn reverse(&self, id: u16) -> u64 {
        self.of(29305, id)
    }

    #[track_caller]
    fn of(&self, enterprise: u32, id: u16) -> u64 {
        let bytes = self.fields.get(&(enterprise, id)).unwrap_or_else(|| panic!("no {enterprise}/{id} in {self:?}"));
        assert!(bytes.len() <= 8, "{id} is no number");
        bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

/// A field of a template: enterprise, number, bytes.
type Field = (u32, u16, u16);

/// Decodes messages.
#[derive(Default)]
pub struct Decoder {
    /// By domain and number; and whether the records are options.
    templates: HashMap<(u32, u16), (Vec<Field>, bool)>,
    /// The expected numbers, by domain.
    sequences: HashMap<u32, u32>,
    /// All records.
    pub records: Vec<Record>,
}

/// Bytes that are read from the beginning.
struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    #[track_caller]
    fn take(&mut self, n: usize) -> &'b [u8] {
        let (head, rest) = self.0.split_at_checked(n).unwrap_or_else(|| panic!("{n} of {} bytes", self.0.len()));
        self.0 = rest;
        head
    }

    #[track_caller]
    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().expect("two bytes"))
    }

    #[track_caller]
    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().expect("four bytes"))
    }
}

impl Decoder {
    /// Decodes a message.
    #[track_caller]
    pub fn message(&mut self, message: &[u8]) {
        let mut bytes = Bytes(message);
        let version = bytes.u16();
        let before = self.records.len();
        let (domain, sequence, count) = match version {
            10 => {
                assert_eq!(usize::from(bytes.u16()), message.len(), "length of the message");
                let (_, sequence, domain) = (bytes.u32(), bytes.u32(), bytes.u32());
                (domain, sequence, None)
            }
            9 => {
                let count = bytes.u16();
                let (_uptime, _seconds) = (bytes.u32(), bytes.u32());
                let (sequence, domain) = (bytes.u32(), bytes.u32());
                (domain, sequence, Some(count))
            }
            other => panic!("version {other}"),
        };
        let expected = self.sequences.get(&domain).copied().unwrap_or(0);
        assert_eq!(sequence, expected, "no message of domain {domain} is missing");
        let mut templates = 0;
        while !bytes.0.is_empty() {
            let (id, length) = (bytes.u16(), bytes.u16());
            let set = Bytes(bytes.take(usize::from(length) - 4));
            match (version, id) {
                (10, 2) | (9, 0) => templates += self.templates(domain, set, version, false),
                (10, 3) | (9, 1) => templates += self.templates(domain, set, version, true),
                (_, 256..) => self.data(domain, id, set),
                _ => panic!("set {id}"),
            }
        }
        let data = (self.records.len() - before) as u32;
        if let Some(count) = count {
            assert_eq!(u32::from(count), data + templates, "number of records in the message");
        }
        self.sequences.insert(domain, if version == 10 { sequence + data } else { sequence + 1 });
    }

    #[track_caller]
    fn templates(&mut self, domain: u32, mut set: Bytes<'_>, version: u16, is_option: bool) -> u32 {
        let mut n = 0;
        // The rest is padding.
        while set.0.len() >= 4 {
            let id = set.u16();
            let field = |set: &mut Bytes<'_>| {
                let (number, length) = (set.u16(), set.u16());
                let is_foreign = version == 10 && number & 0x8000 != 0;
                let enterprise = if is_foreign { set.u32() } else { 0 };
                (enterprise, if is_foreign { number & 0x7fff } else { number }, length)
            };
            let fields = if is_option && version == 9 {
                let (scope, others) = (set.u16(), set.u16());
                // Scopes have numbers of their own: those are told by the enterprise 9 here.
                let scopes = (0..scope / 4).map(|_| (9, set.u16(), set.u16())).collect::<Vec<_>>();
                let others = (0..others / 4).map(|_| field(&mut set)).collect::<Vec<_>>();
                [scopes, others].concat()
            } else {
                let count = set.u16();
                if is_option {
                    assert!((1..=count).contains(&set.u16()), "fields of the scope");
                }
                (0..count).map(|_| field(&mut set)).collect()
            };
            assert!(id >= 256 && !fields.is_empty(), "template {id}");
            let known = self.templates.insert((domain, id), (fields.clone(), is_option));
            assert!(known.is_none_or(|known| known == (fields, is_option)), "template {id} has changed");
            n += 1;
        }
        assert!(set.0.iter().all(|byte| *byte == 0), "padding");
        n
    }

    #[track_caller]
    fn data(&mut self, domain: u32, id: u16, mut set: Bytes<'_>) {
        let (fields, is_option) = self.templates.get(&(domain, id)).unwrap_or_else(|| panic!("no template {id}"));
        let least: usize =
            fields.iter().map(|(.., bytes)| if *bytes == 0xffff { 1 } else { usize::from(*bytes) }).sum();
        while set.0.len() >= least {
            let mut record = Record { domain, is_option: *is_option, fields: BTreeMap::new() };
            for (enterprise, number, bytes) in fields {
                let bytes = match *bytes {
                    0xffff => usize::from(set.take(1)[0]),
                    bytes => bytes.into(),
                };
                let is_new = record.fields.insert((*enterprise, *number), set.take(bytes).to_vec()).is_none();
                assert!(is_new, "field {number} is there twice");
            }
            self.records.push(record);
        }
        assert!(set.0.len() < 4 && set.0.iter().all(|byte| *byte == 0), "padding");
    }

    /// The records of flows.
    pub fn flows(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|record| !record.is_option)
    }

    /// The sum of a field over all flows.
    #[track_caller]
    pub fn sum(&self, id: u16) -> u64 {
        self.flows().map(|flow| flow.number(id)).sum()
    }
}

/// The messages of a connection (RFC 7011, 10.4), decoded as they come.
#[derive(Default)]
pub struct Stream {
    /// The messages that came whole.
    pub decoder: Decoder,
    rest: Vec<u8>,
}

impl Stream {
    /// Takes the bytes that follow.
    #[track_caller]
    pub fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some(length) = self.rest.get(2..4) {
            let length = usize::from(length[0]) << 8 | usize::from(length[1]);
            assert!(length >= 16, "length of a message: {length}");
            if self.rest.len() < length {
                break;
            }
            let after = self.rest.split_off(length);
            self.decoder.message(&std::mem::replace(&mut self.rest, after));
        }
    }

    /// Receives until `is_enough`, or the exporter ends the connection: then returns true, and the last message is
    /// whole.
    #[track_caller]
    pub fn receive(&mut self, mut from: &TcpStream, is_enough: impl Fn(&Decoder) -> bool) -> bool {
        from.set_read_timeout(Some(LIMIT)).expect("a limit");
        let mut buffer = vec![0; 1 << 16];
        while !is_enough(&self.decoder) {
            let n = from.read(&mut buffer).expect("messages, or the end");
            if n == 0 {
                assert!(self.rest.is_empty(), "the last message is not whole");
                return true;
            }
            self.take(&buffer[..n]);
        }
        false
    }
}

/// Waits for the next connection of an exporter.
#[track_caller]
pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("a socket");
    let mut stream = None;
    until("the exporter connects", || {
        stream = listener.accept().ok();
        stream.is_some()
    });
    let stream = stream.expect("accepted").0;
    stream.set_nonblocking(false).expect("a socket");
    stream
}

/// Receives messages until it is asked for them.
pub struct Collector {
    address: String,
    stop: Arc<AtomicBool>,
    receiver: JoinHandle<Vec<Vec<u8>>>,
}

impl Collector {
    /// Listens at a port of the loopback address.
    #[track_caller]
    pub fn start() -> Collector {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        // Without the privilege the usual buffer remains.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER);
        socket.set_read_timeout(Some(Duration::from_millis(10))).expect("a limit");
        let address = socket.local_addr().expect("bound").to_string();
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let receiver = std::thread::spawn(move || {
            let (mut messages, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
            loop {
                // Read before: what was sent until then is received.
                let ends = is_stopped.load(SeqCst);
                match socket.recv(&mut buffer) {
                    Ok(n) => messages.push(buffer[..n].to_vec()),
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(_) if ends => return messages,
                    Err(_) => {}
                }
            }
        });
        Collector { address, stop, receiver }
    }

    /// The address for the exporter.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns all messages. The exporter has ended: on the loopback interface what was sent has arrived.
    #[track_caller]
    pub fn messages(self) -> Vec<Vec<u8>> {
        self.stop.store(true, SeqCst);
        self.receiver.join().expect("no panic")
    }

    /// Returns all messages, decoded.
    #[track_caller]
    pub fn decoded(self) -> Decoder {
        let mut decoder = Decoder::default();
        self.messages().iter().for_each(|message| decoder.message(message));
        decoder
    }
}
