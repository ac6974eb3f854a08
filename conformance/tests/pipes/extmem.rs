// SPDX-License-Identifier: BSD-2-Clause
//! Regions with a layout chosen by the program: [`OpenOptions::pools`], and `@extmem` in names.

use std::fs;
use std::time::Duration;

use conformance::{Home, isolated, until};
use unetmap::Pools;
use unetmap::errno::{EINVAL, ENOENT, ENOMEM};
use unetmap::{Error, Interest, OpenOptions, Port};

const MIB: usize = 1 << 20;
const SLOTS: u32 = 64;

fn few_slots() -> OpenOptions {
    OpenOptions::default().tx_slots(SLOTS).rx_slots(SLOTS)
}

fn pools_of(bytes: u64, bufs: (u32, u32)) -> Pools {
    let mut pools = Pools::default();
    pools.bytes = bytes;
    pools.bufs = bufs;
    pools
}

#[track_caller]
fn refused(options: &OpenOptions, spec: &str) -> (i32, String) {
    match options.open(spec) {
        Err(Error::Refused { errno, reason, .. }) => (errno, reason),
        Err(e) => panic!("{spec}: {e}"),
        Ok(_) => panic!("{spec}: opened"),
    }
}

/// A packet of so many bytes from one port to the other.
fn exchange(from: &Port, to: &Port, bytes: &[u8]) {
    let ring = &from.tx_rings()[0];
    let slot = ring.available().next().expect("room");
    assert_eq!(slot.frame().write(0, bytes), bytes.len());
    slot.set_len_flags(bytes.len() as u16, 0);
    ring.advance(1);
    from.txsync().unwrap();
    assert!(to.poll(Interest::RX, Some(Duration::from_secs(20))).unwrap().rx());
    let ring = &to.rx_rings()[0];
    let (slot, mut got) = (ring.available().next().expect("a packet"), vec![0; bytes.len()]);
    slot.frame().read(0, &mut got);
    assert!(got == bytes, "another packet arrived than was sent");
    ring.advance(1);
    to.rxsync().unwrap();
}

fn regions(home: &Home) -> usize {
    home.snapshot().regions.len()
}

#[test]
fn pools_have_the_requested_sizes() {
    isolated(|home| {
        let mut pools = pools_of(4 * MIB as u64, (1_000_000, 9216));
        pools.rings = (8, 8192);
        let near = few_slots().pools(pools).open("netmap:m{1").unwrap();
        assert!(near.register().nr_memsize <= pools.bytes);
        assert_eq!(near.tx_rings()[0].available().next().expect("room").frame().capacity(), 9216);
        let far = Port::open(&format!("netmap:m}}1@{}", near.mem_id())).unwrap();
        assert_eq!(far.mem_id(), near.mem_id());
        exchange(&near, &far, &[7; 9000]);
        exchange(&far, &near, &[8; 9216]);
        // No other port can use the region.
        let other = Port::open("netmap:o{1").unwrap();
        assert_ne!(other.mem_id(), near.mem_id());
        let before = regions(home);
        drop((near, far));
        until("the region ends with its ports", || regions(home) == before - 1);
        drop(other);
    });
}

/// The contents of the file are the contents of the buffers, unchanged; the list of extra buffers, stored in some of
/// them, is complete.
#[test]
fn a_file_is_mapped_as_the_buffers() {
    isolated(|home| {
        let path = home.folder().join("memory");
        let bytes: Vec<u8> = (0..MIB as u32 / 4).flat_map(|word| (word * 4).to_ne_bytes()).collect();
        fs::write(&path, &bytes).expect("a file of the test's");
        let spec = format!("netmap:m{{1@extmem:file={},buf-size=4096,buf-num=200", path.display());
        let port = few_slots().extra_bufs(20).open(&spec).unwrap();
        assert_eq!(port.extra_bufs(), 20);
        let mut pools = None;
        for slot in port.tx_rings()[0].available() {
            let mut word = [0; 4];
            for at in [0, 4, 4092] {
                slot.frame().read(at, &mut word);
                // The offset of the buffer pool in the file.
                let begin = u32::from_ne_bytes(word) - at as u32 - slot.get().buf_idx.0 * 4096;
                assert_eq!(*pools.get_or_insert(begin), begin);
            }
        }
        // A pool of buffers of a page begins 256 bytes behind a page boundary: the kernel's headroom lies before each
        // packet.
        assert!(pools.is_some_and(|begin| begin % 4096 == 256), "{pools:?}");
        assert_eq!(std::iter::from_fn(|| port.take_extra_buf()).take(100).count(), 20);
        let far = Port::open("netmap:m}1").unwrap();
        exchange(&port, &far, &[9; 4000]);
        assert!(fs::read(&path).expect("the file") == bytes, "the file was written to");
    });
}

#[test]
fn impossible_layouts_are_refused() {
    isolated(|home| {
        let pools = |bytes, bufs| few_slots().pools(pools_of(bytes, bufs));
        assert_eq!(refused(&pools(0, (0, 0)), "netmap:m{1").0, EINVAL);
        assert_eq!(refused(&pools(4096, (0, 0)), "netmap:m{1").0, ENOMEM);
        assert_eq!(refused(&pools(16 << 20, (0, 1 << 20)), "netmap:m{1").0, EINVAL);
        let named = |path: &str| refused(&few_slots(), &format!("netmap:m{{1@extmem:file={path}"));
        let (errno, why) = named("/there/is/none");
        assert!(errno == ENOENT && why.contains("/there/is/none"), "{errno} {why}");
        let (errno, why) = named("/dev/null");
        assert!(errno == EINVAL && why.contains("regular file"), "{errno} {why}");
        let empty = home.folder().join("empty");
        fs::write(&empty, b"").expect("a file of the test's");
        assert_eq!(named(&empty.display().to_string()).0, EINVAL);
        assert_eq!(home.try_snapshot().map_or(0, |snapshot| snapshot.sessions.len()), 0);
        home.assert_serves();
    });
}
