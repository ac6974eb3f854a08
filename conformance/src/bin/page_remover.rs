// SPDX-License-Identifier: BSD-2-Clause
//! A hostile client that removes the pages of the region of a port: `page_remover SPEC`.

use std::process::ExitCode;

use unetmap::Port;

fn main() -> ExitCode {
    let spec = std::env::args().nth(1).unwrap_or_default();
    let port = match Port::open(&spec) {
        Ok(port) => port,
        Err(e) => {
            eprintln!("page_remover: {e}");
            return ExitCode::FAILURE;
        }
    };
    let range = port.region().range();
    // SAFETY: the range is exactly a mapping that the port keeps; its bytes are only accessed through atomics and raw
    // copies, for which zeros are as valid as any value that another process may write.
    let failed = unsafe { libc::madvise(range.base().cast(), range.len(), libc::MADV_REMOVE) };
    if failed != 0 {
        eprintln!("page_remover: madvise: {}", std::io::Error::last_os_error());
        return ExitCode::FAILURE;
    }
    println!("removed");
    ExitCode::SUCCESS
}
