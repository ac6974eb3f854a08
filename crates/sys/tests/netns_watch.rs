// SPDX-License-Identifier: BSD-2-Clause
//! Notifications from other network namespaces in the running kernel.

#![allow(missing_docs)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use unetmap_sys::link::{LinkEvent, NetnsLinkEvent, NetnsLinkWatch, Nsid, by_name};
use unetmap_sys::netns::Netns;

/// Runs `test` in a network namespace of its own.
fn in_namespace(test: impl FnOnce() + Send) {
    thread::scope(|s| {
        let thread = s.spawn(|| {
            // SAFETY: K7: only this thread, which exits afterwards, changes its namespace.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return eprintln!("skipped, no network namespace: {}", io::Error::last_os_error());
            }
            if let Err(error) = Command::new("ip").arg("-V").output() {
                return eprintln!("skipped, no ip (iproute2): {error}");
            }
            test();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn ip(args: &str) {
    let out = Command::new("ip").args(args.split(' ')).output().unwrap();
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Creates a namespace without processes, which ends when the value is dropped.
fn other() -> Netns {
    let made = thread::spawn(|| {
        // SAFETY: K7: as above.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        Netns::current().unwrap()
    });
    made.join().unwrap()
}

/// Reads events until one is `wanted`.
fn until(watch: &mut NetnsLinkWatch, wanted: impl Fn(&NetnsLinkEvent) -> bool) -> Vec<NetnsLinkEvent> {
    let (mut events, start) = (Vec::new(), Instant::now());
    while !events.iter().any(&wanted) {
        watch.read(&mut events).unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "{events:?}");
    }
    events
}

fn gone(nsid: Nsid, index: u32) -> impl Fn(&NetnsLinkEvent) -> bool {
    move |event| *event == NetnsLinkEvent::Link(nsid, LinkEvent::Gone { index })
}

#[test]
fn changes_and_the_end_of_each_namespace_are_reported() {
    in_namespace(|| {
        let mut watch = NetnsLinkWatch::new().unwrap();
        let (one, two, unheard) = (other(), other(), other());
        let (a, b) = (watch.add(&one).unwrap(), watch.add(&two).unwrap());
        assert!(a != b && a != Nsid::Own && watch.add(&one).unwrap() == a, "{a:?} {b:?}");
        let make = || {
            ip("link add va type veth peer name vb");
            by_name("va").unwrap().unwrap().index
        };
        let of_one = one.run(make).unwrap();
        let (of_two, _) = (two.run(make).unwrap(), unheard.run(make).unwrap());
        assert!(watch.exists(a, of_one).unwrap() && !watch.exists(a, of_one + 9).unwrap());
        one.run(|| ip("link del va")).unwrap();
        let events = until(&mut watch, gone(a, of_one));
        let named = |nsid| {
            move |event: &NetnsLinkEvent| match event {
                NetnsLinkEvent::Link(of, LinkEvent::Changed(link)) => *of == nsid && link.name == "va",
                _ => false,
            }
        };
        assert!(events.iter().any(named(a)) && events.iter().any(named(b)), "{events:?}");
        assert!(!events.iter().any(named(Nsid::Own)) && !watch.exists(a, of_one).unwrap());

        // The watch does not keep a namespace alive.
        drop(two);
        let events = until(&mut watch, |event| *event == NetnsLinkEvent::Gone(b));
        assert!(!events.contains(&NetnsLinkEvent::Gone(a)), "{events:?}");
        assert!(!watch.exists(b, of_two).unwrap());
        // The number is free, and is assigned to another namespace.
        let three = other();
        let c = watch.add(&three).unwrap();
        assert!(!watch.exists(c, of_two).unwrap());
        three.run(|| ip("link set lo up")).unwrap();
        until(&mut watch, |event| matches!(event, NetnsLinkEvent::Link(of, LinkEvent::Changed(_)) if *of == c));
    });
}

#[test]
fn changes_in_the_watchs_own_namespace_are_reported() {
    in_namespace(|| {
        let mut watch = NetnsLinkWatch::new().unwrap();
        assert_eq!(watch.add(&Netns::current().unwrap()).unwrap(), Nsid::Own);
        ip("link add va type veth peer name vb");
        let index = by_name("va").unwrap().unwrap().index;
        assert!(watch.exists(Nsid::Own, index).unwrap());
        let there = other();
        let nsid = watch.add(&there).unwrap();
        // A moved interface is deleted in one namespace and new in the other.
        ip(&format!("link set va netns /proc/{}/fd/{}", std::process::id(), there.as_fd().as_raw_fd()));
        let is_there = |event: &NetnsLinkEvent| match event {
            NetnsLinkEvent::Link(of, LinkEvent::Changed(link)) => *of == nsid && link.name == "va",
            _ => false,
        };
        let events = until(&mut watch, is_there);
        assert!(events.iter().any(gone(Nsid::Own, index)), "{events:?}");
        assert!(!watch.exists(Nsid::Own, index).unwrap());
    });
}

#[test]
fn an_overflow_is_reported_as_lost() {
    in_namespace(|| {
        let mut watch = NetnsLinkWatch::new().unwrap();
        ip("link add va type veth peer name vb");
        let script =
            "for i in $(seq 400); do echo link set va mtu $((1000 + i)); echo link set vb mtu $((1000 + i)); done";
        let all = format!("({script}) | ip -batch -");
        assert!(Command::new("sh").args(["-c", &all]).status().unwrap().success());
        let mut events = Vec::new();
        watch.read(&mut events).unwrap();
        assert_eq!(events.last(), Some(&NetnsLinkEvent::Lost), "{}", events.len());
        ip("link del va");
        until(&mut watch, |event| matches!(event, NetnsLinkEvent::Link(Nsid::Own, LinkEvent::Gone { .. })));
    });
}
