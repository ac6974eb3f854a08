// SPDX-License-Identifier: BSD-2-Clause
//! `make install`, and programs that use the result as the author of a C program does: by `pkg-config`, without this
//! source tree.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::c::{Running, compile_with};
use conformance::{Home, isolated, program};
use serde_json::Value;

const PREFIX: &str = "/opt/unetmap";

/// An installation below the test's folder.
struct Installed {
    below: PathBuf,
}

impl Installed {
    fn new(home: &Home) -> Installed {
        let below = home.folder().join("root");
        let built = program("libunetmap.so").parent().expect("a file in a folder").to_owned();
        conformance::pcap::overlay_in(&built);
        conformance::c::archives_in(&built);
        let output = Command::new("make")
            .arg("-C")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .args(["install", &format!("PREFIX={PREFIX}"), &format!("BIN={}", built.display())])
            .arg(format!("DESTDIR={}", below.display()))
            // Everything was built before: a missing file must fail the test and not start a long build.
            .arg("MAKE=false")
            .output()
            .expect("make");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Installed { below }
    }

    fn file(&self, path: &str) -> PathBuf {
        self.below.join(PREFIX.trim_start_matches('/')).join(path)
    }

    /// The output of `pkg-config` about libunetmap.
    fn ask(&self, what: &[&str]) -> Vec<String> {
        self.ask_of("unetmap", what)
    }

