// SPDX-License-Identifier: BSD-2-Clause
use std::fs;

use super::*;
use crate::region::Sizes;

#[test]
fn the_table_is_consistent() {
    for (i, knob) in KNOBS.iter().enumerate() {
        assert!(KNOBS[..i].iter().all(|other| other.name != knob.name), "{} stands there twice", knob.name);
        assert!(knob.range.contains(&knob.default), "{}", knob.name);
        assert!(knob.name.len() <= unetmap_core::control::sysctl::MAX_NAME && !knob.about.is_empty());
    }
    Knobs::default().check_regions().unwrap();
}

#[test]
fn each_knob_keeps_its_bounds() {
    for knob in &KNOBS {
        let mut knobs = Knobs::default();
        let errno = |result: Result<(), Refusal>| result.map_err(|refusal| refusal.errno);
        let (least, most) = (*knob.range.start(), *knob.range.end());
        if knob.applies == Applies::ReadOnly {
            assert_eq!(errno(knobs.set(knob.name, knob.default)), Err(EPERM));
            continue;
        }
        for value in [least, most] {
            assert_eq!(errno(knobs.set(knob.name, value)), Ok(()));
            assert_eq!(knobs.get(knob.name), value);
        }
        for wrong in [least.checked_sub(1), most.checked_add(1), Some(u64::MAX)].into_iter().flatten() {
            let refusal = knobs.set(knob.name, wrong).unwrap_err();
            assert_eq!(refusal.errno, EINVAL);
            let expected = format!("{} is {wrong}, allowed are {least} to {most}", knob.name);
            assert_eq!(refusal.why, expected);
            assert_eq!(knobs.get(knob.name), most, "nothing has changed");
        }
    }
    assert_eq!(Knobs::default().set_checked("no_such", 1).unwrap_err().errno, ENOENT);
}

#[test]
fn regions_that_cannot_be_made_are_refused() {
    let mut knobs = Knobs::default();
    knobs.set_checked("buf_size", 65536).unwrap();
    let refusal = knobs.set_checked("buf_num", 1_000_000).unwrap_err();
    assert_eq!(refusal.errno, EINVAL);
    assert!(refusal.why.contains("4 GiB"), "{}", refusal.why);
    assert_eq!(knobs.interface_sizes(0, false).bufs, (32_768, 65536));
}

#[test]
fn the_default_number_of_buffers_has_room_for_long_rings() {
    let mut knobs = Knobs::default();
    assert_eq!(knobs.interface_sizes(20_000, false).bufs.0, 60_000);
    knobs.set_checked("buf_num", 5000).unwrap();
    assert_eq!(knobs.interface_sizes(20_000, false).bufs.0, 5000);
    assert_eq!(knobs.private_sizes().bufs.0, Sizes::PRIVATE.bufs.0);
}

#[test]
fn a_region_of_pipes_takes_less_than_64_mb_of_address_space() {
    let bytes = Knobs::default().private_sizes().bytes().unwrap();
    assert!((60_000_000..64_000_000).contains(&bytes), "{bytes}");
}

#[test]
fn interfaces_with_zero_copy_have_buffers_of_a_page_unless_the_size_is_set() {
    let mut knobs = Knobs::default();
    assert_eq!(knobs.interface_sizes(0, true).bufs, (16_384, 4096));
    assert_eq!((knobs.mediated_sizes(true).bufs.1, knobs.mediated_sizes(false).bufs.1), (4096, 2048));
    for (knob, value) in [("buf_num", 1_000_000), ("ring_num", 4096), ("ring_size", 100_000)] {
        knobs.set_checked(knob, value).unwrap();
    }
    assert_eq!(knobs.interface_sizes(0, true).bufs, (1_000_000, 2048), "4096 would be more than 4 GiB");
    knobs.set_checked("buf_num", 5000).unwrap();
    assert_eq!(knobs.interface_sizes(20_000, true).bufs, (5000, 4096));
    knobs.set_checked("buf_size", 2048).unwrap();
    assert_eq!(knobs.interface_sizes(0, true).bufs, (5000, 2048));
}

