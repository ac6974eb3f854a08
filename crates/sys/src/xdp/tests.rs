// SPDX-License-Identifier: BSD-2-Clause
//! Filters in the kernel, compared with a plain interpreter of classic BPF, translated for frames of several buffers
//! and of one.

use std::cell::Cell;
use std::time::{Duration, Instant};
use std::{io, thread};

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::translate::{Access, End, translate};
use super::*;

const fn insn(code: u16, jt: u8, jf: u8, k: u32) -> ClassicInsn {
    ClassicInsn { code, jt, jf, k }
}

/// Codes, with their names in assemblers of classic BPF.
const LD_W: u16 = 0x20;
const LD_H: u16 = 0x28;
const LD_B: u16 = 0x30;
const LD_IND_W: u16 = 0x40;
const LD_IND_H: u16 = 0x48;
const LD_IND_B: u16 = 0x50;
const LD_IMM: u16 = 0x00;
const LDX_IMM: u16 = 0x01;
const LD_LEN: u16 = 0x80;
const LDX_LEN: u16 = 0x81;
const LD_MEM: u16 = 0x60;
const LDX_MEM: u16 = 0x61;
const LDX_MSH: u16 = 0xB1;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const ALU_K: [u16; 10] = [0x04, 0x14, 0x24, 0x34, 0x44, 0x54, 0x64, 0x74, 0x94, 0xA4];
const ALU_X: [u16; 10] = [0x0C, 0x1C, 0x2C, 0x3C, 0x4C, 0x5C, 0x6C, 0x7C, 0x9C, 0xAC];
const DIV_K: u16 = 0x34;
const LSH_K: u16 = 0x64;
const RSH_K: u16 = 0x74;
const MOD_K: u16 = 0x94;
const NEG: u16 = 0x84;
const JA: u16 = 0x05;
const JEQ: u16 = 0x15;
const JUMPS: [u16; 8] = [0x15, 0x25, 0x35, 0x45, 0x1D, 0x2D, 0x3D, 0x4D];
const RET_K: u16 = 0x06;
const RET_A: u16 = 0x16;
const TAX: u16 = 0x07;
const TXA: u16 = 0x87;

/// Returns the bytes that the program accepts, as libpcap's `bpf_filter` defines it.
fn interpret(program: &[ClassicInsn], frame: &[u8]) -> u32 {
    let load = |at: u64, size: usize| -> Option<u32> {
        let at = usize::try_from(at).ok()?;
        let bytes = frame.get(at..at.checked_add(size)?)?;
        Some(bytes.iter().fold(0, |value, &byte| value << 8 | u32::from(byte)))
    };
    let (mut a, mut x, mut memory, mut pc) = (0_u32, 0_u32, [0_u32; 16], 0_usize);
    loop {
        let ClassicInsn { code, jt, jf, k } = program[pc];
        pc += 1;
        let second = if code & 8 == 0 { k } else { x };
        let length = frame.len() as u32;
        match code {
            LD_W | LD_H | LD_B | LD_IND_W | LD_IND_H | LD_IND_B => {
                let size = [4, 2, 1][usize::from(code >> 3 & 3)];
                let indexed = if code & 0xE0 == 0x40 { u64::from(x) } else { 0 };
                let Some(value) = load(u64::from(k) + indexed, size) else { return 0 };
                a = value;
            }
            LDX_MSH => {
                let Some(value) = load(k.into(), 1) else { return 0 };
                x = (value & 15) * 4;
            }
            LD_IMM => a = k,
            LDX_IMM => x = k,
            LD_LEN => a = length,
            LDX_LEN => x = length,
            LD_MEM => a = memory[k as usize],
            LDX_MEM => x = memory[k as usize],
            ST => memory[k as usize] = a,
            STX => memory[k as usize] = x,
            NEG => a = a.wrapping_neg(),
            TAX => x = a,
            TXA => a = x,
            RET_K => return k,
            RET_A => return a,
            JA => pc += k as usize,
            _ if code & 7 == 4 => {
                a = match code >> 4 {
                    0 => a.wrapping_add(second),
                    1 => a.wrapping_sub(second),
                    2 => a.wrapping_mul(second),
                    3 if second == 0 => return 0,
                    3 => a / second,
                    4 => a | second,
                    5 => a & second,
                    6 => a.checked_shl(second).unwrap_or(0),
                    7 => a.checked_shr(second).unwrap_or(0),
                    9 if second == 0 => return 0,
                    9 => a % second,
                    _ => a ^ second,
                }
            }
            _ => {
                let holds = match code >> 4 {
                    1 => a == second,
                    2 => a > second,
                    3 => a >= second,
                    _ => a & second != 0,
                };
                pc += usize::from(if holds { jt } else { jf });
            }
        }
    }
}

