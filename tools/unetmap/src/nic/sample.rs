// SPDX-License-Identifier: BSD-2-Clause
//! Samples of the frames that a filter accepts: one of N, by frame or by flow, decided where the filter runs.
//!
//! ```text
//! filter:     ... ret accept   becomes   ... ja sample
//! sample:     A = random number, or a hash of the flow that both directions have
//!             A % N == 0: ret accept, else ret 0
//! ```

use unetmap_sys::xdp::ClassicInsn;

/// The unit of which one in N is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Frames,
    Flows,
}

/// One of `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) unit: Unit,
    pub(crate) n: u32,
}

impl Sample {
    /// Takes a sample from the beginning of an expression: `sample=N` or `sample-flows=N`. Returns the rest as well.
    ///
    /// # Errors
    /// A sentence about N.
    pub(crate) fn split(expression: &str) -> Result<(Option<Sample>, &str), String> {
        let (first, rest) = expression.split_once(char::is_whitespace).unwrap_or((expression, ""));
        let Some((name, number)) = first.split_once('=') else { return Ok((None, expression)) };
        let unit = match name {
            "sample" => Unit::Frames,
            "sample-flows" => Unit::Flows,
            _ => return Ok((None, expression)),
        };
        match number.parse() {
            Ok(n @ 1..) => Ok((Some(Sample { unit, n }), rest.trim())),
            _ => Err(format!("{name}: `{number}`: give a number from 1 to {}, to take one of so many", u32::MAX)),
        }
    }

    /// Returns its words in an expression.
    pub(crate) fn text(self) -> String {
        let name = if self.unit == Unit::Flows { "sample-flows" } else { "sample" };
        format!("{name}={}", self.n)
    }

    /// Takes the sample of what a program accepts.
    pub(crate) fn of(self, mut program: Vec<ClassicInsn>) -> Vec<ClassicInsn> {
        let end = program.len();
        for (at, insn) in program.iter_mut().enumerate() {
            if insn.code == RETURN_K && insn.k != 0 {
                *insn = code(JUMP, (end - at - 1) as u32);
            }
        }
        match self.unit {
            Unit::Frames => program.push(code(LOAD_WORD, RANDOM)),
            Unit::Flows => program.extend(flow_hash()),
        }
        program.push(code(MOD_K, self.n));
        program.push(ClassicInsn { code: EQUAL_K, jt: 0, jf: 1, k: 0 });
        program.extend([code(RETURN_K, u32::MAX), code(RETURN_K, 0)]);
        program
    }
}

// Codes of classic BPF.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF_INDEXED: u16 = 0x48;
const LOAD_MEMORY: u16 = 0x60;
const STORE: u16 = 0x02;
const LOAD_IP_LENGTH: u16 = 0xb1;
const TO_X: u16 = 0x07;
const ADD_X: u16 = 0x0c;
const MULTIPLY_K: u16 = 0x24;
const AND_K: u16 = 0x54;
const SHIFT_RIGHT_K: u16 = 0x74;
const MOD_K: u16 = 0x94;
const XOR_X: u16 = 0xac;
const JUMP: u16 = 0x05;
const EQUAL_K: u16 = 0x15;
const RETURN_K: u16 = 0x06;
/// Where a socket filter reads a random number (`SKF_AD_OFF + SKF_AD_RANDOM`).
const RANDOM: u32 = 0xffff_f000 + 56;

fn code(code: u16, k: u32) -> ClassicInsn {
    ClassicInsn { code, jt: 0, jf: 0, k }
}

/// Offsets in an Ethernet frame without tags.
const ETHERTYPE: u32 = 12;
const IP: u32 = 14;

/// Returns instructions that put a hash of the frame's flow into A: of addresses, protocol and ports of IP, else of the
/// MAC addresses. Fragments have no ports, so that all of a packet have one hash.
fn flow_hash() -> Vec<ClassicInsn> {
    // Each word is mixed before it is added, so that the order of two ends does not matter and all else does.
    let add = |load: ClassicInsn| {
        let mix = [code(MULTIPLY_K, 0x9e37_79b1), code(TO_X, 0), code(SHIFT_RIGHT_K, 15), code(XOR_X, 0)];
        let sum = [code(MULTIPLY_K, 0x85eb_ca6b), code(TO_X, 0), code(LOAD_MEMORY, 0), code(ADD_X, 0), code(STORE, 0)];
        [&[load][..], &mix, &sum].concat()
    };
    let words = |from: u32, n: u32| (0..n).flat_map(|i| add(code(LOAD_WORD, from + i * 4))).collect::<Vec<_>>();
    // X is the length of the network header; it is kept in memory, as mixing uses X.
    let ports = |ipv6: bool| {
        let index = [code(LOAD_MEMORY, 1), code(TO_X, 0)];
        let port = |at: u32| [&index[..], &add(code(LOAD_HALF_INDEXED, IP + at))].concat();
        let set = if ipv6 { vec![code(0, 40)] } else { vec![code(LOAD_IP_LENGTH, IP), code(0x87, 0)] };
        [&set[..], &[code(STORE, 1)], &port(0), &port(2)].concat()
    };
    let with_ports = |proto: u32, unfragmented: &[ClassicInsn], ipv6: bool| {
        let ports = ports(ipv6);
        let skip = (unfragmented.len() + ports.len()) as u8;
        let [tcp, udp] =
            [(6, 1), (17, 0)].map(|(k, jt)| ClassicInsn { code: EQUAL_K, jt, jf: if k == 17 { skip } else { 0 }, k });
        [&add(code(LOAD_BYTE, proto))[..], &[code(LOAD_BYTE, proto), tcp, udp], unfragmented, &ports].concat()
    };
    let ports_of = |ipv6| ports(ipv6).len() as u8;
    // More fragments, or an offset.
    let whole =
        [code(LOAD_HALF, IP + 6), code(AND_K, 0x3fff), ClassicInsn { code: EQUAL_K, jt: 0, jf: ports_of(false), k: 0 }];
    let v4 = [words(IP + 12, 2), with_ports(IP + 9, &whole, false)].concat();
    let v6 = [words(IP + 8, 8), with_ports(IP + 6, &[], true)].concat();
    let mac =
        [add(code(LOAD_WORD, 0)), add(code(LOAD_HALF, 4)), add(code(LOAD_WORD, 6)), add(code(LOAD_HALF, 10))].concat();
    let end = [code(LOAD_MEMORY, 0), code(TO_X, 0), code(SHIFT_RIGHT_K, 13), code(XOR_X, 0)];
    // Distances may not fit a branch: it skips a jump.
    let choose = |ethertype: u32, block: Vec<ClassicInsn>, after: usize| {
        let branch = ClassicInsn { code: EQUAL_K, jt: 1, jf: 0, k: ethertype };
        let past = code(JUMP, block.len() as u32 + 1);
        [&[code(LOAD_HALF, ETHERTYPE), branch, past][..], &block, &[code(JUMP, after as u32)]].concat()
    };
    let second = choose(0x86dd, v6, mac.len());
    let first = choose(0x0800, v4, second.len() + mac.len());
    [&[code(0, 0), code(STORE, 0)][..], &first, &second, &mac, &end].concat()
}
