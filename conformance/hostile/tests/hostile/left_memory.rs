// SPDX-License-Identifier: BSD-2-Clause
//! Memory that outlives its port: a user keeps files or mappings of ports that it has closed. The pages that the daemon
//! touched count for its control group, so the user pays for them, and others are served.

use std::any::Any;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use conformance::home::summary;
use conformance::kept::{kill, wait_until_kept};
use conformance::replace::replace;
use conformance::traffic::open;
use conformance::{Home, isolated, until};
use conformance_hostile::raw::RawPort;
use rustix::fs::{Mode, OFlags, fstat, open as open_file};
use unetmap::abi::*;
use unetmap::errno::*;
use unetmap_core::control::request::NetmapReply;
use unetmap_sys::Mapping;

use crate::budgets::{ALICE, BOB, assert_served, connect_as, daemon_with, daemon_with_args, register};

/// 8 MiB for each user.
const POLICY: &str = "[[rule]]\npipes = true\nusers = [4001, 4002]\n\
                      [[budget]]\nusers = [4001, 4002]\nmemory = 8\n";

/// Something that programs have of a port.
type Kept = Box<dyn Any>;

/// The descriptors of a port: the region, the pages, and doorbells.
type Files = Vec<OwnedFd>;

/// Opens a port as Alice, closes it, and keeps what `keep` returns; `Err`: the errno and the reason why it is refused.
fn open_and_keep(home: &Home, n: u32, keep: fn(Files) -> Kept) -> Result<Kept, (i32, String)> {
    let raw = connect_as(home, ALICE);
    let (errno, reply, files) = raw.request(&register(&format!("p{n}{{1"), NmreqRegister::default()));
    if errno != 0 {
        return Err((errno, reply.map_or_else(String::new, |NetmapReply { reason, .. }| reason)));
    }
    let kept = keep(files);
    drop(raw);
    Ok(kept)
}

/// Bytes that Alice is charged.
pub(crate) fn memory(home: &Home) -> u64 {
    let users = home.snapshot().users;
    users.into_iter().find(|user| user.uid == Some(ALICE)).map_or(0, |user| user.memory.used)
}

/// Opens and closes ports until one is refused, and returns what it has kept.
#[track_caller]
fn keep_until_refused(home: &Home, keep: fn(Files) -> Kept) -> Vec<Kept> {
    let mut kept = Vec::new();
    for n in 0..300 {
        match open_and_keep(home, n, keep) {
            Ok(more) => kept.push(more),
            Err((errno, why)) => {
                assert_eq!(errno, EDQUOT, "{why}");
                assert!(why.contains("MiB of memory is that of ports which are closed"), "{why}");
                assert!(why.contains("have them unmap and close it") && why.contains("unetmap ls --users"), "{why}");
                assert!(kept.len() > 8, "{}: {why}", kept.len());
                return kept;
            }
        }
    }
    panic!("{} closed ports were kept, and none was refused", kept.len());
}

fn keep_files(files: Files) -> Kept {
    Box::new(files)
}

fn keep_mapping(files: Files) -> Kept {
    let bytes = fstat(&files[0]).expect("a file").st_size as usize;
    Box::new(Mapping::new(files[0].as_fd(), bytes).expect("memory to map"))
}

/// The pages of the port's state and channels, and nothing else: files of one page.
fn keep_pages(mut files: Files) -> Kept {
    files.truncate(3);
    Box::new(files.split_off(1))
}

