// SPDX-License-Identifier: BSD-2-Clause
//! Translation of filters from classic BPF to the kernel's instructions (eBPF).
//!
//! ```text
//!   prologue        r6 = frame's context, r7 = A, r8 = X, r9 = length (if used), words at r10 - 64
//!   the program     each reachable instruction, at most MAX_PER_INSN for one
//!   accept, reject  redirect to the queue's socket; count, and pass to the kernel
//!   load 1, 2, 4    functions: r1 = context, r2 = offset; the bytes in r0, negative if they are not all in the frame
//! ```
//!
//! The kernel's verifier follows the paths of the result. It stores branches meanwhile, 8192 at most, so that each
//! instruction may have one branch, and loads have none of their own.

use std::os::fd::RawFd;

use super::classic::{A, Classic, ClassicInsn, MAX_INSNS, Operand, Refused, WORDS, X, decode_all};

/// Most instructions for one classic instruction.
const MAX_PER_INSN: usize = 7;
/// Most instructions for prologue, ends and functions.
const OVERHEAD: usize = 96;
// A jump has 16 bits, which is enough for every distance.
const _: () = assert!(MAX_INSNS * MAX_PER_INSN + OVERHEAD <= i16::MAX as usize);

/// One instruction of the kernel: `struct bpf_insn` of linux/bpf.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Insn {
    pub(super) code: u8,
    /// Source in the upper half, destination in the lower.
    pub(super) regs: u8,
    pub(super) off: i16,
    pub(super) imm: i32,
}

/// How a filter reads a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// By `bpf_xdp_load_bytes`, from all of its buffers (Linux 5.18).
    Buffers,
    /// In place: the frame is one buffer.
    Plain,
}

/// The end of a filter that accepts a frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// Redirects it by this map of the queues' sockets, or counts and passes it if its queue has none.
    Redirect(RawFd),
    /// Calls the program in slot [`DELIVER`] of this map.
    Call(RawFd),
}

/// The slot of the end of filters in the map `filters` of `bpf/xdp.c`.
pub(super) const DELIVER: u32 = 1;

/// Counts in the map `failed` of `bpf/xdp.c`: of accepted frames that no socket got, and of refused frames.
const NOT_TAKEN: u32 = 0;
pub(super) const REFUSED: u32 = 3;
/// Instructions that count a frame and pass it.
const PASS_INSNS: i16 = 12;

/// The kernel's registers, by their use here; A and X are 7 and 8.
const CONTEXT: u8 = 6;
const LENGTH: u8 = 9;
const STACK: u8 = 10;

/// Codes of the kernel's instructions: class, source, operation.
const MOV64: u8 = 0xBF;
const MOV64_K: u8 = 0xB7;
const MOV32: u8 = 0xBC;
const MOV32_K: u8 = 0xB4;
const ADD64: u8 = 0x0F;
const ADD64_K: u8 = 0x07;
const SUB64: u8 = 0x1F;
const OR64: u8 = 0x4F;
const RSH64_K: u8 = 0x77;
const NEG64: u8 = 0x87;
const NEG32: u8 = 0x84;
const AND32_K: u8 = 0x54;
const LSH32_K: u8 = 0x64;
const ALU32: u8 = 0x04;
const BIG_ENDIAN: u8 = 0xDC;
const LOAD8: u8 = 0x71;
const LOAD16: u8 = 0x69;
const LOAD32: u8 = 0x61;
const STORE32: u8 = 0x63;
const STORE32_K: u8 = 0x62;
const STORE64_K: u8 = 0x7A;
const LOAD64: u8 = 0x79;
const STORE64: u8 = 0x7B;
const LOAD_MAP: u8 = 0x18;
const JA: u8 = 0x05;
const JMP32: u8 = 0x06;
const JEQ32_K: u8 = 0x16;
const JEQ64_K: u8 = 0x15;
const JLT32_K: u8 = 0xA6;
const JGT64: u8 = 0x2D;
const JGT64_K: u8 = 0x25;
const JSLT64_K: u8 = 0xC5;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Second operand is a register: the same bit in classic codes.
const SOURCE_X: u8 = 0x08;
/// Source of a call: a function of this program; source of a map load: a descriptor.
const PSEUDO: u8 = 1;

/// Helper functions of the kernel, and offsets in `struct xdp_md`.
const MAP_LOOKUP: i32 = 1;
const GET_RANDOM: i32 = 7;
const REDIRECT_MAP: i32 = 51;
const TAIL_CALL: i32 = 12;
const GET_BUFF_LEN: i32 = 188;
const LOAD_BYTES: i32 = 189;
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;
const XDP_PASS: i32 = 2;
const XDP_DROP: i32 = 1;
const XDP_REDIRECT: i32 = 4;