/// Runs `test` with programs of both kinds, whose queue 0 has a socket.
fn with_programs(test: impl Fn(&mut Xdp) + Send + Copy) {
    thread::scope(|s| {
        for frags in [true, false] {
            s.spawn(move || {
                // SAFETY: K7: only this thread, which exits afterwards, changes its namespace.
                if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                    return eprintln!("skipped, no network namespace: {}", io::Error::last_os_error());
                }
                let mut xdp = match Xdp::attach_as(1, 1, Mode::Generic, frags) {
                    Ok(xdp) => xdp,
                    Err(error) => {
                        // EINVAL is the answer of Linux before 5.18 to frames of several buffers.
                        let allowed = [libc::EPERM, libc::ENOSYS, if frags { libc::EINVAL } else { libc::EPERM }];
                        assert!(error.raw_os_error().is_some_and(|e| allowed.contains(&e)), "{error}");
                        return eprintln!("skipped, no such BPF: {error}");
                    }
                };
                let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap();
                xdp.insert(0, &socket).unwrap();
                test(&mut xdp);
            });
        }
    });
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![3 => select(&[0, 1, 4, 5, 0x45, 0x60, 0x80, 0xFF][..]), 1 => any::<u8>()];
    let length = prop_oneof![8 => Just(0), 1 => 3000..3010_usize];
    (prop::collection::vec(byte, 14..100), length).prop_map(|(bytes, length)| {
        let length = length.max(bytes.len());
        bytes.into_iter().cycle().take(length).collect()
    })
}

/// A constant: an edge case, or any number.
fn constant() -> impl Strategy<Value = u32> {
    let edges = [0, 1, 2, 3, 4, 5, 15, 20, 31, 32, 33, 60, 64, 0x45, 0xFF, 0x800, 0x7FFF_FFFF, 0x8000_0000, u32::MAX];
    prop_oneof![6 => select(edges.to_vec()), 1 => any::<u32>()]
}

/// Offset of a load: mostly in the frame.
fn offset() -> impl Strategy<Value = u32> {
    let far = vec![99, 1000, 2999, 3006, 0xFFEF, 0xFFF0, 0xFFFF, 0x1_0000, 0x7FFF_FFFF, 0xFFDF_FFFF];
    prop_oneof![30 => 0..50_u32, 1 => select(far)]
}

/// An instruction at an unknown position: jumps are shortened later to stay in the program.
fn anywhere() -> impl Strategy<Value = ClassicInsn> {
    let simple = |code: u16| constant().prop_map(move |k| insn(code, 0, 0, k));
    let jump = (select(&JUMPS[..]), 0..9_u8, 0..9_u8, constant());
    prop_oneof![
        8 => (select(&[LD_W, LD_H, LD_B, LD_B, LDX_MSH][..]), offset()).prop_map(|(code, k)| insn(code, 0, 0, k)),
        4 => (select(&[LD_IND_W, LD_IND_H, LD_IND_B][..]), offset()).prop_map(|(code, k)| insn(code, 0, 0, k)),
        3 => (select(&[ST, STX, LD_MEM, LDX_MEM][..]), 0..16_u32).prop_map(|(code, k)| insn(code, 0, 0, k)),
        2 => simple(LD_IMM),
        2 => (0..64_u32).prop_map(|k| insn(LDX_IMM, 0, 0, k)),
        1 => select(&[LD_LEN, LDX_LEN, NEG, TAX, TXA][..]).prop_map(|code| insn(code, 0, 0, 0)),
        4 => (select(&ALU_K[..]), constant()).prop_map(|(code, k)| match code {
            LSH_K | RSH_K => insn(code, 0, 0, k % 32),
            DIV_K | MOD_K => insn(code, 0, 0, k.max(1)),
            _ => insn(code, 0, 0, k),
        }),
        4 => select(&ALU_X[..]).prop_map(|code| insn(code, 0, 0, 0)),
        8 => jump.prop_map(|(code, jt, jf, k)| insn(code, jt, jf, k)),
        1 => (0..5_u32).prop_map(|k| insn(JA, 0, 0, k)),
        1 => Just(insn(RET_A, 0, 0, 0)),
        1 => (0..2_u32).prop_map(|k| insn(RET_K, 0, 0, k)),
    ]
}

