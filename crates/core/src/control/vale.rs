//! A switch as the daemon knows it, and what its owner sets: what `unetmap vale` asks.
//!
//! ```text
//! request   a head, a name, then as the wish says: a set of VLANs, or a filter's expression and instructions
//! answer    a memfd with what the daemon then knows, as JSON; or an errno and why
//! ```

use std::os::fd::AsFd;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::vale_policy::{Direction, Limit, VLANS, Vlan, Vlans};
use crate::control::client;
use crate::error::{Error, errno};
use crate::control::nic::{Filter, text_of};
use crate::control::wire::Kind;

/// Bytes of the longest name of a switch or a port.
pub const MOST_NAME: usize = 63;
/// Threads that may serve the switches.
pub const MOST_THREADS: u16 = 64;
/// Numbers of processors are below this.
pub const MOST_CPUS: u16 = 1024;
/// Seconds that addresses may be given to age: 30 days.
pub const MOST_AGE: u32 = 30 * 24 * 3600;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// All switches; without a name.
    List,
    /// One switch.
    Show,
    /// One port.
    ShowPort,
    /// A switch forgets an address that it did not hear for so many seconds, 1..=[`MOST_AGE`]; 0: it never does.
    Age(u32),
    /// The VLANs of a port.
    Vlan(Option<Vlan>),
    /// How much a port may send, or receives.
    Limit(Direction, Limit),
    /// How many packets to all a port may send in a second; 0: any number.
    Storm(u64),
    /// What a port may send, or receives.
    Filter(Direction, Option<Filter>),
    /// Nothing is set about a port any more.
    Clear,
    /// The threads that serve all switches; without a name.
    Threads,
    /// How many these are to be, and where; without a name.
    Plan(Plan),
}

/// The threads that serve the switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How many, 1..=[`MOST_THREADS`].
    pub threads: u16,
    /// The processors, each below [`MOST_CPUS`], on which one after the other stays, from the first again when there are
    /// more threads; at most [`MOST_THREADS`]. None: they run wherever.
    pub cpus: Vec<u16>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { threads: 1, cpus: Vec::new() }
    }
}

impl Plan {
    /// The processor of a thread; `None`: any.
    pub fn cpu_of(&self, thread: usize) -> Option<u16> {
        self.cpus.get(thread % self.cpus.len().max(1)).copied()
    }

    /// Whether all numbers are within their bounds.
    ///
    /// # Errors
    /// One sentence, which says what is not.
    pub fn check(&self) -> Result<(), String> {
        let Plan { threads, cpus } = self;
        if !(1..=MOST_THREADS).contains(threads) {
            return Err(format!("{threads} threads: switches have 1 to {MOST_THREADS}"));
        }
        if cpus.len() > usize::from(MOST_THREADS) {
            return Err(format!("{} processors: a list has at most {MOST_THREADS}", cpus.len()));
        }
        match cpus.iter().find(|cpu| **cpu >= MOST_CPUS) {
            Some(cpu) => Err(format!("processor {cpu}: numbers are below {MOST_CPUS}")),
            None => Ok(()),
        }
    }
}

/// A request about a switch (`vale0`) or a port (`vale0:a`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValeRequest {
    /// The switch, or the port.
    pub name: String,
    /// What is asked.
    pub wish: Wish,
}

/// What a request begins with.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    wish: u16,
    direction: u16,
    name_bytes: u32,
    /// Of the expression.
    text_bytes: u32,
    zero: u32,
    numbers: [u64; 2],
}

const LIST: u16 = 0;
const SHOW: u16 = 1;
const SHOW_PORT: u16 = 2;
const AGE: u16 = 3;
const NO_VLAN: u16 = 4;
const ACCESS: u16 = 5;
const TRUNK: u16 = 6;
const LIMIT: u16 = 7;
const STORM: u16 = 8;
const FILTER: u16 = 9;
const NO_FILTER: u16 = 10;
const CLEAR: u16 = 11;
const THREADS: u16 = 12;
const PLAN: u16 = 13;

impl Wish {
    /// Whether it is about no switch in particular.
    fn is_of_all(&self) -> bool {
        matches!(self, Wish::List | Wish::Threads | Wish::Plan(_))
    }
}

