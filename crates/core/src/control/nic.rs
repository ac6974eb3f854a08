//! An interface as the daemon knows it, and the filter before its port: what `unetmap nic` asks.
//!
//! ```text
//! request   a head, the interface's name, the filter's expression, the filter's instructions
//!           or a head, the interface's name, microseconds and packets of busy polling
//! answer    a memfd with what the daemon knows of the interface, as JSON; or an errno and why
//! ```

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsFd;

use unetmap_sys::xdp::ClassicInsn;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::control::client::{self, Connection, Reply};
use crate::error::{Error, errno};
use crate::control::wire::Kind;

/// Bytes of an interface's name at most: alternative names are the longest.
pub const MOST_NAME: usize = 127;
/// Bytes of a filter's expression at most.
pub const MOST_EXPRESSION: usize = 4096;
/// Instructions of a filter at most (`BPF_MAXINSNS`).
pub const MOST_INSNS: usize = 4096;
/// Bytes of an instruction.
const INSN: usize = 8;

const _: () = assert!(
    crate::control::wire::HEAD_BYTES + size_of::<Head>() + MOST_NAME + MOST_EXPRESSION + MOST_INSNS * INSN
        <= crate::control::wire::MAX_REQUEST
);

/// Which frames enter an interface's port; the others stay with the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// For people, 1 to [`MOST_EXPRESSION`] bytes: what the instructions were compiled from.
    pub expression: String,
    /// 1 to [`MOST_INSNS`] instructions of classic BPF, as for Ethernet: not 0 is a frame that enters.
    pub program: Vec<ClassicInsn>,
}

/// What is asked of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Only how it is.
    Show,
    /// From now on this filter, whether a port is open or not, until the interface is gone.
    Filter(Filter),
    /// From now on no filter.
    NoFilter,
    /// Sockets that are bound from now on poll busily, until the interface is gone.
    BusyPoll {
        /// Microseconds, in `BusyPoll::USEC`.
        usec: u32,
        /// Packets that one look may take, in `BusyPoll::BUDGET`.
        budget: u32,
    },
    /// Sockets that are bound from now on do not.
    NoBusyPoll,
}

/// A request about one interface of the caller's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicRequest {
    /// Its name.
    pub interface: String,
    /// What is asked.
    pub wish: Wish,
}

/// What a request begins with.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    wish: u32,
    name_bytes: u32,
    expression_bytes: u32,
    insns: u32,
}

const SHOW: u32 = 0;
const FILTER: u32 = 1;
const NO_FILTER: u32 = 2;
const BUSY_POLL: u32 = 3;
const NO_BUSY_POLL: u32 = 4;

impl NicRequest {
    /// The bytes that cross the socket.
    pub fn encode(&self) -> Vec<u8> {
        let numbers;
        let (wish, expression, program) = match &self.wish {
            Wish::Show => (SHOW, &[][..], &[][..]),
            Wish::Filter(filter) => (FILTER, filter.expression.as_bytes(), &filter.program[..]),
            Wish::NoFilter => (NO_FILTER, &[][..], &[][..]),
            Wish::BusyPoll { usec, budget } => {
                numbers = [*usec, *budget];
                (BUSY_POLL, numbers.as_bytes(), &[][..])
            }
            Wish::NoBusyPoll => (NO_BUSY_POLL, &[][..], &[][..]),
        };
        let lengths = [self.interface.len(), expression.len(), program.len()].map(|n| n as u32);
        let [name_bytes, expression_bytes, insns] = lengths;
        let mut out = Head { wish, name_bytes, expression_bytes, insns }.as_bytes().to_vec();
        out.extend_from_slice(self.interface.as_bytes());
        out.extend_from_slice(expression);
        out.extend_from_slice(&encode_insns(program));
        out
    }

    /// Takes the bytes apart; `None` when they are no request, or one of its parts is too long, or not text, or missing.
    pub fn decode(bytes: &[u8]) -> Option<NicRequest> {
        let (head, rest) = Head::read_from_prefix(bytes).ok()?;
        let (name, rest) = rest.split_at_checked(head.name_bytes as usize)?;
        let (expression, rest) = rest.split_at_checked(head.expression_bytes as usize)?;
        if !(1..=MOST_NAME).contains(&name.len()) || rest.len() != (head.insns as usize).checked_mul(INSN)? {
            return None;
        }
        let interface = std::str::from_utf8(name).ok()?.to_owned();
        let wish = match head.wish {
            FILTER => Wish::Filter(Filter::decode(expression, rest)?),
            BUSY_POLL if rest.is_empty() => {
                let [usec, budget] = <[u32; 2]>::read_from_bytes(expression).ok()?;
                Wish::BusyPoll { usec, budget }
            }
            _ if bytes.len() != size_of::<Head>() + name.len() => return None,
            SHOW => Wish::Show,
            NO_FILTER => Wish::NoFilter,
            NO_BUSY_POLL => Wish::NoBusyPoll,
            _ => return None,
        };
        Some(NicRequest { interface, wish })
    }
}

impl Filter {
    /// The bytes of its instructions.
    pub(crate) fn encode_program(&self) -> Vec<u8> {
        encode_insns(&self.program)
    }

    /// The filter of an expression and instructions; `None` when either is too long, or not text, or missing.
    pub(crate) fn decode(expression: &[u8], insns: &[u8]) -> Option<Filter> {
        let lengths = (expression.len(), insns.len() / INSN);
        let right = (1..=MOST_EXPRESSION).contains(&lengths.0) && (1..=MOST_INSNS).contains(&lengths.1);
        if !right || !insns.len().is_multiple_of(INSN) {
            return None;
        }
        let expression = std::str::from_utf8(expression).ok()?.to_owned();
        Some(Filter { expression, program: insns.chunks_exact(INSN).filter_map(insn).collect() })
    }
}