/// No descriptor that could read or write the file, which lives all the same.
fn keep_path(files: Files) -> Kept {
    let path = format!("/proc/self/fd/{}", files[0].as_raw_fd());
    Box::new(open_file(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("an O_PATH descriptor"))
}

#[test]
fn memory_of_closed_ports_is_charged_while_programs_have_it() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, POLICY) else { return };
        let daemon = home.daemon();
        let _other = open("netmap:other{1");
        let ways = [("files", keep_files as fn(Files) -> Kept), ("mapping", keep_mapping), ("path", keep_path)];
        for (what, keep) in ways.into_iter().chain([("files of one page", keep_pages as fn(Files) -> Kept)]) {
            let kept = keep_until_refused(home, keep);
            assert!(memory(home) > 7 << 20, "{}", memory(home));
            assert_served(home, BOB);
            let ports = kept.len();
            drop(kept);
            // Pages may be in pipes for all that the daemon knows, until the machine's memory says otherwise.
            until("nothing is charged", || memory(home) == 0);
            assert_served(home, ALICE);
            summary(&format!("{what}: {ports} closed ports are a budget of 8 MiB"));
        }
        assert_eq!(home.daemon(), daemon, "the same process");
    });
}

/// Of the pages of a closed port, which ones a program alone has touched cannot be known: they count, but never so that
/// others are refused.
#[test]
fn pages_that_a_program_fills_refuse_nobody_else() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, &format!("{POLICY}[total]\nmemory = 12\n")) else { return };
        let _other = open("netmap:other{1");
        let fill = |files: Files| -> Kept {
            let bytes = fstat(&files[0]).expect("a file").st_size as usize;
            let mapping = Mapping::new(files[0].as_fd(), bytes).expect("memory to map");
            mapping.populate(0, bytes).expect("memory of the program's own");
            assert!(bytes > 12 << 20, "more than all users may have: {bytes}");
            Box::new(mapping)
        };
        let filled = open_and_keep(home, 0, fill).expect("within the budget");
        // Less what the port itself took.
        until("its pages count", || ((8 << 20) - (64 << 10)..=8 << 20).contains(&memory(home)));
        let (errno, why) = open_and_keep(home, 1, keep_files).expect_err("its own user pays");
        assert_eq!(errno, EDQUOT, "{why}");
        assert_served(home, BOB);
        drop(filled);
        until("nothing is charged", || memory(home) == 0);
        assert_served(home, ALICE);
    });
}

/// The daemon has touched pages for a port that is closed, in a region that lives on.
#[test]
fn memory_of_closed_ports_in_a_region_that_lives_on_is_charged() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, POLICY) else { return };
        let small = RawPort::open_on(connect_as(home, ALICE), "x{1", NmreqRegister::default());
        let before = memory(home);
        let extra = NmreqRegister { nr_extra_bufs: 1000, ..Default::default() };
        let after = [(); 4].map(|()| {
            drop(RawPort::open_on(connect_as(home, ALICE), "x{2", extra));
            until("the port is closed", || home.snapshot().sessions.len() == 1);
            memory(home)
        });
        assert!(after[0] > before + (2 << 20) - (64 << 10), "{before}, {after:?}");
        // The second one had extra buffers where the first one's rings had theirs.
        assert_eq!((after[1], after[2]), (after[2], after[3]), "pages that were touched before are charged once");
        drop(small);
        until("nothing is charged", || memory(home) == 0);
    });
}

#[test]
fn memory_of_closed_ports_is_charged_after_a_crash_and_a_replacement() {
    isolated(|home| {
        let Some(_daemon) = daemon_with_args(home, POLICY, &["--keep-ports"]) else { return };
        let kept: Vec<Kept> = (0..4).map(|n| open_and_keep(home, n, keep_files).expect("within the budget")).collect();
        let port = open("netmap:other{1");
        wait_until_kept(home);
        let before = memory(home);
        assert!(before > 256 << 10, "{before}");
        kill(home);
        assert_eq!(memory(home), before, "after a crash");
        replace(home);
        assert_eq!(memory(home), before, "after a replacement");
        let more = keep_until_refused(home, keep_files);
        assert_served(home, BOB);
        drop((kept, more));
        until("nothing is charged", || memory(home) == 0);
        assert_served(home, ALICE);
        drop(port);
    });
}
