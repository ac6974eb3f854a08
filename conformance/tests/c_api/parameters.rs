// SPDX-License-Identifier: BSD-2-Clause
//! netmap's parameters as files, `/sys/module/netmap/parameters`, under `unetmap run`.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use conformance::c::{compile, start};
use conformance::home::summary;
use conformance::net::{public_copy, set_policy, start_daemon};
use conformance::{isolated, program, until};
use rustix::process::geteuid;

/// An unprivileged user.
const NOBODY: u32 = 65534;
/// The folder, as netmap has it.
const FOLDER: &str = "/sys/module/netmap/parameters";
/// The expansion of a pattern.
const PRIVATE: &str = "/sys/module/netmap/parameters/priv_buf_num /sys/module/netmap/parameters/priv_buf_size\n";

#[test]
fn parameters_are_files_for_every_libc_function() {
    isolated(|home| {
        let parameters = compile(home, "parameters", &[]);
        for what in ["read", "write", "children", "lookups", "mmap", "folder", "spellings", "paths"] {
            assert_eq!(start(&parameters, &[what]).output(), "ok\n", "{what}");
        }
        assert_eq!(knob("verbose"), "0\n");
    });
}

/// The value of a knob by the command line.
fn knob(name: &str) -> String {
    let output = Command::new(program("unetmap")).args(["get", name]).output().expect("unetmap");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a script in a shell by `unetmap run`; `P` is the folder of parameters.
fn run(shell: &str, script: &str) -> Output {
    let mut command = Command::new(program("unetmap"));
    command.args(["run", "--", shell, "-c", script]).env("P", FOLDER).env("LC_ALL", "C");
    command.output().expect("unetmap")
}

/// The output of a script, which succeeds and prints no error.
#[track_caller]
fn printed(shell: &str, script: &str) -> String {
    let output = run(shell, script);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{shell}: {script}: {}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The errors that a script prints, which fails.
#[track_caller]
fn failure(shell: &str, script: &str) -> String {
    let output = run(shell, script);
    assert!(!output.status.success(), "{shell}: {script} succeeds");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn is_installed(name: &str) -> bool {
    Command::new(name).args(["-c", ""]).output().is_ok_and(|output| output.status.success())
}

#[test]
fn shells_and_tools_read_and_set_parameters_by_their_files() {
    isolated(|_| {
        let shells: Vec<&str> = ["sh", "bash"].into_iter().filter(|shell| is_installed(shell)).collect();
        for shell in &shells {
            assert_eq!(printed(shell, "cat $P/buf_size $P/fwd"), "2048\n0\n");
            assert_eq!(printed(shell, "read x <$P/buf_size && echo $x"), "2048\n");
            assert_eq!(printed(shell, "grep -r . $P | grep -c ^$P/priv_"), "6\n");
            assert_eq!(printed(shell, "cd $P && ls -l | grep -c -- '-rw-r--r-- .* priv_'"), "6\n");
            assert_eq!(printed(shell, "ls -l $P | grep -c -- '-r--r--r-- .*_curr_'"), "6\n");
            assert_eq!(printed(shell, "find $P -name 'priv_*' | wc -l"), "6\n");
            assert_eq!(printed(shell, "test -d $P -a -r $P/fwd -a ! -e $P/none && echo $P/priv_b*"), PRIVATE);
            for write in [
                "echo 5 >$P/verbose",
                "echo 5 >>$P/verbose",
                "printf 5 >$P/verbose",
                "/bin/echo 5 >$P/verbose",
                "echo 5 | cat >$P/verbose",
                "echo 5 | tee $P/verbose >/dev/null",
                "echo 5 | dd of=$P/verbose status=none",
                "cd $P && echo 5 >verbose",
                "cd $P && echo 5 | tee verbose >/dev/null",
                "awk 'BEGIN { print 5 }' >$P/verbose",
                "exec 3>$P/verbose; echo 4 >&3; echo 5 >&3",
                "(echo 5) 1>$P/verbose",
            ] {
                let script = format!("{write}; cat $P/verbose; echo 0 >$P/verbose");
                assert_eq!(printed(shell, &script), "5\n", "{write}");
            }
            assert_eq!(knob("verbose"), "0\n");
            for (write, why) in [
                ("echo 2 >$P/fwd", "rror"),
                ("echo x | tee $P/fwd", "nvalid argument"),
                ("cd $P && echo x | tee fwd", "nvalid argument"),
                ("/bin/echo x >$P/fwd", "nvalid argument"),
                ("echo x | cat >$P/fwd", "nvalid argument"),
                ("cat <$P/none", "o such file"),
                ("echo 1 >$P/none", "ermission denied"),
                ("echo 1 >$P/buf_curr_num", "ermission denied"),
                ("cd $P && echo 1 >buf_curr_num", "ermission denied"),
            ] {
                let said = failure(shell, write);
                assert!(said.contains(why), "{shell}: {write}: {said}");
            }
        }
        assert_eq!(knob("fwd"), "0\n");
        summary(&format!("parameters by the shells {}", shells.join(", ")));
    });
}

#[test]
fn python_reads_and_sets_parameters_by_their_files() {
    isolated(|_| {
        if !is_installed("python3") {
            return summary("skipped: no python3");
        }
        let script = "
import errno, os
p = os.environ['P']
assert open(p + '/buf_size').read() == '2048\\n' and 'fwd' in os.listdir(p) and os.path.getsize(p + '/fwd') > 0
open(p + '/verbose', 'w').write('6')
with open(p + '/verbose', 'r+b', buffering=0) as f:
    assert f.read() == b'6\\n' and f.write(b'7') == 1 and f.seek(0) == 0 and f.read() == b'7\\n'
try:
    with open(p + '/fwd', 'w') as f:
        f.write('2')
except OSError as e:
    assert e.errno == errno.EINVAL, e
else:
    raise Exception('2 was written to fwd')
print(os.stat(p + '/verbose').st_mode & 0o777 == 0o644)
";
        assert_eq!(printed("sh", &format!("python3 - <<'end'{script}end\n")), "True\n");
        assert_eq!(knob("verbose"), "7\n");
    });
}

/// The files follow the daemon, and end with it.
#[test]
fn the_files_of_parameters_are_the_daemons() {
    isolated(|home| {
        let parameters = "read x <$P/verbose; echo $x";
        let held = "exec 3<$P/verbose; \"$SET\" set verbose 8 >/dev/null; cat <&3";
        let held = held.replace("$SET", &program("unetmap").display().to_string());
        assert_eq!((printed("sh", parameters).as_str(), printed("sh", &held).as_str()), ("0\n", "8\n"));
        let mut folder = home.socket().into_os_string();
        folder.push(".module");
        let folder = std::path::PathBuf::from(folder);
        assert!(folder.join("parameters/verbose").exists());
        home.end_daemon();
        until("the daemon has removed its files", || !folder.exists());
        assert_eq!(printed("sh", parameters), "0\n");
    });
}

#[test]
fn users_that_may_not_set_knobs_cannot_write_their_files() {
    isolated(|home| {
        if !geteuid().is_root() {
            return summary("skipped: only root can be several users");
        }
        set_permissions(home.folder(), Permissions::from_mode(0o755)).expect("our own folder");
        set_policy(home, &format!("[[rule]]\npipes = true\nusers = [{NOBODY}]\n"));
        let _daemon = start_daemon(home, &[]);
        let [unetmap, _library] =
            ["unetmap", "libunetmap.so"].map(|name| public_copy(home.folder(), &program(name).display().to_string()));
        let mut other = Command::new(&unetmap);
        other.args(["run", "--", "sh", "-c", "cat $P/buf_size && echo 9 >$P/verbose"]).uid(NOBODY).gid(NOBODY);
        let output = other.env("P", FOLDER).env("LC_ALL", "C").output().expect("unetmap");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.stdout == b"2048\n" && said.contains("ermission denied"), "{output:?}");
        assert_eq!(knob("verbose"), "0\n");
    });
}
