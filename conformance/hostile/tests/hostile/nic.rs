// SPDX-License-Identifier: BSD-2-Clause
//! Clients of an interface that write random values to shared memory, and that are killed at any moment: the daemon and
//! the users of other interfaces continue, and the next client can open the interface.

use std::collections::HashSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use conformance::home::{Guard, summary};
use conformance::net::{
    BUFFER, CABLE, DIRECT, MEDIATED, Net, Tap, assert_same, assert_works, collect, drain, frame, frames, open_in,
    set_policy, take, transmit,
};
use conformance::packet::Rng;
use conformance::snapshot::PIPE_BUFFERS;
use conformance::traffic::{exchange, expect, send};
use conformance::{Home, LIMIT, isolated_with_interfaces, program, until};
use conformance_hostile::raw::{RawPort, as_user, field};
use unetmap::abi::{NR_ACCEPT_VNET_HDR, NS_MOREFRAG};
use unetmap::errno::{EACCES, EBUSY, EIO};
use unetmap::{BufIdx, Error, Interest, Port, Ring};

/// Faults of both ports of an interface's name: the program's, and the daemon's own.
fn bad_slots(home: &Home) -> u64 {
    home.snapshot().faults("va").0
}

/// Opens `va` in the near namespace without the library.
#[track_caller]
fn raw_port(net: &Net, home: &Home) -> RawPort {
    net.near.run(|| RawPort::open(&home.socket(), "va")).expect("a namespace")
}

/// Waits for room for `n` slots.
#[track_caller]
fn room(port: &Port, n: u32) {
    until("room", || {
        port.txsync().expect("the daemon runs");
        port.tx_rings()[0].space() >= n
    });
}

fn sent_slots(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (port, tap) = (net.open("netmap:va"), net.tap());
    let count = port.region().geometry().bufs.count;
    let indexes = [0, 1, count, count + 1, u32::MAX / 2, u32::MAX];
    let lens = [BUFFER as u16 + 1, 0x8000, u16::MAX];
    let (ring, mut seq, mut bad, mut sent) = (&port.tx_rings()[0], 0, 0, 0);
    for round in 0..64 {
        room(&port, 37);
        let (mut good, mut undo) = (Vec::new(), Vec::new());
        for (i, slot) in ring.available().take(37).enumerate() {
            let one = frame(60 + i, seq);
            seq += 1;
            slot.frame().write(0, &one);
            slot.set_len_flags(one.len() as u16, 0);
            let kind = (round + i) % 13;
            if let Some(&idx) = indexes.get(kind) {
                undo.push((slot, slot.replace_buf(BufIdx(idx))));
            } else if let Some(&len) = lens.get(kind - indexes.len()) {
                slot.set_len(len);
                bad += 1;
                continue;
            } else {
                // Every flag but NS_MOREFRAG is ignored here.
                slot.set_flags((1 << (seq % 16)) & !NS_MOREFRAG);
                good.push(one);
                continue;
            }
            bad += 1;
        }
        ring.advance(37);
        port.txsync().expect("bad slots are no error");
        assert_same(&tap.collect(good.len()), &good);
        sent += good.len();
        // Slots are released after all slots before them.
        drain(&port);
        for (slot, idx) in undo {
            slot.replace_buf(idx);
        }
    }
    tap.assert_quiet();
    until("all are counted", || ring.bad_slots() == bad);
    assert_works(&port, &tap, 1 << 40);
    summary(&format!("slots out of range {bad}, none sent, each counted; frames between them {sent}"));
}

#[test]
fn slots_out_of_range_are_not_sent_direct() {
    isolated_with_interfaces(|home| sent_slots(home, DIRECT));
}

#[test]
fn slots_out_of_range_are_not_sent_mediated() {
    isolated_with_interfaces(|home| sent_slots(home, MEDIATED));
}

