// SPDX-License-Identifier: BSD-2-Clause
//! Pipes and queues of `unetmap-fw`.

use std::time::{Duration, Instant};

use conformance::isolated_with_interfaces;
use conformance::net::transmit;
use conformance::traffic::open;

use super::{fw, packet, plain, receive, seq};

fn packets(port: u16, numbers: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    numbers.map(|i| packet((1, 2), port, 0, i)).collect()
}

#[test]
fn a_pipe_delays_paces_and_loses_what_rules_send_to_it() {
    isolated_with_interfaces(|home| {
        for (near, far, ports) in [("netmap:a{1", "netmap:a}2", "a}1 a{2"), ("vale0:t", "vale1:t", "vale0:f vale1:f")] {
            // 60 bytes take 10 ms.
            let rules = "pipe 1 config bw 48Kbit/s delay 100\npipe 2 config plr 1\n\
                         add 10 pipe 1 udp from any to any 53 out\nadd 20 pipe 2 udp from any to any 99\n\
                         add 30 pipe 9 udp from any to any 98\nadd 40 allow udp from any to any";
            let running = plain(home, ports, rules);
            let (near, far) = (open(near), open(far));
            let begin = Instant::now();
            // All that the queue has room for, packets that are lost, packets to no pipe, then some past the pipe.
            transmit(
                &near,
                0,
                &[packets(53, 0..50), packets(99, 50..60), packets(98, 60..70), packets(80, 70..80)].concat(),
                2048,
            );
            let got: Vec<_> = receive(&far, 60).iter().filter_map(|bytes| seq(bytes)).collect();
            let took = begin.elapsed();
            assert_eq!(got, (70..80).chain(0..50).collect::<Vec<_>>(), "{ports}");
            assert!(took >= Duration::from_millis(600), "50 packets of 10 ms, and the delay: {took:?}");
            let shown = fw("pipe 1 show").unwrap();
            assert!(shown.starts_with("00001:  48.000 Kbit/s  100 ms burst 0\nq131073  50 sl."), "{shown}");
            assert!(shown.ends_with("50 packets 3000 bytes, 0 held, 0 dropped\n"), "{shown}");
            let lost = fw("pipe 2 show").unwrap();
            assert!(lost.ends_with("10 packets 600 bytes, 0 held, 10 dropped\n"), "{lost}");
            let summary = running.summary();
            assert_eq!((&summary["passed"], &summary["dropped"]), (&60.into(), &20.into()), "{summary}");
        }
    });
}

#[test]
fn queues_share_a_pipe_by_their_weights() {
    isolated_with_interfaces(|home| {
        // 60 bytes take 20 ms: a batch is in the queues before many of it have left.
        let rules = "pipe 1 config bw 24Kbit/s\nqueue 1 config pipe 1 weight 3\nqueue 2 config pipe 1 weight 1\n\
                     add queue 1 udp from any to any 53\nadd queue 2 udp from any to any 80";
        let running = plain(home, "a}1 b{1", rules);
        let (near, far) = (open("netmap:a{1"), open("netmap:b}1"));
        let sent: Vec<_> = (0..40).flat_map(|i| [packet((1, 2), 53, 0, i), packet((1, 2), 80, 0, 100 + i)]).collect();
        transmit(&near, 0, &sent, 2048);
        let got: Vec<_> = receive(&far, 80).iter().filter_map(|bytes| seq(bytes)).collect();
        let heavy = got[..40].iter().filter(|&&seq| seq < 100).count();
        assert!((26..=34).contains(&heavy), "30 of the first 40 are of the queue of weight 3, not {heavy}: {got:?}");
        for base in [0, 100] {
            let of_queue: Vec<_> = got.iter().filter(|&&seq| seq / 100 * 100 == base).copied().collect();
            assert_eq!(of_queue, (base..base + 40).collect::<Vec<_>>(), "a queue keeps the order");
        }
        let shown = fw("sched 1 show").unwrap();
        assert!(shown.contains("type WF2Q+") && shown.contains("Children flowsets: 1 2\n   80 packets"), "{shown}");
        running.summary();
    });
}

#[test]
fn a_queue_of_priority_is_sent_before_others() {
    isolated_with_interfaces(|home| {
        // 60 bytes take 20 ms: a batch is in the queues before many of it have left.
        let rules = "pipe 1 config bw 24Kbit/s\nsched 1 config type prio\nqueue 1 config pipe 1 weight 2\n\
                     queue 2 config pipe 1 weight 1\nadd queue 1 udp from any to any 53\n\
                     add queue 2 udp from any to any 80";
        let running = plain(home, "a}1 b{1", rules);
        let (near, far) = (open("netmap:a{1"), open("netmap:b}1"));
        let sent = [packets(53, 0..40), packets(80, 100..140)].concat();
        transmit(&near, 0, &sent, 2048);
        let got: Vec<_> = receive(&far, 80).iter().filter_map(|bytes| seq(bytes)).collect();
        // Some may have left before the others came.
        let first = got.iter().position(|&seq| seq >= 100).expect("a packet of priority");
        let expected: Vec<u32> = (0..first as u32).chain(100..140).chain(first as u32..40).collect();
        assert_eq!(got, expected);
        assert!(fw("sched 1 show").unwrap().contains("type PRIO"));
        running.summary();
    });
}

#[test]
fn pipes_change_under_traffic_and_the_end_sends_what_they_hold() {
    isolated_with_interfaces(|home| {
        let running = plain(home, "a}1 b{1", "pipe 1 config delay 10000\nadd pipe 1 ip from any to any");
        let (near, far) = (open("netmap:a{1"), open("netmap:b}1"));
        transmit(&near, 0, &packets(53, 0..40), 2048);
        let held = |n: u32| {
            let part = format!("{n} held");
            conformance::until("the pipe has the packets", || fw("pipe show").unwrap().contains(&part));
        };
        held(40);
        // Packets of the old link arrive by its delay, those that come now by the new one.
        fw("pipe 1 config delay 0").expect("a command");
        transmit(&near, 0, &packets(53, 40..50), 2048);
        let got: Vec<_> = receive(&far, 10).iter().filter_map(|bytes| seq(bytes)).collect();
        assert_eq!(got, (40..50).collect::<Vec<_>>());
        let error = fw("pipe 1 config bw fast").unwrap_err();
        assert!(error.contains("column 18: `fast`: give a bandwidth"), "{error}");
        let receiver = std::thread::spawn(move || receive(&far, 40));
        let summary = running.summary();
        assert_eq!(summary["passed"], 50, "{summary}");
        assert_eq!(
            receiver.join().expect("no panic").iter().filter_map(|b| seq(b)).collect::<Vec<_>>(),
            (0..40).collect::<Vec<_>>()
        );
    });
}
