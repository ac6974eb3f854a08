// SPDX-License-Identifier: BSD-2-Clause
//! Compares the C headers with the table of the interface, by a C compiler: sizes, alignments, offsets, types,
//! constants.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The headers. `header_of` lists the names that are not declared in the first one.
const NETMAP: &str = "net/netmap.h";
const LEGACY: &str = "net/netmap_legacy.h";
const USER: &str = "net/netmap_user.h";
const LIB: &str = "libnetmap.h";

/// The header that declares a name.
fn header_of(name: &str) -> &'static str {
    match name {
        "nm_pkthdr" | "nm_stat" | "nm_desc" | "NM_ERRBUF_SIZE" | "NM_MORE_PKTS" => USER,
        "nmport_d" | "nmem_d" | "nmctx" | "NMREQ_OPT_MAXKEYS" => LIB,
        "nmreq" | "nm_ifreq" | "NIOCGINFO" | "NIOCREGIF" | "NIOCCONFIG" => LEGACY,
        "NM_IFRDATA_LEN" | "NETMAP_VNET_HDR_GET" => LEGACY,
        "NETMAP_HW_RING" | "NETMAP_SW_RING" | "NETMAP_RING_MASK" => LEGACY,
        "NETMAP_NO_TX_POLL" | "NETMAP_DO_RX_POLL" => LEGACY,
        _ if name.starts_with("NM_OPEN_") => USER,
        _ if name.starts_with("NETMAP_BDG_") || name.starts_with("NETMAP_PT_") => LEGACY,
        _ => NETMAP,
    }
}

/// Whether a constant is an enumerator. Programs test macros with `#ifdef`, so macros must stay macros.
fn is_enumerator(name: &str) -> bool {
    const SIZES_AND_MASKS: [&str; 3] = ["NETMAP_REQ_MAXSIZE", "NETMAP_REQ_IFNAMSIZ", "NR_REG_MASK"];
    let prefixes = ["NETMAP_REQ_", "NR_REG_", "NM_OPEN_"];
    prefixes.iter().any(|p| name.starts_with(p)) && !SIZES_AND_MASKS.contains(&name)
}

fn include_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include")
}

fn table() -> Value {
    serde_json::from_str(include_str!("data/netmap-v14.json")).unwrap()
}

fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().unwrap().iter().map(|(name, value)| (name.as_str(), value))
}

/// Runs a compiler.
///
/// # Errors
/// The compiler's messages.
fn compile(compiler: &str, args: &[&str], source: &Path, out: &Path) -> Result<(), String> {
    let output = Command::new(compiler)
        .args(args)
        .arg("-I")
        .arg(include_dir())
        .arg("-o")
        .arg(out)
        .arg(source)
        .output()
        .map_err(|e| format!("cannot run {compiler}: {e}; this test needs a C compiler (apt-get install gcc)"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{compiler} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr))),
    }
}

/// Compiles and runs a C program, and returns what it printed as lines of `key value`.
fn run(source: &str) -> BTreeMap<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let (file, program) = (dir.path().join("probe.c"), dir.path().join("probe"));
    std::fs::write(&file, source).unwrap();
    let args = ["-std=gnu11", "-Wall", "-Werror", "-Wno-address-of-packed-member"];
    compile("cc", &args, &file, &program).unwrap_or_else(|e| panic!("{e}"));
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success(), "the probe failed: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Appends C lines that print, under `key`, whether `expr` has the type `ty`. Pointers to both are compared, so that
/// `const` and array sizes count. An unnamed type is compared member by member.
fn type_probe(c: &mut String, key: &str, expr: &str, ty: &str, number: &mut usize) {
    if let Some(rest) = ty.strip_prefix("struct {") {
        let (members, dims) = rest.split_once('}').unwrap();
        assert_eq!(dims, "[]", "{key}: cannot check {ty}");
        let mut size = String::from("0");
        for member in members.split(';').map(str::trim).filter(|m| !m.is_empty()) {
            let (ty, name) = member.rsplit_once(' ').unwrap();
            type_probe(c, &format!("{key}[].{name}"), &format!("{expr}[0].{name}"), ty, number);
            write!(size, " + sizeof({ty})").unwrap();
        }
        writeln!(c, "P(\"element {key}\", sizeof({expr}[0]) == {size});").unwrap();
        return;
    }
    let (base, dims) = ty.find('[').map_or((ty, ""), |at| ty.split_at(at));
    *number += 1;
    writeln!(c, "typedef {base} t{number}{dims};").unwrap();
    writeln!(c, "P(\"type {key}\", __builtin_types_compatible_p(__typeof__(&{expr}), t{number} *));").unwrap();
}

