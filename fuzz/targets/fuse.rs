// SPDX-License-Identifier: BSD-2-Clause
//! Requests that the kernel, or another file system server, sends to the node.
#![no_main]

use libfuzzer_sys::fuzz_target;
use unetmap_sys::fuse::{Op, Request};

fuzz_target!(|bytes: &[u8]| {
    let Some(request) = Request::parse(bytes) else { return };
    let inside = |part: &[u8]| part.is_empty() || bytes.as_ptr_range().contains(&part.as_ptr());
    match request.op {
        Op::Ioctl { data, .. } => assert!(inside(data) && data.len() < bytes.len()),
        Op::Lookup(name) => assert!(!name.as_encoded_bytes().contains(&0)),
        Op::Init { offered } => drop(offered.passthrough()),
        _ => {}
    }
});
