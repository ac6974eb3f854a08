// SPDX-License-Identifier: BSD-2-Clause
//! Programs compiled with other netmap headers than ours, and our headers compiled in strict modes.
//!
//! The other headers are generated from tables of the interface (`conformance/headers`): programs that work with them
//! depend on nothing that only our headers define.

use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::c::{linked, start};
use conformance::home::summary;
use conformance::{Home, isolated};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a compiler or another tool, which must succeed; returns its output.
#[track_caller]
fn tool(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (text, printed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {printed}");
    text.into_owned()
}

/// Writes the generated headers; prints why and returns `None` if there is no Python.
fn generated(folder: &Path) -> Option<PathBuf> {
    if Command::new("python3").arg("--version").output().is_err() {
        summary("skipped: no python3 here to generate headers with");
        return None;
    }
    let (out, headers) = (folder.join("generated"), root().join("conformance/headers"));
    let mut python = Command::new("python3");
    python.arg(headers.join("generate.py")).arg(root().join("crates/abi/tests/data/netmap-v14.json"));
    tool(python.arg(headers.join("interface.json")).arg(&out));
    Some(out)
}

/// Compiles sources with one folder of headers, and checks that no other netmap header is used.
fn compile(home: &Home, name: &str, include: &Path, sources: &[PathBuf], more: &[String]) -> PathBuf {
    let out = home.folder().join(name);
    let cc = || {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wno-override-init", "-Werror", "-pthread", "-I"]);
        cc.arg(include);
        cc
    };
    for source in sources {
        let used = tool(cc().arg("-MM").arg(source));
        let netmap = used.split_whitespace().filter(|file| file.contains("netmap") && file.ends_with(".h"));
        netmap.for_each(|file| assert!(Path::new(file).starts_with(include), "{name} is compiled with {file}"));
    }
    tool(cc().arg("-o").arg(&out).args(sources).args(more));
    out
}

/// Compiles the functions of `net/netmap_user.h` that are defined there and only declared in the generated headers.
fn functions(home: &Home) -> String {
    let out = home.folder().join("functions.o");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Werror", "-c", "-I"]).arg(root().join("include"));
    tool(cc.arg("-o").arg(&out).arg(root().join("conformance/headers/functions.c")));
    out.display().to_string()
}

/// Runs generator, forwarder and receiver in a row by `unetmap run`.
fn forward(home: &Home, include: &Path, more: &[String]) {
    let example = |name: &str, more: &[String]| {
        let source = root().join("examples/c").join(name).with_extension("c");
        compile(home, name, include, &[source], more)
    };
    let libnetmap: Vec<String> = linked(home.folder()).into_iter().chain(more.iter().cloned()).collect();
    let receiver = start(&example("receiver", more), &["netmap:e}2", "50000"]);
    let forwarder = start(&example("forwarder", &libnetmap), &["netmap:e}1", "netmap:e{2", "50000"]);
    let generator = start(&example("generator", &[]), &["e{1", "50000"]);
    assert_eq!(generator.output(), "sent 50000\n");
    assert_eq!(forwarder.output(), "forwarded 50000, without copies\n");
    assert_eq!(receiver.output(), "received 50000 packets, 3000000 bytes\n");
}

#[test]
fn examples_run_when_compiled_with_our_headers() {
    isolated(|home| forward(home, &root().join("include"), &[]));
}

#[test]
fn examples_run_when_compiled_with_generated_headers() {
    isolated(|home| {
        let Some(include) = generated(home.folder()) else { return };
        forward(home, &include, &[functions(home)]);
    });
}

/// The rules of memory and of control requests, which use nearly every structure and constant.
#[test]
fn rules_hold_when_compiled_with_generated_headers() {
    isolated(|home| {
        let Some(include) = generated(home.folder()) else { return };
        let rules = root().join("conformance/rules");
        for name in ["0-memory.c", "1.1-control.c", "1.4-legacy.c"] {
            let sources = [name, "rules.c", "port.c"].map(|file| rules.join(file));
            let printed = start(&compile(home, name, &include, &sources, &[]), &["preload"]).output();
            assert!(printed.lines().count() > 20 && printed.lines().all(|line| line.ends_with(" ok")), "{printed}");
        }
    });
}

/// The functions of `libnetmap.h` compile and link without any other code of this project; they call only libc.
#[test]
fn libnetmap_calls_only_functions_of_libc() {
    const SYSTEM: &str = "open ioctl mmap munmap close fstat
        malloc free memcpy memset memrchr strlen strcmp strncmp strchr strcspn strsep strerror if_nametoindex
        vsnprintf snprintf fprintf stderr pthread_mutex_lock pthread_mutex_unlock
        __errno_location __ctype_b_loc __stack_chk_fail _GLOBAL_OFFSET_TABLE_";
    let folder = tempfile::tempdir().expect("a folder for objects");
    let mut called = 0;
    for name in ["nmctx", "nmport", "nmreq"] {
        let object = folder.path().join(name).with_extension("o");
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-c", "-I"]).arg(root().join("include"));
        tool(cc.arg("-o").arg(&object).arg(root().join("preload").join(name).with_extension("c")));
        let symbols = tool(Command::new("nm").args(["--undefined-only", "--format=posix"]).arg(&object));
        for symbol in symbols.lines().filter_map(|line| line.split_whitespace().next()) {
            let own = ["nmport_", "nmreq_", "nmctx_", "unetmap_"].iter().any(|prefix| symbol.starts_with(prefix));
            assert!(own || SYSTEM.split_whitespace().any(|known| known == symbol), "{name}.c calls {symbol}");
            called += 1;
        }
    }
    assert!(called > 10, "only {called} calls were seen");
}

/// A program that uses every inline function of the headers.
const USE: &str = r#"
#define NETMAP_WITH_LIBS
#include <net/netmap_user.h>
#include <libnetmap.h>
static void seen(unsigned char *arg, const struct nm_pkthdr *h, const unsigned char *buf)
{
    (void)arg; (void)h; (void)buf;
}
int main(int argc, char **argv)
{
    struct nm_desc *d = argc > 1 ? nm_open(argv[1], NULL, NM_OPEN_NO_MMAP, NULL) : NULL;
    struct nmport_d *p = argc > 2 ? nmport_open(argv[2]) : NULL;
    struct nmreq_option *o;
    struct nm_pkthdr h;
    if (d != NULL) {
        struct netmap_ring *ring = NETMAP_TXRING(d->nifp, 0);
        NETMAP_WOFFSET(ring, &ring->slot[0], 4);
        nm_pkt_copy(argv[0], NETMAP_BUF_OFFSET(ring, &ring->slot[0]), 1);
        nm_dispatch(d, (int)NETMAP_BUF_IDX(ring, NETMAP_BUF(ring, 3)), seen, NULL);
        if (nm_nextpkt(d, &h) == NULL && nm_inject(d, argv[0], 1) == 0 && nm_tx_pending(ring))
            nm_close(d);
    }
    if (p != NULL) {
        nmreq_foreach_option(&p->hdr, o)
            if (NETMAP_RXRING(p->nifp, p->first_rx_ring)->num_slots == nm_ring_space(NETMAP_IF(p->nifp, 0) == NULL ?
                NULL : NETMAP_TXRING(p->nifp, 0)))
                return 1;
        nmport_close(p);
    }
    return 0;
}
"#;

fn uses(compiler: &str, file: &str, standards: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join(file);
    std::fs::write(&source, USE).expect("a file");
    for standard in standards {
        // Our headers must not need what the system's headers hide in strict modes.
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]);
        tool(command.arg("-I").arg(root().join("include")).arg(&source));
    }
}

#[test]
fn headers_compile_as_strict_c() {
    uses("cc", "use.c", &["-std=c99", "-std=c11", "-std=gnu17"]);
}

#[test]
fn headers_compile_as_cpp() {
    if Command::new("c++").arg("--version").output().is_err() {
        println!("skipped: there is no C++ compiler (c++) here");
        return;
    }
    uses("c++", "use.cc", &["-std=c++11", "-std=c++20"]);
}
