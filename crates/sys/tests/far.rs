//! News from other network namespaces, which are made here and end here.

#![allow(missing_docs)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use unetmap_sys::link::{FarEvent, FarWatch, LinkEvent, Nsid, by_name};
use unetmap_sys::netns::Netns;

/// Runs `test` in a network namespace of its own, where it has every privilege over interfaces.
fn in_namespace(test: impl FnOnce() + Send) {
    thread::scope(|s| {
        let thread = s.spawn(|| {
            // SAFETY: no pointers; only this thread, which is about to end, leaves the namespace.
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

/// A namespace that nobody is in; it ends with this.
fn other() -> Netns {
    let made = thread::spawn(|| {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        Netns::current().unwrap()
    });
    made.join().unwrap()
}

/// What happens until `wanted` has happened.
fn until(watch: &mut FarWatch, wanted: impl Fn(&FarEvent) -> bool) -> Vec<FarEvent> {
    let (mut events, start) = (Vec::new(), Instant::now());
    while !events.iter().any(&wanted) {
        watch.read(&mut events).unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "{events:?}");
    }
    events
}

fn gone(nsid: Nsid, index: u32) -> impl Fn(&FarEvent) -> bool {
    move |event| *event == FarEvent::Link(nsid, LinkEvent::Gone { index })
}

#[test]
fn each_namespaces_news_and_its_end() {
    in_namespace(|| {
        let mut watch = FarWatch::new().unwrap();
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
            move |event: &FarEvent| match event {
                FarEvent::Link(of, LinkEvent::Changed(link)) => *of == nsid && link.name == "va",
                _ => false,
            }
        };
        assert!(events.iter().any(named(a)) && events.iter().any(named(b)), "{events:?}");
        assert!(!events.iter().any(named(Nsid::Own)) && !watch.exists(a, of_one).unwrap());

        // Being watched keeps no namespace alive.
        drop(two);
        let events = until(&mut watch, |event| *event == FarEvent::Gone(b));
        assert!(!events.contains(&FarEvent::Gone(a)), "{events:?}");
        assert!(!watch.exists(b, of_two).unwrap());
        // The number is free, and means another now.
        let three = other();
        let c = watch.add(&three).unwrap();
        assert!(!watch.exists(c, of_two).unwrap());
        three.run(|| ip("link set lo up")).unwrap();
        until(&mut watch, |event| matches!(event, FarEvent::Link(of, LinkEvent::Changed(_)) if *of == c));
    });
}

#[test]
fn our_own_namespaces_news() {
    in_namespace(|| {
        let mut watch = FarWatch::new().unwrap();
        assert_eq!(watch.add(&Netns::current().unwrap()).unwrap(), Nsid::Own);
        ip("link add va type veth peer name vb");
        let index = by_name("va").unwrap().unwrap().index;
        assert!(watch.exists(Nsid::Own, index).unwrap());
        let there = other();
        let nsid = watch.add(&there).unwrap();
        // Moved: gone here, new there.
        ip(&format!("link set va netns /proc/{}/fd/{}", std::process::id(), there.as_fd().as_raw_fd()));
        let is_there = |event: &FarEvent| match event {
            FarEvent::Link(of, LinkEvent::Changed(link)) => *of == nsid && link.name == "va",
            _ => false,
        };
        let events = until(&mut watch, is_there);
        assert!(events.iter().any(gone(Nsid::Own, index)), "{events:?}");
        assert!(!watch.exists(Nsid::Own, index).unwrap());
    });
}

#[test]
fn a_flood_is_told_as_lost() {
    in_namespace(|| {
        let mut watch = FarWatch::new().unwrap();
        ip("link add va type veth peer name vb");
        let script =
            "for i in $(seq 400); do echo link set va mtu $((1000 + i)); echo link set vb mtu $((1000 + i)); done";
        let all = format!("({script}) | ip -batch -");
        assert!(Command::new("sh").args(["-c", &all]).status().unwrap().success());
        let mut events = Vec::new();
        watch.read(&mut events).unwrap();
        assert_eq!(events.last(), Some(&FarEvent::Lost), "{}", events.len());
        ip("link del va");
        until(&mut watch, |event| matches!(event, FarEvent::Link(Nsid::Own, LinkEvent::Gone { .. })));
    });
}
