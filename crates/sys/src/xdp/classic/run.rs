// SPDX-License-Identifier: BSD-2-Clause
//! An interpreter of classic programs, for frames that never enter the kernel. The caller passes bytes that no other
//! process can write.
//!
//! Jumps lead forward only, so that a program executes each instruction at most once, whatever the frame.

use std::cell::Cell;
use std::hash::{BuildHasher as _, RandomState};

use super::{A, Classic, ClassicInsn, Operand, WORDS, decode_all};

/// A checked classic program.
#[derive(Clone, Debug)]
pub struct ClassicProgram {
    insns: Box<[Classic]>,
}

impl ClassicProgram {
    /// Checks a program.
    ///
    /// # Errors
    /// The first instruction that is not allowed, and why, as a sentence.
    pub fn new(program: &[ClassicInsn]) -> Result<ClassicProgram, String> {
        let insns = decode_all(program).map_err(|refused| refused.to_string())?;
        Ok(ClassicProgram { insns: insns.into() })
    }

    /// Returns its number of instructions, the most that are executed for a frame.
    pub fn len(&self) -> usize {
        self.insns.len()
    }

    /// Returns false: no program is empty.
    pub fn is_empty(&self) -> bool {
        self.insns.is_empty()
    }

    /// Returns whether it accepts a frame.
    pub fn accepts(&self, frame: &[u8]) -> bool {
        self.run(frame).is_some_and(|bytes| bytes != 0)
    }

    /// Returns the bytes that it accepts of a frame; `None`: it reads beyond the end, or divides by zero.
    fn run(&self, frame: &[u8]) -> Option<u32> {
        let (mut a, mut x) = (0u32, 0u32);
        let mut memory = [0u32; WORDS as usize];
        let mut at = 0;
        loop {
            let insn = self.insns.get(at)?;
            at += 1;
            match *insn {
                Classic::Load { size, k, indexed } => {
                    a = load(frame, size, u64::from(k) + if indexed { u64::from(x) } else { 0 })?;
                }
                Classic::Random => a = random(),
                Classic::HeaderLength { k } => x = (load(frame, 1, k.into())? & 0xf) * 4,
                Classic::Immediate { to, k } => *register(to, &mut a, &mut x) = k,
                Classic::Length { to } => {
                    *register(to, &mut a, &mut x) = u32::try_from(frame.len()).unwrap_or(u32::MAX);
                }
                Classic::Recall { to, word } => *register(to, &mut a, &mut x) = *memory.get(word as usize)?,
                Classic::Store { from, word } => *memory.get_mut(word as usize)? = *register(from, &mut a, &mut x),
                Classic::Alu { op, operand } => a = calculate(op, a, value(operand, x))?,
                Classic::Negate => a = a.wrapping_neg(),
                Classic::Goto { to } => at = to,
                Classic::Branch { op, operand, yes, no } => {
                    at = if compares(op, a, value(operand, x))? { yes } else { no };
                }
                Classic::Accept(Some(bytes)) => return Some(bytes),
                Classic::Accept(None) => return Some(a),
                Classic::Move { to, from } => {
                    let moved = *register(from, &mut a, &mut x);
                    *register(to, &mut a, &mut x) = moved;
                }
            }
        }
    }
}

/// Returns a number of a generator that each thread has (xorshift), which begins anywhere.
fn random() -> u32 {
    thread_local!(static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0) | 1));
    STATE.with(|state| {
        let mut word = state.get();
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        state.set(word);
        (word >> 32) as u32
    })
}

fn register<'a>(name: u8, a: &'a mut u32, x: &'a mut u32) -> &'a mut u32 {
    if name == A { a } else { x }
}

fn value(operand: Operand, x: u32) -> u32 {
    match operand {
        Operand::K(k) => k,
        Operand::X => x,
    }
}

fn load(frame: &[u8], size: u8, at: u64) -> Option<u32> {
    let at = usize::try_from(at).ok()?;
    let bytes = frame.get(at..at.checked_add(size.into())?)?;
    Some(bytes.iter().fold(0, |n, byte| n << 8 | u32::from(*byte)))
}

fn calculate(op: u8, a: u32, b: u32) -> Option<u32> {
    Some(match op {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b)?,
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.checked_shl(b).unwrap_or(0),
        0x70 => a.checked_shr(b).unwrap_or(0),
        0x90 => a.checked_rem(b)?,
        0xA0 => a ^ b,
        _ => return None,
    })
}

fn compares(op: u8, a: u32, b: u32) -> Option<bool> {
    Some(match op {
        0x10 => a == b,
        0x20 => a > b,
        0x30 => a >= b,
        0x40 => a & b != 0,
        _ => return None,
    })
}
