// SPDX-License-Identifier: BSD-2-Clause
//! An interpreter of the instructions that the translation of filters emits, which checks what the kernel's verifier
//! checks: each access is to the frame, the stack or the context.

use std::collections::HashMap;

/// Addresses of the context, the frame and the first function's stack: far from each other.
const CONTEXT: u64 = 1 << 40;
const FRAME: u64 = 2 << 40;
const STACK: u64 = 3 << 40;
/// Bytes of a function's stack.
const STACK_BYTES: u64 = 512;
/// A value that no program may depend on.
const CLOBBERED: u64 = 0xdead_beef_dead_beef;
/// `XDP_REDIRECT`, `XDP_PASS`.
const REDIRECT: u64 = 4;
const PASS: u64 = 2;
/// Most executed instructions: none jumps back.
const LIMIT: usize = 200_000;

/// Code, registers (source in the upper half), offset, constant.
pub type Insn = (u8, u8, i16, i32);

struct Machine<'a> {
    frame: &'a [u8],
    registers: [u64; 11],
    stack: HashMap<u64, u8>,
    /// Where each caller continues, and its registers 6 to 10.
    calls: Vec<(usize, [u64; 5])>,
}

/// Returns whether the program redirects the frame.
///
/// # Panics
/// The program does what the kernel's verifier would refuse.
pub fn redirects(program: &[Insn], frame: &[u8]) -> bool {
    let mut machine = Machine { frame, registers: [CLOBBERED; 11], stack: HashMap::new(), calls: Vec::new() };
    machine.registers[1] = CONTEXT;
    machine.registers[10] = STACK + STACK_BYTES;
    let mut at = 0;
    for _ in 0..LIMIT {
        match machine.step(program, at) {
            Some(next) => at = next,
            None => {
                assert!([REDIRECT, PASS].contains(&machine.registers[0]), "the program returns something else");
                return machine.registers[0] == REDIRECT;
            }
        }
    }
    panic!("the program does not end");
}

