//! What `make install` installs, used like the author of a C program does: by `pkg-config`, without this source tree.

use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::c::{Running, compile_with};
use conformance::{Home, isolated, program};

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

    /// The output of `pkg-config`.
    fn ask(&self, what: &[&str]) -> Vec<String> {
        let output = Command::new("pkg-config")
            .args(what)
            .arg("unetmap")
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
        let names = exported.lines().filter_map(|line| line.split(' ').next());
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
