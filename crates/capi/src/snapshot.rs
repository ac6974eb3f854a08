// SPDX-License-Identifier: BSD-2-Clause
//! The daemons' lists of ports, for libraries that use this one.

use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use unetmap_core::errno::EIO;

use crate::files::FileRef;

#[derive(Deserialize)]
struct Snapshot {
    ports: Vec<Port>,
}

#[derive(Deserialize)]
struct Port {
    name: String,
    kind: String,
    mem_id: u16,
    rings: Vec<Ring>,
}

#[derive(Deserialize)]
struct Ring {
    dir: String,
    #[serde(default)]
    dropped: u64,
}

/// Returns the ports of this user's daemons that this user may see. Daemons of another version are ignored.
fn ports() -> Result<Vec<Port>, i32> {
    let texts = unetmap_core::control::client::snapshots().map_err(|e| e.errno())?;
    let read = |text: &String| serde_json::from_str::<Snapshot>(text).ok();
    Ok(texts.iter().filter_map(read).flat_map(|snapshot| snapshot.ports).collect())
}

fn guarded(body: impl FnOnce() -> Result<i64, i32>) -> i64 {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(EIO)).unwrap_or_else(|errno| -i64::from(errno))
}

/// Calls `each` with `arg` and with name and kind of every existing port. Starts no daemon. Returns 0 or a negative
/// errno.
///
/// # Safety
/// `each` is a function of this type (C1). The strings are valid until it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_each_port(
    each: unsafe extern "C" fn(arg: *mut c_void, name: *const c_char, kind: *const c_char),
    arg: *mut c_void,
) -> c_int {
    let call_each = || {
        for port in ports()? {
            let (Ok(name), Ok(kind)) = (CString::new(port.name), CString::new(port.kind)) else { continue };
            // SAFETY: C1: the caller's contract.
            unsafe { each(arg, name.as_ptr(), kind.as_ptr()) };
        }
        Ok(0)
    };
    guarded(call_each) as c_int
}

/// Returns the packets for the port of netmap file `fd` that were dropped since its creation because its ring was full,
/// or a negative errno. A pipe returns 0: it never drops.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_dropped_packets(fd: c_int) -> i64 {
    guarded(|| {
        let open = FileRef::of(fd).ok_or(libc::EBADF)?;
        let Some(attached) = open.known_port() else { return Ok(0) };
        let (name, mem_id) = (attached.port.spec(), attached.port.mem_id());
        // A monitor has a region of its own, and is matched by its kind, not by name.
        let is_this_port = |port: &Port| port.mem_id == mem_id && (port.name == name || port.kind == "monitor");
        let matching = ports()?.into_iter().filter(is_this_port);
        let dropped: u64 = matching.flat_map(|port| port.rings).filter(|r| r.dir == "rx").map(|r| r.dropped).sum();
        Ok(i64::try_from(dropped).unwrap_or(i64::MAX))
    })
}
