// SPDX-License-Identifier: BSD-2-Clause
//! An ioctl request with pointers into the memory of the program: gathered into one request, and its reply written
//! back.

use unetmap_abi::*;
use zerocopy::FromBytes;

use crate::control::request::{MAX_REQUEST, NetmapRequest, OPTION_POINTER, body_bytes, kind_of, option_bytes};
use crate::error::errno;

/// The memory of a program, in which any address may be invalid.
pub trait UserMemory {
    /// Reads `into.len()` bytes at address `from`.
    ///
    /// # Errors
    /// An errno: `EFAULT` if part of the range is not mapped.
    fn read(&self, from: u64, into: &mut [u8]) -> Result<(), i32>;

    /// Writes `bytes` to address `to`.
    ///
    /// # Errors
    /// As [`UserMemory::read`].
    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), i32>;
}

/// A request, and the addresses of its parts.
#[derive(Debug)]
pub struct GatheredRequest {
    /// The copy of the request. The program may change its memory afterwards; only this copy is used.
    pub request: NetmapRequest,
    body_address: u64,
    /// The address of each option, and its original `nro_next`.
    option_addresses: Vec<(u64, u64)>,
}

impl GatheredRequest {
    /// Reads the body and options that `header` points to, with the checks that netmap makes on entry, in its order.
    /// Reads each byte once.
    ///
    /// # Errors
    /// `EINVAL` for a version or type that does not exist, reserved bits, a body that the type does not have or a
    /// missing body; `EMSGSIZE` if body and options exceed [`MAX_REQUEST`]; `EINVAL` or `EMSGSIZE` if the list of
    /// options is endless; the errors of `memory`.
    pub fn gather(header: NmreqHeader, memory: &impl UserMemory) -> Result<GatheredRequest, i32> {
        if version_mismatch(&header).is_some() || header.nr_reserved != 0 {
            return Err(errno::EINVAL);
        }
        let bytes = body_bytes(header.nr_reqtype).ok_or(errno::EINVAL)?;
        if (bytes == 0) != (header.nr_body == 0) {
            return Err(errno::EINVAL);
        }
        let mut request = NetmapRequest { header, body: vec![0; bytes], options: Vec::new() };
        let mut option_addresses = Vec::new();
        let (mut next, mut total) = (header.nr_options, bytes);
        while next != 0 {
            if let Some(at) = option_addresses.iter().position(|&(at, _)| at == next) {
                // netmap sees an option of a known type twice before it notices that the list is endless.
                let is_known = kind_of(&request.options[at]).is_some_and(|kind| kind > 0 && kind < NETMAP_REQ_OPT_MAX);
                return Err(if is_known { errno::EINVAL } else { errno::EMSGSIZE });
            }
            let mut option = vec![0; size_of::<NmreqOption>()];
            memory.read(next, &mut option)?;
            let head = NmreqOption::read_from_bytes(&option).map_err(|_| errno::EINVAL)?;
            let size = option_bytes(&head);
            total = total.saturating_add(size).saturating_add(OPTION_POINTER);
            if total > MAX_REQUEST {
                return Err(errno::EMSGSIZE);
            }
            option.resize(size, 0);
            option_addresses.push((next, head.nro_next));
            request.options.push(option);
            next = head.nro_next;
        }
        if bytes > 0 {
            memory.read(header.nr_body, &mut request.body)?;
        }
        for (option, (at, _)) in request.options.iter_mut().zip(&option_addresses) {
            let rest = &mut option[size_of::<NmreqOption>()..];
            if !rest.is_empty() {
                memory.read(at.checked_add(size_of::<NmreqOption>() as u64).ok_or(errno::EFAULT)?, rest)?;
            }
        }
        Ok(GatheredRequest { request, body_address: header.nr_body, option_addresses })
    }

    /// Writes body and options of the reply to the addresses of those of the request.
    ///
    /// # Errors
    /// The memory's.
    pub fn write_back(&self, reply: &NetmapRequest, memory: &impl UserMemory) -> Result<(), i32> {
        if !reply.body.is_empty() {
            memory.write(self.body_address, &reply.body)?;
        }
        for (&(at, next), option) in self.option_addresses.iter().zip(&reply.options) {
            let mut option = option.clone();
            if let Ok((head, _)) = NmreqOption::mut_from_prefix(&mut option) {
                head.nro_next = next;
            }
            memory.write(at, &option)?;
        }
        Ok(())
    }

    /// Returns the header of the reply, with the program's own pointers.
    pub fn header(&self, reply: &NetmapRequest) -> NmreqHeader {
        let NmreqHeader { nr_options, nr_body, .. } = self.request.header;
        NmreqHeader { nr_options, nr_body, ..reply.header }
    }
}

/// Returns netmap's message about a request of an API version that is not supported; `None` if it is.
pub fn version_mismatch(header: &NmreqHeader) -> Option<String> {
    let supported = (NETMAP_MIN_API..=NETMAP_MAX_API).contains(&header.nr_version);
    (!supported).then(|| format!("API mismatch: got {} need {NETMAP_API} {REBUILD}", header.nr_version))
}