impl Machine<'_> {
    /// Executes an instruction; returns the next one, `None` at the program's end.
    fn step(&mut self, program: &[Insn], at: usize) -> Option<usize> {
        let (code, registers, off, imm) = program[at];
        let (dst, src) = (usize::from(registers & 15), usize::from(registers >> 4));
        let next = at + 1;
        let second = if code & 8 == 0 { imm as i64 as u64 } else { self.registers[src] };
        match (code & 7, code & 0xF0) {
            (0, _) => {
                assert_eq!(code, 0x18, "an unknown load");
                self.registers[dst] = CLOBBERED;
                return Some(at + 2);
            }
            (1, _) => self.registers[dst] = self.load(self.registers[src].wrapping_add_signed(off.into()), code),
            (2 | 3, _) => {
                let value = if code & 7 == 2 { imm as i64 as u64 } else { self.registers[src] };
                self.store(self.registers[dst].wrapping_add_signed(off.into()), code, value);
            }
            (4, 0xD0) => {
                let value = self.registers[dst];
                self.registers[dst] = match imm {
                    16 => (value as u16).swap_bytes().into(),
                    32 => (value as u32).swap_bytes().into(),
                    _ => panic!("an unknown conversion"),
                };
            }
            (4, op) => self.registers[dst] = calculate32(op, self.registers[dst] as u32, second as u32).into(),
            (7, op) => self.registers[dst] = calculate64(op, self.registers[dst], second),
            (5, 0x80) => return Some(self.call(at, src, imm)),
            (5, 0x90) => return self.exit(),
            (5, op) => return Some(jump(next, off, compare(op, self.registers[dst], second))),
            (_, op) => {
                let (a, b) = (self.registers[dst] as u32, second as u32);
                return Some(jump(next, off, compare(op, a.into(), b.into())));
            }
        }
        Some(next)
    }

    fn call(&mut self, at: usize, kind: usize, imm: i32) -> usize {
        let arguments: [u64; 5] = self.registers[1..6].try_into().expect("five registers");
        if kind == 1 {
            self.calls.push((at + 1, self.registers[6..11].try_into().expect("five registers")));
            assert!(self.calls.len() < 8, "too many calls");
            self.registers[0] = CLOBBERED;
            self.registers[6..10].fill(CLOBBERED);
            self.registers[10] += STACK_BYTES;
            return (at + 1).wrapping_add_signed(imm as isize);
        }
        self.registers[1..6].fill(CLOBBERED);
        self.registers[0] = match imm {
            // A map without such an element.
            1 => 0,
            51 => REDIRECT,
            188 => self.frame.len() as u64,
            189 => self.load_bytes(arguments),
            _ => panic!("an unknown helper {imm}"),
        };
        at + 1
    }

    /// `bpf_xdp_load_bytes`.
    fn load_bytes(&mut self, [context, offset, to, bytes, _]: [u64; 5]) -> u64 {
        assert_eq!(context, CONTEXT);
        let (offset, bytes) = (u64::from(offset as u32), u64::from(bytes as u32));
        let part = usize::try_from(offset).ok().and_then(|at| self.frame.get(at..at + bytes as usize));
        let Some(part) = part.filter(|_| offset <= 0xFFFF) else { return (-22_i64).cast_unsigned() };
        for (at, byte) in (to..).zip(part.to_vec()) {
            self.check_stack(at);
            self.stack.insert(at, byte);
        }
        0
    }

    fn exit(&mut self) -> Option<usize> {
        let (next, saved) = self.calls.pop()?;
        self.registers[1..6].fill(CLOBBERED);
        self.registers[6..11].copy_from_slice(&saved);
        Some(next)
    }

    fn load(&self, at: u64, code: u8) -> u64 {
        if (CONTEXT..CONTEXT + 64).contains(&at) {
            return match at - CONTEXT {
                0 => FRAME,
                4 => FRAME + self.frame.len() as u64,
                16 => 0,
                field => panic!("field {field} of the context"),
            };
        }
        let byte = |at: u64| {
            if at >= STACK {
                // Bytes that no program stored: a failed helper's.
                return self.stack.get(&at).copied().unwrap_or(0x5A);
            }
            let inside = at.checked_sub(FRAME).and_then(|at| self.frame.get(at as usize));
            *inside.expect("a load inside of the frame")
        };
        (0..size(code)).rev().fold(0, |value, i| value << 8 | u64::from(byte(at + i)))
    }

    fn store(&mut self, at: u64, code: u8, value: u64) {
        for i in 0..size(code) {
            self.check_stack(at + i);
            self.stack.insert(at + i, (value >> (8 * i)) as u8);
        }
    }

    fn check_stack(&self, at: u64) {
        let end = self.registers[10];
        assert!((end - STACK_BYTES..end).contains(&at), "a store outside of the function's stack");
    }
}

fn size(code: u8) -> u64 {
    [4, 2, 1, 8][usize::from(code >> 3 & 3)]
}

fn jump(next: usize, off: i16, taken: bool) -> usize {
    assert!(off >= 0, "a jump back");
    if taken { next + off as usize } else { next }
}

fn compare(op: u8, a: u64, b: u64) -> bool {
    match op {
        0x00 => true,
        0x10 => a == b,
        0x20 => a > b,
        0x30 => a >= b,
        0x40 => a & b != 0,
        0xA0 => a < b,
        0xC0 => a.cast_signed() < b.cast_signed(),
        _ => panic!("an unknown comparison {op:#x}"),
    }
}

fn calculate32(op: u8, a: u32, b: u32) -> u32 {
    match op {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b).unwrap_or(0),
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.wrapping_shl(b),
        0x70 => a.wrapping_shr(b),
        0x80 => a.wrapping_neg(),
        0x90 => a.checked_rem(b).unwrap_or(a),
        0xA0 => a ^ b,
        0xB0 => b,
        _ => panic!("an unknown operation {op:#x}"),
    }
}

fn calculate64(op: u8, a: u64, b: u64) -> u64 {
    match op {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x40 => a | b,
        0x70 => a.wrapping_shr(b as u32),
        0x80 => a.wrapping_neg(),
        0xB0 => b,
        _ => panic!("an unknown operation {op:#x} of 64 bits"),
    }
}
