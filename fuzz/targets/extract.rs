// SPDX-License-Identifier: BSD-2-Clause
//! Captures with an index: whatever it says, a search ends, takes bounded memory, and finds packets that the filter may
//! take. The first byte chooses the search.
#![no_main]

use std::time::Duration;

use unetmap_capture::MAX_PACKET;
use unetmap_capture::index::{Extract, Query};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&how, file)) = bytes.split_first() else { return };
    let filter =
        ["", "host 10.0.0.1", "tcp and host 10.0.0.1 and host 10.0.0.2 and port 1 and port 2"][how as usize % 3];
    let from = (how & 0x40 != 0).then_some(Duration::from_secs(1_700_000_000));
    let Ok(mut extract) = Extract::new(file.to_vec(), Query::of_filter(filter), [from, None], how & 0x80 != 0) else {
        return;
    };
    let mut packet = Vec::new();
    loop {
        match extract.next_packet(&mut packet) {
            Ok(Some(found)) => {
                assert!(packet.len() <= MAX_PACKET as usize && found.original >= packet.len());
                assert!(found.time.is_none_or(|time| from.is_none_or(|from| time >= from)));
            }
            Ok(None) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break;
            }
        }
    }
    assert!(extract.chunks[1] <= extract.chunks[0] && extract.notes().len() <= 1);
});