fn programs(longest: usize) -> impl Strategy<Value = Vec<ClassicInsn>> {
    let end = prop_oneof![2 => Just(insn(RET_A, 0, 0, 0)), 1 => (0..2_u32).prop_map(|k| insn(RET_K, 0, 0, k))];
    (prop::collection::vec(anywhere(), 0..longest), end).prop_map(|(mut program, end)| {
        program.push(end);
        let last = program.len() - 1;
        for (at, insn) in program.iter_mut().enumerate() {
            let most = last.saturating_sub(at + 1);
            match insn.code {
                JA => insn.k = insn.k.min(most as u32),
                code if code & 7 == 5 => {
                    insn.jt = usize::from(insn.jt).min(most) as u8;
                    insn.jf = usize::from(insn.jf).min(most) as u8;
                }
                _ => {}
            }
        }
        program
    })
}

/// Compares kernel and interpreter on random programs (256 times `times`, or `PROPTEST_CASES`), each with some frames.
fn kernel_agrees(xdp: &mut Xdp, programs: impl Strategy<Value = Vec<ClassicInsn>>, times: u32) {
    let config = Config { failure_persistence: None, ..Config::default() };
    let cases = config.cases * times;
    let (accepted, rejected) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(Config { cases, ..config });
    let xdp = std::cell::RefCell::new(xdp);
    runner
        .run(&(programs, prop::collection::vec(frames(), 1..12)), |(program, frames)| {
            let mut xdp = xdp.borrow_mut();
            xdp.set_filter(Some(&program)).map_err(|e| TestCaseError::fail(e.to_string()))?;
            for frame in &frames {
                let expected = interpret(&program, frame) != 0;
                let count = if expected { &accepted } else { &rejected };
                count.set(count.get() + 1);
                prop_assert_eq!(xdp.would_redirect(frame).unwrap(), expected, "{:x?}", frame);
            }
            Ok(())
        })
        .unwrap();
    // Neither result is rare.
    assert!(accepted.get() > cases && rejected.get() > cases, "{accepted:?} {rejected:?}");
}

#[test]
fn short_programs_decide_as_interpreted() {
    with_programs(|xdp| kernel_agrees(xdp, programs(12), 2));
}

#[test]
fn programs_decide_as_interpreted() {
    with_programs(|xdp| kernel_agrees(xdp, programs(80), 1));
}

/// Each operation on each pair of edge cases; the result is compared in the kernel.
#[test]
fn arithmetic_in_the_kernel_matches_the_interpreter() {
    let numbers = [0, 1, 2, 31, 32, 33, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, u32::MAX];
    with_programs(|xdp| {
        for a in numbers {
            // A is loaded from the frame, so that its value is unknown to the verifier.
            let mut frame = [0; 14];
            frame[..4].copy_from_slice(&a.to_be_bytes());
            for b in numbers {
                frame[4..8].copy_from_slice(&b.to_be_bytes());
                let mut programs = vec![vec![insn(NEG, 0, 0, 0)]];
                for (with_k, with_x) in ALU_K.into_iter().zip(ALU_X) {
                    programs.push(vec![
                        insn(LD_W, 0, 0, 4),
                        insn(TAX, 0, 0, 0),
                        insn(LD_W, 0, 0, 0),
                        insn(with_x, 0, 0, 0),
                    ]);
                    let allowed = match with_k {
                        LSH_K | RSH_K => b < 32,
                        DIV_K | MOD_K => b != 0,
                        _ => true,
                    };
                    if allowed {
                        programs.push(vec![insn(LD_W, 0, 0, 0), insn(with_k, 0, 0, b)]);
                    }
                }
                for mut program in programs {
                    program.push(insn(RET_A, 0, 0, 0));
                    let result = interpret(&program, &frame);
                    // Division by zero ends the program before the comparison.
                    let rejects = b == 0 && program.iter().any(|i| [0x3C, 0x9C].contains(&i.code));
                    program.pop();
                    program.extend([insn(JEQ, 0, 1, result), insn(RET_K, 0, 0, 1), insn(RET_K, 0, 0, 0)]);
                    xdp.set_filter(Some(&program)).unwrap();
                    assert_eq!(xdp.would_redirect(&frame).unwrap(), !rejects, "{a:#x} {b:#x} {program:x?}");
                }
            }
        }
    });
}

