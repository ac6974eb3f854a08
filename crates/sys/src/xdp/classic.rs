//! Filters: from classic BPF, which `pcap_compile` makes of an expression, to the kernel's present instructions.
//!
//! A classic program has an accumulator A, an index register X, 16 words of memory, and reads the frame in big endian.
//! It ends with the number of bytes to accept, 0 for none; what it reads beyond the frame's end, and a division by
//! zero, end it with 0. Jumps lead forward only. Where implementations differ (shifts by 32 and more are 0, memory
//! begins as 0, an offset does not wrap) this is libpcap's.
//!
//! ```text
//!   prologue        r6 = frame's context, r7 = A, r8 = X, r9 = length (if asked for), words at r10 - 64
//!   the program     each instruction that can be reached, up to MOST for one
//!   accept, reject  into the queue's socket; to the kernel
//!   load 1, 2, 4    functions: r1 = context, r2 = offset; the bytes in r0, negative if they are not all in the frame
//! ```
//!
//! The kernel's verifier walks the paths of what comes out. It puts branches aside while it does, 8192 at most, so that
//! an instruction may cost one branch, and loads do without one of their own.

use std::fmt;
use std::os::fd::RawFd;

mod run;
pub use run::ClassicProgram;

/// One instruction of classic BPF: `struct sock_filter` of linux/filter.h, `struct bpf_insn` of libpcap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ClassicInsn {
    /// What to do: class, size, mode, operation.
    pub code: u16,
    /// Instructions to skip if a comparison is true.
    pub jt: u8,
    /// Instructions to skip if it is not.
    pub jf: u8,
    /// Constant, offset into the frame, or index of a word of memory.
    pub k: u32,
}

/// Instructions that a classic program may have (`BPF_MAXINSNS`).
const LONGEST: usize = 4096;
/// Instructions that one classic instruction becomes, at most.
const MOST: usize = 7;
/// As much for everything around them.
const AROUND: usize = 64;
/// A jump, told by 16 bits, reaches from anywhere to anywhere.
const _: () = assert!(LONGEST * MOST + AROUND <= i16::MAX as usize);

/// Words of memory, of 4 bytes.
const WORDS: u32 = 16;
/// Offsets from here on are what a socket filter of Linux knows beside the frame (`SKF_LL_OFF` and above).
const EXTENSIONS: u32 = 0xFFE0_0000;

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
    /// By `bpf_xdp_load_bytes`, in all of its buffers (Linux 5.18).
    Buffers,
    /// In place: it is one buffer.
    Plain,
}

/// Why a program is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Length(usize),
    At(usize, ClassicInsn, &'static str),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the filter cannot be set: ")?;
        match *self {
            Refused::Length(n) => write!(f, "it has {n} instructions, not 1 to {LONGEST}")?,
            Refused::At(at, ClassicInsn { code, jt, jf, k }, why) => {
                write!(f, "instruction {at} (code {code:#x}, jt {jt}, jf {jf}, k {k:#x}) {why}")?;
            }
        }
        f.write_str("; give what pcap_compile makes for a handle of pcap_open_dead and Ethernet")
    }
}

impl std::error::Error for Refused {}

/// What an operation of two operands takes as the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    K(u32),
    X,
}

/// An instruction of classic BPF that is allowed. Sizes are in bytes, operations as in the code.
#[derive(Clone, Copy, Debug)]
enum Classic {
    /// Into A, from the frame at `k`, plus X when `indexed`.
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

/// The kernel's registers, by the part that they play here.
const CONTEXT: u8 = 6;
const A: u8 = 7;
const X: u8 = 8;
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
const STORE64_K: u8 = 0x7A;
const LOAD_MAP: u8 = 0x18;
const JA: u8 = 0x05;
const JMP32: u8 = 0x06;
const JEQ32_K: u8 = 0x16;
const JLT32_K: u8 = 0xA6;
const JGT64: u8 = 0x2D;
const JGT64_K: u8 = 0x25;
const JSLT64_K: u8 = 0xC5;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Second operand is a register: the same bit in classic codes.
const SOURCE_X: u8 = 0x08;
/// In the source of a call: to a function of the program itself; of a map: by its descriptor.
const PSEUDO: u8 = 1;

/// The kernel's functions that are called, and offsets in `struct xdp_md`.
const REDIRECT_MAP: i32 = 51;
const GET_BUFF_LEN: i32 = 188;
const LOAD_BYTES: i32 = 189;
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;
const XDP_PASS: i32 = 2;

/// Where a jump leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    /// The classic instruction of this number.
    At(usize),
    Accept,
    Reject,
    /// The function that loads so many bytes.
    Load(u8),
}

