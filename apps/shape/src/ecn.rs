// SPDX-License-Identifier: BSD-2-Clause
//! Congestion marks in IP headers (RFC 3168).

/// Marks a frame as having met congestion. Returns false if it is not IP, or its sender does not understand the mark.
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    let mut at = 12;
    for _ in 0..2 {
        if !matches!(frame.get(at..at + 2), Some([0x81, 0x00] | [0x88, 0xa8])) {
            break;
        }
        at += 4;
    }
    let Some((ethertype, ip)) = frame.get_mut(at..).and_then(|rest| rest.split_first_chunk_mut::<2>()) else {
        return false;
    };
    match (u16::from_be_bytes(*ethertype), ip) {
        (0x0800, [version, tos, _, _, _, _, _, _, _, _, high, low, ..]) if *version >> 4 == 4 => {
            let added = 3 - (*tos & 3);
            if added == 3 {
                return false;
            }
            *tos |= 3;
            // The checksum loses what its sum gains (RFC 1624).
            let (sum, borrow) = u16::from_be_bytes([*high, *low]).overflowing_sub(added.into());
            [*high, *low] = (sum - u16::from(borrow)).to_be_bytes();
            true
        }
        (0x86dd, [first, second, ..]) if *first >> 4 == 6 => {
            let capable = *second & 0x30 != 0;
            if capable {
                *second |= 0x30;
            }
            capable
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(tos: u8) -> Vec<u8> {
        let mut frame = [vec![2; 12], vec![8, 0, 0x45, tos, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0]].concat();
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = !sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    fn sum(header: &[u8]) -> u16 {
        let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        (sum + (sum >> 16)) as u16
    }

    #[test]
    fn capable_packets_are_marked_and_keep_a_right_checksum() {
        for tos in [1, 2, 3, 0xb9, 0x28 | 2] {
            let mut frame = ipv4(tos);
            assert!(mark(&mut frame));
            assert_eq!((frame[15], sum(&frame[14..34])), (tos | 3, 0xffff));
            frame.splice(12..12, [0x81, 0, 0, 5]);
            assert!(mark(&mut frame), "with a VLAN tag");
        }
        let mut v6 = [vec![2; 12], vec![0x86, 0xdd, 0x60, 0x25, 0, 0]].concat();
        assert!(mark(&mut v6) && v6[15] == 0x35);
        for mut frame in
            [ipv4(0xb8), vec![2; 12], vec![2; 14], vec![], [vec![2; 12], vec![0x86, 0xdd, 0x60, 0]].concat()]
        {
            let before = frame.clone();
            assert!(!mark(&mut frame) && frame == before, "{frame:02x?}");
        }
    }
}