/// Slots of a receive ring are released with invalid indexes: only these buffers are missing for receiving.
fn given_back_slots(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (port, tap) = (net.open("netmap:va"), net.tap());
    let (ring, count) = (&port.rx_rings()[0], port.region().geometry().bufs.count);
    let all = frames(&[60; 200], 0);
    tap.send_all(&all);
    until("all have come", || {
        port.rxsync().expect("the daemon runs");
        ring.space() == 200
    });
    let taken: Vec<_> = ring.available().map(|slot| slot.buf_idx()).collect();
    for (i, slot) in ring.available().enumerate() {
        slot.replace_buf(BufIdx([0, 1, count, u32::MAX][i % 4]));
        slot.set_len_flags(u16::MAX, u16::MAX);
    }
    ring.advance(200);
    port.rxsync().expect("bad slots are no error");
    until("they are counted", || bad_slots(home) >= 200);
    // The rest of the ring still receives, several times around.
    for round in 0..30 {
        let some = frames(&[100; 100], round << 20);
        tap.send_all(&some);
        assert_same(&collect(&port, 100), &some);
    }
    // After they are released with their own indexes, all are available again.
    let missing: Vec<_> = (0..ring.num_slots())
        .scan(ring.head(), |at, _| {
            let here = *at;
            *at = ring.next(here);
            Some(ring.slot(here))
        })
        .filter(|slot| slot.buf_idx() < 2 || slot.buf_idx() >= count)
        .collect();
    if policy == DIRECT {
        assert_eq!(missing.len(), 200);
    }
    for (slot, idx) in missing.into_iter().zip(taken) {
        slot.replace_buf(BufIdx(idx));
    }
    assert_works(&port, &tap, 1 << 40);
    drop(port);
    until("all is closed", || home.snapshot().regions.is_empty());
    let port = net.open("netmap:va");
    assert_works(&port, &tap, 2 << 40);
}

#[test]
fn released_slots_out_of_range_lose_only_their_buffers_direct() {
    isolated_with_interfaces(|home| given_back_slots(home, DIRECT));
}

#[test]
fn released_slots_out_of_range_lose_only_their_buffers_mediated() {
    isolated_with_interfaces(|home| given_back_slots(home, MEDIATED));
}

/// Invalid values of `head` or `cur` of a ring whose current values are `head..tail`.
fn wrong_pointers(ring: &Ring) -> Vec<(usize, u32)> {
    let (n, head, tail) = (ring.num_slots(), ring.head().raw(), ring.tail().raw());
    let (before, after) = ((head + n - 1) % n, (tail + 1) % n);
    let within = |p: u32| p < n && (p + n - head) % n <= (tail + n - head) % n;
    let all = [n, n + 1, 0x8000_0000, u32::MAX, before, after];
    let wrong = all.into_iter().filter(|p| !within(*p));
    wrong.flat_map(|p| [(field::HEAD, p), (field::CUR, p)]).collect()
}