/// Returns a program that prints the facts of the table as the compiler sees them, and the facts that the table states.
fn probe(has: impl Fn(&str) -> bool) -> (String, BTreeMap<String, String>) {
    let table = table();
    let mut c = String::from("#include <stdio.h>\n#include <stddef.h>\n");
    for header in [NETMAP, USER, LIB].into_iter().filter(|header| has(header)) {
        if header == USER {
            c.push_str("#define NETMAP_WITH_LIBS\n");
        }
        writeln!(c, "#include <{header}>").unwrap();
    }
    c.push_str("#define P(key, value) printf(\"%s %llu\\n\", key, (unsigned long long)(value))\n");
    c.push_str("int main(void)\n{\n");
    let mut want = BTreeMap::new();
    let mut types = 0;
    for (name, layout) in entries(&table["structs"]).filter(|(name, _)| has(header_of(name))) {
        let s = format!("struct {name}");
        writeln!(c, "P(\"size {name}\", sizeof({s}));\nP(\"align {name}\", _Alignof({s}));").unwrap();
        want.insert(format!("size {name}"), layout["size"].to_string());
        want.insert(format!("align {name}"), layout["align"].to_string());
        for (field, facts) in entries(&layout["fields"]) {
            let key = format!("{name}.{field}");
            let expr = format!("(({s} *)0)->{field}");
            writeln!(c, "P(\"offset {key}\", offsetof({s}, {field}));").unwrap();
            want.insert(format!("offset {key}"), facts["offset"].to_string());
            if !facts["size"].is_null() {
                writeln!(c, "P(\"size {key}\", sizeof({expr}));").unwrap();
                want.insert(format!("size {key}"), facts["size"].to_string());
            }
            let ty = facts["type"].as_str().unwrap();
            type_probe(&mut c, &key, &expr, ty, &mut types);
            if !ty.starts_with("struct {") {
                want.insert(format!("type {key}"), "1".into());
            }
        }
    }
    for (name, value) in entries(&table["constants"]).filter(|(name, _)| has(header_of(name))) {
        writeln!(c, "P(\"value {name}\", {name});").unwrap();
        writeln!(c, "#ifdef {name}\nP(\"macro {name}\", 1);\n#else\nP(\"macro {name}\", 0);\n#endif").unwrap();
        want.insert(format!("value {name}"), value.to_string());
        want.insert(format!("macro {name}"), u8::from(!is_enumerator(name)).to_string());
    }
    c.push_str("return 0;\n}\n");
    (c, want)
}

#[test]
fn headers_agree_with_the_table() {
    let has = |header: &str| include_dir().join(header).exists();
    assert!(has(NETMAP) && has(LEGACY), "no headers in {}", include_dir().display());
    for header in [USER, LIB].into_iter().filter(|header| !has(header)) {
        println!("skipped: include/{header} does not exist; its declarations are not compared");
    }
    let (source, mut want) = probe(has);
    // The only unnamed type: its members and the size of its elements.
    for key in ["ioeventfd", "irqfd"] {
        want.insert(format!("type nmreq_opt_sync_kloop_eventfds.eventfds[].{key}"), "1".into());
    }
    want.insert("element nmreq_opt_sync_kloop_eventfds.eventfds".into(), "1".into());
    let got = run(&source);
    let wrong: Vec<String> = want
        .iter()
        .filter(|(key, value)| got.get(*key) != Some(value))
        .map(|(key, value)| format!("{key}: {:?}, not {value}", got.get(key)))
        .collect();
    assert!(wrong.is_empty(), "the headers differ from the table:\n{}", wrong.join("\n"));
    assert_eq!(got.len(), want.len(), "the probe printed facts that were not compared");
    assert!(want.len() > 500, "only {} facts", want.len());
}

