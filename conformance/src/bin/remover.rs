//! A hostile client that takes away the pages under the region of a port: `remover SPEC`.

use std::process::ExitCode;

use unetmap::Port;

fn main() -> ExitCode {
    let spec = std::env::args().nth(1).unwrap_or_default();
    let port = match Port::open(&spec) {
        Ok(port) => port,
        Err(e) => {
            eprintln!("remover: {e}");
            return ExitCode::FAILURE;
        }
    };
    let window = port.region().window();
    // SAFETY: the range is exactly a mapping that the port keeps; its bytes are only ever reached through atomics and
    // raw copies, for which zeros are as good as anything else that another process may write.
    let failed = unsafe { libc::madvise(window.base().cast(), window.len(), libc::MADV_REMOVE) };
    if failed != 0 {
        eprintln!("remover: madvise: {}", std::io::Error::last_os_error());
        return ExitCode::FAILURE;
    }
    println!("removed");
    ExitCode::SUCCESS
}
