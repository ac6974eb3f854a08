// SPDX-License-Identifier: BSD-2-Clause
//! The functions of `libnetmap.h`. `preload/nmctx.c`, `nmport.c` and `nmreq.c` implement them; one of them is variadic,
//! so each exported function is a jump that touches no argument.

use std::ffi::c_int;

macro_rules! jumps {
    ($($name:ident => $to:ident;)*) => {
        unsafe extern "C" {
            $(fn $to();)*
        }
        $(
            #[doc = concat!("See `", stringify!($name), "` in `libnetmap.h`.")]
            ///
            /// # Safety
            /// The arguments are those of the C function.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!("jmp {}", sym $to);
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!("b {}", sym $to);
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/jumps.rs"));

/// Not 0: contexts are always thread-safe.
#[allow(non_upper_case_globals, reason = "a name for C")]
#[unsafe(no_mangle)]
pub static nmctx_threadsafe: c_int = 1;