fn pointers(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (port, tap) = (net.open("netmap:va"), net.tap());
    let raw_port = raw_port(&net, home);
    let mut faults = 0;
    for round in 0..3 {
        assert_works(&port, &tap, round << 20);
        // Held packets on the one side; on the other packets that are not sent while the link is down.
        let held = frames(&[60; 20], 1 << 40 | round << 20);
        tap.send_all(&held);
        until("they have come", || {
            port.rxsync().expect("the daemon runs");
            port.rx_rings()[0].space() == 20
        });
        if policy == DIRECT {
            net.near.ip(&["link", "set", "va", "down"]).expect("a link");
            transmit(&port, 0, &frames(&[60; 20], 1 << 50), BUFFER);
            assert!(port.tx_rings()[0].pending());
        }
        for dir in [0u16, 1] {
            let ring = if dir == 0 { &port.tx_rings()[0] } else { &port.rx_rings()[0] };
            let sync = || if dir == 0 { port.txsync() } else { port.rxsync() };
            let index = raw_port.bound.rings.iter().position(|r| r.dir == dir).expect("a ring");
            if policy == MEDIATED {
                drain(&port);
            }
            let wrong = wrong_pointers(ring);
            assert!(wrong.len() >= 8);
            for (at, value) in wrong {
                sync().expect("a good ring");
                let (head, cur, tail) = (ring.head(), ring.cur(), ring.tail());
                raw_port.write_field(index, at, value);
                match sync() {
                    Err(e @ Error::BadPointers { .. }) => assert_eq!(e.errno(), 22, "{e}"),
                    other => panic!("field {at} = {value}, head {head:?}, tail {tail:?}: {other:?}"),
                }
                assert_eq!((ring.head(), ring.cur(), ring.tail()), (head, cur, tail), "field {at} = {value}");
                faults += 1;
            }
            for value in [0, 5, ring.num_slots(), u32::MAX] {
                let tail = ring.tail();
                raw_port.write_field(index, field::TAIL, value);
                sync().expect("the library does not read tail from the ring");
                assert_eq!(ring.tail(), tail);
            }
        }
        if policy == DIRECT {
            net.near.ip(&["link", "set", "va", "up"]).expect("a link");
            net.near.wait_up("va").expect("a link that comes up");
            drain(&port);
            assert_same(&tap.collect(20), &frames(&[60; 20], 1 << 50));
        }
        assert_same(&take(&port, 0), &held);
    }
    assert_eq!(home.snapshot().faults("va"), (0, faults));
    assert_works(&port, &tap, 1 << 30);
    summary(&format!("pointers out of range {faults}, each reported, ring reset"));
}

#[test]
fn pointers_out_of_range_are_an_error_and_are_reset_direct() {
    isolated_with_interfaces(|home| pointers(home, DIRECT));
}

#[test]
fn pointers_out_of_range_are_an_error_and_are_reset_mediated() {
    isolated_with_interfaces(|home| pointers(home, MEDIATED));
}

/// A buffer in several slots is sent once for each; the buffers that it replaced count as lost until the region is
/// removed.
#[test]
fn an_index_used_twice_is_sent_twice_and_not_lost() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let keeper = net.open("netmap:va{9");
        let before = home.snapshot().buffers("interfaces");
        let (port, tap) = (net.open("netmap:va"), net.tap());
        let ring = &port.tx_rings()[0];
        for _ in 0..2 {
            room(&port, 50);
            let first = ring.slot(ring.head()).buf_idx();
            let one = frame(60, 7);
            for slot in ring.available().take(50) {
                slot.replace_buf(BufIdx(first));
                slot.frame().write(0, &one);
                slot.set_len(60);
            }
            ring.advance(50);
            port.txsync().expect("the daemon runs");
            assert_same(&tap.collect(50), &vec![one; 50]);
        }
        drain(&port);
        // In the receive ring as well: only the program's own packets are lost.
        tap.send_all(&frames(&[60; 10], 0));
        until("they have come", || {
            port.rxsync().expect("the daemon runs");
            port.rx_rings()[0].space() == 10
        });
        let first = port.rx_rings()[0].slot(port.rx_rings()[0].head()).buf_idx();
        for slot in port.rx_rings()[0].available() {
            slot.replace_buf(BufIdx(first));
        }
        port.rx_rings()[0].advance(10);
        for _ in 0..20 {
            tap.send_all(&frames(&[60; 100], 0));
            assert_eq!(collect(&port, 100).len(), 100);
        }
        let now = home.snapshot().buffers("interfaces");
        assert_eq!(now.missing, 49 + 49 + 9, "{now:?}");
        drop(port);
        home.until_left(1);
        let now = home.snapshot().buffers("interfaces");
        assert_eq!((now.in_rings, now.free + now.missing), (PIPE_BUFFERS, before.free));
        let (port, other) = (net.open("netmap:va"), net.open("netmap:va}9"));
        assert_works(&port, &tap, 1 << 40);
        exchange(&keeper, &other, 1, 0, 3000);
        drop((keeper, port, other));
        until("the region is closed, and its missing buffers with it", || home.snapshot().regions.is_empty());
        assert_works(&net.open("netmap:va"), &tap, 2 << 40);
    });
}

