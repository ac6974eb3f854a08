//! What the daemons tell of their ports, for libraries on top of this one.

use std::ffi::{CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use unetmap_core::errno::EIO;

use crate::files::Ref;

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

/// The ports of this user's daemons, as far as they are his to see. No daemon has none; one of another version neither.
fn ports() -> Result<Vec<Port>, i32> {
    let texts = unetmap_core::control::client::snapshots().map_err(|e| e.errno())?;
    let read = |text: &String| serde_json::from_str::<Snapshot>(text).ok();
    Ok(texts.iter().filter_map(read).flat_map(|snapshot| snapshot.ports).collect())
}

fn guarded(body: impl FnOnce() -> Result<i64, i32>) -> i64 {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(EIO)).unwrap_or_else(|errno| -i64::from(errno))
}

/// Calls `each` with `arg`, and with name and kind of every port that exists. Starts no daemon. 0, or a negative errno.
///
/// # Safety
/// `each` can be called so; the strings are the callee's until it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_each_port(
    each: unsafe extern "C" fn(arg: *mut c_void, name: *const c_char, kind: *const c_char),
    arg: *mut c_void,
) -> c_int {
    let tell = || {
        for port in ports()? {
            let (Ok(name), Ok(kind)) = (CString::new(port.name), CString::new(port.kind)) else { continue };
            // SAFETY: the caller's promise.
            unsafe { each(arg, name.as_ptr(), kind.as_ptr()) };
        }
        Ok(0)
    };
    guarded(tell) as c_int
}

/// How many packets for the port of netmap file `fd` were dropped because nobody made room for them, since it was made; a
/// negative errno. Of a pipe 0: it drops none.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_dropped_packets(fd: c_int) -> i64 {
    guarded(|| {
        let open = Ref::of(fd).ok_or(libc::EBADF)?;
        let Some(attached) = open.known_port() else { return Ok(0) };
        let (name, mem_id) = (attached.port.spec(), attached.port.mem_id());
        // A monitor has a region of its own, and a name that nobody asks for.
        let is_ours = |port: &Port| port.mem_id == mem_id && (port.name == name || port.kind == "monitor");
        let ours = ports()?.into_iter().filter(is_ours);
        let dropped: u64 = ours.flat_map(|port| port.rings).filter(|r| r.dir == "rx").map(|r| r.dropped).sum();
        Ok(i64::try_from(dropped).unwrap_or(i64::MAX))
    })
}
