// SPDX-License-Identifier: BSD-2-Clause
//! Capture files: each ends with frames or a sentence, and no frame is longer than is possible.
#![no_main]

use unetmap_capture::{Frames, MAX_PACKET};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(mut file) = Frames::new(bytes) else { return };
    let (mut frames, mut truncated) = (0, 0);
    loop {
        match file.next_frame() {
            Ok(Some(frame)) => {
                assert!((1..=MAX_PACKET as usize).contains(&frame.bytes.len()));
                frames += 1;
                truncated += u64::from(frame.truncated);
            }
            Ok(None) => break,
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert_eq!((file.counts().frames, file.counts().truncated), (frames, truncated));
    assert!(file.position() <= bytes.len() as u64 && file.counts().notes().len() <= 3 + file.counts().other.len());
});
