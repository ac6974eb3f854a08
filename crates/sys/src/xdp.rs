// SPDX-License-Identifier: BSD-2-Clause
//! XDP: which frames of an interface are redirected to AF_XDP sockets instead of the kernel's network stack.
//!
//! The program is `bpf/xdp.c`, embedded as a compiled object. It is attached as a BPF link, so that the interface
//! returns to the kernel as soon as the link's last descriptor is closed, however the process ended; or, beside other
//! programs, as a member of a [`dispatcher`], which the caller must leave; or so that it stays
//! ([`Xdp::attach_to_stay`]). Attaching needs the feature `bpf`; filters
//! do not.

#[cfg(feature = "bpf")]
mod account;
#[cfg(feature = "bpf")]
mod attach;
mod classic;
#[cfg(feature = "bpf")]
pub mod dispatcher;
#[cfg(feature = "bpf")]
mod failure;
#[cfg(feature = "bpf")]
mod policy;
#[cfg(all(test, feature = "bpf"))]
mod tests;
#[cfg(feature = "bpf")]
pub(crate) mod translate;

#[cfg(feature = "bpf")]
pub use attach::{Mark, Mode, Xdp};
pub use classic::{ClassicInsn, ClassicProgram};
#[cfg(feature = "bpf")]
pub use failure::{detach_left, left};
#[cfg(feature = "bpf")]
pub use policy::{Account, Failed, Failure, Noted, SocketFrames};

/// Translates a filter for the fuzz target `filter`: code, registers, offset and constant of each instruction; `None`
/// if the program is refused. The frame is in several buffers, or in one.
#[cfg(all(fuzzing, feature = "bpf"))]
pub fn translated(program: &[ClassicInsn], buffers: bool) -> Option<Vec<(u8, u8, i16, i32)>> {
    let access = if buffers { translate::Access::Buffers } else { translate::Access::Plain };
    let insns = translate::translate(program, (translate::End::Redirect(3), 4), access).ok()?;
    Some(insns.iter().map(|insn| (insn.code, insn.regs, insn.off, insn.imm)).collect())
}