/// `r0 = XDP_PASS; exit`: a program that passes every frame.
#[cfg(feature = "bpf")]
pub(crate) static PASS: [Insn; 2] =
    [Insn { code: MOV64_K, regs: 0, off: 0, imm: XDP_PASS }, Insn { code: EXIT, regs: 0, off: 0, imm: 0 }];

/// The target of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    /// The classic instruction of this number.
    At(usize),
    Accept,
    Reject,
    /// The function that loads this number of bytes.
    Load(u8),
}

/// Translates `program` to an XDP program for frames that are read by `access`, which counts frames that it passes in
/// the second map.
///
/// # Errors
/// The first instruction that is not allowed, and why.
pub(super) fn translate(program: &[ClassicInsn], end: (End, RawFd), access: Access) -> Result<Vec<Insn>, Refused> {
    let decoded = decode_all(program)?;
    Ok(Assembler::new(access, program.len()).assemble(&decoded, end))
}

/// Returns for each instruction whether it is reachable: the verifier of old kernels refuses unreachable instructions.
fn reachable(program: &[Classic]) -> Vec<bool> {
    let mut reachable = vec![false; program.len()];
    reachable[0] = true;
    for (at, insn) in program.iter().enumerate() {
        if !reachable[at] {
            continue;
        }
        match *insn {
            Classic::Accept(_) => {}
            Classic::Goto { to } => reachable[to] = true,
            Classic::Branch { yes, no, .. } => (reachable[yes], reachable[no]) = (true, true),
            _ => reachable[at + 1] = true,
        }
    }
    reachable
}

/// The instructions emitted so far.
struct Assembler {
    access: Access,
    insns: Vec<Insn>,
    /// Jumps (instruction number) and their targets.
    jumps: Vec<(usize, Label)>,
    /// First instruction of each classic instruction.
    starts: Vec<usize>,
}

impl Assembler {
    fn new(access: Access, len: usize) -> Assembler {
        Assembler { access, insns: Vec::with_capacity(len * 4), jumps: Vec::new(), starts: Vec::with_capacity(len) }
    }

    fn emit(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.insns.push(Insn { code, regs: src << 4 | dst, off, imm });
    }

    /// `dst = dst op imm`, or `dst = imm`.
    fn constant(&mut self, code: u8, dst: u8, imm: u32) {
        self.emit(code, dst, 0, 0, imm.cast_signed());
    }

    /// `dst = dst op src`, or `dst = src`.
    fn registers(&mut self, code: u8, dst: u8, src: u8) {
        self.emit(code, dst, src, 0, 0);
    }

    /// Emits a jump that is taken if `dst` compares with the constant as `code` says.
    fn jump(&mut self, code: u8, dst: u8, imm: u32, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.constant(code, dst, imm);
    }

    /// Emits a comparison or calculation with its second operand.
    fn operation(&mut self, code: u8, operand: Operand) {
        match operand {
            Operand::K(k) => self.constant(code, A, k),
            Operand::X => self.registers(code | SOURCE_X, A, X),
        }
    }

    fn assemble(mut self, program: &[Classic], (end, counts): (End, RawFd)) -> Vec<Insn> {
        self.prologue(program);
        let reachable = reachable(program);
        for (at, insn) in program.iter().enumerate() {
            self.starts.push(self.insns.len());
            if reachable[at] {
                self.instruction(at, insn);
                debug_assert!(self.insns.len() - self.starts[at] <= MAX_PER_INSN);
            }
        }
        let accept = self.insns.len();
        if self.is_target(Label::Accept) {
            self.accept(end, counts);
        }
        let reject = self.insns.len();
        if self.is_target(Label::Reject) {
            self.pass(counts, REFUSED);
        }
        let mut functions = [0; 5];
        for size in [1, 2, 4] {
            functions[usize::from(size)] = self.insns.len();
            if self.is_target(Label::Load(size)) {
                self.load(size);
            }
        }
        for &(at, label) in &self.jumps {
            let to = match label {
                Label::At(number) => self.starts[number],
                Label::Accept => accept,
                Label::Reject => reject,
                Label::Load(size) => functions[usize::from(size)],
            };
            // All jumps are forward, and bounded by the assertion at the top.
            let skip = (to - at - 1) as i16;
            let insn = &mut self.insns[at];
            if insn.code == CALL { insn.imm = skip.into() } else { insn.off = skip }
        }
        self.insns
    }