impl ValeRequest {
    /// The bytes that cross the socket.
    pub fn encode(&self) -> Vec<u8> {
        let (mut direction, mut numbers, mut text, mut body) = (0, [0, 0], "", Vec::new());
        let wish = match &self.wish {
            Wish::List => LIST,
            Wish::Show => SHOW,
            Wish::ShowPort => SHOW_PORT,
            Wish::Age(seconds) => {
                numbers[0] = u64::from(*seconds);
                AGE
            }
            Wish::Vlan(None) => NO_VLAN,
            Wish::Vlan(Some(Vlan::Access(vlan))) => {
                numbers[0] = u64::from(*vlan);
                ACCESS
            }
            Wish::Vlan(Some(Vlan::Trunk(all))) => {
                body = all.to_bytes();
                TRUNK
            }
            Wish::Limit(way, limit) => {
                (direction, numbers) = (*way as u16, [limit.packets, limit.bits]);
                LIMIT
            }
            Wish::Storm(packets) => {
                numbers[0] = *packets;
                STORM
            }
            Wish::Filter(way, filter) => {
                direction = *way as u16;
                match filter {
                    Some(filter) => {
                        (text, body) = (&filter.expression, filter.encode_program());
                        FILTER
                    }
                    None => NO_FILTER,
                }
            }
            Wish::Clear => CLEAR,
            Wish::Threads => THREADS,
            Wish::Plan(plan) => {
                numbers[0] = plan.threads.into();
                body = plan.cpus.as_bytes().to_vec();
                PLAN
            }
        };
        let [name_bytes, text_bytes] = [self.name.len(), text.len()].map(|n| n as u32);
        let head = Head { wish, direction, name_bytes, text_bytes, zero: 0, numbers };
        [head.as_bytes(), self.name.as_bytes(), text.as_bytes(), &body].concat()
    }

    /// Takes the bytes apart; `None` when they are no request, or say what cannot be.
    pub fn decode(bytes: &[u8]) -> Option<ValeRequest> {
        let (head, rest) = Head::read_from_prefix(bytes).ok()?;
        let (name, rest) = rest.split_at_checked(head.name_bytes as usize)?;
        let (text, body) = rest.split_at_checked(head.text_bytes as usize)?;
        let direction = [Direction::In, Direction::Out].into_iter().find(|way| *way as u16 == head.direction)?;
        let [first, second] = head.numbers;
        let (wish, body) = match head.wish {
            LIST => (Wish::List, body),
            SHOW => (Wish::Show, body),
            SHOW_PORT => (Wish::ShowPort, body),
            AGE => (Wish::Age(u32::try_from(first).ok().filter(|seconds| *seconds <= MOST_AGE)?), body),
            NO_VLAN => (Wish::Vlan(None), body),
            ACCESS => {
                let vlan = u16::try_from(first).ok().filter(|vlan| VLANS.contains(vlan))?;
                (Wish::Vlan(Some(Vlan::Access(vlan))), body)
            }
            TRUNK => (Wish::Vlan(Some(Vlan::Trunk(Vlans::from_bytes(body)?))), &[][..]),
            LIMIT => (Wish::Limit(direction, Limit { packets: first, bits: second }), body),
            STORM => (Wish::Storm(first), body),
            FILTER => (Wish::Filter(direction, Some(Filter::decode(text, body)?)), &[][..]),
            NO_FILTER => (Wish::Filter(direction, None), body),
            CLEAR => (Wish::Clear, body),
            THREADS => (Wish::Threads, body),
            PLAN => {
                let pairs = body.chunks_exact(2);
                let whole = pairs.remainder().is_empty();
                let cpus = pairs.map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect();
                let plan = Plan { threads: u16::try_from(first).ok()?, cpus };
                (Wish::Plan(Some(plan).filter(|plan| whole && plan.check().is_ok())?), &[][..])
            }
            _ => return None,
        };
        let right_size = body.is_empty() && (head.wish == FILTER || text.is_empty());
        if !right_size || name.len() > MOST_NAME || name.is_empty() != wish.is_of_all() {
            return None;
        }
        Some(ValeRequest { name: std::str::from_utf8(name).ok()?.to_owned(), wish })
    }

    /// Whether a daemon is to be started for it: what is set is set for the ports to come.
    fn sets(&self) -> bool {
        let nothing = [Wish::Age(0), Wish::Vlan(None), Wish::Storm(0), Wish::Clear, Wish::Plan(Plan::default())];
        let shows =
            matches!(self.wish, Wish::List | Wish::Threads | Wish::Show | Wish::ShowPort | Wish::Filter(_, None));
        !shows
            && !nothing.contains(&self.wish)
            && !matches!(self.wish, Wish::Limit(_, limit) if limit == Limit::default())
    }
}

