// SPDX-License-Identifier: BSD-2-Clause
//! Requests about an interface: its state, its filter, its busy polling, its way, what becomes of frames that no
//! program takes. `unetmap nic` sends them.
//!
//! ```text
//! request   a head, the interface's name, the filter's expression, the filter's instructions
//!           or a head, the interface's name, microseconds and packets of busy polling, or the word of a way
//!           or a head, the interface's name, the words of an `OnFailure`
//! reply     the state of the interface, as JSON; or an errno and the reason
//! ```

use std::fmt;

use unetmap_sys::xdp::ClassicInsn;
pub use unetmap_sys::xsk::Way;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::control::client;
use crate::control::wire::{self, ControlRequest, Kind};
use crate::error::{Error, errno};

/// Bytes of an interface's name at most: alternative names are the longest.
pub const MAX_NAME: usize = 127;
/// Bytes of a filter's expression at most.
pub const MAX_EXPRESSION: usize = 4096;
/// Instructions of a filter at most (`BPF_MAXINSNS`).
pub const MAX_INSNS: usize = 4096;
/// Bytes of an instruction.
const INSN: usize = 8;

const _: () =
    assert!(wire::HEAD_BYTES + size_of::<Head>() + MAX_NAME + MAX_EXPRESSION + MAX_INSNS * INSN <= wire::MAX_REQUEST);

/// Selects the frames that enter an interface's port; all others go to the host stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The text that the instructions were compiled from, for display: 1 to [`MAX_EXPRESSION`] bytes.
    pub expression: String,
    /// 1 to [`MAX_INSNS`] instructions of classic BPF, for Ethernet; a frame enters if the result is not 0.
    pub program: Vec<ClassicInsn>,
}

/// The action of a request about an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicAction {
    /// Returns the state.
    Show,
    /// Sets the filter, whether a port is open or not, until the interface is removed.
    Filter(Filter),
    /// Removes the filter.
    NoFilter,
    /// Enables busy polling for sockets that are bound from now on, until the interface is removed.
    BusyPoll {
        /// Microseconds, in `BusyPoll::USEC`.
        usec: u32,
        /// Packets that one poll may take, in `BusyPoll::BUDGET`.
        budget: u32,
    },
    /// Disables busy polling for sockets that are bound from now on.
    NoBusyPoll,
    /// Chooses the way of packets of ports that are opened from now on, until the interface is removed.
    Way(Way),
    /// Sets what becomes of frames that a program should get and none takes.
    OnFailure(OnFailure),
}

/// The fate of frames that a program should get and none takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The host's stack gets them.
    Open,
    /// They are dropped.
    Closed,
    /// The interface of this name, in the same network namespace, sends them: 1 to [`MAX_NAME`] bytes.
    Bypass(String),
}

impl OnFailure {
    /// Parses `open`, `closed`, or `bypass IF`; `None`: other words.
    pub fn parse(text: &str) -> Option<OnFailure> {
        match text.split_once(' ') {
            None if text == "open" => Some(OnFailure::Open),
            None if text == "closed" => Some(OnFailure::Closed),
            Some(("bypass", partner)) if (1..=MAX_NAME).contains(&partner.len()) && !partner.contains(' ') => {
                Some(OnFailure::Bypass(partner.into()))
            }
            _ => None,
        }
    }
}

impl fmt::Display for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnFailure::Open => f.write_str("open"),
            OnFailure::Closed => f.write_str("closed"),
            OnFailure::Bypass(partner) => write!(f, "bypass {partner}"),
        }
    }
}

/// A request about one interface of the caller's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicRequest {
    /// Its name.
    pub interface: String,
    /// The action.
    pub action: NicAction,
}

/// The fixed part of the payload.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    action: u32,
    name_bytes: u32,
    expression_bytes: u32,
    insns: u32,
}

const SHOW: u32 = 0;
const FILTER: u32 = 1;
const NO_FILTER: u32 = 2;
const BUSY_POLL: u32 = 3;
const NO_BUSY_POLL: u32 = 4;
const WAY: u32 = 5;
const ON_FAILURE: u32 = 6;

