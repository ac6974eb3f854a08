// SPDX-License-Identifier: BSD-2-Clause
//! First inputs of the targets, besides the files in `seeds`: one message of each kind, and short sequences.

use unetmap_abi::*;
use unetmap_core::control::request::NR_AT;
use unetmap_core::control::wire;
use unetmap_core::control::{
    AttachRequest, ControlRequest as _, EventsRequest, HelloRequest, KnobRequest, LockHolderRequest, NetmapRequest,
    NextMonitorRequest, NicRequest, NodeRequest, SnapshotRequest, UnbindRequest, ValeRequest,
};
use zerocopy::IntoBytes as _;

/// Target and input.
pub type Seed = (&'static str, Vec<u8>);

/// Returns all of them.
pub fn all() -> Vec<Seed> {
    let mut seeds: Vec<Seed> = Vec::new();
    seeds.extend(unetmap_capture::testing::samples().into_iter().map(|sample| ("capture", sample.bytes)));
    for file in unetmap_capture::testing::with_index() {
        seeds.extend([0, 1, 2, 0x41, 0x80].map(|how| ("extract", [&[how], &file[..]].concat())));
    }
    let requests = requests();
    let encoded: Vec<Vec<u8>> = requests.iter().map(NetmapRequest::encode).collect();
    let message = |kind, payload: &[u8]| ("control", wire::encode(kind, 0, 0, 0, payload));
    seeds.extend(encoded.iter().map(|payload| message(NetmapRequest::KIND, payload)));
    let bare = [
        AttachRequest::KIND,
        EventsRequest::KIND,
        HelloRequest::KIND,
        KnobRequest::KIND,
        LockHolderRequest::KIND,
        NicRequest::KIND,
        NodeRequest::KIND,
        SnapshotRequest::KIND,
        UnbindRequest::KIND,
        ValeRequest::KIND,
    ];
    for kind in bare {
        // Texts and numbers of the lengths that some of them have.
        for payload in [&b""[..], b"eth0", b"vale0:a\0", &[1; 8], &[0; 24], &[2; 40], &[0; 64], &[1; 96]] {
            seeds.push(message(kind, payload));
        }
    }
    seeds.push(message(NextMonitorRequest::KIND, &[1; 24]));
    // Each request alone, and all of them one after the other, with and without the session of the one before.
    for on in [0, 1, 2, 3] {
        let framed = |payload: &Vec<u8>| {
            let [low, high] = (payload.len() as u16).to_le_bytes();
            [&[low, high, on][..], payload].concat()
        };
        seeds.extend(encoded.iter().map(|payload| ("requests", framed(payload))));
        seeds.push(("requests", encoded.iter().flat_map(framed).collect()));
    }
    for request in &requests {
        let input = [&[2 * u8::from(request.options.len() > 1)][..], request.header.as_bytes(), &request.body];
        seeds.push(("ioctls", [&input.concat()[..], &request.options.concat(), &[0; 256]].concat()));
    }
    for opcode in [1_u32, 3, 5, 14, 15, 18, 26, 27, 36, 39, 40, 41, 42] {
        let mut head = [0_u8; 40];
        head[4..8].copy_from_slice(&opcode.to_ne_bytes());
        head[12] = 1;
        let mut body = vec![0; 64];
        body[0] = 7;
        body[4] = 40;
        seeds.push(("fuse", [&head[..], &body].concat()));
    }
    // A filter of a few loads, comparisons and sums, and a frame.
    seeds.push(("filter", (0..200_u8).collect()));
    seeds.push(("filter", [&[30][..], &[4, 0, 0, 0, 12, 38, 2, 1, 3, 7].repeat(40)].concat()));
    // A whole set-up of each kind of rings, then packets both ways, and writes.
    for choice in 0..8 {
        let input = [&[choice, 17, 5, 5][..], &[6, 100, 0, 0, 0, 60], &[0; 60], &(0..200).collect::<Vec<u8>>()];
        seeds.push(("vhost", input.concat()));
    }
    // Writes, syncs and work in turns.
    seeds.push(("rings", [&[3][..], &(0..=255_u8).cycle().take(7 * 120).collect::<Vec<u8>>()].concat()));
    seeds
}

fn requests() -> Vec<NetmapRequest> {
    let request = |reqtype, name: &str, body: &[u8]| NetmapRequest::new(reqtype, name, body).expect("a short name");
    let register = |name: &str, nr_mode: u32, nr_flags: u64, extra: u32| {
        let body = NmreqRegister { nr_mode, nr_flags, nr_extra_bufs: extra, ..Default::default() };
        request(NETMAP_REQ_REGISTER, name, body.as_bytes())
    };
    // A port that goes on with the next daemon names its place.
    let place = |iface: u64, ring: u64| {
        let body = NmreqRegister {
            nr_mode: NR_REG_ALL_NIC,
            nr_flags: NR_AT,
            nr_offset: iface,
            nr_memsize: ring,
            ..Default::default()
        };
        request(NETMAP_REQ_REGISTER, "w{1", body.as_bytes())
    };
    let mut all = vec![
        register("x{1", NR_REG_ALL_NIC, 0, 3),
        register("x}1", NR_REG_ALL_NIC, NR_EXCLUSIVE, 0),
        register("x{1", NR_REG_ALL_NIC, NR_MONITOR_TX | NR_MONITOR_RX, 0),
        register("vale0:a", NR_REG_ALL_NIC, NR_ACCEPT_VNET_HDR, 0),
        register("nmsink0", NR_REG_ALL_NIC, 0, 0),
        register("null", NR_REG_NULL, 0, 0),
        place(7, 2),
        place(u64::MAX, u64::MAX),
        register("lo", NR_REG_NIC_SW, 0, 0),
        request(NETMAP_REQ_PORT_INFO_GET, "x{1", NmreqPortInfoGet::default().as_bytes()),
        request(NETMAP_REQ_POOLS_INFO_GET, "x{1", NmreqPoolsInfo::default().as_bytes()),
        request(NETMAP_REQ_PORT_HDR_GET, "vale0:a", NmreqPortHdr::default().as_bytes()),
        request(NETMAP_REQ_PORT_HDR_SET, "vale0:a", NmreqPortHdr { nr_hdr_len: 12, ..Default::default() }.as_bytes()),
        request(NETMAP_REQ_VALE_LIST, "vale0:a", NmreqValeList::default().as_bytes()),
        request(NETMAP_REQ_VALE_ATTACH, "vale0:lo", NmreqValeAttach::default().as_bytes()),
        request(NETMAP_REQ_VALE_DETACH, "vale0:lo", NmreqValeDetach::default().as_bytes()),
        request(NETMAP_REQ_VALE_DELIF, "v0", &[]),
    ];
    let nro_opt = |nro_reqtype| NmreqOption { nro_reqtype, ..Default::default() };
    let mut offsets = register("y{1", NR_REG_ALL_NIC, 0, 0);
    let option = NmreqOptOffsets {
        nro_opt: nro_opt(NETMAP_REQ_OPT_OFFSETS),
        nro_max_offset: 32,
        nro_offset_bits: 16,
        ..Default::default()
    };
    offsets.options.push(option.as_bytes().to_vec());
    let mut extmem = register("z{1", NR_REG_ALL_NIC, 0, 0);
    let option = NmreqOptExtmem { nro_opt: nro_opt(NETMAP_REQ_OPT_EXTMEM), ..Default::default() };
    extmem.options.push(option.as_bytes().to_vec());
    all.extend([offsets, extmem]);
    all
}