/// Asks the daemon that has this user's switches, and returns what it then knows, as JSON. One is started only to set
/// something; without one there is nothing to know: `None`.
///
/// # Errors
/// The daemon's refusal, or none could be started or answers.
pub fn ask(request: &ValeRequest) -> Result<Option<String>, Error> {
    let asked = if request.name.is_empty() { "the switches" } else { &request.name };
    let system = client::connect_system();
    if let Some(connection) = &system {
        let reply = client::call(connection.fd.as_fd(), asked, Kind::Vale, &request.encode())?;
        // Then this user's switches are in a daemon of his own.
        if reply.errno != errno::EACCES {
            return text_of(reply, asked).map(Some);
        }
    }
    let connection = match client::running()? {
        Some(connection) => connection,
        None if request.sets() => client::connect()?,
        None => return Ok(None),
    };
    let reply = client::call(connection.fd.as_fd(), asked, Kind::Vale, &request.encode())?;
    text_of(reply, asked).map(Some)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unetmap_sys::xdp::ClassicInsn;

    use super::*;

    fn all() -> Vec<Wish> {
        let insn = ClassicInsn { code: 6, jt: 0, jf: 0, k: 7 };
        let filter = Filter { expression: "udp".into(), program: vec![insn, insn] };
        vec![
            Wish::Show,
            Wish::ShowPort,
            Wish::Age(300),
            Wish::Vlan(None),
            Wish::Vlan(Some(Vlan::Access(10))),
            Wish::Vlan(Some(Vlan::Trunk(Vlans::new([10..=20, 4000..=4094])))),
            Wish::Limit(Direction::Out, Limit { packets: 5, bits: u64::MAX }),
            Wish::Storm(9),
            Wish::Filter(Direction::Out, Some(filter)),
            Wish::Filter(Direction::In, None),
            Wish::Clear,
        ]
    }

    fn plan(threads: u16, cpus: &[u16]) -> Wish {
        Wish::Plan(Plan { threads, cpus: cpus.into() })
    }

    #[test]
    fn a_request_comes_back_as_it_was() {
        for wish in all() {
            let request = ValeRequest { name: "vale0:a".into(), wish };
            assert_eq!(ValeRequest::decode(&request.encode()), Some(request));
        }
        for wish in [Wish::List, Wish::Threads, Wish::Plan(Plan::default()), plan(64, &[3, 1, 1023])] {
            let request = ValeRequest { name: String::new(), wish };
            assert_eq!(ValeRequest::decode(&request.encode()), Some(request));
        }
    }

    #[test]
    fn what_cannot_be_is_no_request() {
        let with = |name: &str, wish| ValeRequest { name: name.into(), wish }.encode();
        let long = "x".repeat(MOST_NAME + 1);
        for bytes in [
            with("", Wish::Show),
            with("vale0", Wish::List),
            with(&long, Wish::Show),
            with("a", Wish::Threads),
            with("a", plan(2, &[0])),
            with("", plan(0, &[0])),
            with("", plan(65, &[])),
            with("", plan(2, &[1024])),
            with("", plan(2, &[0; 65])),
            with("a", Wish::Age(MOST_AGE + 1)),
            with("a", Wish::Vlan(Some(Vlan::Access(0)))),
            with("a", Wish::Vlan(Some(Vlan::Access(4095)))),
            with("a", Wish::Vlan(Some(Vlan::Trunk(Vlans::new([]))))),
            with("a", Wish::Filter(Direction::In, Some(Filter { expression: "udp".into(), program: Vec::new() }))),
        ] {
            assert_eq!(ValeRequest::decode(&bytes), None);
        }
        for wish in all() {
            let mut bytes = with("a", wish);
            bytes.push(0);
            assert_eq!(ValeRequest::decode(&bytes), None, "{bytes:?}");
            bytes[2] = 9;
            assert_eq!(ValeRequest::decode(&bytes[..bytes.len() - 1]), None, "a third direction");
        }
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_never_a_panic(which in 0..11usize, at in 0usize..600, with: u8, cut in 0usize..60) {
            let wish = all().swap_remove(which);
            let mut bytes = ValeRequest { name: "vale0:a".into(), wish }.encode();
            let n = bytes.len();
            bytes[at % n] = with;
            bytes.truncate(n - cut % n);
            let _ = ValeRequest::decode(&bytes);
        }
    }
}