    fn ask_of(&self, package: &str, what: &[&str]) -> Vec<String> {
        let output = Command::new("pkg-config")
            .args(what)
            .arg(package)
            .env("PKG_CONFIG_SYSROOT_DIR", &self.below)
            .env("PKG_CONFIG_LIBDIR", self.file("lib/pkgconfig"))
            .output()
            .expect("pkg-config (apt-get install pkg-config)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(Into::into).collect()
    }

    /// Runs a program with the installed library and daemon.
    fn run(&self, program: &Path, args: &[&str]) -> Running {
        let mut command = Command::new(program);
        command.args(args).env("LD_LIBRARY_PATH", self.file("lib")).env("UNETMAPD", self.file("bin/unetmapd"));
        Running::spawn(&program.display().to_string(), &mut command)
    }
}

fn strs(strings: &[String]) -> Vec<&str> {
    strings.iter().map(String::as_str).collect()
}

#[test]
fn examples_compile_and_run_from_an_installation() {
    isolated(|home| {
        let root = Installed::new(home);
        let headers = root.ask(&["--cflags"]);
        let shared = [headers.clone(), root.ask(&["--libs"])].concat();
        // Fully static, including libc.
        let alone = [headers, vec!["-static".into()], root.ask(&["--static", "--libs"])].concat();
        let [receiver, forwarder] = ["receiver", "forwarder"].map(|name| compile_with(home, name, &strs(&shared)));
        let generator = compile_with(home, "generator", &strs(&alone));

        let receiver = root.run(&receiver, &["netmap:i}2", "20000"]);
        let forwarder = root.run(&forwarder, &["netmap:i}1", "netmap:i{2", "20000"]);
        let generator = root.run(&generator, &["i{1", "20000"]);
        assert_eq!(generator.output(), "sent 20000\n");
        assert_eq!(forwarder.output(), "forwarded 20000, without copies\n");
        assert_eq!(receiver.output(), "received 20000 packets, 1200000 bytes\n");
    });
}

#[test]
fn an_installed_unetmap_runs_programs() {
    isolated(|home| {
        let root = Installed::new(home);
        assert_eq!(root.ask(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
        // With the headers alone: `unetmap run` loads the library.
        let [generator, receiver] = ["generator", "receiver"].map(|name| {
            let program = compile_with(home, name, &strs(&root.ask(&["--cflags"])));
            program.display().to_string()
        });
        let unetmap = root.file("bin/unetmap");
        let receiver = root.run(&unetmap, &["run", &receiver, "netmap:i}1", "1000"]);
        let generator = root.run(&unetmap, &["run", "--", &generator, "i{1", "1000"]);
        assert_eq!(generator.output(), "sent 1000\n");
        assert_eq!(receiver.output(), "received 1000 packets, 60000 bytes\n");
    });
}

/// Each crate of the lock file that programs contain is named, and its licence's text is there.
#[test]
fn an_installation_has_the_licences_of_what_it_contains() {
    isolated(|home| {
        let root = Installed::new(home);
        let text = std::fs::read_to_string(root.file("share/doc/unetmap/NOTICES")).expect("the notices");
        let (list, texts) = text.split_once("\n\n====").expect("a list, and texts");
        let crates: Vec<&str> = list.lines().skip(3).collect();
        for name in ["clap", "h2", "prost", "rustix", "serde", "tokio", "toml"] {
            assert!(crates.iter().any(|line| line.starts_with(&format!("{name} "))), "{name}: {list}");
        }
        // Of tests alone.
        assert!(!list.contains("\nproptest ") && !list.contains("unetmap-"), "{list}");
        let (mut known, mut with_text) = (0, 0);
        for line in crates {
            let mut words = line.split(' ');
            let (name, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            assert!(line.contains(" (") && version.starts_with(|digit: char| digit.is_ascii_digit()), "{line}");
            known += 1;
            with_text += usize::from(texts.contains(&format!("{name} {version}")));
        }
        // A few crates have none in their packages.
        assert!(known > 50 && with_text * 20 > known * 19, "{with_text} of {known}");
        assert!(texts.contains("Permission is hereby granted") && texts.contains("Apache License"), "the texts");
        check_bill(&root, list);
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        assert!(!text.contains(&std::fs::canonicalize(here).expect("our own folder").display().to_string()));
    });
}

/// The bill of materials has the crates of the notices with their checksums, and all that cargo's own list has.
#[track_caller]
fn check_bill(root: &Installed, notices: &str) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let bill = std::fs::read(root.file("share/doc/unetmap/sbom.cdx.json")).expect("the bill of materials");
    let bill: Value = serde_json::from_slice(&bill).expect("JSON");
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let all = bill["components"].as_array().expect("components");
    let text = |component: &Value, key: &str| component[key].as_str().expect("text").to_owned();
    let refs: BTreeSet<String> = all.iter().map(|component| text(component, "bom-ref")).collect();
    assert_eq!(refs.len(), all.len(), "each has a name of its own");
    let lock = std::fs::read_to_string(here.join("Cargo.lock")).expect("the lock file");
    let mut crates = BTreeSet::new();
    for component in all.iter().filter(|component| component["purl"].is_string()) {
        let (name, version) = (text(component, "name"), text(component, "version"));
        let checksum = text(&component["hashes"][0], "content");
        let begin =
            lock.find(&format!("name = \"{name}\"\nversion = \"{version}\"\n")).expect("it is in the lock file");
        let entry = lock[begin..].split("\n\n").next().unwrap_or_default();
        assert!(entry.contains(&format!("checksum = \"{checksum}\"")), "{name}: {entry}");
        crates.insert(format!("{name} {version}"));
    }
    let named = notices.lines().skip(3).map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "));
    assert_eq!(named.collect::<BTreeSet<_>>(), crates);
    for link in bill["dependencies"].as_array().expect("dependencies") {
        let needed = link["dependsOn"].as_array().expect("a list");
        assert!(needed.iter().all(|to| refs.contains(to.as_str().expect("text"))), "{link}");
    }
    let mut tree = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    tree.args(["tree", "--locked", "--offline", "--prefix=none", "--edges=normal", "--format={p}"]);
    let output = tree.args(["-p", "unetmap-cli", "-p", "unetmap-daemon"]).current_dir(here).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).expect("text");
    // Crates of this repository have their folders behind them.
    let others = listed.lines().filter(|line| !line.is_empty() && !line.contains('('));
    let missing: BTreeSet<String> =
        others.map(|line| line.replace(" v", " ")).filter(|name| !crates.contains(name)).collect();
    assert!(missing.is_empty() && listed.lines().count() > 100, "{missing:?}");
}

/// The benchmarks find the example programs that they run.
#[test]
fn an_installed_unetmap_benchmarks_its_examples() {
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: network namespaces need root");
            return;
        }
        let root = Installed::new(home);
        let mut bench = Command::new(root.file("bin/unetmap"));
        bench.args(["bench", "lb", "scrub", "--samples", "1", "--seconds", "60", "--json"]);
        // Without the programs of this tree and of the machine.
        bench.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env_remove("UNETMAPD");
        let output = bench.output().expect("it was installed");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{err}");
        for name in ["lb", "scrub"] {
            assert!(out.lines().any(|row| row.contains(&format!("\"name\":\"{name}\""))), "{out}{err}");
        }
    });
}

/// The manual page names every exported function, and every header is installed.
#[test]
fn every_exported_function_is_documented() {
    isolated(|home| {
        let root = Installed::new(home);
        let page = std::fs::read_to_string(root.file("share/man/man3/libunetmap.3")).expect("the manual page");
        let mut nm = Command::new("nm");
        nm.args(["-D", "--defined-only", "--format=posix"]).arg(root.file("lib/libunetmap.so"));
        let exported = nm.output().expect("nm (apt-get install binutils)");
        let exported = String::from_utf8_lossy(&exported.stdout).into_owned();
        let names = exported.lines().filter_map(|line| line.split([' ', '@']).next());
        let ours: Vec<_> = names.filter(|name| name.starts_with("nm") && *name != "nmctx_threadsafe").collect();
        assert!(ours.len() > 30, "{ours:?}");
        for name in ours {
            assert!(page.contains(name), "libunetmap.3 does not tell of {name}");
        }
        for header in ["net/netmap.h", "net/netmap_legacy.h", "net/netmap_user.h", "libnetmap.h"] {
            assert!(root.file("include").join(header).is_file(), "{header}");
        }
    });
}

