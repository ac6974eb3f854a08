// SPDX-License-Identifier: BSD-2-Clause
//! `try_open SPEC` opens a port and prints the result and the credentials of this process in one line.
//!
//! ```text
//! opened MEM_ID, uid UID, capabilities HEX
//! refused ERRNO, uid UID, capabilities HEX: REASON
//! ```
#![forbid(unsafe_code)]

use std::process::ExitCode;

use unetmap::Port;

fn main() -> ExitCode {
    let Some(spec) = std::env::args().nth(1) else {
        eprintln!("usage: try_open SPEC");
        return ExitCode::FAILURE;
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim().to_owned();
    let uid = rustix::process::geteuid().as_raw();
    let who = format!("uid {uid}, capabilities {}", field("CapPrm:"));
    match Port::open(&spec) {
        Ok(port) => println!("opened {}, {who}", port.mem_id()),
        Err(e) => println!("refused {}, {who}: {e}", e.errno()),
    }
    ExitCode::SUCCESS
}
