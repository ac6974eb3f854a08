//! netmap's requests as they cross the control socket: the very structures of the interface, one after the other.
//!
//! The pointers of `nmreq_header` mean nothing to the other side; in their place stand lengths: `nr_body` the bytes of
//! the body, `nr_options` the number of options, `nro_next` the bytes of this option.

use unetmap_abi::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::error::errno;

/// A request with its body and options, owned.
#[derive(Clone, Debug)]
pub struct Request {
    /// Version, type, name. The pointers in it are not used.
    pub header: NmreqHeader,
    /// The body's bytes; empty when there is none.
    pub body: Vec<u8>,
    /// Each option's bytes, beginning with `nmreq_option`.
    pub options: Vec<Vec<u8>>,
}

/// Bytes of the body of each request type; `None` for a type that does not exist.
pub fn body_bytes(reqtype: u16) -> Option<usize> {
    Some(match reqtype {
        NETMAP_REQ_REGISTER => size_of::<NmreqRegister>(),
        NETMAP_REQ_PORT_INFO_GET => size_of::<NmreqPortInfoGet>(),
        NETMAP_REQ_VALE_ATTACH => size_of::<NmreqValeAttach>(),
        NETMAP_REQ_VALE_DETACH => size_of::<NmreqValeDetach>(),
        NETMAP_REQ_VALE_LIST => size_of::<NmreqValeList>(),
        NETMAP_REQ_PORT_HDR_SET | NETMAP_REQ_PORT_HDR_GET => size_of::<NmreqPortHdr>(),
        NETMAP_REQ_VALE_NEWIF => size_of::<NmreqValeNewif>(),
        NETMAP_REQ_VALE_POLLING_ENABLE | NETMAP_REQ_VALE_POLLING_DISABLE => size_of::<NmreqValePolling>(),
        NETMAP_REQ_POOLS_INFO_GET => size_of::<NmreqPoolsInfo>(),
        NETMAP_REQ_SYNC_KLOOP_START => size_of::<NmreqSyncKloopStart>(),
        NETMAP_REQ_VALE_DELIF | NETMAP_REQ_SYNC_KLOOP_STOP | NETMAP_REQ_CSB_ENABLE => 0,
        _ => return None,
    })
}

impl Request {
    /// A request of type `reqtype` about `name`, with that body.
    ///
    /// # Errors
    /// `EINVAL` when the name is longer than 63 bytes.
    pub fn new(reqtype: u16, name: &str, body: &[u8]) -> Result<Request, i32> {
        let mut header = NmreqHeader { nr_version: NETMAP_API, nr_reqtype: reqtype, ..Default::default() };
        let room = header.nr_name.len() - 1;
        if name.len() > room {
            return Err(errno::EINVAL);
        }
        header.nr_name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Request { header, body: body.to_vec(), options: Vec::new() })
    }

    /// The port's name; `None` when it is not ended within its field or not text.
    pub fn name(&self) -> Option<&str> {
        let end = self.header.nr_name.iter().position(|&b| b == 0)?;
        std::str::from_utf8(&self.header.nr_name[..end]).ok()
    }

    /// The body as the structure of its type; `None` when its size is another's.
    pub fn body_as<T: FromBytes>(&self) -> Option<T> {
        T::read_from_bytes(&self.body).ok()
    }

    /// The bytes that cross the socket.
    pub fn encode(&self) -> Vec<u8> {
        let mut header = self.header;
        header.nr_body = self.body.len() as u64;
        header.nr_options = self.options.len() as u64;
        let mut out = header.as_bytes().to_vec();
        out.extend_from_slice(&self.body);
        for option in &self.options {
            let mut bytes = option.clone();
            if let Ok((head, _)) = NmreqOption::mut_from_prefix(&mut bytes) {
                head.nro_next = option.len() as u64;
            }
            out.extend_from_slice(&bytes);
        }
        out
    }

    /// Takes the bytes apart, with the checks that the original makes on entry.
    ///
    /// # Errors
    /// `EINVAL` for a version outside 14..=15, reserved bits, a body that is missing or not the type's, an option that
    /// is shorter than its head, bytes left over; `EMSGSIZE` when body and options exceed 4096 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Request, i32> {
        let (mut header, rest) = NmreqHeader::read_from_prefix(bytes).map_err(|_| errno::EINVAL)?;
        if !(NETMAP_MIN_API..=NETMAP_MAX_API).contains(&header.nr_version) || header.nr_reserved != 0 {
            return Err(errno::EINVAL);
        }
        if rest.len() > NETMAP_REQ_MAXSIZE {
            return Err(errno::EMSGSIZE);
        }
        let expected = body_bytes(header.nr_reqtype).ok_or(errno::EINVAL)?;
        if header.nr_body != expected as u64 {
            return Err(errno::EINVAL);
        }
        let (body, mut rest) = rest.split_at_checked(expected).ok_or(errno::EINVAL)?;
        let mut options = Vec::new();
        for _ in 0..header.nr_options {
            let (head, _) = NmreqOption::read_from_prefix(rest).map_err(|_| errno::EINVAL)?;
            let length = usize::try_from(head.nro_next).map_err(|_| errno::EINVAL)?;
            if length < size_of::<NmreqOption>() {
                return Err(errno::EINVAL);
            }
            let (option, after) = rest.split_at_checked(length).ok_or(errno::EINVAL)?;
            options.push(option.to_vec());
            rest = after;
        }
        if !rest.is_empty() {
            return Err(errno::EINVAL);
        }
        header.nr_body = 0;
        header.nr_options = 0;
        Ok(Request { header, body: body.to_vec(), options })
    }
}

