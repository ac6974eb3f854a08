// SPDX-License-Identifier: BSD-2-Clause
//! netmap's requests on the control socket: the structures of netmap's API, one after the other.
//!
//! The pointers of `nmreq_header` are meaningless to the daemon; lengths replace them: `nr_body` holds the bytes of the
//! body, `nr_options` the number of options, `nro_next` the bytes of this option.

use unetmap_abi::*;
use unetmap_mem::Geometry;
use unetmap_sys::process;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::control::wire::{ControlRequest, Kind};
use crate::error::errno;

/// In [`NmreqRegister::nr_flags`] on the control socket only; not a flag of netmap's: opens the interface even if that
/// disconnects the host.
pub const FORCE: u64 = 1 << 63;
/// The same: a pipe that does not exist yet is created in memory that a hypervisor can give to its guest, before the
/// [`DEVICE_HEADER_BYTES`](crate::control::binding::DEVICE_HEADER_BYTES) at the end of its file.
pub const NR_DEVICE: u64 = 1 << 30;
/// Flag of REGISTER by a program that has the memory of the port's former daemon mapped, and goes on at the same
/// addresses: `nr_offset` is the number of the `netmap_if`, and `nr_memsize` that of the first ring, which a port that
/// is created gets if they are free.
pub const NR_AT: u64 = 1 << 29;
/// Flag of REGISTER by a program that runs no AF_XDP sockets: an interface is opened mediated, also for a user who may
/// have it direct.
pub const NR_MEDIATED: u64 = 1 << 28;
/// An environment variable; any value but `0` sets [`FORCE`].
const FORCE_VARIABLE: &str = "UNETMAP_FORCE";

/// A netmap request with its body and options, owned.
#[derive(Clone, Debug)]
pub struct NetmapRequest {
    /// Version, type, name. The pointers in it are not used.
    pub header: NmreqHeader,
    /// The body's bytes; empty when there is none.
    pub body: Vec<u8>,
    /// Each option's bytes, beginning with `nmreq_option`.
    pub options: Vec<Vec<u8>>,
}

/// Returns what the option EXTMEM says after the request, as in netmap: what the program gave, and for the numbers and
/// sizes that it left at 0 the actual ones.
pub fn completed_info(given: NmreqPoolsInfo, actual: &NmreqPoolsInfo) -> NmreqPoolsInfo {
    let or = |given: u32, actual: u32| if given == 0 { actual } else { given };
    NmreqPoolsInfo {
        nr_if_pool_objtotal: or(given.nr_if_pool_objtotal, actual.nr_if_pool_objtotal),
        nr_if_pool_objsize: or(given.nr_if_pool_objsize, actual.nr_if_pool_objsize),
        nr_ring_pool_objtotal: or(given.nr_ring_pool_objtotal, actual.nr_ring_pool_objtotal),
        nr_ring_pool_objsize: or(given.nr_ring_pool_objsize, actual.nr_ring_pool_objsize),
        nr_buf_pool_objtotal: or(given.nr_buf_pool_objtotal, actual.nr_buf_pool_objtotal),
        nr_buf_pool_objsize: or(given.nr_buf_pool_objsize, actual.nr_buf_pool_objsize),
        ..given
    }
}

/// Returns the reply about the pools of region `mem_id`, which has `bytes` bytes.
pub fn pools_info(g: &Geometry, mem_id: u16, bytes: u64) -> NmreqPoolsInfo {
    NmreqPoolsInfo {
        nr_memsize: bytes,
        nr_mem_id: mem_id,
        nr_if_pool_offset: g.ifs.offset,
        nr_if_pool_objtotal: g.ifs.count,
        nr_if_pool_objsize: g.ifs.size,
        nr_ring_pool_offset: g.rings.offset,
        nr_ring_pool_objtotal: g.rings.count,
        nr_ring_pool_objsize: g.rings.size,
        nr_buf_pool_offset: g.bufs.offset,
        nr_buf_pool_objtotal: g.bufs.count,
        nr_buf_pool_objsize: g.bufs.size,
        ..Default::default()
    }
}

/// Returns the bytes of a request type's body; `None` for a type that does not exist.
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

