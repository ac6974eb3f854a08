// SPDX-License-Identifier: BSD-2-Clause
//! Classic BPF, the instructions of filters that `pcap_compile` produces from an expression: decoding and checks.
//!
//! A classic program has an accumulator A, an index register X, 16 words of memory, and reads the frame in big endian.
//! It ends with the number of bytes to accept, 0 for none; a read beyond the frame's end and a division by zero end it
//! with 0. Jumps lead forward only. Where implementations differ (shifts by 32 and more are 0, memory begins as 0, an
//! offset does not wrap) this follows libpcap.

use std::fmt;

mod run;
pub use run::ClassicProgram;

/// One instruction of classic BPF: `struct sock_filter` of linux/filter.h, `struct bpf_insn` of libpcap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(C)]
pub struct ClassicInsn {
    /// Class, size, mode, operation.
    pub code: u16,
    /// Instructions to skip if a comparison is true.
    pub jt: u8,
    /// Instructions to skip if it is not.
    pub jf: u8,
    /// Constant, offset into the frame, or index of a word of memory.
    pub k: u32,
}

/// Most instructions of a classic program (`BPF_MAXINSNS`).
pub(super) const MAX_INSNS: usize = 4096;
/// Words of memory (4 bytes each) of a classic program.
pub(super) const WORDS: u32 = 16;
/// Names of the accumulator and the index register in [`Classic`]; the same registers as in the translation.
pub(super) const A: u8 = 7;
pub(super) const X: u8 = 8;
/// Bit of a code: the second operand is register X.
const SOURCE_X: u8 = 0x08;
/// First offset that Linux's socket filters use for data besides the frame (`SKF_LL_OFF`).
const EXTENSIONS: u32 = 0xFFE0_0000;
/// The one of these that is allowed: a random number (`SKF_AD_OFF + SKF_AD_RANDOM`).
pub(super) const RANDOM: u32 = 0xFFFF_F000 + 56;

/// Why a program is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Length(usize),
    At(usize, ClassicInsn, &'static str),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the filter cannot be set: ")?;
        match *self {
            Refused::Length(n) => write!(f, "it has {n} instructions, not 1 to {MAX_INSNS}")?,
            Refused::At(at, ClassicInsn { code, jt, jf, k }, why) => {
                write!(f, "instruction {at} (code {code:#x}, jt {jt}, jf {jf}, k {k:#x}) {why}")?;
            }
        }
        f.write_str("; use the output of pcap_compile for a handle of pcap_open_dead with Ethernet")
    }
}

impl std::error::Error for Refused {}

/// The second operand of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    K(u32),
    X,
}

/// A valid instruction of classic BPF. Sizes are in bytes; operations have the values of the code.
#[derive(Clone, Copy, Debug)]
pub(super) enum Classic {
    /// Into A, from the frame at `k`, plus X if `indexed`.
    Load {
        size: u8,
        k: u32,
        indexed: bool,
    },
    /// Into X, the length of an IPv4 header whose first byte is at `k`.
    HeaderLength {
        k: u32,
    },
    Immediate {
        to: u8,
        k: u32,
    },
    Length {
        to: u8,
    },
    /// Into A, a random number.
    Random,
    Recall {
        to: u8,
        word: u32,
    },
    Store {
        from: u8,
        word: u32,
    },
    Alu {
        op: u8,
        operand: Operand,
    },
    Negate,
    Goto {
        to: usize,
    },
    Branch {
        op: u8,
        operand: Operand,
        yes: usize,
        no: usize,
    },
    Accept(Option<u32>),
    Move {
        to: u8,
        from: u8,
    },
}

/// Decodes a program.
///
/// # Errors
/// The first instruction that is not allowed, and why.
pub(super) fn decode_all(program: &[ClassicInsn]) -> Result<Vec<Classic>, Refused> {
    if !(1..=MAX_INSNS).contains(&program.len()) {
        return Err(Refused::Length(program.len()));
    }
    (0..program.len()).map(|at| decode(program, at).map_err(|why| Refused::At(at, program[at], why))).collect()
}

/// Decodes the instruction at `at`, or returns what is wrong with it.
fn decode(program: &[ClassicInsn], at: usize) -> Result<Classic, &'static str> {
    let ClassicInsn { code, jt, jf, k } = program[at];
    let target = |skip: u32| match at.checked_add(1).and_then(|next| next.checked_add(skip as usize)) {
        Some(to) if to < program.len() => Ok(to),
        _ => Err("jumps out of the program"),
    };
    let word = if k < WORDS { Ok(k) } else { Err("names a word of memory that does not exist") };
    let frame = if k < EXTENSIONS { Ok(k) } else { Err("reads data that only a socket filter has") };
    let Ok(code) = u8::try_from(code) else { return Err("is unknown") };
    if (code, k) == (0x20, RANDOM) {
        return Ok(Classic::Random);
    }
    let operand = if code & SOURCE_X == 0 { Operand::K(k) } else { Operand::X };
    let op = code & 0xF0;
    let insn = match code {
        0x20 => Classic::Load { size: 4, k: frame?, indexed: false },
        0x28 => Classic::Load { size: 2, k: frame?, indexed: false },
        0x30 => Classic::Load { size: 1, k: frame?, indexed: false },
        0x40 => Classic::Load { size: 4, k: frame?, indexed: true },
        0x48 => Classic::Load { size: 2, k: frame?, indexed: true },
        0x50 => Classic::Load { size: 1, k: frame?, indexed: true },
        0xB1 => Classic::HeaderLength { k: frame? },
        0x00 => Classic::Immediate { to: A, k },
        0x01 => Classic::Immediate { to: X, k },
        0x80 => Classic::Length { to: A },
        0x81 => Classic::Length { to: X },
        0x60 => Classic::Recall { to: A, word: word? },
        0x61 => Classic::Recall { to: X, word: word? },
        0x02 => Classic::Store { from: A, word: word? },
        0x03 => Classic::Store { from: X, word: word? },
        0x34 | 0x94 if k == 0 => return Err("divides by 0"),
        0x64 | 0x74 if k > 31 => return Err("shifts by more than 31 bits"),
        0x84 => Classic::Negate,
        // Add, subtract, multiply, divide, or, and, shifts, remainder, exclusive or.
        0x04 | 0x14 | 0x24 | 0x34 | 0x44 | 0x54 | 0x64 | 0x74 | 0x94 | 0xA4 => Classic::Alu { op, operand },
        0x0C | 0x1C | 0x2C | 0x3C | 0x4C | 0x5C | 0x6C | 0x7C | 0x9C | 0xAC => Classic::Alu { op, operand },
        0x05 => Classic::Goto { to: target(k)? },
        // Equal, greater, greater or equal, common bits.
        0x15 | 0x25 | 0x35 | 0x45 | 0x1D | 0x2D | 0x3D | 0x4D => {
            Classic::Branch { op, operand, yes: target(jt.into())?, no: target(jf.into())? }
        }
        0x06 => Classic::Accept(Some(k)),
        0x16 => Classic::Accept(None),
        0x07 => Classic::Move { to: X, from: A },
        0x87 => Classic::Move { to: A, from: X },
        _ => return Err("is unknown"),
    };
    if at + 1 == program.len() && !matches!(insn, Classic::Accept(_)) {
        return Err("is the last and does not return");
    }
    Ok(insn)
}
