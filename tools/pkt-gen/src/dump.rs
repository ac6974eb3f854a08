// SPDX-License-Identifier: BSD-2-Clause
//! Prints packets in hexadecimal.

use std::fmt::Write as _;

use unetmap::{Ring, SlotRef};

/// Bytes per row.
const WIDTH: usize = 16;

/// Returns the text that -X prints for a slot.
pub(crate) fn format_slot(ring: &Ring, slot: &SlotRef<'_>) -> String {
    let mut bytes = vec![0; usize::from(slot.len())];
    let got = slot.frame().read(0, &mut bytes);
    text(ring.id(), slot.buf_idx(), slot.flags(), &bytes[..got])
}

/// Formats a line about the slot and its bytes in rows of 16.
fn text(ring: u16, buf: u32, flags: u16, bytes: &[u8]) -> String {
    let mut text = format!("ring {ring} buf {buf} flags 0x{flags:04x} len {}\n", bytes.len());
    for (row, chunk) in bytes.chunks(WIDTH).enumerate() {
        let mut hex = String::with_capacity(3 * WIDTH);
        let mut plain = String::with_capacity(WIDTH);
        for &byte in chunk {
            // Writing into a String cannot fail.
            let _ = write!(hex, "{byte:02x} ");
            plain.push(if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '.' });
        }
        let _ = writeln!(text, "{:5}: {hex:<48} {plain}", row * WIDTH);
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_are_printed_in_rows_of_sixteen() {
        let bytes: Vec<u8> = (0x3f..0x51).collect();
        assert_eq!(
            super::text(1, 77, 0x20, &bytes),
            "ring 1 buf 77 flags 0x0020 len 18\n    \
             0: 3f 40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e  ?@ABCDEFGHIJKLMN\n   \
             16: 4f 50                                            OP\n"
        );
        assert_eq!(super::text(0, 2, 0, &[]), "ring 0 buf 2 flags 0x0000 len 0\n");
    }
}