/// Loads at the end of frames: no byte beyond is ever read.
#[test]
fn loads_beyond_the_end_of_a_frame_reject_it() {
    with_programs(|xdp| {
        for length in [14_u32, 15, 60, 1514, 3000] {
            let frame: Vec<u8> = (0..length).map(|i| (i * 7 + 1) as u8 | 1).collect();
            for size in [1, 2, 4] {
                let (direct, indexed) = match size {
                    1 => (LD_B, LD_IND_B),
                    2 => (LD_H, LD_IND_H),
                    _ => (LD_W, LD_IND_W),
                };
                let first_beyond = length - size + 1;
                for (at, inside) in [
                    (0, true),
                    (first_beyond - 1, true),
                    (first_beyond, false),
                    (length, false),
                    (length + 1, false),
                    (0xFFFF, false),
                    (0x1_0000, false),
                    (0xFFDF_FFFF, false),
                ] {
                    let ends = [insn(RET_K, 0, 0, 1)];
                    let direct = [insn(direct, 0, 0, at), ends[0]];
                    let by_x = [insn(LDX_IMM, 0, 0, at), insn(indexed, 0, 0, 0), ends[0]];
                    let by_both = [insn(LDX_IMM, 0, 0, at / 2), insn(indexed, 0, 0, at - at / 2), ends[0]];
                    for program in [&direct[..], &by_x, &by_both] {
                        xdp.set_filter(Some(program)).unwrap();
                        assert_eq!(xdp.would_redirect(&frame).unwrap(), inside, "{at} of {length}: {program:x?}");
                        assert_eq!(interpret(program, &frame) != 0, inside);
                    }
                }
                // Offsets do not wrap: 2^32 is not 0.
                let wraps = [insn(LDX_IMM, 0, 0, u32::MAX), insn(indexed, 0, 0, 1), insn(RET_K, 0, 0, 1)];
                xdp.set_filter(Some(&wraps)).unwrap();
                assert!(!xdp.would_redirect(&frame).unwrap());
            }
        }
    });
}

/// Data and length of frames of several buffers are complete.
#[test]
fn frames_of_several_buffers_are_read_completely() {
    with_programs(|xdp| {
        if !xdp.frags() {
            return;
        }
        let mut frame = vec![0; 9014];
        frame[9010..].copy_from_slice(&[1, 2, 3, 4]);
        for (first, expected) in [(insn(LD_W, 0, 0, 9010), 0x0102_0304), (insn(LD_LEN, 0, 0, 0), 9014)] {
            let program = [first, insn(JEQ, 0, 1, expected), insn(RET_K, 0, 0, 1), insn(RET_K, 0, 0, 0)];
            xdp.set_filter(Some(&program)).unwrap();
            assert!(xdp.would_redirect(&frame).unwrap());
            assert!(!xdp.would_redirect(&frame[..9013]).unwrap());
        }
        // A word that crosses a buffer boundary, wherever the boundary is.
        for at in (0..9010).step_by(2).filter(|at| (3000..4200).contains(at)) {
            let mut frame = vec![0; 9014];
            frame[at..at + 4].copy_from_slice(&[1, 2, 3, 4]);
            let program =
                [insn(LD_W, 0, 0, at as u32), insn(JEQ, 0, 1, 0x0102_0304), insn(RET_K, 0, 0, 1), insn(RET_K, 0, 0, 0)];
            xdp.set_filter(Some(&program)).unwrap();
            assert!(xdp.would_redirect(&frame).unwrap(), "{at}");
        }
    });
}

