// SPDX-License-Identifier: BSD-2-Clause
//! `spawn_detached` in a program with every setting that could affect a child: it ignores SIGCHLD, blocks signals,
//! leaks descriptors, and has a preloaded library. One test, because it changes settings of the whole process.

#![allow(missing_docs)]

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::pipe::pipe;
use unetmap_sys::process::spawn_detached;

/// A shell script that writes its properties to descriptor 3.
const SCRIPT: &str = r#"
echo complaint >&2
in=$(readlink /proc/$$/fd/0); out=$(readlink /proc/$$/fd/1); fds=; n=0
while [ $n -lt 200 ]; do if [ -e /proc/$$/fd/$n ]; then fds="$fds $n"; fi; n=$((n + 1)); done
{
    echo "pid=$$"; echo "args=$*"; echo "cwd=$(pwd)"; echo "fds=$fds"; echo "preload=${LD_PRELOAD-unset}"; echo "kept=$KEPT"
    echo "in=$in"; echo "out=$out"
    while read -r name value; do echo "$name$value"; done < /proc/$$/status
    cut -d' ' -f6 /proc/$$/stat | { read -r sid; echo "sid=$sid"; }
    echo "end="
} >&3
"#;

#[test]
fn a_detached_program_inherits_nothing() {
    // SAFETY: K6: no other thread of this process uses these settings.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        let mut set = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        std::env::set_var("LD_PRELOAD", "");
        std::env::set_var("KEPT", "a b=c");
        assert!(libc::dup2(0, 140) >= 0, "leaks into what is executed");
    }
    let dir = tempfile::tempdir().unwrap();
    let (script, log) = (dir.path().join("script"), dir.path().join("log"));
    std::fs::write(&script, SCRIPT).unwrap();
    let (read, write) = pipe().unwrap();
    let args = [script.into_os_string(), "one".into(), "with space".into()];
    let pid =
        spawn_detached(Path::new("/bin/sh"), OsStr::new("sh"), &args, write, File::create(&log).unwrap()).unwrap();
    let mut status = String::new();
    File::from(read).read_to_string(&mut status).unwrap();
    let status: HashMap<&str, &str> =
        status.lines().filter_map(|l| l.split_once(['=', ':'])).map(|(k, v)| (k, v.trim())).collect();

    assert!(status.contains_key("end"), "{status:?}");
    assert_eq!(status["pid"], pid.to_string());
    assert_eq!(status["args"], "one with space");
    assert_eq!(std::fs::read(&log).unwrap(), b"complaint\n");
    assert_eq!(status["cwd"], "/");
    assert_eq!((status["in"], status["out"]), ("/dev/null", "/dev/null"));
    assert_eq!(status["preload"], "unset");
    assert_eq!(status["kept"], "a b=c");
    assert_eq!(u64::from_str_radix(status["SigBlk"], 16), Ok(0));
    // Signals 32 and 33 are reserved by libc: they cannot be set, and its posix_spawn leaves one ignored.
    let ignored = u64::from_str_radix(status["SigIgn"], 16).unwrap();
    assert_eq!(ignored & !(3 << 31), 0);
    // 0 to 3, and the descriptor from which the shell reads its script.
    let fds: Vec<u32> = status["fds"].split(' ').map(|n| n.parse().unwrap()).collect();
    assert_eq!(fds[..4], [0, 1, 2, 3]);
    assert!(fds.len() == 5 && fds[4] != 140, "{fds:?}");

    // Its session is its own, led by a process that has exited and was waited for; it is not a child of this process.
    // SAFETY: K7.
    let ours = unsafe { libc::getsid(0) };
    assert_ne!(status["sid"], ours.to_string());
    assert!(!Path::new("/proc").join(status["sid"]).exists());
    assert_ne!(status["PPid"], std::process::id().to_string());
    // SAFETY: K7: no status is requested.
    let left = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
    assert_eq!((left, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ECHILD)));

    failures(dir.path());
}

fn failures(dir: &Path) {
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let spawn = |program: &Path, args: &[OsString]| {
        let (_read, write): (OwnedFd, OwnedFd) = pipe().unwrap();
        assert!(write.as_raw_fd() > 2);
        spawn_detached(program, program.as_os_str(), args, write, File::open("/dev/null").unwrap()).unwrap_err().kind()
    };
    assert_eq!(spawn(&dir.join("missing"), &[]), io::ErrorKind::NotFound);
    assert_eq!(spawn(dir, &[]), io::ErrorKind::PermissionDenied);
    assert_eq!(spawn(Path::new("/bin/sh"), &["a\0b".into()]), io::ErrorKind::InvalidInput);
    assert_eq!(std::fs::read_dir("/proc/self/fd").unwrap().count(), before);
    // SAFETY: K7: no status is requested.
    let left = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) };
    assert_eq!(left, -1);
}
