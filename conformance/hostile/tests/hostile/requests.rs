// SPDX-License-Identifier: BSD-2-Clause
//! Control requests that the library would not send.

use conformance::isolated;
use conformance::traffic::open;
use conformance_hostile::raw::ControlConnection;
use unetmap::abi::{NETMAP_REQ_REGISTER, NR_REG_ALL_NIC, NmreqRegister};
use unetmap::errno::EINVAL;
use unetmap_core::control::request::NetmapRequest;
use zerocopy::IntoBytes as _;

/// The daemon parses names for itself.
#[test]
fn the_daemon_refuses_wrong_names_with_a_reason() {
    isolated(|home| {
        let _port = open("netmap:p{1");
        let assert_refused = |name: &str, nr_mode| {
            let body = NmreqRegister { nr_mode, ..Default::default() };
            let request = NetmapRequest::new(NETMAP_REQ_REGISTER, name, body.as_bytes()).expect("a short name");
            let (errno, answer, fds) = ControlConnection::connect(&home.socket()).expect("a daemon").request(&request);
            assert_eq!((errno, fds.len()), (EINVAL, 0), "{name:?}");
            assert!(!answer.expect("an answer").reason.is_empty(), "{name:?}: errno {errno} without a reason");
        };
        for name in ["", "p{", "p{}", "p{1/x", "p{1-0", "p{1@5", "netmap:p{1", "p{1{2", "{1", "vale:", "p{a.b"] {
            assert_refused(name, NR_REG_ALL_NIC);
        }
        assert_refused("p{1", 99);
        assert_eq!(home.snapshot().sessions.len(), 1);
    });
}
