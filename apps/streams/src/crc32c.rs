// SPDX-License-Identifier: BSD-2-Clause
//! CRC-32C, the checksum of SCTP (RFC 9260, appendix A). Unlike the others it depends on the place of each byte, so a
//! signature changes it.

/// The polynomial, its lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// Returns the checksum of `bytes`, as SCTP has it in its header: the lowest byte first.
pub(crate) fn of(bytes: &[u8]) -> [u8; 4] {
    let step = |crc: u32, byte: &u8| crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)];
    (!bytes.iter().fold(!0, step)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_sums_are_right() {
        // RFC 3720, B.4: 32 bytes each.
        assert_eq!(super::of(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(super::of(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(super::of(&rising), [0x4e, 0x79, 0xdd, 0x46]);
    }
}