/// The names that may be global: functions of the public headers, system calls that the library answers, and names with
/// a prefix of ours.
fn allowed() -> Vec<String> {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/capi/symbols.txt");
    let list = std::fs::read_to_string(list).expect("the list of symbols");
    list.lines().map(Into::into).collect()
}

/// The names that a library defines for programs.
fn defined(library: &Path, dynamic: &[&str]) -> Vec<String> {
    let mut nm = Command::new("nm");
    nm.args(["--extern-only", "--defined-only", "--format=posix"]).args(dynamic).arg(library);
    let output = nm.output().expect("nm (apt-get install binutils)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // A line that ends with a colon names a member of an archive; the version itself is an absolute symbol.
    let symbols = text.lines().filter(|line| !line.ends_with(':') && !line.contains(" A "));
    let names = symbols.filter_map(|line| line.split([' ', '@']).next());
    names.filter(|name| !name.is_empty()).map(Into::into).collect()
}

#[test]
fn libraries_define_only_allowed_names() {
    isolated(|home| {
        let root = Installed::new(home);
        let allowed = allowed();
        for (library, dynamic) in [("libunetmap.so", &["-D"][..]), ("libunetmap.a", &[]), ("libnetmap.a", &[])] {
            let names = defined(&root.file("lib").join(library), dynamic);
            assert!(names.len() > 30, "{library}: {names:?}");
            let ours = |name: &String| name.starts_with("unetmap_") || allowed.contains(name);
            let others: Vec<_> = names.iter().filter(|name| !ours(name)).collect();
            assert!(others.is_empty(), "{library}: {others:?}");
        }
        let shared = defined(&root.file("lib/libunetmap.so"), &["-D"]);
        let missing: Vec<_> = allowed.iter().filter(|name| !shared.contains(name)).collect();
        assert!(missing.is_empty(), "in the list but not in the library: {missing:?}");
        let mut versions = Command::new("nm");
        let versions =
            versions.args(["-D", "--defined-only"]).arg(root.file("lib/libunetmap.so")).output().expect("nm");
        let versions = String::from_utf8_lossy(&versions.stdout).into_owned();
        // The loader would not find a system call's name that had another version than the C library's.
        for name in ["T nmport_open@@UNETMAP_0\n", "T open\n", "T poll\n", "T unetmap_last_error@@UNETMAP_0\n"] {
            assert!(versions.contains(name), "no {name:?} in {versions}");
        }
    });
}

/// Functions with common names, which a program may define: they were global in the archive.
const COMMON_NAMES: &str = r#"
#include <libnetmap.h>
#include <stdio.h>
#define FUNCTION(name)	int name(void) { return 1; }
FUNCTION(now) FUNCTION(failed) FUNCTION(real) FUNCTION(wait_until) FUNCTION(is_netmap) FUNCTION(rust_eh_personality)
int main(void)
{
    struct nmport_d *d = nmport_open("netmap:x{1");
    if (likely(d != NULL))
        nmport_close(d);
    nm_ldld_barrier();
    nm_stld_barrier();
    nm_stst_barrier();
    printf("%d %d\n", d != NULL, now() + failed() + real() + wait_until() + is_netmap() + rust_eh_personality());
    return unlikely(d == NULL);
}
"#;

/// A program in Rust with a copy of the standard library of its own, in which both panics are caught.
const IN_RUST: &str = r#"
use std::ffi::{c_char, c_void};
unsafe extern "C" {
    fn nmport_open(name: *const c_char) -> *mut c_void;
    fn nmport_close(port: *mut c_void);
}
fn main() {
    let caught = std::panic::catch_unwind(|| panic!("caught"));
    let port = unsafe { nmport_open(c"netmap:x{1".as_ptr()) };
    if !port.is_null() {
        unsafe { nmport_close(port) };
    }
    println!("{} {}", !port.is_null(), caught.is_err());
}
"#;

#[test]
fn the_archives_link_into_programs_with_common_names_and_into_rust() {
    isolated(|home| {
        let root = Installed::new(home);
        let source = home.folder().join("common.c");
        std::fs::write(&source, COMMON_NAMES).expect("a file");
        let mut built = Vec::new();
        for (package, more) in [("unetmap", &["--static"][..]), ("netmap", &[]), ("libnetmap", &[])] {
            let out = home.folder().join(format!("common-{package}"));
            let options = root.ask_of(package, &[&["--cflags", "--libs"], more].concat());
            let options = options.iter().map(|option| match option.as_str() {
                "-lunetmap" => root.file("lib/libunetmap.a").display().to_string(),
                _ => option.clone(),
            });
            let mut cc = Command::new("cc");
            cc.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&out).arg(&source).args(options).arg("-pthread");
            let output = cc.output().expect("cc");
            assert!(output.status.success(), "{package}: {}", String::from_utf8_lossy(&output.stderr));
            built.push(out);
        }
        assert_eq!(root.run(&built[0], &[]).output(), "1 6\n");
        // The other libraries contain no netmap: the programs need the node, or `unetmap run`.
        for program in &built[1..] {
            let running = root.run(&root.file("bin/unetmap"), &["run", &program.display().to_string()]);
            assert_eq!(running.output(), "1 6\n");
        }
        let (source, out) = (home.folder().join("in_rust.rs"), home.folder().join("in_rust"));
        std::fs::write(&source, IN_RUST).expect("a file");
        let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
        rustc.args(["--edition=2024", "-lstatic=unetmap", "-L"]).arg(root.file("lib")).arg("-o").arg(&out).arg(&source);
        let output = rustc.output().expect("rustc");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(root.run(&out, &[]).output(), "true true\n");
    });
}