/// The longest programs of each kind are not too complex for the verifier.
#[test]
fn the_longest_programs_are_accepted() {
    // Neither A nor X is known to the verifier.
    let begin = [insn(LDX_MSH, 0, 0, 0), insn(LD_B, 0, 0, 1)];
    let loads = [insn(LD_W, 0, 0, 0), insn(LDX_MSH, 0, 0, 1), insn(LD_IND_B, 0, 0, 0)];
    let jumps = [insn(TAX, 0, 0, 0), insn(JEQ, 1, 0, 7)];
    let (shift, remainder, length) = (insn(0x7C, 0, 0, 0), insn(0x9C, 0, 0, 0), insn(LD_LEN, 0, 0, 0));
    let far = insn(JA, 0, 0, 4093);
    with_programs(move |xdp| {
        for kind in [&loads[..], &jumps, &[shift], &[remainder], &[length]] {
            let mut program = begin.to_vec();
            program.extend(kind.iter().cycle().take(4093));
            program.push(insn(RET_K, 0, 0, 1));
            assert_eq!(program.len(), 4096);
            match xdp.set_filter(Some(&program)) {
                // A load in place costs two branches.
                Err(error) if !xdp.frags() && kind == loads => assert_eq!(error.raw_os_error(), Some(libc::E2BIG)),
                other => {
                    other.unwrap();
                    assert!(xdp.would_redirect(&[0x11; 60]).unwrap(), "{kind:x?}");
                }
            }
        }
        let mut program = vec![far];
        program.extend([insn(LDX_MSH, 0, 0, 0); 4093]);
        program.extend([insn(RET_K, 0, 0, 0), insn(RET_K, 0, 0, 0)]);
        xdp.set_filter(Some(&program)).unwrap();
        assert!(!xdp.would_redirect(&[0; 60]).unwrap());
        program[0] = insn(JEQ, 0, 1, 1);
        program[1] = insn(RET_K, 0, 0, 0);
        xdp.set_filter(Some(&program)).unwrap();
    });
}

#[test]
fn a_random_number_takes_a_share_of_the_frames() {
    with_programs(|xdp| {
        // One of four.
        let program = [
            insn(LD_W, 0, 0, 0xFFFF_F038),
            insn(MOD_K, 0, 0, 4),
            insn(JEQ, 0, 1, 0),
            insn(RET_K, 0, 0, 1),
            insn(RET_K, 0, 0, 0),
        ];
        xdp.set_filter(Some(&program)).unwrap();
        let taken = (0..4000).filter(|_| xdp.would_redirect(&[0; 60]).unwrap()).count();
        assert!((750..1250).contains(&taken), "{taken} of 4000");
    });
    let own = ClassicProgram::new(&[insn(LD_W, 0, 0, 0xFFFF_F038), insn(RET_A, 0, 0, 0)]).unwrap();
    assert!((0..100).any(|_| own.accepts(&[])));
}

#[test]
fn a_filter_is_replaced_and_removed() {
    with_programs(|xdp| {
        let (all, none) = ([insn(RET_K, 0, 0, 1)], [insn(RET_K, 0, 0, 0)]);
        let frame = [0; 60];
        xdp.set_filter(None).unwrap();
        xdp.set_filter(Some(&none)).unwrap();
        assert!(!xdp.would_redirect(&frame).unwrap());
        assert!(xdp.set_filter(Some(&[])).is_err());
        assert!(!xdp.would_redirect(&frame).unwrap(), "the filter in use stays");
        xdp.set_filter(Some(&all)).unwrap();
        assert!(xdp.would_redirect(&frame).unwrap());
        xdp.remove(0).unwrap();
        assert!(!xdp.would_redirect(&frame).unwrap(), "accepted, but the queue has no socket");
        xdp.set_filter(None).unwrap();
        xdp.set_filter(None).unwrap();
    });
}