    fn accept(&mut self, end: End, counts: RawFd) {
        match end {
            End::Redirect(sockets) => {
                self.emit(LOAD_MAP, 1, PSEUDO, 0, sockets);
                self.emit(0, 0, 0, 0, 0);
                self.emit(LOAD32, 2, CONTEXT, RX_QUEUE_INDEX, 0);
                self.constant(MOV64_K, 3, XDP_PASS.cast_unsigned());
                self.emit(CALL, 0, 0, 0, REDIRECT_MAP);
                self.emit(JEQ64_K, 0, 0, PASS_INSNS, XDP_REDIRECT);
                self.pass(counts, NOT_TAKEN);
                self.emit(EXIT, 0, 0, 0, 0);
            }
            End::Call(programs) => {
                self.registers(MOV64, 1, CONTEXT);
                self.emit(LOAD_MAP, 2, PSEUDO, 0, programs);
                self.emit(0, 0, 0, 0, 0);
                self.constant(MOV64_K, 3, DELIVER);
                self.emit(CALL, 0, 0, 0, TAIL_CALL);
                // Unless the slot is empty, this is not reached.
                self.constant(MOV64_K, 0, XDP_DROP.cast_unsigned());
                self.emit(EXIT, 0, 0, 0, 0);
            }
        }
    }

    /// Counts a frame of which no program knows, and passes it to the kernel: [`PASS_INSNS`] instructions.
    fn pass(&mut self, counts: RawFd, index: u32) {
        let first = self.insns.len();
        self.emit(STORE32_K, STACK, 0, -4, index.cast_signed());
        self.emit(LOAD_MAP, 1, PSEUDO, 0, counts);
        self.emit(0, 0, 0, 0, 0);
        self.registers(MOV64, 2, STACK);
        self.constant(ADD64_K, 2, (-4_i32).cast_unsigned());
        self.emit(CALL, 0, 0, 0, MAP_LOOKUP);
        self.emit(JEQ64_K, 0, 0, 3, 0);
        // The count is this processor's own.
        self.emit(LOAD64, 1, 0, 0, 0);
        self.constant(ADD64_K, 1, 1);
        self.emit(STORE64, 0, 1, 0, 0);
        self.constant(MOV64_K, 0, XDP_PASS.cast_unsigned());
        self.emit(EXIT, 0, 0, 0, 0);
        debug_assert_eq!(self.insns.len() - first, PASS_INSNS as usize);
    }

    fn is_target(&self, label: Label) -> bool {
        self.jumps.iter().any(|&(_, to)| to == label)
    }

    fn prologue(&mut self, program: &[Classic]) {
        self.registers(MOV64, CONTEXT, 1);
        if program.iter().any(|insn| matches!(insn, Classic::Length { .. })) {
            self.length();
        }
        self.constant(MOV64_K, A, 0);
        self.constant(MOV64_K, X, 0);
        if program.iter().any(|insn| matches!(insn, Classic::Recall { .. })) {
            for pair in 0..WORDS / 2 {
                self.emit(STORE64_K, STACK, 0, word(pair * 2), 0);
            }
        }
    }

    /// Emits the length of the whole frame.
    fn length(&mut self) {
        match self.access {
            Access::Buffers => {
                self.emit(CALL, 0, 0, 0, GET_BUFF_LEN);
                self.registers(MOV64, LENGTH, 0);
            }
            Access::Plain => {
                self.emit(LOAD32, LENGTH, CONTEXT, DATA_END, 0);
                self.emit(LOAD32, 2, CONTEXT, DATA, 0);
                self.registers(SUB64, LENGTH, 2);
            }
        }
    }

    fn instruction(&mut self, at: usize, insn: &Classic) {
        match *insn {
            Classic::Load { size, k, indexed } => {
                self.call_load(size, k, indexed);
                self.registers(MOV64, A, 0);
            }
            Classic::HeaderLength { k } => {
                self.call_load(1, k, false);
                self.registers(MOV64, X, 0);
                self.constant(AND32_K, X, 0xF);
                self.constant(LSH32_K, X, 2);
            }
            Classic::Random => {
                self.emit(CALL, 0, 0, 0, GET_RANDOM);
                self.registers(MOV32, A, 0);
            }
            Classic::Immediate { to, k } => self.constant(MOV32_K, to, k),
            Classic::Length { to } => self.registers(MOV32, to, LENGTH),
            Classic::Recall { to, word: number } => self.emit(LOAD32, to, STACK, word(number), 0),
            Classic::Store { from, word: number } => self.emit(STORE32, STACK, from, word(number), 0),
            Classic::Alu { op, operand } => self.calculate(op, operand),
            Classic::Negate => self.emit(NEG32, A, 0, 0, 0),
            Classic::Goto { to } => self.goto(at, to),
            Classic::Branch { op, operand, yes, no } => {
                if yes != no {
                    self.jumps.push((self.insns.len(), Label::At(yes)));
                    self.operation(JMP32 | op, operand);
                }
                self.goto(at, no);
            }
            Classic::Accept(Some(0)) => self.jump(JA, 0, 0, Label::Reject),
            Classic::Accept(Some(_)) => self.jump(JA, 0, 0, Label::Accept),
            Classic::Accept(None) => {
                self.jump(JEQ32_K, A, 0, Label::Reject);
                self.jump(JA, 0, 0, Label::Accept);
            }
            Classic::Move { to, from } => self.registers(MOV32, to, from),
        }
    }

