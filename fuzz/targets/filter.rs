// SPDX-License-Identifier: BSD-2-Clause
//! Filters: our interpreter and the translation for the kernel decide as libpcap's interpreter does.
#![no_main]

use libfuzzer_sys::fuzz_target;
use unetmap_fuzz::bytes::Bytes;
use unetmap_fuzz::ebpf;
use unetmap_sys::xdp::{ClassicInsn, ClassicProgram, translated};

#[link(name = "pcap")]
unsafe extern "C" {
    fn bpf_filter(program: *const ClassicInsn, frame: *const u8, wire: u32, captured: u32) -> u32;
    fn bpf_validate(program: *const ClassicInsn, insns: i32) -> i32;
}

/// All valid codes, and some that are not.
const CODES: [u16; 54] = [
    0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xB1, 0x00, 0x01, 0x80, 0x81, 0x60, 0x61, 0x02, 0x03, 0x04, 0x14, 0x24, 0x34,
    0x44, 0x54, 0x64, 0x74, 0x84, 0x94, 0xA4, 0x0C, 0x1C, 0x2C, 0x3C, 0x4C, 0x5C, 0x6C, 0x7C, 0x9C, 0xAC, 0x05, 0x15,
    0x25, 0x35, 0x45, 0x1D, 0x2D, 0x3D, 0x4D, 0x06, 0x16, 0x07, 0x87, 0x30, 0x15, 0x28, 0x8C, 0xA0,
];
const MAX_INSNS: u8 = 48;
/// A return of register A.
const END: ClassicInsn = ClassicInsn { code: 0x16, jt: 0, jf: 0, k: 0 };

/// Zeros in all words of memory, which libpcap's interpreter does not clear.
fn prologue() -> Vec<ClassicInsn> {
    let insn = |code, k| ClassicInsn { code, jt: 0, jf: 0, k };
    (0..16).map(|word| insn(0x02, word)).collect()
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Bytes(bytes);
    let mut program = prologue();
    for _ in 0..input.byte() % MAX_INSNS {
        let code = CODES[usize::from(input.byte()) % CODES.len()];
        let (shape, jt, jf) = (input.byte(), input.byte() % 8, input.byte() % 8);
        let k = match shape % 4 {
            0 => u32::from(input.byte()) % 80,
            1 => input.number(),
            2 => u32::from(input.byte()) % 16,
            _ => [0, 31, 32, 0xFFFF, 0x1_0000, 0x7FFF_FFFF, 0x8000_0000, u32::MAX][usize::from(shape >> 2) % 8],
        };
        // A random number, which libpcap does not have.
        if (code, k) != (0x20, 0xFFFF_F038) {
            program.push(ClassicInsn { code, jt, jf, k });
        }
    }
    program.push(END);
    let mut frame = input.0.to_vec();
    frame.resize(frame.len().clamp(14, 3000), 0);

    let ours = ClassicProgram::new(&program);
    let translations = [true, false].map(|buffers| translated(&program, buffers));
    assert!(translations.iter().all(|translation| translation.is_some() == ours.is_ok()));
    let Ok(ours) = ours else { return };
    let (first, bytes) = (program.as_ptr(), frame.len() as u32);
    // SAFETY: the program and the frame are valid for the call; libpcap has validated the program.
    let theirs = unsafe {
        assert!(bpf_validate(first, program.len() as i32) != 0, "libpcap refuses what is accepted here");
        bpf_filter(first, frame.as_ptr(), bytes, bytes) != 0
    };
    assert_eq!(ours.accepts(&frame), theirs, "our interpreter");
    for translation in translations.into_iter().flatten() {
        assert_eq!(ebpf::redirects(&translation, &frame), theirs, "the translation");
    }
});