/// What the daemon answers to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The request, with what the daemon wrote into body and options.
    pub request: Request,
    /// Why it was refused; empty when it was not.
    pub why: String,
    /// What REGISTER bound; empty for all others. See [`crate::bound`].
    pub bound: Vec<u8>,
}

impl Answer {
    /// The bytes that cross the socket.
    pub fn encode(&self) -> Vec<u8> {
        let request = self.request.encode();
        let mut out = Vec::with_capacity(12 + request.len() + self.why.len() + self.bound.len());
        for part in [&request[..], self.why.as_bytes(), &self.bound] {
            out.extend_from_slice(&(part.len() as u32).to_ne_bytes());
        }
        for part in [&request[..], self.why.as_bytes(), &self.bound] {
            out.extend_from_slice(part);
        }
        out
    }

    /// Takes the bytes apart; `None` when they are not an answer.
    pub fn decode(bytes: &[u8]) -> Option<Answer> {
        let (sizes, mut rest) = <[u32; 3]>::read_from_prefix(bytes).ok()?;
        let mut next = |n: u32| {
            let (part, after) = rest.split_at_checked(n as usize)?;
            rest = after;
            Some(part)
        };
        let (request, why, bound) = (next(sizes[0])?, next(sizes[1])?, next(sizes[2])?);
        Some(Answer {
            request: Request::decode(request).ok()?,
            why: String::from_utf8_lossy(why).into_owned(),
            bound: bound.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn register() -> Request {
        let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, nr_tx_slots: 7, ..Default::default() };
        let mut request = Request::new(NETMAP_REQ_REGISTER, "p{1", body.as_bytes()).unwrap();
        let mut option = NmreqOption { nro_reqtype: NETMAP_REQ_OPT_OFFSETS, ..Default::default() }.as_bytes().to_vec();
        option.extend_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        request.options.push(option);
        request
    }

    #[test]
    fn a_request_comes_back_as_it_was() {
        let request = register();
        let back = Request::decode(&request.encode()).unwrap();
        assert_eq!(back.name(), Some("p{1"));
        assert_eq!(back.body_as::<NmreqRegister>().unwrap().nr_tx_slots, 7);
        assert_eq!(back.options[0][24..], request.options[0][24..]);
        let answer = Answer { request, why: "no".into(), bound: vec![1, 2] };
        let back = Answer::decode(&answer.encode()).unwrap();
        assert_eq!((back.why.as_str(), back.bound), ("no", vec![1, 2]));
    }

    #[test]
    fn the_checks_on_entry() {
        let encoded = |change: &dyn Fn(&mut Request)| {
            let mut request = register();
            change(&mut request);
            Request::decode(&request.encode()).map(|_| ())
        };
        assert_eq!(encoded(&|_| ()), Ok(()));
        assert_eq!(encoded(&|r| r.header.nr_version = 13), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.header.nr_version = 16), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.header.nr_reserved = 1), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.header.nr_reqtype = 99), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.body.clear()), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.options[0].truncate(10)), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.options[0].resize(5000, 0)), Err(errno::EMSGSIZE));
        assert!(Request::new(NETMAP_REQ_REGISTER, &"x".repeat(64), &[]).is_err());
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_never_a_panic(at in 0usize..200, with: u8, cut in 0usize..200) {
            let mut bytes = register().encode();
            let n = bytes.len();
            bytes[at % n] = with;
            bytes.truncate(n - cut % n);
            if let Ok(request) = Request::decode(&bytes) {
                let _ = request.name();
            }
            let _ = Answer::decode(&bytes);
        }
    }
}