/// Returns the bytes of an option with its head. For a type that does not exist only the head counts.
pub fn option_bytes(head: &NmreqOption) -> usize {
    let least = size_of::<NmreqOption>();
    match head.nro_reqtype {
        NETMAP_REQ_OPT_EXTMEM => size_of::<NmreqOptExtmem>(),
        NETMAP_REQ_OPT_CSB => size_of::<NmreqOptCsb>(),
        NETMAP_REQ_OPT_SYNC_KLOOP_MODE => size_of::<NmreqOptSyncKloopMode>(),
        NETMAP_REQ_OPT_OFFSETS => size_of::<NmreqOptOffsets>(),
        NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS => usize::try_from(head.nro_size).unwrap_or(usize::MAX).max(least),
        _ => least,
    }
}

impl NetmapRequest {
    /// Returns a request of type `reqtype` for the port `name`.
    ///
    /// # Errors
    /// `EINVAL` if the name is longer than 63 bytes.
    pub fn new(reqtype: u16, name: &str, body: &[u8]) -> Result<NetmapRequest, i32> {
        let mut header = NmreqHeader { nr_version: NETMAP_API, nr_reqtype: reqtype, ..Default::default() };
        let room = header.nr_name.len() - 1;
        if name.len() > room {
            return Err(errno::EINVAL);
        }
        header.nr_name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(NetmapRequest { header, body: body.to_vec(), options: Vec::new() })
    }

    /// Returns the port's name; `None` if it is not terminated within its field or not text.
    pub fn name(&self) -> Option<&str> {
        let end = self.header.nr_name.iter().position(|&b| b == 0)?;
        std::str::from_utf8(&self.header.nr_name[..end]).ok()
    }

    /// Returns the body as a structure; `None` if the sizes differ.
    pub fn body_as<T: FromBytes>(&self) -> Option<T> {
        T::read_from_bytes(&self.body).ok()
    }

    /// Makes the checks of options that netmap makes on entry, for every request type. Afterwards the status of each
    /// option is `EOPNOTSUPP`, until it is served.
    ///
    /// # Errors
    /// `EINVAL` for an option of type 0 or of a type given twice, `EOPNOTSUPP` for one that does not exist; the last
    /// invalid option decides. The option statuses show which are invalid.
    pub fn check_options(&mut self) -> Result<(), i32> {
        let kinds: Vec<u32> = self.options.iter().filter_map(|option| kind_of(option)).collect();
        let mut result = Ok(());
        for (i, option) in self.options.iter_mut().enumerate() {
            let Ok((head, _)) = NmreqOption::mut_from_prefix(option) else { return Err(errno::EINVAL) };
            let (exists, twice) = match head.nro_reqtype {
                0 => (true, true),
                kind @ 1..NETMAP_REQ_OPT_MAX => (true, kinds.iter().filter(|k| **k == kind).count() > 1),
                _ => (false, false),
            };
            head.nro_status = if twice { errno::EINVAL as u32 } else { errno::EOPNOTSUPP as u32 };
            let again = kinds[..i].contains(&head.nro_reqtype) || head.nro_reqtype == 0;
            if !exists || twice && again {
                result = Err(head.nro_status as i32);
            }
        }
        result
    }

    /// Returns the option of this kind; `None` if there is none, or it has another size.
    pub fn option<T: FromBytes>(&self, kind: u32) -> Option<T> {
        let option = self.options.iter().find(|option| kind_of(option) == Some(kind))?;
        T::read_from_bytes(option).ok()
    }

    /// Overwrites the option of that kind, head included.
    pub fn set_option<T: IntoBytes + Immutable>(&mut self, kind: u32, value: &T) {
        let option = self.options.iter_mut().find(|option| kind_of(option) == Some(kind));
        if let Some(option) = option.filter(|option| option.len() == size_of::<T>()) {
            option.copy_from_slice(value.as_bytes());
        }
    }

    /// Sets the status of the option of that kind: 0, or an errno. Does nothing without such an option.
    pub fn set_status(&mut self, kind: u32, errno: i32) {
        let option = self.options.iter_mut().find(|option| kind_of(option) == Some(kind));
        if let Some((head, _)) = option.and_then(|option| NmreqOption::mut_from_prefix(option).ok()) {
            head.nro_status = errno as u32;
        }
    }

    /// Returns the type of the first option that has not been served.
    pub fn unserved(&self) -> Option<u32> {
        let heads = self.options.iter().filter_map(|option| NmreqOption::read_from_prefix(option).ok());
        let mut left = heads.map(|(head, _)| head).filter(|head| head.nro_status == errno::EOPNOTSUPP as u32);
        left.next().map(|head| head.nro_reqtype)
    }