/// The sanitizer's runtime refuses to start behind a preloaded library unless it is told to.
#[test]
fn programs_with_the_address_sanitizer_run() {
    isolated(|home| {
        let root = Installed::new(home);
        let source = home.folder().join("sanitized.c");
        std::fs::write(&source, COMMON_NAMES).expect("a file");
        let out = home.folder().join("sanitized");
        let mut cc = Command::new("cc");
        cc.args(["-fsanitize=address", "-o"])
            .arg(&out)
            .arg(&source)
            .args(root.ask_of("netmap", &["--cflags", "--libs"]));
        let output = cc.arg("-pthread").output().expect("cc");
        if !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("asan") {
            eprintln!("skipped: this compiler has no address sanitizer");
            return;
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let unetmap = root.file("bin/unetmap");
        let run = |args: &[&str]| {
            let mut command = Command::new(&unetmap);
            command.arg("run").args(args).env("UNETMAPD", root.file("bin/unetmapd"));
            command.output().expect("it was installed")
        };
        let path = out.display().to_string();
        for args in [vec![path.as_str()], vec!["sh", "-c", path.as_str()]] {
            let output = run(&args);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(String::from_utf8_lossy(&output.stdout), "1 6\n", "{args:?}: {said}");
            assert!(output.status.success(), "{args:?}: {said}");
        }
    });
}

/// With drop-ins as `docs/inline.md` has them.
#[test]
fn systemd_accepts_the_units_and_drop_ins_of_the_document() {
    isolated(|home| {
        if Command::new("systemd-analyze").arg("--version").output().is_err() {
            eprintln!("skipped: systemd-analyze, of systemd, is not installed");
            return;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let bin = program("unetmapd").parent().expect("a file in a folder").display().to_string();
        let in_the_wire = ["unetmap-bridge@.service", "unetmap-fw@.service", "unetmap-suricata@.service"];
        for unit in ["unetmapd.socket", "unetmapd.service"].into_iter().chain(in_the_wire) {
            let text = std::fs::read_to_string(root.join("service").join(unit)).expect("a unit");
            let name = unit.replace('@', "@lan");
            std::fs::write(home.folder().join(&name), text.replace("@BINDIR@", &bin)).expect("a file");
        }
        let document = std::fs::read_to_string(root.join("docs/inline.md")).expect("a document");
        let drop_ins: Vec<&str> =
            document.split("```ini\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(drop_ins.len() >= 2, "the document has drop-ins");
        let names = in_the_wire.map(|unit| unit.replace('@', "@lan"));
        for (name, text) in names.iter().flat_map(|name| drop_ins.iter().map(move |text| (name, text))) {
            let folder = home.folder().join(format!("{name}.d"));
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join("override.conf"), text).expect("a file");
            let mut command = Command::new("systemd-analyze");
            command.args(["verify", "--man=no"]).arg(home.folder().join(name));
            let output = command.env("SYSTEMD_UNIT_PATH", format!("{}:", home.folder().display())).output();
            let output = output.expect("systemd-analyze");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !said.contains(&**name), "{name} with {text}: {said}");
        }
    });
}