/// The instructions of the XDP program that does what `program` says, for frames that `access` can read. `sockets` is
/// the xskmap of the queues.
///
/// # Errors
/// The first instruction that is not allowed, and why.
pub(super) fn translate(program: &[ClassicInsn], sockets: RawFd, access: Access) -> Result<Vec<Insn>, Refused> {
    if !(1..=LONGEST).contains(&program.len()) {
        return Err(Refused::Length(program.len()));
    }
    let decoded: Vec<Classic> = (0..program.len())
        .map(|at| decode(program, at).map_err(|why| Refused::At(at, program[at], why)))
        .collect::<Result<_, _>>()?;
    Ok(Assembler::new(access, program.len()).assemble(&decoded, sockets))
}

/// The instruction at `at`, or what is wrong with it.
fn decode(program: &[ClassicInsn], at: usize) -> Result<Classic, &'static str> {
    let ClassicInsn { code, jt, jf, k } = program[at];
    let target = |skip: u32| match at.checked_add(1).and_then(|next| next.checked_add(skip as usize)) {
        Some(to) if to < program.len() => Ok(to),
        _ => Err("jumps out of the program"),
    };
    let word = if k < WORDS { Ok(k) } else { Err("names a word of memory that does not exist") };
    let frame = if k < EXTENSIONS { Ok(k) } else { Err("reads what only a socket filter can tell") };
    let Ok(code) = u8::try_from(code) else { return Err("is unknown") };
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

/// For each instruction whether a path leads to it: the verifier of old kernels refuses what cannot be reached.
fn reached(program: &[Classic]) -> Vec<bool> {
    let mut reached = vec![false; program.len()];
    reached[0] = true;
    for (at, insn) in program.iter().enumerate() {
        if !reached[at] {
            continue;
        }
        match *insn {
            Classic::Accept(_) => {}
            Classic::Goto { to } => reached[to] = true,
            Classic::Branch { yes, no, .. } => (reached[yes], reached[no]) = (true, true),
            _ => reached[at + 1] = true,
        }
    }
    reached
}

/// Instructions as they are put one after another.
struct Assembler {
    access: Access,
    insns: Vec<Insn>,
    /// Instructions that lead somewhere, and where.
    jumps: Vec<(usize, Label)>,
    /// Where each classic instruction begins.
    begins: Vec<usize>,
}

impl Assembler {
    fn new(access: Access, len: usize) -> Assembler {
        Assembler { access, insns: Vec::with_capacity(len * 4), jumps: Vec::new(), begins: Vec::with_capacity(len) }
    }

    fn put(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.insns.push(Insn { code, regs: src << 4 | dst, off, imm });
    }

    /// `dst = dst op imm`, or `dst = imm`.
    fn constant(&mut self, code: u8, dst: u8, imm: u32) {
        self.put(code, dst, 0, 0, imm.cast_signed());
    }

    /// `dst = dst op src`, or `dst = src`.
    fn registers(&mut self, code: u8, dst: u8, src: u8) {
        self.put(code, dst, src, 0, 0);
    }

    /// A jump, if `dst` compares so with the constant.
    fn jump(&mut self, code: u8, dst: u8, imm: u32, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.constant(code, dst, imm);
    }

    /// A comparison's or a calculation's second operand.
    fn operation(&mut self, code: u8, operand: Operand) {
        match operand {
            Operand::K(k) => self.constant(code, A, k),
            Operand::X => self.registers(code | SOURCE_X, A, X),
        }
    }

    fn assemble(mut self, program: &[Classic], sockets: RawFd) -> Vec<Insn> {
        self.prologue(program);
        let reached = reached(program);
        for (at, insn) in program.iter().enumerate() {
            self.begins.push(self.insns.len());
            if reached[at] {
                self.instruction(at, insn);
                debug_assert!(self.insns.len() - self.begins[at] <= MOST);
            }
        }
        let accept = self.insns.len();
        if self.leads_to(Label::Accept) {
            self.put(LOAD_MAP, 1, PSEUDO, 0, sockets);
            self.put(0, 0, 0, 0, 0);
            self.put(LOAD32, 2, CONTEXT, RX_QUEUE_INDEX, 0);
            self.constant(MOV64_K, 3, XDP_PASS.cast_unsigned());
            self.put(CALL, 0, 0, 0, REDIRECT_MAP);
            self.put(EXIT, 0, 0, 0, 0);
        }
        let reject = self.insns.len();
        if self.leads_to(Label::Reject) {
            self.constant(MOV64_K, 0, XDP_PASS.cast_unsigned());
            self.put(EXIT, 0, 0, 0, 0);
        }
        let mut functions = [0; 5];
        for size in [1, 2, 4] {
            functions[usize::from(size)] = self.insns.len();
            if self.leads_to(Label::Load(size)) {
                self.load(size);
            }
        }
        for &(at, label) in &self.jumps {
            let to = match label {
                Label::At(number) => self.begins[number],
                Label::Accept => accept,
                Label::Reject => reject,
                Label::Load(size) => functions[usize::from(size)],
            };
            // All are forward, and bounded by the assertion at the top.
            let skip = (to - at - 1) as i16;
            let insn = &mut self.insns[at];
            if insn.code == CALL { insn.imm = skip.into() } else { insn.off = skip }
        }
        self.insns
    }