    fn goto(&mut self, at: usize, to: usize) {
        if to != at + 1 {
            self.jump(JA, 0, 0, Label::At(to));
        }
    }

    fn calculate(&mut self, op: u8, operand: Operand) {
        match (op, operand) {
            // Divide, remainder.
            (0x30 | 0x90, Operand::X) => self.jump(JEQ32_K, X, 0, Label::Reject),
            // Shifts: the kernel's take X modulo 32.
            (0x60 | 0x70, Operand::X) => {
                self.emit(JLT32_K, X, 0, 1, 32);
                self.constant(MOV32_K, A, 0);
            }
            _ => {}
        }
        self.operation(ALU32 | op, operand);
    }

    /// Emits a call of the load function, and a jump to reject if the frame is too short.
    fn call_load(&mut self, size: u8, k: u32, indexed: bool) {
        self.registers(MOV64, 1, CONTEXT);
        self.constant(MOV32_K, 2, k);
        if indexed {
            self.registers(ADD64, 2, X);
        }
        self.jumps.push((self.insns.len(), Label::Load(size)));
        self.emit(CALL, 0, PSEUDO, 0, 0);
        self.jump(JSLT64_K, 0, 0, Label::Reject);
    }

    /// Emits the load function for `size` bytes.
    fn load(&mut self, size: u8) {
        let code = match size {
            1 => LOAD8,
            2 => LOAD16,
            _ => LOAD32,
        };
        match self.access {
            // The bytes are loaded to the stack, and combined with two values that make the result negative: the
            // helper's error, and the upper half of an offset beyond 32 bits, of which the helper reads the lower half
            // only.
            Access::Buffers => {
                self.registers(MOV64, CONTEXT, 2);
                self.constant(RSH64_K, CONTEXT, 32);
                self.emit(NEG64, CONTEXT, 0, 0, 0);
                self.registers(MOV64, 3, STACK);
                self.constant(ADD64_K, 3, (-8_i32).cast_unsigned());
                self.constant(MOV64_K, 4, size.into());
                self.emit(CALL, 0, 0, 0, LOAD_BYTES);
                self.registers(OR64, 0, CONTEXT);
                self.emit(code, 1, STACK, -8, 0);
                self.swap(1, size);
                self.registers(OR64, 0, 1);
                self.emit(EXIT, 0, 0, 0, 0);
            }
            // One comparison with the largest offset that the verifier allows, one with the frame's end.
            Access::Plain => {
                let swap = i16::from(size > 1);
                self.emit(JGT64_K, 2, 0, 8 + swap, 0xFFF0);
                self.emit(LOAD32, 3, 1, DATA, 0);
                self.emit(LOAD32, 4, 1, DATA_END, 0);
                self.registers(ADD64, 3, 2);
                self.registers(MOV64, 5, 3);
                self.constant(ADD64_K, 5, size.into());
                self.emit(JGT64, 5, 4, 2 + swap, 0);
                self.emit(code, 0, 3, 0, 0);
                self.swap(0, size);
                self.emit(EXIT, 0, 0, 0, 0);
                self.constant(MOV64_K, 0, (-1_i32).cast_unsigned());
                self.emit(EXIT, 0, 0, 0, 0);
            }
        }
    }

    /// Emits a conversion from the frame's byte order to the processor's, which is little endian wherever `xdp.o` runs.
    fn swap(&mut self, register: u8, size: u8) {
        if size > 1 {
            self.constant(BIG_ENDIAN, register, u32::from(size) * 8);
        }
    }
}

/// Returns the stack offset of a word of memory.
fn word(number: u32) -> i16 {
    (number as i16 - WORDS as i16) * 4
}
