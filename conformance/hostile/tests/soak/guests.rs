// SPDX-License-Identifier: BSD-2-Clause
//! Ports of a virtual machine and of a packet processor, which a process of their user's each serves to whatever
//! connects.

use std::fs::{File, Permissions, create_dir_all, read_dir, read_to_string, set_permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use conformance::home::Guard;
use conformance::net::public_copy;
use conformance::{Home, program};
use conformance_hostile::served::is_open;

use crate::attacks::GUEST_USER;
use crate::supervisor::as_user;
use crate::watch::verdict;

/// The sockets' names.
pub(crate) const VHOST: &str = "vhost.sock";
pub(crate) const MEMIF: &str = "memif.sock";
/// Descriptors that such a process makes when it first needs them.
const LAZY_DESCRIPTORS: usize = 8;

/// How long such a process may need to open its port.
const START_LIMIT: Duration = Duration::from_secs(180);

/// The processes that serve.
pub(crate) struct Guests(Vec<(&'static str, Guard, usize)>);

/// The socket of a guest, beside the daemon's.
pub(crate) fn socket(of_daemon: &Path, name: &str) -> PathBuf {
    of_daemon.with_file_name("guests").join(name)
}

impl Guests {
    /// Starts them; their ports are open.
    #[track_caller]
    pub(crate) fn start(home: &Home) -> Guests {
        let folder = socket(&home.socket(), "");
        create_dir_all(&folder).expect("a folder");
        chown(&folder, Some(GUEST_USER), Some(GUEST_USER)).expect("our own folder");
        set_permissions(&folder, Permissions::from_mode(0o755)).expect("our own folder");
        let unetmap = public_copy(home.folder(), &program("unetmap").to_string_lossy());
        let kinds = [("vm", "--socket", VHOST, "vale9:vm"), ("memif", "--memif", MEMIF, "vale9:memif")];
        let serve = kinds.map(|(kind, option, name, port)| {
            let path = socket(&home.socket(), name).display().to_string();
            let args = [kind, "serve", port, option, &path].map(str::to_owned);
            let log = home.folder().join(format!("{kind}.log"));
            let errors = File::create(&log).expect("a file");
            let mut command = as_user(Command::new("env"), GUEST_USER, &unetmap, &args);
            let guard = Guard::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors));
            // At the lowest priority, as the attacks: it may wait for a processor as long as others build something.
            let end = Instant::now() + START_LIMIT;
            while !is_open(home, port) {
                assert!(Instant::now() < end, "no port {port}: {}", read_to_string(&log).unwrap_or_default());
                sleep(Duration::from_millis(20));
            }
            let descriptors = descriptors(&guard);
            (kind, guard, descriptors)
        });
        Guests(serve.into())
    }

    /// Prints what became of them, with all attacks over; returns whether each still runs, with as many descriptors.
    pub(crate) fn finish(self) -> bool {
        let mut passed = true;
        for (kind, mut guard, before) in self.0 {
            let ended = guard.0.try_wait().ok().flatten();
            let flat = || ended.is_none() && descriptors(&guard) <= before + LAZY_DESCRIPTORS;
            let is_good = flat();
            let how = ended.map_or_else(|| "runs".to_owned(), |status| format!("ended: {status}"));
            let now = descriptors(&guard);
            println!(
                "{} process of unetmap {kind} serve {how}; descriptors first {before}, last {now}",
                verdict(is_good)
            );
            passed &= is_good;
        }
        passed
    }
}

fn descriptors(guard: &Guard) -> usize {
    read_dir(format!("/proc/{}/fd", guard.pid().as_raw_nonzero())).map_or(0, Iterator::count)
}