fn encode_insns(program: &[ClassicInsn]) -> Vec<u8> {
    let bytes = |i: &ClassicInsn| [&i.code.to_ne_bytes()[..], &[i.jt, i.jf], &i.k.to_ne_bytes()].concat();
    program.iter().flat_map(bytes).collect()
}

fn insn(bytes: &[u8]) -> Option<ClassicInsn> {
    let &[c0, c1, jt, jf, k0, k1, k2, k3] = bytes else { return None };
    Some(ClassicInsn { code: u16::from_ne_bytes([c0, c1]), jt, jf, k: u32::from_ne_bytes([k0, k1, k2, k3]) })
}

/// Asks the daemon that opens interfaces for this user, and returns what it then knows of the interface, as JSON. One is
/// started only to set something; without one there is nothing to know: `None`.
///
/// # Errors
/// The daemon's refusal, or none could be started or answers.
pub fn ask(request: &NicRequest) -> Result<Option<String>, Error> {
    let NicRequest { interface, wish } = request;
    let asked = format!("netmap:{interface}");
    let connection = match (client::connect_system(), wish) {
        (Some(connection), _) => connection,
        (None, Wish::Filter(_) | Wish::BusyPoll { .. }) => client::connect()?,
        (None, Wish::Show | Wish::NoFilter | Wish::NoBusyPoll) => match client::running()? {
            Some(connection) => connection,
            None => return Ok(None),
        },
    };
    ask_on(&connection, &asked, request).map(Some)
}

fn ask_on(connection: &Connection, asked: &str, request: &NicRequest) -> Result<String, Error> {
    let reply = client::call(connection.fd.as_fd(), asked, Kind::Nic, &request.encode())?;
    text_of(reply, asked)
}

/// The text that came as a file; or the errno, and why, that came in its place.
pub(crate) fn text_of(reply: Reply, asked: &str) -> Result<String, Error> {
    if reply.errno != 0 {
        let why = String::from_utf8(reply.payload).ok().filter(|why| !why.is_empty());
        let why = why.unwrap_or_else(|| std::io::Error::from_raw_os_error(reply.errno).to_string());
        return Err(Error::Refused { asked: asked.into(), errno: reply.errno, why });
    }
    let Some(memfd) = reply.fds.into_iter().next() else {
        return Err(Error::Refused {
            asked: asked.into(),
            errno: errno::EIO,
            why: "the daemon's answer lacks its text".into(),
        });
    };
    let (mut file, mut text) = (File::from(memfd), String::new());
    file.rewind().and_then(|()| file.read_to_string(&mut text)).map_err(|e| Error::host(asked, e))?;
    Ok(text.trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request() -> NicRequest {
        let insn = |k| ClassicInsn { code: 0x15, jt: 1, jf: 2, k };
        let filter = Filter { expression: "udp port 53".into(), program: vec![insn(7), insn(u32::MAX)] };
        NicRequest { interface: "eth0".into(), wish: Wish::Filter(filter) }
    }

    #[test]
    fn a_request_comes_back_as_it_was() {
        let busy = Wish::BusyPoll { usec: 50, budget: u32::MAX };
        for wish in [Wish::Show, Wish::NoFilter, busy, Wish::NoBusyPoll, request().wish] {
            let request = NicRequest { wish, ..request() };
            assert_eq!(NicRequest::decode(&request.encode()), Some(request));
        }
    }

    #[test]
    fn what_is_too_long_or_missing_is_no_request() {
        let NicRequest { interface, wish: Wish::Filter(filter) } = request() else { unreachable!() };
        let with = |filter| NicRequest { interface: interface.clone(), wish: Wish::Filter(filter) };
        let bad = [
            NicRequest { interface: String::new(), wish: Wish::Show },
            NicRequest { interface: "x".repeat(MOST_NAME + 1), wish: Wish::Show },
            with(Filter { expression: String::new(), ..filter.clone() }),
            with(Filter { expression: "x".repeat(MOST_EXPRESSION + 1), ..filter.clone() }),
            with(Filter { program: Vec::new(), ..filter.clone() }),
            with(Filter { program: filter.program.repeat(MOST_INSNS / 2 + 1), ..filter.clone() }),
        ];
        for request in bad {
            assert_eq!(NicRequest::decode(&request.encode()), None, "{request:?}");
        }
        let mut bytes = request().encode();
        bytes.push(0);
        assert_eq!(NicRequest::decode(&bytes), None);
        let mut shown = NicRequest { interface: interface.clone(), wish: Wish::Show }.encode();
        shown.extend_from_slice(b"rest");
        assert_eq!(NicRequest::decode(&shown), None);
        shown[0] = 9;
        assert_eq!(NicRequest::decode(&shown), None);
        let wish = Wish::BusyPoll { usec: 1, budget: 1 };
        let mut busy = NicRequest { interface, wish }.encode();
        busy.truncate(busy.len() - 1);
        assert_eq!(NicRequest::decode(&busy), None);
        busy.extend_from_slice(&[0; 9]);
        assert_eq!(NicRequest::decode(&busy), None);
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_never_a_panic(at in 0usize..200, with: u8, cut in 0usize..60) {
            let mut bytes = request().encode();
            let n = bytes.len();
            bytes[at % n] = with;
            bytes.truncate(n - cut % n);
            let _ = NicRequest::decode(&bytes);
        }
    }
}