impl ControlRequest for NicRequest {
    const KIND: Kind = Kind(6);

    fn encode(&self) -> Vec<u8> {
        let (numbers, words);
        let (action, expression, program) = match &self.action {
            NicAction::Show => (SHOW, &[][..], &[][..]),
            NicAction::Filter(filter) => (FILTER, filter.expression.as_bytes(), &filter.program[..]),
            NicAction::NoFilter => (NO_FILTER, &[][..], &[][..]),
            NicAction::BusyPoll { usec, budget } => {
                numbers = [*usec, *budget];
                (BUSY_POLL, numbers.as_bytes(), &[][..])
            }
            NicAction::NoBusyPoll => (NO_BUSY_POLL, &[][..], &[][..]),
            NicAction::Way(way) => (WAY, way.as_str().as_bytes(), &[][..]),
            NicAction::OnFailure(failure) => {
                words = failure.to_string();
                (ON_FAILURE, words.as_bytes(), &[][..])
            }
        };
        let lengths = [self.interface.len(), expression.len(), program.len()].map(|n| n as u32);
        let [name_bytes, expression_bytes, insns] = lengths;
        let mut out = Head { action, name_bytes, expression_bytes, insns }.as_bytes().to_vec();
        out.extend_from_slice(self.interface.as_bytes());
        out.extend_from_slice(expression);
        out.extend_from_slice(&encode_insns(program));
        out
    }

    /// # Errors
    /// `EINVAL` if the action does not exist, or a part is too long, not text, or missing.
    fn decode(payload: &[u8]) -> Result<NicRequest, i32> {
        decode(payload).ok_or(errno::EINVAL)
    }
}

fn decode(bytes: &[u8]) -> Option<NicRequest> {
    let (head, rest) = Head::read_from_prefix(bytes).ok()?;
    let (name, rest) = rest.split_at_checked(head.name_bytes as usize)?;
    let (expression, rest) = rest.split_at_checked(head.expression_bytes as usize)?;
    if !(1..=MAX_NAME).contains(&name.len()) || rest.len() != (head.insns as usize).checked_mul(INSN)? {
        return None;
    }
    let interface = std::str::from_utf8(name).ok()?.to_owned();
    let action = match head.action {
        FILTER => NicAction::Filter(Filter::decode(expression, rest)?),
        BUSY_POLL if rest.is_empty() => {
            let [usec, budget] = <[u32; 2]>::read_from_bytes(expression).ok()?;
            NicAction::BusyPoll { usec, budget }
        }
        WAY if rest.is_empty() => NicAction::Way(Way::parse(std::str::from_utf8(expression).ok()?)?),
        ON_FAILURE if rest.is_empty() => NicAction::OnFailure(OnFailure::parse(std::str::from_utf8(expression).ok()?)?),
        _ if bytes.len() != size_of::<Head>() + name.len() => return None,
        SHOW => NicAction::Show,
        NO_FILTER => NicAction::NoFilter,
        NO_BUSY_POLL => NicAction::NoBusyPoll,
        _ => return None,
    };
    Some(NicRequest { interface, action })
}

impl Filter {
    /// Returns the bytes of its instructions.
    pub fn encode_program(&self) -> Vec<u8> {
        encode_insns(&self.program)
    }

