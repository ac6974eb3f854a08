// SPDX-License-Identifier: BSD-2-Clause
//! Requests by ioctl, whose structures point into the memory of the program: any bytes at any addresses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use unetmap_abi::{Nmreq, NmreqHeader};
use unetmap_core::control::ControlRequest as _;
use unetmap_core::control::NetmapRequest;
use unetmap_core::control::ioctl::{GatheredRequest, UserMemory};
use unetmap_core::control::legacy::{self, LegacyIoctl};
use unetmap_fuzz::bytes::Bytes;
use zerocopy::FromBytes as _;

/// The program's memory begins here.
const BASE: u64 = 0x1000;

struct Memory<'a>(&'a [u8]);

impl Memory<'_> {
    fn part(&self, from: u64, bytes: usize) -> Option<&[u8]> {
        let at = usize::try_from(from.checked_sub(BASE)?).ok()?;
        self.0.get(at..at.checked_add(bytes)?)
    }
}

impl UserMemory for Memory<'_> {
    fn read(&self, from: u64, into: &mut [u8]) -> Result<(), i32> {
        into.copy_from_slice(self.part(from, into.len()).ok_or(14)?);
        Ok(())
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), i32> {
        self.part(to, bytes.len()).map(|_| ()).ok_or(14)
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Bytes(bytes);
    let near = input.byte();
    if let Ok((old, _)) = Nmreq::read_from_prefix(input.0) {
        for call in [LegacyIoctl::Register, LegacyIoctl::Info] {
            if let Ok(request) = legacy::to_request(call, &old) {
                assert!(NetmapRequest::decode(&request.encode()).is_ok());
                let mut answered = old;
                let _ = legacy::write_reply(&mut answered, &request);
            }
        }
    }
    let Ok((mut header, memory)) = NmreqHeader::read_from_prefix(input.0) else { return };
    // Addresses in the memory, unless the first byte says otherwise.
    if near & 1 == 0 {
        (header.nr_version, header.nr_reserved) = (unetmap_abi::NETMAP_API, 0);
        header.nr_options = if near & 2 == 0 { 0 } else { BASE + header.nr_options % 256 };
        header.nr_body = if near & 4 == 0 { BASE + header.nr_body % 256 } else { 0 };
    }
    let memory = Memory(memory);
    if let Ok(mut gathered) = GatheredRequest::gather(header, &memory) {
        let _ = gathered.request.check_options();
        let reply = gathered.request.clone();
        assert!(NetmapRequest::decode(&reply.encode()).is_ok());
        let _ = gathered.write_back(&reply, &memory);
        let _ = gathered.header(&reply);
    }
});