/// The remedy for a program of another API version.
pub(super) const REBUILD: &str = "(the program was built with other headers: rebuild it with these)";

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    use zerocopy::IntoBytes;

    /// Some bytes of memory at address 4096.
    struct Bytes(RefCell<Vec<u8>>);

    impl Bytes {
        fn range(&self, at: u64, len: usize) -> Result<std::ops::Range<usize>, i32> {
            let from = at.checked_sub(4096).ok_or(errno::EFAULT)? as usize;
            let to = from.checked_add(len).filter(|to| *to <= self.0.borrow().len()).ok_or(errno::EFAULT)?;
            Ok(from..to)
        }
    }

    impl UserMemory for Bytes {
        fn read(&self, from: u64, into: &mut [u8]) -> Result<(), i32> {
            into.copy_from_slice(&self.0.borrow()[self.range(from, into.len())?]);
            Ok(())
        }

        fn write(&self, to: u64, bytes: &[u8]) -> Result<(), i32> {
            let range = self.range(to, bytes.len())?;
            self.0.borrow_mut()[range].copy_from_slice(bytes);
            Ok(())
        }
    }

    fn register(options: u64) -> NmreqHeader {
        NmreqHeader {
            nr_version: NETMAP_API,
            nr_reqtype: NETMAP_REQ_REGISTER,
            nr_options: options,
            nr_body: 4096,
            ..Default::default()
        }
    }

    fn memory(options: &[(usize, NmreqOption)]) -> Bytes {
        let mut bytes = vec![0; 8192];
        for (at, option) in options {
            bytes[*at..*at + size_of::<NmreqOption>()].copy_from_slice(option.as_bytes());
        }
        Bytes(RefCell::new(bytes))
    }

    #[test]
    fn a_reply_is_written_back_to_the_addresses_of_the_request() {
        let csb = NmreqOption { nro_next: 4096 + 512, nro_reqtype: NETMAP_REQ_OPT_CSB, ..Default::default() };
        let last = NmreqOption { nro_reqtype: 99, ..Default::default() };
        let memory = memory(&[(256, csb), (512, last)]);
        let gathered = GatheredRequest::gather(register(4096 + 256), &memory).unwrap();
        let mut reply = gathered.request.clone();
        assert_eq!(reply.options.iter().map(Vec::len).collect::<Vec<_>>(), [size_of::<NmreqOptCsb>(), 24]);
        reply.body.fill(7);
        reply.check_options().unwrap_err();
        gathered.write_back(&reply, &memory).unwrap();
        let bytes = memory.0.borrow();
        assert_eq!(bytes[..size_of::<NmreqRegister>()], [7; size_of::<NmreqRegister>()]);
        assert_eq!(bytes[256..280], *NmreqOption { nro_status: 95, ..csb }.as_bytes());
        assert_eq!(bytes[512..536], *NmreqOption { nro_status: 95, ..last }.as_bytes());
        assert_eq!(gathered.header(&reply), register(4096 + 256));
    }

    #[test]
    fn malformed_requests_are_rejected() {
        let errno = |header, memory: &Bytes| GatheredRequest::gather(header, memory).unwrap_err();
        let empty = memory(&[]);
        let old = NmreqHeader { nr_version: 13, ..register(0) };
        assert_eq!(errno(old, &empty), errno::EINVAL);
        assert!(version_mismatch(&old).unwrap().starts_with("API mismatch: got 13 need 14"));
        assert_eq!(version_mismatch(&register(0)), None);
        assert_eq!(errno(NmreqHeader { nr_reserved: 1, ..register(0) }, &empty), errno::EINVAL);
        assert_eq!(errno(NmreqHeader { nr_body: 0, ..register(0) }, &empty), errno::EINVAL);
        assert_eq!(errno(NmreqHeader { nr_reqtype: NETMAP_REQ_CSB_ENABLE, ..register(0) }, &empty), errno::EINVAL);
        for body in [1, 4095, 4096 + 8192 - 8, u64::MAX] {
            assert_eq!(errno(NmreqHeader { nr_body: body, ..register(0) }, &empty), errno::EFAULT);
        }
        for option in [1, 4096 + 8192 - 8, u64::MAX] {
            assert_eq!(errno(register(option), &empty), errno::EFAULT);
        }
        let endless = NmreqOption { nro_next: 4096 + 256, nro_reqtype: 99, ..Default::default() };
        assert_eq!(errno(register(4096 + 256), &memory(&[(256, endless)])), errno::EMSGSIZE);
        let known = NmreqOption { nro_reqtype: NETMAP_REQ_OPT_CSB, ..endless };
        assert_eq!(errno(register(4096 + 256), &memory(&[(256, known)])), errno::EINVAL);
        let vast =
            NmreqOption { nro_reqtype: NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS, nro_size: u64::MAX, ..Default::default() };
        assert_eq!(errno(register(4096 + 256), &memory(&[(256, vast)])), errno::EMSGSIZE);
    }
}