/// The type check can fail: without this test, a builtin that always returns true would pass.
#[test]
fn a_wrong_type_is_detected() {
    let mut c = String::from("#include <stdio.h>\n#include <net/netmap.h>\n");
    c.push_str("#define P(key, value) printf(\"%s %llu\\n\", key, (unsigned long long)(value))\n");
    c.push_str("int main(void)\n{\n");
    let field = |field: &str| format!("((struct netmap_ring *)0)->{field}");
    let mut n = 0;
    type_probe(&mut c, "sign", &field("num_slots"), "const int32_t", &mut n);
    type_probe(&mut c, "const", &field("num_slots"), "uint32_t", &mut n);
    type_probe(&mut c, "array", &field("sem"), "uint8_t[64]", &mut n);
    type_probe(&mut c, "element", &field("slot"), "struct netmap_if[]", &mut n);
    c.push_str("return 0;\n}\n");
    let got = run(&c);
    assert_eq!(got.len(), 4);
    assert!(got.values().all(|same| same == "0"), "{got:?}");
}

/// Uses declarations that have no row in the table: functions, the function-like macro, flexible arrays.
const USE: &str = r#"
#include <net/netmap.h>
#include <net/netmap.h>
#include <net/netmap_legacy.h>
static uint32_t use(struct netmap_ring *ring, struct netmap_if *nifp, struct nm_csb_atok *atok,
    struct nm_csb_ktoa *ktoa, struct nmreq_opt_sync_kloop_eventfds *fds)
{
    static const char name[] = NM_BDG_NAME;
    uint32_t hwcur, hwtail;
    nm_sync_kloop_appl_write(atok, 1, 2);
    nm_sync_kloop_appl_read(ktoa, &hwtail, &hwcur);
    nm_stst_barrier();
    nm_ldld_barrier();
    nm_stld_barrier();
    return (uint32_t)NS_RFRAGS(&ring->slot[1]) + (uint32_t)nm_ring_empty(ring) + hwcur + hwtail
        + (uint32_t)nifp->ring_ofs[2] + (uint32_t)fds->eventfds[1].irqfd + (uint32_t)sizeof(name);
}
int main(int argc, char **argv)
{
    (void)argv;
    return argc > 5 ? (int)use(0, 0, 0, 0, 0) : 0;
}
"#;

fn compiles(compiler: &str, file: &str, standards: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join(file);
    std::fs::write(&source, USE).unwrap();
    for standard in standards {
        let args = [standard, "-Wall", "-Wextra", "-pedantic", "-Werror"];
        compile(compiler, &args, &source, &dir.path().join("use")).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn compiles_as_c() {
    compiles("cc", "use.c", &["-std=c99", "-std=c11", "-std=gnu17"]);
}

#[test]
fn compiles_as_cpp() {
    if Command::new("c++").arg("--version").output().is_err() {
        println!("skipped: there is no C++ compiler (c++) here");
        return;
    }
    compiles("c++", "use.cc", &["-std=c++11", "-std=c++20"]);
}

/// Each header compiles alone.
#[test]
fn legacy_compiles_alone() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("alone.c");
    let text = "#include <net/netmap_legacy.h>\nint main(void) { struct nmreq r = {0}; return (int)r.nr_cmd; }\n";
    std::fs::write(&source, text).unwrap();
    let args = ["-std=c99", "-Wall", "-pedantic", "-Werror"];
    compile("cc", &args, &source, &dir.path().join("alone")).unwrap_or_else(|e| panic!("{e}"));
}