#[test]
fn invalid_classic_programs_are_refused() {
    let (accept, reject) = (insn(RET_K, 0, 0, 1), insn(RET_K, 0, 0, 0));
    let message = |program: &[ClassicInsn]| {
        [Access::Buffers, Access::Plain]
            .map(|access| translate(program, (End::Redirect(3), 4), access).unwrap_err().to_string())[0]
            .clone()
    };
    let wrong = |bad: ClassicInsn, why: &str| {
        let text = message(&[insn(LD_IMM, 0, 0, 0), bad, accept, reject]);
        let ClassicInsn { code, jt, jf, k } = bad;
        let expected = format!("instruction 1 (code {code:#x}, jt {jt}, jf {jf}, k {k:#x}) {why}");
        assert!(text.contains(&expected), "{text}, not {expected}");
    };
    for code in [0x08, 0x10, 0x09, 0xA0, 0xB0, 0xA1, 0x8C, 0xB4, 0x55, 0x0E, 0x17, 0x62, 0x0D, 0x120, 0xFFFF] {
        wrong(insn(code, 0, 0, 1), "is unknown");
    }
    for code in [JEQ, 0x4D] {
        wrong(insn(code, 2, 0, 0), "jumps out of the program");
        wrong(insn(code, 0, 255, 0), "jumps out of the program");
    }
    for k in [2, 3, u32::MAX, u32::MAX - 1, 1 << 31] {
        wrong(insn(JA, 0, 0, k), "jumps out of the program");
    }
    for code in [ST, STX, LD_MEM, LDX_MEM] {
        wrong(insn(code, 0, 0, 16), "names a word of memory that does not exist");
    }
    for code in [DIV_K, MOD_K] {
        wrong(insn(code, 0, 0, 0), "divides by 0");
    }
    for code in [LSH_K, RSH_K] {
        wrong(insn(code, 0, 0, 32), "shifts by more than 31 bits");
    }
    for code in [LD_W, LD_IND_B, LDX_MSH] {
        // Output of libpcap for `vlan` on a live handle of Linux.
        wrong(insn(code, 0, 0, 0xFFFF_F030), "reads data that only a socket filter has");
    }
    for last in [insn(LD_IMM, 0, 0, 0), insn(TAX, 0, 0, 0)] {
        assert!(message(&[accept, last]).contains("instruction 1") && message(&[last]).contains("does not return"));
    }
    assert!(message(&[insn(JEQ, 0, 0, 0)]).contains("instruction 0"));
    assert!(message(&[]).contains("has 0 instructions, not 1 to 4096"));
    assert!(message(&vec![accept; 4097]).contains("has 4097 instructions, not 1 to 4096"));
    assert!(translate(&vec![accept; 4096], (End::Redirect(3), 4), Access::Buffers).is_ok());
}

proptest! {
    /// `ClassicProgram` accepts the same frames as the interpreter.
    #[test]
    fn a_classic_program_accepts_as_interpreted(program in programs(60), frames in prop::collection::vec(frames(), 1..8)) {
        let checked = ClassicProgram::new(&program).unwrap();
        prop_assert_eq!(checked.len(), program.len());
        for frame in frames {
            prop_assert_eq!(checked.accepts(&frame), interpret(&program, &frame) != 0, "{:?}", frame);
        }
    }

    /// Any sequence of numbers is either refused, or a program that terminates.
    #[test]
    fn arbitrary_programs_terminate(words in prop::collection::vec((0..0x200u16, 0..9u8, 0..9u8, constant()), 0..40)) {
        let mut program: Vec<_> = words.into_iter().map(|(code, jt, jf, k)| insn(code, jt, jf, k)).collect();
        program.push(insn(RET_K, 0, 0, 1));
        if let Ok(program) = ClassicProgram::new(&program) {
            program.accepts(&[0x45; 60]);
        }
    }
}

