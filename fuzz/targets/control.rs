// SPDX-License-Identifier: BSD-2-Clause
//! Messages of the control socket: each request that decodes survives encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use unetmap_core::control::binding::Binding;
use unetmap_core::control::monitor::MonitorReply;
use unetmap_core::control::request::NetmapReply;
use unetmap_core::control::wire::{self, Kind};
use unetmap_core::control::{
    AttachRequest, ControlRequest, EventsRequest, HelloRequest, KnobRequest, LockHolderRequest, NetmapRequest,
    NextMonitorRequest, NicRequest, NodeRequest, ServesRequest, SnapshotRequest, UnbindRequest, ValeRequest,
};

/// Decodes a payload if it is of this kind.
fn decode<R: ControlRequest>(kind: Kind, payload: &[u8]) {
    if kind != R::KIND {
        return;
    }
    if let Ok(request) = R::decode(payload) {
        let encoded = request.encode();
        let again = R::decode(&encoded).unwrap_or_else(|errno| panic!("errno {errno} for what was encoded"));
        assert_eq!(again.encode(), encoded);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok((kind, _, payload)) = wire::decode(bytes) else { return };
    decode::<AttachRequest>(kind, payload);
    decode::<EventsRequest>(kind, payload);
    decode::<HelloRequest>(kind, payload);
    decode::<KnobRequest>(kind, payload);
    decode::<LockHolderRequest>(kind, payload);
    decode::<NetmapRequest>(kind, payload);
    decode::<NextMonitorRequest>(kind, payload);
    decode::<NicRequest>(kind, payload);
    decode::<NodeRequest>(kind, payload);
    decode::<ServesRequest>(kind, payload);
    decode::<SnapshotRequest>(kind, payload);
    decode::<UnbindRequest>(kind, payload);
    decode::<ValeRequest>(kind, payload);
    // Replies, which a program decodes.
    let _ = (Binding::decode(payload), MonitorReply::decode(payload), NetmapReply::decode(payload));
});