/// A program sends from, and receives into, buffers of another port of its region: they still belong to the other port.
#[test]
fn using_buffers_of_another_port_does_not_free_them() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (victim, reader) = (net.open("netmap:va{2"), net.open("netmap:va}2"));
        let before = home.snapshot().buffers("interfaces");
        let (port, tap) = (net.open("netmap:va"), net.tap());
        let stolen: Vec<u32> = victim.tx_rings()[0].available().map(|slot| slot.buf_idx()).collect();
        for (slot, &idx) in port.tx_rings()[0].available().take(300).zip(&stolen) {
            slot.replace_buf(BufIdx(idx));
            slot.set_len_flags(60, 0);
        }
        port.tx_rings()[0].advance(300);
        port.txsync().expect("the daemon runs");
        assert_eq!(tap.collect(300).len(), 300);
        drop(port);
        home.until_left(2);
        let now = home.snapshot().buffers("interfaces");
        assert_eq!((now.in_rings, now.free + now.missing), (before.in_rings, before.free));
        // No other port gets the buffers of another port.
        let next = net.open("netmap:va");
        let theirs: HashSet<u32> = next.tx_rings()[0].available().map(|slot| slot.buf_idx()).collect();
        assert!(stolen.iter().all(|idx| !theirs.contains(idx)), "a buffer of an open port was allocated again");
        assert_works(&next, &tap, 0);
        exchange(&victim, &reader, 1, 0, 5000);
    });
}

/// Another veth pair in other namespaces, whose users must not be affected.
struct Innocent {
    near: Port,
    far: Port,
    seq: u64,
}

impl Innocent {
    fn new(net: &Net) -> Innocent {
        let (c, d) = (net.lab.namespace("c").expect("a namespace"), net.lab.namespace("d").expect("a namespace"));
        net.lab.veth(&c, "va", &d, "vb", CABLE).expect("a cable");
        Innocent { near: open_in(&c, "netmap:va"), far: open_in(&d, "netmap:vb"), seq: 0 }
    }

    /// Packets cross in both directions, unchanged and in order.
    #[track_caller]
    fn assert_unharmed(&mut self) {
        let (from, to) = (self.seq, self.seq + 300);
        send(&self.near, 1, from, to).expect("the daemon runs");
        expect(&self.far, 1, from, to);
        send(&self.far, 2, from, to).expect("the daemon runs");
        expect(&self.near, 2, from, to);
        self.seq = to;
    }
}