/// A packet of this many payload bytes behind two tags, one or none: over IPv4 or IPv6, of TCP or UDP, with the
/// checksum that a sender leaves to the hardware, or another one.
fn packet(payload: u16, tags: usize, (v6, protocol): (bool, u8), unfinished: bool) -> Vec<u8> {
    let (header, at) = if protocol == 6 { (20u16, 16) } else { (8, 6) };
    let bytes = header + payload;
    let addresses: Vec<u8> = (1..if v6 { 33 } else { 9 }).map(|i| i * 7).collect();
    let mut frame =
        [[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2].as_slice(), &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8][8 - 4 * tags..]].concat();
    if v6 {
        frame.extend([[0x86, 0xdd, 0x60, 0, 0, 0].as_slice(), &bytes.to_be_bytes(), &[protocol, 64]].concat());
    } else {
        let total = (20 + bytes).to_be_bytes();
        frame.extend([[8, 0, 0x45, 0].as_slice(), &total, &[0, 1, 0x40, 0, 64, protocol, 0, 0]].concat());
    }
    frame.extend(&addresses);
    let pseudo = [&addresses[..], &[0, protocol], &bytes.to_be_bytes()].concat();
    let sum = pseudo.chunks(2).fold(0u32, |sum, word| sum + u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum = ((sum >> 16) + (sum & 0xffff)) as u16;
    let mut rest = vec![0x55; bytes.into()];
    rest[at..at + 2].copy_from_slice(&(if unfinished { sum } else { !sum }).to_be_bytes());
    frame.extend(rest);
    frame
}

#[test]
fn faults_of_frames_are_found_in_each_packet() {
    const MTU: u32 = 500;
    with_programs(|xdp| {
        let deadline = xdp.deadline().clone();
        let first = deadline.look(0).unwrap();
        assert!(xdp.would_redirect(&packet(900, 0, (false, 6), true)).is_ok());
        let then = deadline.look(MTU).unwrap();
        assert_eq!((then.merged, then.unfinished), (first.merged, first.unfinished), "without an MTU");
        let mut wanted = (0, 0);
        for v6 in [false, true] {
            for (tags, protocol) in [(0, 6), (1, 6), (2, 6), (0, 17), (1, 17), (2, 17)] {
                for (payload, unfinished) in [(100, false), (100, true), (900, false)] {
                    wanted.0 += u64::from(payload == 900 && protocol == 6);
                    wanted.1 += u64::from(unfinished);
                    xdp.would_redirect(&packet(payload, tags, (v6, protocol), unfinished)).unwrap();
                    let found = deadline.look(MTU).unwrap();
                    assert_eq!((found.merged, found.unfinished), wanted, "{v6} {tags} {protocol} {payload}");
                }
            }
        }
        // Frames without a checksum, those that are cut off, others than TCP and UDP, and a short one that says that it
        // is long.
        let lie = packet(900, 0, (false, 6), false);
        for frame in [&packet(100, 0, (false, 1), true)[..], &[0; 60], &packet(0, 0, (true, 6), true)[..60], &lie[..60]]
        {
            xdp.would_redirect(frame).unwrap();
        }
        // The checksums of so many frames only, but the length of each.
        (0..100).for_each(|_| assert!(xdp.would_redirect(&packet(10, 0, (false, 17), false)).is_ok()));
        xdp.would_redirect(&packet(900, 0, (true, 6), true)).unwrap();
        let found = deadline.look(MTU).unwrap();
        assert_eq!((found.merged, found.unfinished, found.in_a_row), (wanted.0 + 1, wanted.1, true));
        xdp.would_redirect(&packet(10, 0, (false, 17), true)).unwrap();
        assert_eq!(deadline.look(MTU).unwrap().unfinished, wanted.1 + 1, "they are looked at again");
    });
}

#[test]
fn a_deadline_says_for_how_long_it_was_over() {
    with_programs(|xdp| {
        let (deadline, long) = (xdp.deadline().clone(), Duration::from_secs(3600));
        deadline.extend(long).unwrap();
        let begin = Instant::now();
        assert_eq!(deadline.extend(Duration::from_millis(1)).unwrap(), Duration::ZERO, "in time");
        thread::sleep(Duration::from_millis(20));
        let (over, most) = (deadline.extend(long).unwrap(), begin.elapsed());
        assert!(over >= Duration::from_millis(19) && over <= most, "{over:?}");
        assert_eq!(deadline.extend(long).unwrap(), Duration::ZERO);
    });
}