    /// Parses an expression and instructions; `None` if either is too long, not text, or missing.
    pub fn decode(expression: &[u8], insns: &[u8]) -> Option<Filter> {
        let lengths = (expression.len(), insns.len() / INSN);
        let valid = (1..=MAX_EXPRESSION).contains(&lengths.0) && (1..=MAX_INSNS).contains(&lengths.1);
        if !valid || !insns.len().is_multiple_of(INSN) {
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

/// Sends the request to the daemon that opens interfaces for this user, and returns the state of the interface after
/// it, as JSON. Starts a daemon only to set something; `None` if no daemon runs, and so nothing is set.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
pub fn send_request(request: &NicRequest) -> Result<Option<String>, Error> {
    let sets = match request.action {
        NicAction::Filter(_) | NicAction::BusyPoll { .. } => true,
        NicAction::Way(way) => way != Way::Auto,
        NicAction::OnFailure(ref failure) => *failure != OnFailure::Open,
        NicAction::Show | NicAction::NoFilter | NicAction::NoBusyPoll => false,
    };
    client::send_for_text(request, &format!("netmap:{}", request.interface), sets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request() -> NicRequest {
        let insn = |k| ClassicInsn { code: 0x15, jt: 1, jf: 2, k };
        let filter = Filter { expression: "udp port 53".into(), program: vec![insn(7), insn(u32::MAX)] };
        NicRequest { interface: "eth0".into(), action: NicAction::Filter(filter) }
    }

    #[test]
    fn a_request_survives_encoding_and_decoding() {
        let busy = NicAction::BusyPoll { usec: 50, budget: u32::MAX };
        let others = [NicAction::Show, NicAction::NoFilter, busy, NicAction::NoBusyPoll, request().action];
        let failures = [OnFailure::Open, OnFailure::Closed, OnFailure::Bypass("eth1".into())].map(NicAction::OnFailure);
        for action in others.into_iter().chain(failures).chain(Way::ALL.map(NicAction::Way)) {
            let request = NicRequest { action, ..request() };
            assert_eq!(NicRequest::decode(&request.encode()), Ok(request));
        }
    }

    #[test]
    fn other_words_are_no_failure_setting() {
        for words in ["", "opened", "open ", "closed eth1", "bypass", "bypass ", "bypass a b"] {
            assert_eq!(OnFailure::parse(words), None, "{words:?}");
        }
    }

    #[test]
    fn parts_that_are_too_long_or_missing_are_rejected() {
        let NicRequest { interface, action: NicAction::Filter(filter) } = request() else { unreachable!() };
        let with = |filter| NicRequest { interface: interface.clone(), action: NicAction::Filter(filter) };
        let bad = [
            NicRequest { interface: String::new(), action: NicAction::Show },
            NicRequest { interface: "x".repeat(MAX_NAME + 1), action: NicAction::Show },
            with(Filter { expression: String::new(), ..filter.clone() }),
            with(Filter { expression: "x".repeat(MAX_EXPRESSION + 1), ..filter.clone() }),
            with(Filter { program: Vec::new(), ..filter.clone() }),
            with(Filter { program: filter.program.repeat(MAX_INSNS / 2 + 1), ..filter.clone() }),
        ];
        for request in bad {
            assert_eq!(NicRequest::decode(&request.encode()), Err(errno::EINVAL), "{request:?}");
        }
        let mut bytes = request().encode();
        bytes.push(0);
        assert_eq!(NicRequest::decode(&bytes), Err(errno::EINVAL));
        let mut shown = NicRequest { interface: interface.clone(), action: NicAction::Show }.encode();
        shown.extend_from_slice(b"rest");
        assert_eq!(NicRequest::decode(&shown), Err(errno::EINVAL));
        shown[0] = 9;
        assert_eq!(NicRequest::decode(&shown), Err(errno::EINVAL));
        let mut way = NicRequest { interface: interface.clone(), action: NicAction::Way(Way::Copy) }.encode();
        way.truncate(way.len() - 1);
        assert_eq!(NicRequest::decode(&way), Err(errno::EINVAL));
        let action = NicAction::BusyPoll { usec: 1, budget: 1 };
        let mut busy = NicRequest { interface, action }.encode();
        busy.truncate(busy.len() - 1);
        assert_eq!(NicRequest::decode(&busy), Err(errno::EINVAL));
        busy.extend_from_slice(&[0; 9]);
        assert_eq!(NicRequest::decode(&busy), Err(errno::EINVAL));
    }

    proptest! {
        #[test]
        fn damaged_bytes_never_panic(at in 0usize..200, with: u8, cut in 0usize..60) {
            let mut bytes = request().encode();
            let n = bytes.len();
            bytes[at % n] = with;
            bytes.truncate(n - cut % n);
            let _ = NicRequest::decode(&bytes);
        }
    }
}