    /// Returns the request that a client sends: with [`FORCE`] if the environment sets it.
    pub(crate) fn with_environment(&self) -> NetmapRequest {
        let forced = process::variable(FORCE_VARIABLE).is_some_and(|value| value != "0");
        let mut request = self.clone();
        if forced
            && self.header.nr_reqtype == NETMAP_REQ_REGISTER
            && let Ok(register) = NmreqRegister::mut_from_bytes(&mut request.body)
        {
            register.nr_flags |= FORCE;
        }
        request
    }
}

/// Most bytes of body and options, and [`OPTION_POINTER`] for each option: what netmap allocates for a request, since
/// 2025.
pub const MAX_REQUEST: usize = 4144;

/// Bytes of the pointer to an option in the program, which netmap keeps with it.
pub const OPTION_POINTER: usize = 8;

impl ControlRequest for NetmapRequest {
    const KIND: Kind = Kind(2);

    fn encode(&self) -> Vec<u8> {
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

    /// Makes the checks that netmap makes on entry.
    ///
    /// # Errors
    /// `EINVAL` for a version outside 14..=15, reserved bits, a body that is missing or does not fit the type, an
    /// option whose length does not fit its kind, trailing bytes; `EMSGSIZE` if body and options exceed
    /// [`MAX_REQUEST`].
    fn decode(bytes: &[u8]) -> Result<NetmapRequest, i32> {
        let (mut header, rest) = NmreqHeader::read_from_prefix(bytes).map_err(|_| errno::EINVAL)?;
        if !(NETMAP_MIN_API..=NETMAP_MAX_API).contains(&header.nr_version) || header.nr_reserved != 0 {
            return Err(errno::EINVAL);
        }
        let pointers = usize::try_from(header.nr_options).unwrap_or(usize::MAX).saturating_mul(OPTION_POINTER);
        if rest.len().saturating_add(pointers) > MAX_REQUEST {
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
            if length != option_bytes(&head) {
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
        Ok(NetmapRequest { header, body: body.to_vec(), options })
    }
}

/// Returns an option's type; `None` if it is shorter than its head.
pub fn kind_of(option: &[u8]) -> Option<u32> {
    NmreqOption::read_from_prefix(option).ok().map(|(head, _)| head.nro_reqtype)
}

/// The daemon's reply to a netmap request.
#[derive(Clone, Debug)]
pub struct NetmapReply {
    /// The request, with body and options as the daemon changed them.
    pub request: NetmapRequest,
    /// Why it was refused; empty if it was not.
    pub reason: String,
    /// The encoded binding of REGISTER; empty for all other requests. See [`crate::control::binding`].
    pub binding: Vec<u8>,
}

impl NetmapReply {
    /// Returns the payload.
    pub fn encode(&self) -> Vec<u8> {
        let request = self.request.encode();
        let mut out = Vec::with_capacity(12 + request.len() + self.reason.len() + self.binding.len());
        for part in [&request[..], self.reason.as_bytes(), &self.binding] {
            out.extend_from_slice(&(part.len() as u32).to_ne_bytes());
        }
        for part in [&request[..], self.reason.as_bytes(), &self.binding] {
            out.extend_from_slice(part);
        }
        out
    }

    /// Parses a payload; `None` if it is not a reply.
    pub fn decode(bytes: &[u8]) -> Option<NetmapReply> {
        let (sizes, mut rest) = <[u32; 3]>::read_from_prefix(bytes).ok()?;
        let mut next = |n: u32| {
            let (part, after) = rest.split_at_checked(n as usize)?;
            rest = after;
            Some(part)
        };
        let (request, reason, binding) = (next(sizes[0])?, next(sizes[1])?, next(sizes[2])?);
        Some(NetmapReply {
            request: NetmapRequest::decode(request).ok()?,
            reason: String::from_utf8_lossy(reason).into_owned(),
            binding: binding.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn register() -> NetmapRequest {
        let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, nr_tx_slots: 7, ..Default::default() };
        let mut request = NetmapRequest::new(NETMAP_REQ_REGISTER, "p{1", body.as_bytes()).unwrap();
        let mut option = NmreqOptOffsets { nro_max_offset: 7, ..Default::default() };
        option.nro_opt.nro_reqtype = NETMAP_REQ_OPT_OFFSETS;
        request.options.push(option.as_bytes().to_vec());
        request
    }

    #[test]
    fn a_request_survives_encoding_and_decoding() {
        let request = register();
        let back = NetmapRequest::decode(&request.encode()).unwrap();
        assert_eq!(back.name(), Some("p{1"));
        assert_eq!(back.body_as::<NmreqRegister>().unwrap().nr_tx_slots, 7);
        assert_eq!(back.options[0][24..], request.options[0][24..]);
        let answer = NetmapReply { request, reason: "no".into(), binding: vec![1, 2] };
        let back = NetmapReply::decode(&answer.encode()).unwrap();
        assert_eq!((back.reason.as_str(), back.binding), ("no", vec![1, 2]));
    }

    #[test]
    fn malformed_requests_get_the_errno_of_netmap() {
        let encoded = |change: &dyn Fn(&mut NetmapRequest)| {
            let mut request = register();
            change(&mut request);
            NetmapRequest::decode(&request.encode()).map(|_| ())
        };
        assert_eq!(encoded(&|_| ()), Ok(()));
        assert_eq!(encoded(&|r| r.header.nr_version = 13), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.header.nr_version = 16), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.header.nr_reserved = 1), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.header.nr_reqtype = 99), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.body.clear()), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.options[0].truncate(10)), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.options[0].truncate(48)), Err(errno::EINVAL));
        assert_eq!(encoded(&|r| r.options[0].resize(5000, 0)), Err(errno::EMSGSIZE));
        assert!(NetmapRequest::new(NETMAP_REQ_REGISTER, &"x".repeat(64), &[]).is_err());
    }

    #[test]
    fn invalid_options_get_the_errno_and_status_of_netmap() {
        let of = |kinds: &[u32]| {
            let mut request = register();
            request.options = kinds
                .iter()
                .map(|&kind| NmreqOption { nro_reqtype: kind, ..Default::default() }.as_bytes().to_vec())
                .collect();
            let result = request.check_options();
            let status = |o: &Vec<u8>| NmreqOption::read_from_prefix(o).unwrap().0.nro_status as i32;
            (result, request.options.iter().map(status).collect::<Vec<_>>())
        };
        let (inval, notsupp) = (errno::EINVAL, errno::EOPNOTSUPP);
        assert_eq!(of(&[]), (Ok(()), vec![]));
        assert_eq!(of(&[1, 5]), (Ok(()), vec![notsupp; 2]));
        assert_eq!(of(&[5, 1, 5]), (Err(inval), vec![inval, notsupp, inval]));
        assert_eq!(of(&[0]), (Err(inval), vec![inval]));
        assert_eq!(of(&[6, 77, 77]), (Err(notsupp), vec![notsupp; 3]));
        assert_eq!(of(&[0, 6]), (Err(notsupp), vec![inval, notsupp]));
        assert_eq!(of(&[6, 0]), (Err(inval), vec![notsupp, inval]));
    }

    #[test]
    fn an_option_stays_unserved_until_its_status_is_set() {
        let mut request = register();
        request.check_options().unwrap();
        assert_eq!(request.unserved(), Some(NETMAP_REQ_OPT_OFFSETS));
        let mut option: NmreqOptOffsets = request.option(NETMAP_REQ_OPT_OFFSETS).unwrap();
        assert_eq!(option.nro_max_offset, 7);
        option.nro_max_offset = 8;
        request.set_option(NETMAP_REQ_OPT_OFFSETS, &option);
        request.set_status(NETMAP_REQ_OPT_OFFSETS, 0);
        request.set_status(NETMAP_REQ_OPT_CSB, 1);
        assert_eq!(request.unserved(), None);
        assert_eq!(request.option::<NmreqOptOffsets>(NETMAP_REQ_OPT_OFFSETS).unwrap().nro_max_offset, 8);
        assert!(request.option::<NmreqOptCsb>(NETMAP_REQ_OPT_OFFSETS).is_none());
    }

    proptest! {
        #[test]
        fn damaged_bytes_never_panic(at in 0usize..200, with: u8, cut in 0usize..200) {
            let mut bytes = register().encode();
            let n = bytes.len();
            bytes[at % n] = with;
            bytes.truncate(n - cut % n);
            if let Ok(request) = NetmapRequest::decode(&bytes) {
                let _ = request.name();
            }
            let _ = NetmapReply::decode(&bytes);
        }
    }
}