#[test]
fn a_knob_set_back_is_unchanged() {
    let mut knobs = Knobs::default().with_options(&[("buf_num", 5000)], Some(Admode::Native)).unwrap();
    assert!(!knobs.changed());
    knobs.set_checked("buf_num", 6000).unwrap();
    assert!(knobs.changed());
    knobs.set_checked("buf_num", 5000).unwrap();
    assert!(!knobs.changed());
    knobs.set_checked("fwd", 0).unwrap();
    assert!(!knobs.changed(), "as it was");
    assert_eq!((knobs.admode(), knobs.fwd(), knobs.no_timestamp()), (Admode::Native, false, false));
    knobs.set_checked("admode", 2).unwrap();
    knobs.set_checked("fwd", 1).unwrap();
    knobs.set_checked("no_timestamp", 1).unwrap();
    assert_eq!((knobs.admode(), knobs.fwd(), knobs.no_timestamp()), (Admode::Generic, true, true));
}

#[test]
fn errors_in_a_file_are_reported_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("unetmapd.toml");
    let load = |text: &str| {
        fs::write(&path, text).unwrap();
        Knobs::load(&path)
    };
    let knobs = load("# sizes\n[knobs]\nbuf_size = \"4KiB\"\nfwd = 1\n").unwrap();
    assert_eq!((knobs.get("buf_size"), knobs.fwd(), knobs.changed()), (4096, true, false));
    assert_eq!(*load("").unwrap().thread_plan(), ThreadConfig::default());
    let plan = |text: &str| load(text).unwrap().thread_plan().clone();
    assert_eq!(plan("[vale]\nthreads = 3\n"), ThreadConfig { threads: 3, cpus: vec![] });
    assert_eq!(plan("[vale]\ncpus = [1, 0]\n"), ThreadConfig { threads: 2, cpus: vec![1, 0] });
    let addresses = |text: &str| load(text).unwrap().switch_addresses();
    assert_eq!([addresses(""), addresses("[vale]\naddresses = 100000\n")], [4096, 131_072]);
    for (text, line, part) in [
        ("[knobs]\nbuf_size = 1\n", 2, "buf_size is 1, allowed are 64 to 65536"),
        ("[knobs]\n\nbufsize = 1\n", 3, "no such knob"),
        ("[knobs]\nmax_bridges = 1\n", 2, "read-only"),
        ("[knobs]\nfwd = true\n", 2, "unetmapd(8)"),
        ("[knobs]\nfwd = -1\n", 2, "unetmapd(8)"),
        ("[knobs]\nbuf_size = \"4k pages\"\n", 2, "`4k pages`: give bytes"),
        ("[knob]\n", 1, "unetmapd(8)"),
        ("[knobs\n", 1, "unetmapd(8)"),
        ("[knobs]\n[vale]\nthreads = 0\n", 2, "0 threads: switches have 1 to 64"),
        ("[vale]\ncpus = [0, 1024]\n", 1, "processor 1024: numbers are below 1024"),
        ("[vale]\naddresses = 1048577\n", 1, "1048577 addresses: a switch can learn 1 to 1048576"),
        ("[vale]\ncpus = 0\n", 2, "unetmapd(8)"),
        ("[vale]\nthread = 2\n", 2, "unetmapd(8)"),
    ] {
        let why = load(text).unwrap_err();
        assert!(why.starts_with(&format!("{}:{line}: ", path.display())) && why.contains(part), "{text:?}: {why}");
    }
    assert!(load("[knobs]\nbuf_num = 1000000\nbuf_size = 65536\n").unwrap_err().contains("4 GiB"));
    fs::remove_file(&path).unwrap();
    assert!(!Knobs::load(&path).unwrap().changed(), "no file is no fault");
}