fn start(net: &Net, program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Guard {
    let mut command = net.command(program);
    Guard::spawn(command.args(args).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// A client writes random words to everything it maps, while other clients use the same interface and another one.
fn scribbling(home: &Home, policy: &str) {
    let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
    let mut innocent = Innocent::new(&net);
    let others = home.snapshot().regions.len();
    set_policy(home, policy);
    let folder = home.folder().join("got");
    std::fs::create_dir(&folder).expect("a folder");
    let (folder, record) = (folder.display().to_string(), home.folder().join("sent").display().to_string());
    let (tap, mut words, mut longest) = (net.tap(), 0, Duration::ZERO);
    for round in 0..8 {
        let client = program("traffic_client");
        let mut clients = [
            start(&net, &client, &["recv", "netmap:va", &folder]),
            start(&net, &client, &["send", "netmap:va", "1", &record]),
        ];
        let mut scribblers: Vec<Guard> = (0..2)
            .map(|i| {
                let mut command = net.command(env!("CARGO_BIN_EXE_scribbler"));
                let seed = (0x5eed_0020u64 + 97 * round + i).to_string();
                Guard::spawn(command.args(["va", &seed]).stdout(Stdio::piped()))
            })
            .collect();
        for guard in &mut scribblers {
            // The scribbler prints a byte when it has begun to write.
            let mut byte = [0];
            std::io::Read::read_exact(guard.0.stdout.as_mut().expect("piped"), &mut byte)
                .expect("a byte of the scribbler");
        }
        let end = Instant::now() + Duration::from_millis(350);
        let mut seq = 0;
        while Instant::now() < end {
            tap.send_all(&frames(&[60, 300, 1514], seq));
            seq += 3;
            let _ = (0..1000).map_while(|_| tap.next(Duration::ZERO)).count();
            innocent.assert_unharmed();
        }
        for guard in &mut clients {
            // They may have exited with an error message; they must not have crashed.
            if let Ok(Some(status)) = guard.0.try_wait() {
                assert!(status.code().is_some_and(|code| code <= 1), "a client crashed: {status}");
            }
            guard.kill();
        }
        for guard in &mut scribblers {
            guard.kill();
            let mut text = String::new();
            std::io::Read::read_to_string(&mut guard.0.stdout.take().expect("piped"), &mut text).expect("text");
            words += text.lines().last().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
        net.assert_alive();
        // The next client, at once; then everything is as before.
        let begin = Instant::now();
        let port = net.open("netmap:va");
        longest = longest.max(begin.elapsed());
        drop(port);
        until("the interface is closed", || home.snapshot().regions.len() == others);
        while tap.next(Duration::from_millis(10)).is_some() {}
        let port = net.open("netmap:va");
        assert_works(&port, &tap, round << 40);
        drop(port);
        until("the interface is closed", || home.snapshot().regions.len() == others);
        innocent.assert_unharmed();
    }
    net.assert_given_back();
    assert!(words >= 8 * 1000);
    summary(&format!(
        "words scribbled {words}, crashes 0; others exchanged {} packets meanwhile; next client after {longest:?} at most",
        2 * innocent.seq
    ));
}

#[test]
fn random_writes_affect_no_other_interface_direct() {
    isolated_with_interfaces(|home| scribbling(home, DIRECT));
}

#[test]
fn random_writes_affect_no_other_interface_mediated() {
    isolated_with_interfaces(|home| scribbling(home, MEDIATED));
}

/// While a client keeps a duplicate of the queue's socket, the queue is occupied; the next client is refused, and gets
/// it when the client closes the duplicate.
#[test]
fn a_kept_socket_occupies_the_queue_until_it_is_closed() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let mut innocent = Innocent::new(&net);
        let raw_port = raw_port(&net, home);
        let kept = raw_port.doorbells;
        drop(raw_port.raw);
        home.until_left(2);
        assert!(!net.has_xdp(), "the kernel receives all packets again");
        assert!(net.pings());
        let (errno, why) = net.refused("netmap:va");
        assert_eq!(errno, 16, "{why}");
        assert!(why.contains("queue 0 is held by another AF_XDP socket"), "{why}");
        innocent.assert_unharmed();
        drop(kept);
        let (port, tap) = (net.open("netmap:va"), net.tap());
        assert_works(&port, &tap, 0);
    });
}

/// The frames among all that arrive that are `wanted`, in order.
#[track_caller]
fn assert_arrive(tap: &Tap, wanted: &[Vec<u8>]) {
    let mut left = wanted.iter();
    let mut next = left.next();
    let end = Instant::now() + LIMIT;
    while let Some(frame) = next {
        let got = tap.next(end.saturating_duration_since(Instant::now()));
        let got = got.unwrap_or_else(|| panic!("{} frames did not arrive", 1 + left.len()));
        if got == *frame {
            next = left.next();
        }
    }
}

/// Sends one frame repeatedly until it arrives: packets that the killed client did not read may leave no room at first.
#[track_caller]
fn assert_receives(port: &Port, tap: &Tap, seq: u64) {
    let first = frame(60, seq);
    until("a frame comes", || {
        tap.send(&first);
        port.poll(Interest::RX, Some(Duration::from_millis(5))).expect("the daemon runs");
        take(port, 0).contains(&first)
    });
    let all = frames(&[60; 50], seq + 1);
    tap.send_all(&all);
    let got = std::iter::from_fn(|| Some(collect(port, 1))).flatten().filter(|got| *got != first);
    assert_same(&got.take(50).collect::<Vec<_>>(), &all);
}

fn kills(home: &Home, policy: &str) {
    const KILLS: u64 = 50;
    let Some(mut net) = Net::new(home, policy, CABLE) else { return };
    // Keeps the region, so that buffers lost by killed clients would be detected.
    let keeper = net.open("netmap:va{9");
    let region = home.snapshot().regions[0].name.clone();
    let before = home.snapshot().buffers(&region);
    let (tap, folder) = (net.tap(), home.folder().join("got"));
    std::fs::create_dir(&folder).expect("a folder");
    let (folder, record) = (folder.display().to_string(), home.folder().join("sent").display().to_string());
    let (mut rng, mut longest, mut packets) = (Rng(0x5eed_0030), Duration::ZERO, 0u64);
    for kill in 0..KILLS {
        let client = program("traffic_client");
        let sender = (kill + 10).to_string();
        let mut both = [
            net.start(home, &client, &["recv", "netmap:va", &folder], 1),
            net.start(home, &client, &["send", "netmap:va", &sender, &record], 1),
        ];
        let end = Instant::now() + Duration::from_micros(3000 + rng.below(30_000));
        let mut seq = 0;
        while Instant::now() < end {
            for _ in 0..16 {
                tap.send(&conformance::packet::make(kill + 1000, seq));
                seq += 1;
            }
            // Not all of them arrive: the sender is faster than the reader.
            packets += (0..1000).map_while(|_| tap.next(Duration::ZERO)).count() as u64;
        }
        packets += seq;
        for guard in &mut both {
            if let Ok(Some(status)) = guard.0.try_wait() {
                panic!("before kill {kill}: a client exited by itself, {status}");
            }
        }
        both.iter().for_each(|guard| guard.signal(rustix::process::Signal::KILL));
        both.iter_mut().for_each(Guard::kill);
        // The sender may have filled the tap's queue.
        while tap.next(Duration::ZERO).is_some() {}
        // The next client, at once.
        let begin = Instant::now();
        let port = net.open("netmap:va");
        let all = frames(&[60; 50], kill << 20);
        transmit(&port, 0, &all, BUFFER);
        // A sync is skipped until the lock of the killed process is released.
        drain(&port);
        assert_arrive(&tap, &all);
        assert_receives(&port, &tap, kill << 20 | 1 << 19);
        longest = longest.max(begin.elapsed());
        drop(port);
        home.until_left(1);
        assert_eq!(home.snapshot().buffers(&region), before, "after kill {kill}");
    }
    net.assert_alive();
    let buffers = home.snapshot().buffers(&region);
    summary(&format!(
        "kills {}, packets {packets}, the next client served within {longest:?}, buffers unaccounted for: {}, in \
         missing: {}",
        2 * KILLS,
        buffers.unaccounted(),
        buffers.missing
    ));
    assert_eq!((buffers.unaccounted(), buffers.missing), (0, 0));
    drop(keeper);
    net.assert_given_back();
}

#[test]
fn fifty_crashes_under_traffic_direct() {
    isolated_with_interfaces(|home| kills(home, DIRECT));
}

#[test]
fn fifty_crashes_under_traffic_mediated() {
    isolated_with_interfaces(|home| kills(home, MEDIATED));
}

/// A bridge killed during a buffer exchange loses at most one buffer, and no buffer is in two places afterwards.
#[test]
fn crashes_of_a_bridge_between_an_interface_and_a_pipe_lose_no_buffer() {
    const KILLS: u64 = 25;
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let reader = net.open("netmap:va}1");
        let before = home.snapshot().buffers("interfaces");
        let (tap, mut rng, mut packets) = (net.tap(), Rng(0x5eed_0031), 0);
        let mut longest = Duration::ZERO;
        for kill in 0..KILLS {
            let begin = Instant::now();
            let args = ["-w", "0", "-i", "netmap:va", "-i", "netmap:va{1"];
            let mut bridge = net.start(home, program("bridge"), &args, 2);
            let first = frame(60, kill << 20 | 1 << 19);
            until("the bridge works", || {
                tap.send(&first);
                reader.poll(Interest::RX, Some(Duration::from_millis(5))).expect("the daemon runs");
                take(&reader, 0).contains(&first)
            });
            longest = longest.max(begin.elapsed());
            let end = Instant::now() + Duration::from_micros(2000 + rng.below(20_000));
            while Instant::now() < end {
                let some = frames(&[60; 16], packets);
                packets += 16;
                tap.send_all(&some);
                reader.rxsync().expect("the daemon runs");
                take(&reader, 0);
                if reader.tx_rings()[0].space() > 16 {
                    transmit(&reader, 0, &some, BUFFER);
                }
                while tap.next(Duration::ZERO).is_some() {}
            }
            bridge.kill();
            home.until_left(1);
            let now = home.snapshot().buffers("interfaces");
            assert_eq!(now.in_rings, before.in_rings, "after kill {kill}: {now:?}");
            assert!(u64::from(now.missing) <= kill + 1, "after kill {kill}: {now:?}");
            take(&reader, 0);
            reader.rxsync().expect("the daemon runs");
        }
        net.assert_alive();
        let now = home.snapshot().buffers("interfaces");
        let port = net.open("netmap:va");
        while tap.next(Duration::from_millis(10)).is_some() {}
        assert_works(&port, &tap, 1 << 50);
        drop(port);
        let writer = net.open("netmap:va{1");
        until("what the last bridge sent is read", || {
            take(&reader, 0);
            reader.rxsync().expect("the daemon runs");
            home.snapshot().ring("va{1", "tx", 0).queued == 0
        });
        exchange(&writer, &reader, 1, 0, 3000);
        drop((reader, writer));
        until("the region is closed", || home.snapshot().regions.is_empty());
        summary(&format!(
            "kills {KILLS} among {packets} packets, first packet after at most {longest:?}, missing buffers {}",
            now.missing
        ));
    });
}

