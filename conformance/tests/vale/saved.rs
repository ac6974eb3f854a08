// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap config save` destroys nothing: whatever it cannot know or cannot write, the file stays.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use conformance::{Home, isolated, program};

const FILE: &str = "\
# Of the lab.
[port.\"vale0:a\"]
access = 10 # customers

[port.\"vale0:gone\"] # a guest
# Until Tuesday.
access = 20
";

/// Exit status, standard output and standard error of a command.
type Said = (i32, String, String);

fn said(command: &mut Command) -> Said {
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().expect("an exit"), text(&output.stdout), text(&output.stderr))
}

/// Runs `unetmap`, whose file of switches is `file`.
fn unetmap(file: &Path, args: &str) -> Command {
    let mut command = Command::new(program("unetmap"));
    command.args(args.split(' ')).env("UNETMAP_SWITCHES", file);
    command
}

#[track_caller]
fn done(file: &Path, args: &str) -> Said {
    let said = said(&mut unetmap(file, args));
    assert_eq!(said.0, 0, "{args}: {said:?}");
    said
}

#[track_caller]
fn refused(file: &Path, args: &str, why: &str) {
    let (status, _, noted) = said(&mut unetmap(file, args));
    assert!(status == 1 && noted.contains(why), "{args}: {why}: {status}, {noted}");
}

/// A file of its own folder, which holds nothing else.
fn file(home: &Home, text: &str) -> PathBuf {
    let folder = home.folder().join("etc");
    fs::create_dir(&folder).expect("a folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("it is ours");
    put(&folder.join("switches.toml"), text);
    folder.join("switches.toml")
}

fn put(path: &Path, text: &str) {
    fs::write(path, text).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("it is ours");
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("a file")
}

fn names(file: &Path) -> Vec<String> {
    let entries = fs::read_dir(file.parent().expect("a folder")).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn without_a_daemon_nothing_is_said_and_nothing_is_written() {
    isolated(|home| {
        let file = file(home, FILE);
        for args in ["config save", "config save --yes", "config show", "config diff", "config diff --json"] {
            refused(&file, args, "no daemon is running");
        }
        assert_eq!((text(&file).as_str(), names(&file)), (FILE, vec!["switches.toml".to_owned()]));
        assert!(!home.socket().exists(), "none is started either");
        // `apply` starts one, and makes what the file says.
        assert!(done(&file, "config apply").1.ends_with("made 2, was so 0, failed 0\n"));
        assert_eq!(done(&file, "config diff").1, "");
    });
}

#[test]
fn what_would_vanish_is_listed_and_stays_unless_yes() {
    isolated(|home| {
        let file = file(home, FILE);
        let former = file.with_file_name("switches.toml~");
        done(&file, "vale port vale0:a trunk 10,20");
        let (_, printed, noted) = done(&file, "config save");
        assert!(noted.contains("stay") && noted.contains("\n- unetmap vale port vale0:gone access 20\n"), "{noted}");
        assert!(!noted.contains("vale0:a"), "it is replaced: {noted}");
        assert!(printed.contains("1 settings; the former file is ") && printed.ends_with("switches.toml~\n"));
        let after = FILE.replace("access = 10 # customers", "trunk = \"10,20\"\n# customers");
        assert_eq!((text(&file), text(&former)), (after.clone(), FILE.into()));
        // A save that changes nothing leaves the former file.
        done(&file, "config save");
        assert_eq!((text(&file), text(&former)), (after.clone(), FILE.into()));
        let (_, _, noted) = done(&file, "config save --yes");
        assert!(noted.contains("removed:\n- unetmap vale port vale0:gone access 20\n"), "{noted}");
        let cut = "# a guest\n# Until Tuesday.\n";
        assert!(text(&file).ends_with(cut) && !text(&file).contains("gone"), "{}", text(&file));
        assert_eq!(text(&former), after);
        assert_eq!(names(&file), ["switches.toml", "switches.toml~"]);
    });
}

/// `--save` of a command writes what the command set; other entries of the same port stay, too.
#[test]
fn a_command_that_saves_removes_only_what_it_set() {
    isolated(|home| {
        let file = file(home, "[port.\"vale0:a\"]\naccess = 10 # A\nstorm = 1000\nrate-in = \"1kpps\"\n");
        refused(&file, "vale port vale0:a storm off --save", "no daemon is running");
        done(&file, "vale port vale0:z storm 1");
        let (_, _, noted) = done(&file, "vale port vale0:a storm off --save");
        assert!(noted.contains("removed:\n- unetmap vale port vale0:a storm 1k\n"), "{noted}");
        assert!(noted.contains("access 10") && noted.contains("rate in 1kpps"), "{noted}");
        assert_eq!(text(&file), "[port.\"vale0:a\"]\naccess = 10 # A\nrate-in = \"1kpps\"\n");
        done(&file, "vale port vale0:a trunk 20 --save");
        assert_eq!(text(&file), "[port.\"vale0:a\"]\n# A\nrate-in = \"1kpps\"\ntrunk = 20\n");
        done(&file, "vale port vale0:a off --save");
        assert_eq!(text(&file), "# A\n");
    });
}

#[test]
fn a_difference_is_told_as_json() {
    isolated(|home| {
        let file = file(home, FILE);
        done(&file, "vale port vale0:b storm 1000");
        let (status, printed, _) = said(&mut unetmap(&file, "config diff --json"));
        let all: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
        assert_eq!(status, 1);
        assert_eq!(all["file"], file.to_string_lossy().as_ref());
        let missing = ["unetmap vale port vale0:a access 10", "unetmap vale port vale0:gone access 20"];
        assert_eq!(all["missing"], serde_json::json!(missing));
        assert_eq!(all["extra"], serde_json::json!(["unetmap vale port vale0:b storm 1k"]));
        done(&file, "config apply");
        done(&file, "config save");
        let (status, printed, _) = said(&mut unetmap(&file, "config diff --json"));
        assert!(status == 0 && printed.contains("\"missing\":[]") && printed.contains("\"extra\":[]"), "{printed}");
    });
}

/// Its commands are made with the privileges of its reader, which is root at the start of the service.
#[test]
fn a_file_that_others_may_write_is_refused() {
    isolated(|home| {
        let file = file(home, FILE);
        let folder = file.parent().expect("a folder");
        done(&file, "vale port vale0:b storm 1000");
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
        for (path, wrong, right) in [(&*file, 0o664, 0o644), (&file, 0o646, 0o644), (folder, 0o777, 0o755)] {
            mode(path, wrong);
            for args in ["check", "apply", "apply --if-present", "diff", "save", "save --yes"] {
                refused(&file, &format!("config {args}"), "can be written by others than its owner; chmod go-w it");
            }
            refused(&file, "vale port vale0:b storm 2000 --save", "can be written by others");
            mode(path, right);
        }
        assert_eq!((text(&file).as_str(), names(&file)), (FILE, vec!["switches.toml".to_owned()]));
        done(&file, "config check");
    });
}

#[test]
fn a_file_that_is_wrong_or_unreadable_stays() {
    isolated(|home| {
        let file = file(home, FILE);
        done(&file, "vale port vale0:b storm 1000");
        for (wrong, why) in [
            (&b"[prot.\"vale0:a\"]\n"[..], "toml:1: there is no section `prot`"),
            (b"[port.\"vale0:a\"]\n\nacess = 1\n", "toml:3: there is no `acess` here"),
            (b"[port.\"vale0:a\"]\n\nacess = 1\n", "did you mean `access`?"),
            (b"# \xff\n", "toml:1: this is not UTF-8"),
            (b"= 1", "toml:1: "),
        ] {
            fs::write(&file, wrong).expect("a file");
            for args in ["config save", "config save --yes", "config diff", "config apply", "config check"] {
                refused(&file, args, why);
            }
            assert_eq!(fs::read(&file).expect("a file"), wrong);
        }
        let missing = file.with_file_name("none.toml");
        for args in ["config check", "config apply", "config diff"] {
            refused(&missing, args, "there is no such file");
        }
        done(&missing, "config apply --if-present");
        refused(file.parent().expect("a folder"), "config save", "not an ordinary file");
        // No folder is made.
        let absent = home.folder().join("absent/switches.toml");
        refused(&absent, "config save", &format!("mkdir -p {}", home.folder().join("absent").display()));
        refused(&absent, "vale port vale0:b storm 2000 --save", "make it first");
        assert!(!absent.parent().expect("a folder").exists());
        assert_eq!(names(&file), ["switches.toml"]);
    });
}

#[test]
fn a_link_stays_and_its_file_is_replaced() {
    isolated(|home| {
        let file = file(home, FILE);
        let link = home.folder().join("link.toml");
        symlink("etc/switches.toml", &link).expect("a link");
        done(&file, "vale port vale0:b storm 1000");
        let (_, printed, _) = done(&link, "config save");
        assert!(printed.contains("etc/switches.toml~"), "{printed}");
        assert!(link.symlink_metadata().expect("a link").is_symlink());
        assert!(text(&file).contains("vale0:b") && names(&file) == ["switches.toml", "switches.toml~"]);
        // A link that was put in the place of the former file, or of the new one, is not followed.
        let other = home.folder().join("other");
        put(&other, "other");
        fs::remove_file(file.with_file_name("switches.toml~")).expect("a file");
        for name in ["switches.toml~", ".switches.toml.new", ".switches.toml.old"] {
            symlink(&other, file.with_file_name(name)).expect("a link");
        }
        let lock = file.with_file_name(".switches.toml.lock");
        symlink(&other, &lock).expect("a link");
        refused(&link, "config save", "it cannot be replaced");
        fs::remove_file(&lock).expect("a link");
        // One that was left by a program that was killed.
        put(&lock, "");
        done(&link, "config save --yes");
        assert_eq!(text(&other), "other");
        assert!(!file.with_file_name("switches.toml~").symlink_metadata().expect("a file").is_symlink());
        assert_eq!(names(&file), ["switches.toml", "switches.toml~"]);
        let dangling = home.folder().join("dangling.toml");
        symlink("etc/none.toml", &dangling).expect("a link");
        refused(&dangling, "config save", "it is a link to a file that cannot be found");
    });
}

#[test]
fn owner_and_permissions_stay() {
    isolated(|home| {
        let file = file(home, FILE);
        let former = file.with_file_name("switches.toml~");
        done(&file, "vale port vale0:b storm 1000");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
        let is_root = file.metadata().expect("a file").uid() == 0;
        if is_root {
            std::os::unix::fs::chown(&file, None, Some(12)).expect("root may");
        }
        done(&file, "config save");
        for path in [&file, &former] {
            let meta = path.metadata().expect("a file");
            assert_eq!(meta.mode() & 0o7777, 0o600);
            assert!(!is_root || (meta.uid(), meta.gid()) == (0, 12), "{}", path.display());
        }
        // A new file can be read by all.
        let new = file.with_file_name("new.toml");
        done(&new, "config save");
        assert_eq!(new.metadata().expect("a file").mode() & 0o7777, 0o644);
        assert_eq!(names(&file), ["new.toml", "switches.toml", "switches.toml~"]);
    });
}

/// A file system that is full, and one that is mounted without writing.
#[test]
fn what_cannot_be_written_stays_whole() {
    isolated(|home| {
        let file = file(home, FILE);
        done(&file, "vale port vale0:b storm 1000");
        let unetmap = program("unetmap").display().to_string();
        let folder = file.parent().expect("a folder").display().to_string();
        let full = format!("trap '' XFSZ; ulimit -f 0; exec {unetmap} config save");
        let read_only = format!(
            "mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && exec {unetmap} config save"
        );
        let mut limited = Command::new("sh");
        limited.args(["-c", &full]);
        let mut mounted = Command::new("unshare");
        mounted.args(["--mount", "sh", "-c", &read_only]);
        for command in [&mut limited, &mut mounted] {
            if command.get_program() == "unshare" && file.metadata().expect("a file").uid() != 0 {
                conformance::home::summary("skipped: a mount without writing needs root");
                continue;
            }
            let (status, printed, noted) = said(command.env("UNETMAP_SWITCHES", &file));
            assert!(status == 1 && printed.is_empty() && noted.contains("cannot be replaced"), "{status}: {noted}");
            assert_eq!((text(&file).as_str(), names(&file)), (FILE, vec!["switches.toml".to_owned()]));
        }
    });
}

#[test]
fn saves_at_the_same_time_lose_nothing() {
    isolated(|home| {
        let file = file(home, FILE);
        done(&file, "vale port vale0:z storm 1");
        let start =
            |args: &str| unetmap(&file, args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        let commands = (1..=6).map(|n| format!("vale port vale0:p{n} access {n} --save"));
        let all = commands.chain((0..3).map(|_| "config save".into()));
        let mut running: Vec<Child> = all.map(|args| start(&args)).collect();
        assert!(running.iter_mut().all(|child| child.wait().expect("it ends").success()));
        let after = text(&file);
        for n in 1..=6 {
            assert!(after.contains(&format!("[port.\"vale0:p{n}\"]\naccess = {n}\n")), "{n}:\n{after}");
        }
        assert!(after.starts_with(FILE) && after.contains("vale0:z"), "{after}");
        assert_eq!(names(&file), ["switches.toml", "switches.toml~"]);
    });
}
