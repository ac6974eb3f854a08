// SPDX-License-Identifier: BSD-2-Clause
//! Compiles the C sources in `preload/`. That folder and `include/` are links to the project's folders of these names,
//! so that the crate's package (`cargo package`) contains their files.
//!
//! rustc exports only functions of a shared library that Rust defines. The functions of `libnetmap.h` are therefore
//! compiled under other names, and Rust defines the public ones, each as a jump (`src/libnetmap.rs`).

use std::fmt::Write as _;
use std::path::Path;

/// Source files in `preload/`.
const SOURCES: [&str; 14] = [
    "hooks.c",
    "lookups.c",
    "parameters.c",
    "paths.c",
    "descriptors.c",
    "poll.c",
    "select.c",
    "epoll.c",
    "wait.c",
    "interfaces.c",
    "libc_calls.c",
    "nmctx.c",
    "nmport.c",
    "nmreq.c",
];

/// The functions of `libnetmap.h`.
const FUNCTIONS: &str = "
    nmctx_ferror nmctx_free nmctx_get nmctx_lock nmctx_malloc nmctx_set_default nmctx_set_threadsafe nmctx_unlock
    nmport_clone nmport_close nmport_delete nmport_disable_option nmport_enable_option nmport_extmem
    nmport_extmem_from_file nmport_extmem_getinfo nmport_inject nmport_mmap nmport_new nmport_offset nmport_open
    nmport_open_desc nmport_parse nmport_prepare nmport_register nmport_undo_mmap nmport_undo_open_desc
    nmport_undo_parse nmport_undo_prepare nmport_undo_register
    nmreq_find_option nmreq_free_options nmreq_get_mem_id nmreq_header_decode nmreq_header_init nmreq_option_name
    nmreq_options_decode nmreq_push_option nmreq_register_decode nmreq_remove_option";

/// The library's soname, under which the Makefile installs it. The number changes with each incompatible change of the
/// interface.
const SONAME: &str = "libunetmap.so.0";

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    let folder = Path::new("preload");
    println!("cargo::rerun-if-changed={}", folder.display());
    println!("cargo::rerun-if-changed=include");
    let mut c = cc::Build::new();
    c.include("include").std("gnu11").extra_warnings(true);
    c.files(SOURCES.map(|file| folder.join(file)));
    c.define("nmctx_threadsafe", "unetmap_c_nmctx_threadsafe");
    let mut jumps = String::from("jumps! {\n");
    for name in FUNCTIONS.split_whitespace() {
        c.define(name, format!("unetmap_c_{name}").as_str());
        let _ = writeln!(jumps, "    {name} => unetmap_c_{name};");
    }
    jumps.push_str("}\n");
    c.compile("unetmap_hooks");
    let out = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    std::fs::write(Path::new(&out).join("jumps.rs"), jumps).expect("cannot write to OUT_DIR");
}