#[test]
fn clients_killed_while_opening_leave_nothing() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let mut rng = Rng(0x5eed_0032);
        for policy in [DIRECT, MEDIATED] {
            set_policy(home, policy);
            let keeper = net.open("netmap:va{9");
            let region = home.snapshot().regions[0].name.clone();
            let before = home.snapshot().buffers(&region);
            for _ in 0..25 {
                let mut child = start(&net, program("traffic_client"), &["hold", "netmap:va"]);
                sleep(Duration::from_micros(3000 + rng.below(25_000)));
                child.kill();
            }
            home.until_left(1);
            assert_eq!(home.snapshot().buffers(&region), before);
            drop(keeper);
            until("the region is closed", || home.snapshot().regions.is_empty());
            net.assert_alive();
            net.assert_given_back();
        }
        let (port, tap) = (net.open("netmap:va"), net.tap());
        assert_works(&port, &tap, 0);
    });
}

/// Two processes share both rings of an interface; one of them only syncs, and is killed repeatedly, sometimes during a
/// sync.
fn deaths_inside_a_sync(home: &Home, policy: &str) {
    const KILLS: u64 = 60;
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let (port, tap) = (net.open("netmap:va"), net.tap());
    let (mut rng, mut seq, mut longest) = (Rng(0x5eed_0033), 0, Duration::ZERO);
    let mut both_ways = |seq: &mut u64| {
        let begin = Instant::now();
        let all = frames(&[60; 100], *seq);
        *seq += 100;
        transmit(&port, 0, &all, BUFFER);
        drain(&port);
        assert_same(&tap.collect(100), &all);
        tap.send_all(&all);
        assert_same(&collect(&port, 100), &all);
        longest = longest.max(begin.elapsed());
    };
    for _ in 0..KILLS {
        let mut victim = net.start(home, program("traffic_client"), &["spin", "netmap:va"], 1);
        let end = Instant::now() + Duration::from_micros(500 + rng.below(8000));
        while Instant::now() < end {
            both_ways(&mut seq);
        }
        victim.kill();
        // No other process helps: any lock of the killed process must be released by now, or soon.
        both_ways(&mut seq);
    }
    assert_eq!(home.snapshot().faults("va"), (0, 0));
    summary(&format!("kills in a sync {KILLS}, frames {} whole and in order, longest pause {longest:?}", 2 * seq));
}

