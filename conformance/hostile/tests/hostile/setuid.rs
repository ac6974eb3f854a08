// SPDX-License-Identifier: BSD-2-Clause
//! Programs with more privileges than their caller: the caller's environment must not choose what they run.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::c::compile;
use conformance::home::summary;
use conformance::pcap::overlay;
use conformance::{Home, isolated, program, until};

/// The caller, and the user to whom the program belongs. Neither is root, whose daemon may run on this machine.
const CALLER: u32 = 65_534;
const OWNER: u32 = 65_531;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own file");
}

/// A folder of `owner` that everybody may write, below one that everybody may enter.
fn folder(home: &Home, name: &str, owner: u32) -> PathBuf {
    let path = home.folder().join(name);
    fs::create_dir(&path).expect("a folder in the test's own");
    chown(&path, Some(owner), Some(owner)).expect("root may");
    set_mode(home.folder(), 0o755);
    set_mode(&path, 0o777);
    path
}

/// A copy of `from` that belongs to its owner, with these permissions.
fn copy(from: &Path, to: PathBuf, mode: u32) -> PathBuf {
    fs::copy(from, &to).expect("a copy in the test's own folder");
    chown(&to, Some(OWNER), Some(OWNER)).expect("root may");
    set_mode(&to, mode);
    to
}

/// A command that the caller gives, with an empty environment.
fn by_caller(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.uid(CALLER).gid(CALLER).env_clear();
    command
}

/// A setuid program that opens a port; `None`, with the reason printed, where there is no such thing.
fn setuid_opener(home: &Home) -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        summary("skipped: only root can be two users");
        return None;
    }
    let opener = copy(&program("try_open"), folder(home, "own", OWNER).join("opener"), 0o4755);
    // Not the name of a port, so that no daemon is needed.
    let output = by_caller(&opener).arg("netmap:{").output().expect("it starts");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if printed.contains(&format!("uid {OWNER}")) {
        return Some(opener);
    }
    summary(&format!("skipped: programs in the temporary folder do not get their owners' privileges: {printed}"));
    None
}

#[test]
fn a_setuid_program_runs_nothing_that_its_caller_names() {
    isolated(|home| {
        let Some(opener) = setuid_opener(home) else { return };
        let place = folder(home, "caller", CALLER);
        let plain = copy(&opener, place.join("plain"), 0o755);
        // The caller links the program into a folder of its own, where the kernel permits that.
        let linked = folder(home, "linked", CALLER).join("opener");
        fs::hard_link(&opener, &linked).expect("root may");
        // The plain program's daemon has a report of its own: it may be started again later.
        let (report, plain_report) = (place.join("ran"), place.join("plain-ran"));
        let daemons = [
            (place.join("unetmapd"), &report),
            (linked.with_file_name("unetmapd"), &report),
            (place.join("plain-unetmapd"), &plain_report),
        ];
        for (daemon, report) in daemons {
            fs::write(&daemon, format!("#!/bin/sh\necho ran >> {}\n", report.display())).expect("our own folder");
            set_mode(&daemon, 0o755);
            fs::write(report, "").expect("our own file");
            set_mode(report, 0o666);
        }
        let mut runs = 0;
        let mut run = |program: &Path, variable: &str, value: &Path| {
            // The files beside a socket belong to the first user.
            runs += 1;
            let socket = place.join(format!("socket{runs}"));
            let mut command = by_caller(program);
            command.arg("netmap:x{1").env("UNETMAP_SOCKET", socket).env(variable, value);
            let output = command.current_dir(&place).output().expect("it starts");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let has_run = |report: &Path| !fs::read_to_string(report).expect("our own file").is_empty();
        run(&plain, "UNETMAPD", &place.join("plain-unetmapd"));
        until("a program without more privileges starts the caller's daemon", || has_run(&plain_report));
        let choices = [("UNETMAPD", place.join("unetmapd")), ("PATH", place.clone()), ("HOME", place.clone())];
        for (variable, value) in choices {
            for program in [&opener, &linked] {
                let printed = run(program, variable, &value);
                assert!(printed.contains(&format!("uid {OWNER}")), "{printed}");
                assert!(!has_run(&report), "{variable} decides what {} runs: {printed}", program.display());
            }
        }
        clean_up();
    });
}

#[test]
fn a_setuid_program_uses_no_folder_that_its_caller_names() {
    isolated(|home| {
        let Some(opener) = setuid_opener(home) else { return };
        // A program that can be started as the daemon, if one beside the program is.
        let daemon = opener.with_file_name("unetmapd");
        fs::write(&daemon, "#!/bin/sh\n").expect("our own folder");
        set_mode(&daemon, 0o755);
        for variable in ["XDG_RUNTIME_DIR", "TMPDIR", "UNETMAP_SOCKET"] {
            // The owner's, so that the library would accept it.
            let place = folder(home, variable, OWNER);
            let value = if variable == "UNETMAP_SOCKET" { place.join("socket") } else { place.clone() };
            let output = by_caller(&opener).arg("netmap:x{1").env(variable, &value).output().expect("it starts");
            let files = fs::read_dir(&place).expect("our own folder").count();
            assert_eq!(files, 0, "{variable}: {}", String::from_utf8_lossy(&output.stdout));
        }
        clean_up();
    });
}

#[test]
fn a_setuid_program_loads_no_library_that_its_caller_names() {
    isolated(|home| {
        if setuid_opener(home).is_none() {
            return;
        }
        let own = home.folder().join("own");
        let library = copy(&overlay().join("libpcap.so.0.8"), own.join("libpcap.so.0.8"), 0o755).display().to_string();
        let search = format!("-Wl,-rpath,{}", own.display());
        let built = compile(home, "pcap_version", &[&library, &search]);
        let evil = compile(home, "loaded", &["-shared", "-fPIC"]);
        let run = |mode: u32| {
            let program = copy(&built, own.join(format!("version{mode:o}")), mode);
            let output = by_caller(&program).env("UNETMAP_LIBPCAP", &evil).output().expect("it starts");
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
        };
        assert!(run(0o755).contains("loaded"), "a program without more privileges loads the caller's library");
        let printed = run(0o4755);
        assert!(!printed.contains("loaded"), "{printed}");
    });
}

/// Removes the folder of the owner's own daemon.
fn clean_up() {
    let _ = fs::remove_dir_all(format!("/tmp/unetmap-{OWNER}"));
}