    fn leads_to(&self, label: Label) -> bool {
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
                self.put(STORE64_K, STACK, 0, word(pair * 2), 0);
            }
        }
    }

    /// The length of the whole frame.
    fn length(&mut self) {
        match self.access {
            Access::Buffers => {
                self.put(CALL, 0, 0, 0, GET_BUFF_LEN);
                self.registers(MOV64, LENGTH, 0);
            }
            Access::Plain => {
                self.put(LOAD32, LENGTH, CONTEXT, DATA_END, 0);
                self.put(LOAD32, 2, CONTEXT, DATA, 0);
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
            Classic::Immediate { to, k } => self.constant(MOV32_K, to, k),
            Classic::Length { to } => self.registers(MOV32, to, LENGTH),
            Classic::Recall { to, word: number } => self.put(LOAD32, to, STACK, word(number), 0),
            Classic::Store { from, word: number } => self.put(STORE32, STACK, from, word(number), 0),
            Classic::Alu { op, operand } => self.calculate(op, operand),
            Classic::Negate => self.put(NEG32, A, 0, 0, 0),
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
                self.put(JLT32_K, X, 0, 1, 32);
                self.constant(MOV32_K, A, 0);
            }
            _ => {}
        }
        self.operation(ALU32 | op, operand);
    }

    /// Calls the function that loads, and rejects the frame if it is too short.
    fn call_load(&mut self, size: u8, k: u32, indexed: bool) {
        self.registers(MOV64, 1, CONTEXT);
        self.constant(MOV32_K, 2, k);
        if indexed {
            self.registers(ADD64, 2, X);
        }
        self.jumps.push((self.insns.len(), Label::Load(size)));
        self.put(CALL, 0, PSEUDO, 0, 0);
        self.jump(JSLT64_K, 0, 0, Label::Reject);
    }

    /// The function that loads.
    fn load(&mut self, size: u8) {
        let code = match size {
            1 => LOAD8,
            2 => LOAD16,
            _ => LOAD32,
        };
        match self.access {
            // The bytes are put on the stack, and joined with what makes the result negative: the function's error, and
            // an offset beyond 32 bits, of which the function would see the lower ones only.
            Access::Buffers => {
                self.registers(MOV64, CONTEXT, 2);
                self.constant(RSH64_K, CONTEXT, 32);
                self.put(NEG64, CONTEXT, 0, 0, 0);
                self.registers(MOV64, 3, STACK);
                self.constant(ADD64_K, 3, (-8_i32).cast_unsigned());
                self.constant(MOV64_K, 4, size.into());
                self.put(CALL, 0, 0, 0, LOAD_BYTES);
                self.registers(OR64, 0, CONTEXT);
                self.put(code, 1, STACK, -8, 0);
                self.swap(1, size);
                self.registers(OR64, 0, 1);
                self.put(EXIT, 0, 0, 0, 0);
            }
            // One comparison with the largest offset that the verifier allows, one with the frame's end.
            Access::Plain => {
                let swap = i16::from(size > 1);
                self.put(JGT64_K, 2, 0, 8 + swap, 0xFFF0);
                self.put(LOAD32, 3, 1, DATA, 0);
                self.put(LOAD32, 4, 1, DATA_END, 0);
                self.registers(ADD64, 3, 2);
                self.registers(MOV64, 5, 3);
                self.constant(ADD64_K, 5, size.into());
                self.put(JGT64, 5, 4, 2 + swap, 0);
                self.put(code, 0, 3, 0, 0);
                self.swap(0, size);
                self.put(EXIT, 0, 0, 0, 0);
                self.constant(MOV64_K, 0, (-1_i32).cast_unsigned());
                self.put(EXIT, 0, 0, 0, 0);
            }
        }
    }

    /// From the frame's byte order to the processor's, which is little endian wherever `xdp.o` runs.
    fn swap(&mut self, register: u8, size: u8) {
        if size > 1 {
            self.constant(BIG_ENDIAN, register, u32::from(size) * 8);
        }
    }
}

/// Offset on the stack of a word of memory.
fn word(number: u32) -> i16 {
    (number as i16 - WORDS as i16) * 4
}