#[test]
fn a_crash_inside_a_sync_leaves_the_ring_usable_direct() {
    isolated_with_interfaces(|home| deaths_inside_a_sync(home, DIRECT));
}

#[test]
fn a_crash_inside_a_sync_leaves_the_ring_usable_mediated() {
    isolated_with_interfaces(|home| deaths_inside_a_sync(home, MEDIATED));
}

/// A user's programs alone have the virtio-net header that the user sets, until the last of them has closed the
/// interface; users who get it through the daemon set none, as they set no filter.
#[test]
fn a_header_of_one_user_shuts_out_no_other() {
    const OWNER: u32 = 4001;
    const GUEST: u32 = 4002;
    const OTHER: u32 = 4003;
    isolated_with_interfaces(|home| {
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: only root can be several users");
        }
        let policy = format!(
            "[[rule]]\nports = [\"v*\"]\nusers = [\"root\", {OWNER}]\naccess = \"direct\"\n\
             [[rule]]\nports = [\"v*\"]\nusers = [{GUEST}, {OTHER}]\naccess = \"mediated\"\n"
        );
        let Some(mut net) = Net::new(home, &policy, CABLE) else { return };
        std::fs::set_permissions(home.folder(), Permissions::from_mode(0o755)).expect("our own folder");
        let open = |uid, flags| {
            let open = || Port::options().flags(flags).open("netmap:va");
            net.near.run(|| as_user(uid, open)).expect("a namespace").expect("root")
        };
        let opens = |uid, flags| {
            let mut opened = None;
            until("the interface is closed", || {
                opened = Some(open(uid, flags));
                !matches!(&opened, Some(Err(e)) if e.errno() == EBUSY)
            });
            opened.expect("just tried").map_err(|e| e.errno())
        };
        let set = |uid, bytes| {
            let set = || unetmap::switch::set_vnet_header("va", bytes);
            net.near.run(|| as_user(uid, set)).expect("a namespace").expect("root")
        };
        let header = |uid| {
            let get = || unetmap::switch::vnet_header("va");
            let got = net.near.run(|| as_user(uid, get)).expect("a namespace").expect("root");
            got.unwrap_or_else(|e| panic!("{e}"))
        };
        let refusal = set(GUEST, 12).expect_err("refused");
        assert!(refusal.errno() == EACCES && refusal.to_string().contains("its header is set by root"), "{refusal}");
        set(OWNER, 12).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!([0, OWNER, OTHER].map(header), [0, 12, 0]);
        for uid in [0, OTHER, GUEST] {
            opens(uid, 0).unwrap_or_else(|errno| panic!("user {uid}: errno {errno}"));
        }
        assert_eq!(opens(OWNER, 0).err(), Some(EIO), "the owner's own programs must accept it");
        let port = opens(OWNER, NR_ACCEPT_VNET_HDR).expect("accepted");
        assert_eq!(set(OWNER, 0).expect_err("it is open").errno(), EBUSY);
        drop(port);
        until("the header has ended", || header(OWNER) == 0);
        drop(opens(OWNER, 0).expect("without a header"));
        // That of root stays, and is everybody's; its owner may have none instead.
        until("the interface is closed", || set(0, 12).is_ok());
        for uid in [0, OTHER] {
            assert_eq!(opens(uid, 0).err(), Some(EIO));
            drop(opens(uid, NR_ACCEPT_VNET_HDR).expect("accepted"));
        }
        until("the interface is closed", || set(OWNER, 0).is_ok());
        drop(opens(OWNER, 0).expect("without a header"));
        until("root's header is in force again", || header(OWNER) == 12);
        net.assert_alive();
    });
}
