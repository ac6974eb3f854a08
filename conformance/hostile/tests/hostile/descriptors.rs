// SPDX-License-Identifier: BSD-2-Clause
//! Open netmap files below the C interface: the descriptor is the port.

use std::os::fd::AsFd;
use std::time::Duration;

use conformance::{isolated, until};
use unetmap::abi::{NETMAP_REQ_REGISTER, NR_REG_ALL_NIC, NmreqRegister};
use unetmap::errno::{EBUSY, EINVAL};
use unetmap::{Interest, Port};
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::port::file::{BoundPort, File};
use zerocopy::IntoBytes;

fn register(name: &str) -> NetmapRequest {
    let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..Default::default() };
    NetmapRequest::new(NETMAP_REQ_REGISTER, name, body.as_bytes()).unwrap()
}

/// One packet of 60 bytes from one port to the other.
fn send(from: &Port, to: &Port, byte: u8) {
    let ring = &from.tx_rings()[0];
    ring.available().next().expect("room").frame().write(0, &[byte; 60]);
    ring.available().next().expect("room").set_len_flags(60, 0);
    ring.advance(1);
    from.txsync().unwrap();
    assert!(to.poll(Interest::RX, Some(Duration::from_secs(10))).unwrap().rx());
    let ring = &to.rx_rings()[0];
    let mut got = [0; 1];
    ring.available().next().expect("a packet").frame().read(0, &mut got);
    assert_eq!(got, [byte]);
    ring.advance(1);
    to.rxsync().unwrap();
}

#[test]
fn a_duplicated_descriptor_is_the_same_port() {
    isolated(|home| {
        let (fd, file) = File::open().unwrap();
        assert!(file.attach(fd.as_fd()).unwrap().is_none(), "nothing is bound yet");
        let reply = file.request(fd.as_fd(), &register("d{1")).unwrap();
        assert_eq!((reply.errno, reply.reason.as_str()), (0, ""));
        let near = reply.bound.expect("a port");
        let far = Port::open("netmap:d}1").unwrap();
        send(&near.port, &far, 1);
        assert_eq!(file.request(fd.as_fd(), &register("d{2")).unwrap().errno, EBUSY);

        // As another process would that got the descriptor, and nothing else.
        let other = fd.try_clone().unwrap();
        let file = File::from_descriptor(other.as_fd()).expect("a netmap file");
        let BoundPort { port: again, .. } = file.attach(other.as_fd()).unwrap().expect("a port");
        assert_eq!(again.register(), near.port.register());
        send(&far, &again, 2);
        drop(fd);
        drop(near);
        send(&again, &far, 3);
        assert_eq!(home.snapshot().sessions.len(), 2);
        // The port is closed with the last duplicate of the descriptor, even while its memory is mapped.
        drop(other);
        until("the session is over", || home.snapshot().sessions.len() == 1);
        drop(again);
    });
}

#[test]
fn a_refused_request_leaves_the_file_open() {
    isolated(|_| {
        let (fd, file) = File::open().unwrap();
        for name in ["", "d{", "d{1-0"] {
            let reply = file.request(fd.as_fd(), &register(name)).unwrap();
            assert_eq!(reply.errno, EINVAL, "{name}");
            assert!(reply.request.is_some() && reply.bound.is_none() && !reply.reason.is_empty());
        }
        let mut nonsense = register("d{1");
        nonsense.header.nr_version = 3;
        let reply = file.request(fd.as_fd(), &nonsense).unwrap();
        assert!(reply.errno == EINVAL && reply.request.is_none());
        assert_eq!(file.request(fd.as_fd(), &register("d{1")).unwrap().errno, 0);
        assert!(File::from_descriptor(std::fs::File::open("/dev/null").unwrap().as_fd()).is_none());
    });
}
