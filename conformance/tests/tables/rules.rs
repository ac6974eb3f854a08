// SPDX-License-Identifier: BSD-2-Clause
//! The table of rules: each program of `conformance/rules` by each access method.
//!
//! ```text
//! native    linked with libunetmap
//! preload   linked with nothing, run by `unetmap run`
//! node      linked statically with nothing, on a /dev/netmap that the daemon serves
//! mediated  as preload, with a daemon whose policy grants mediated access only
//! ```
//! Mediated differs from preload only with interfaces; rules that open none are not checked a second time there.
//!
//! `cargo test -p conformance --test tables -- rules 1.1 2-` runs programs whose names begin so.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use conformance::c::linked;
use conformance::home::{Failure, Guard, repeated_if_delayed, wait_within};
use conformance::net::{CABLE, DIRECT, MEDIATED, Net};
use conformance::{Home, Node, program};
use lab::VethOptions;

/// Maximum duration of a program with all its rules.
const LIMIT: Duration = Duration::from_secs(400);
/// Sources that all programs share, in the same folder.
const COMMON: [&str; 4] = ["rules.c", "port.c", "wire.c", "csb.c"];
/// libnetmap.h for programs that are linked with nothing of ours.
const LIBNETMAP: [&str; 3] = ["nmctx.c", "nmport.c", "nmreq.c"];

/// The result of a rule with one access method.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cell {
    Ok,
    Cannot(String),
    Fail(String),
    /// The rule opens no interface, and the access method makes no other difference.
    NoInterface,
}

/// An access method: how a program reaches netmap files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Native,
    Preload,
    Node,
    Mediated,
}

const ACCESS_METHODS: [Access; 4] = [Access::Native, Access::Preload, Access::Node, Access::Mediated];

impl Access {
    fn name(self) -> &'static str {
        match self {
            Access::Native => "native",
            Access::Preload => "preload",
            Access::Node => "node",
            Access::Mediated => "mediated",
        }
    }
}

/// A rule, as its program lists it, and its results.
struct Row {
    id: String,
    cells: [Cell; 4],
}

fn rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("rules")
}

/// The names of the programs, in order, without `.c`.
fn programs(filters: &[String]) -> Vec<String> {
    let files = fs::read_dir(rules()).expect("the folder of rules").map(|entry| entry.expect("a file").file_name());
    let files = files.map(|name| name.into_string().expect("a name of letters"));
    let mut names: Vec<String> =
        files.filter(|name| !COMMON.contains(&&**name)).filter_map(|n| n.strip_suffix(".c").map(Into::into)).collect();
    names.retain(|name| filters.is_empty() || filters.iter().any(|filter| name.starts_with(&**filter)));
    names.sort();
    names
}

/// The compiler settings for one access method.
struct Build {
    access: Access,
    folder: PathBuf,
    /// The compiled shared sources.
    common: Vec<PathBuf>,
}

impl Build {
    /// Compiles the shared sources. Programs for the node find the device at [`device`].
    fn new(folder: &Path, access: Access) -> Result<Build, String> {
        let mut build = Build { access, folder: folder.join(access.name()), common: Vec::new() };
        fs::create_dir(&build.folder).map_err(|e| format!("{}: {e}", build.folder.display()))?;
        let preload = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload");
        let libnetmap: &[&str] = if access == Access::Native { &[] } else { &LIBNETMAP };
        let sources = COMMON.iter().map(|file| rules().join(file));
        let sources: Vec<PathBuf> = sources.chain(libnetmap.iter().map(|file| preload.join(file))).collect();
        build.cc("what the programs share", |cc| cc.arg("-c").args(&sources).current_dir(&build.folder))?;
        let objects = sources.iter().filter_map(|source| source.file_stem());
        build.common = objects.map(|stem| build.folder.join(stem).with_extension("o")).collect();
        Ok(build)
    }

    /// Runs the compiler with the common options.
    fn cc(&self, what: &str, more: impl FnOnce(&mut Command) -> &mut Command) -> Result<(), String> {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Wno-override-init", "-Werror", "-pthread", "-I"]);
        cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../include")).arg("-I").arg(rules());
        if self.access == Access::Node {
            cc.arg(format!("-DNETMAP_DEVICE_NAME=\"{}\"", device(&self.folder).display()));
        }
        let output = more(&mut cc).output();
        let output = output.map_err(|e| format!("cc: {e}; a C compiler is needed (apt-get install gcc)"))?;
        let printed = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("{what} does not compile: {printed}")) }
    }

    /// Compiles a program.
    fn make(&self, name: &str, source: &Path) -> Result<PathBuf, String> {
        let out = self.folder.join(name);
        self.cc(&source.display().to_string(), |cc| {
            cc.arg("-o").arg(&out).arg(source).args(&self.common);
            match self.access {
                Access::Native => cc.args(linked(&self.folder)),
                Access::Preload | Access::Mediated => cc,
                Access::Node => cc.arg("-static"),
            }
        })?;
        Ok(out)
    }
}

/// Where programs for the node find a device: a link to the node of the daemon that is theirs.
fn device(folder: &Path) -> PathBuf {
    folder.join("netmap")
}

/// Interfaces for the programs that need some, and a daemon that opens them: `ra` and `rb`, two ends of a cable of two
/// queues, and `r-2`.
fn cable(home: &Home, access: Access) -> Option<Net> {
    let policy = if access == Access::Mediated { MEDIATED } else { DIRECT };
    let net = Net::new(home, policy, CABLE)?;
    let two = VethOptions { queues: 2, addresses: None, ..CABLE };
    for (one, other) in [("ra", "rb"), ("r-2", "r-2-peer")] {
        net.lab.veth(&net.near, one, &net.near, other, two).unwrap_or_else(|e| panic!("{e}"));
    }
    Some(net)
}

/// The results of a program, by rule.
type Cells = BTreeMap<String, Cell>;

/// Runs a program with an access method; returns its results by rule.
fn run_program(build: &Build, name: &str, path: &Path, ids: &[String]) -> Result<Cells, String> {
    let mut number = 0;
    repeated_if_delayed(&format!("{name}, {}", build.access.name()), || {
        number += 1;
        let home = match Home::at(&build.folder.join(format!("{name}.home{number}"))) {
            Ok(home) => home,
            Err(e) => return (Err(e.to_string()), None),
        };
        let result = run_program_once(build, name, path, ids, &home);
        let failed = result.as_ref().map_or(true, |cells| cells.values().any(|cell| matches!(cell, Cell::Fail(_))));
        let log = || fs::read_to_string(home.log()).unwrap_or_default();
        let failure = failed.then(|| Failure { text: format!("{result:?}"), log: log() });
        (result, failure)
    })
}

/// The same, once, with a daemon in `home`.
fn run_program_once(build: &Build, name: &str, path: &Path, ids: &[String], home: &Home) -> Result<Cells, String> {
    let access = build.access;
    let all = |cell: Cell| Ok(ids.iter().map(|id| (id.clone(), cell.clone())).collect());
    let all_cannot = |why: &str| all(Cell::Cannot(why.into()));
    let with_interfaces = name.ends_with("nic");
    if access == Access::Mediated && !with_interfaces {
        return all(Cell::NoInterface);
    }
    let net = with_interfaces.then(|| cable(home, access));
    if let Some(None) = net {
        return all_cannot("no network namespaces or AF_XDP here");
    }
    let node = match (access == Access::Node).then(|| Node::mounted(home)).transpose() {
        Ok(node) => node,
        Err(why) => return all_cannot(&why),
    };
    if let Some(node) = &node {
        let _ = fs::remove_file(device(&build.folder));
        symlink(node.path(), device(&build.folder)).map_err(|e| format!("a link to the node: {e}"))?;
    }
    let unetmap = program("unetmap");
    let words = if matches!(access, Access::Preload | Access::Mediated) {
        vec![unetmap.as_path(), "run".as_ref(), "--".as_ref()]
    } else {
        vec![]
    };
    let words: Vec<&Path> = words.into_iter().chain([path]).collect();
    let mut command = match &net {
        Some(Some(net)) => net.command(words[0]),
        _ => Command::new(words[0]),
    };
    command.args(&words[1..]);
    let output = home.folder().join("output");
    let to = fs::File::create(&output).map_err(|e| format!("{}: {e}", output.display()))?;
    command.arg(access.name()).stdin(Stdio::null()).stdout(to).current_dir(home.folder());
    command.env("UNETMAP_SOCKET", home.socket()).env("UNETMAPD", program("unetmapd"));
    let bpffs = home.folder().join("bpf");
    command.env("RULES_LOG", home.log()).env("LIBXDP_BPFFS", &bpffs).env("PATH", path_with(&unetmap));
    let status = wait_within(&mut Guard::spawn(&mut command).0, LIMIT);
    home.end_daemon();
    home.forget_lasting();
    if bpffs.exists() {
        // A rule that failed has left its mount.
        let _ = Command::new("umount").args(["--quiet", "--lazy"]).arg(&bpffs).output();
    }
    let text = fs::read_to_string(&output).map_err(|e| format!("{}: {e}", output.display()))?;
    let log = fs::read_to_string(home.log()).unwrap_or_default();
    if log.contains("panicked") {
        return Err(format!("{name}, {}: the daemon panicked:\n{log}", access.name()));
    }
    let (mut printed, manual) = (BTreeMap::new(), manual());
    for line in text.lines() {
        let (id, mut cell) = parse(line).ok_or_else(|| format!("{name}: what is this? {line:?}"))?;
        if let Cell::Cannot(why) = &cell
            && !manual.contains(why)
        {
            cell = Cell::Fail(format!("cannot ({why}), and unetmap-conformance(7) does not say so"));
        }
        if !ids.contains(&id) || printed.insert(id, cell).is_some() {
            return Err(format!("{name}, {}: printed twice, or for no rule: {line:?}", access.name()));
        }
    }
    match status {
        Some(_) => Ok(printed),
        None => Err(format!("{name}, {}: not finished within {LIMIT:?}; it had printed:\n{text}", access.name())),
    }
}

/// The search path for programs, with the folder of a program of this build first.
fn path_with(program: &Path) -> OsString {
    let mut folders = vec![program.parent().expect("a program in a folder").to_owned()];
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    std::env::join_paths(folders).expect("folders without colons")
}

/// The manual page, which states for each rule that an access method cannot keep why.
fn manual() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../man/unetmap-conformance.7");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.replace("\\-", "-").replace("\\*(Aq", "'")
}

/// `ID ok`, `ID FAIL REASON`, `ID cannot REASON`.
fn parse(line: &str) -> Option<(String, Cell)> {
    let (id, rest) = line.split_once(' ')?;
    let (verdict, reason) = rest.split_once(' ').unwrap_or((rest, ""));
    let cell = match verdict {
        "ok" => Cell::Ok,
        "FAIL" => Cell::Fail(reason.into()),
        "cannot" if !reason.is_empty() => Cell::Cannot(reason.into()),
        _ => return None,
    };
    Some((id.into(), cell))
}

/// All rules of a program by all access methods.
fn rows(builds: &[Build], name: &str) -> Result<Vec<Row>, String> {
    let source = rules().join(format!("{name}.c"));
    let made = builds.iter().map(|build| build.make(name, &source)).collect::<Result<Vec<_>, _>>()?;
    // The statically linked program can list its rules without a daemon.
    let list = ACCESS_METHODS
        .iter()
        .position(|access| *access == Access::Node)
        .and_then(|at| made.get(at))
        .ok_or("no such access method")?;
    let output = Command::new(list).arg("--list").output().map_err(|e| format!("{}: {e}", list.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let ids: Vec<String> = text.lines().filter_map(|line| line.split_once('\t')).map(|(id, _)| id.into()).collect();
    if ids.is_empty() || !output.status.success() {
        return Err(format!("{name} lists no rules"));
    }
    // Side by side, as most of the time is waiting.
    let printed: Vec<_> = thread::scope(|scope| {
        let ids = &ids;
        let methods =
            builds.iter().zip(&made).map(|(build, path)| scope.spawn(move || run_program(build, name, path, ids)));
        let methods: Vec<_> = methods.collect();
        let ended = methods.into_iter().map(|access| access.join());
        ended.map(|end| end.unwrap_or_else(|_| Err(format!("{name}: its runner panicked")))).collect::<Result<_, _>>()
    })?;
    let missing = || Cell::Fail("the program printed no result for it".into());
    let cell = |access: usize, id: &str| printed[access].get(id).cloned().unwrap_or_else(missing);
    Ok(ids.into_iter().map(|id| Row { cells: [0, 1, 2, 3].map(|access| cell(access, &id)), id }).collect())
}

/// Prints the table; returns the messages of failed rules.
fn print(rows: &[Row]) -> Vec<String> {
    let mut failures = Vec::new();
    let width = rows.iter().map(|row| row.id.len()).max().unwrap_or(0).max(4);
    println!("\n{:width$}  {:<24}  {:<24}  {:<24}  mediated", "rule", "native", "preload", "node");
    for row in rows {
        let mut texts = Vec::new();
        for (access, cell) in ACCESS_METHODS.iter().zip(&row.cells) {
            texts.push(match cell {
                Cell::Ok => "ok".to_owned(),
                Cell::NoInterface => "no interface".to_owned(),
                Cell::Cannot(why) => format!("cannot: {why}"),
                Cell::Fail(why) => {
                    failures.push(format!("{} {}: {why}", row.id, access.name()));
                    "FAIL".to_owned()
                }
            });
        }
        println!("{:width$}  {:<24}  {:<24}  {:<24}  {}", row.id, texts[0], texts[1], texts[2], texts[3]);
    }
    for (i, access) in ACCESS_METHODS.iter().enumerate() {
        let of = |what: fn(&Cell) -> bool| rows.iter().filter(|row| what(&row.cells[i])).count();
        let (ok, cannot) = (of(|c| *c == Cell::Ok), of(|c| matches!(c, Cell::Cannot(_))));
        let failed = of(|c| matches!(c, Cell::Fail(_)));
        println!("{}: {ok} of {} ok, {cannot} cannot, {failed} failed", access.name(), ok + cannot + failed);
    }
    failures
}

/// Rules of which all but the first must be seen to fail.
const BROKEN: &str = r#"
#include <unistd.h>
#include "port.h"
RULE("holds", "") { CHECK(1); }
RULE("does-not-hold", "") { CHECK(1 > 2); }
RULE("differs", "") { CHECK_EQ(1, 2); }
RULE("is-not-refused", "") { CHECK_ERRNO(EINVAL, 0); }
RULE("refused-otherwise", "") { CHECK_ERRNO(EINVAL, close(-1)); }
RULE("does-not-work", "") { CHECK_OK(close(-1)); }
RULE("crashes", "") { abort(); }
RULE("ends-silently", "") { _exit(0); }
RULE("ends-otherwise", "") { _exit(7); }
"#;

/// Checks that broken rules are reported as failed.
fn check_the_checker(build: &Build) -> Result<(), String> {
    let source = build.folder.join("broken.c");
    fs::write(&source, BROKEN).map_err(|e| format!("{}: {e}", source.display()))?;
    let path = build.make("broken", &source)?;
    let output = Command::new(path).arg("preload").output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let printed: Vec<(String, Cell)> = text.lines().filter_map(parse).collect();
    let failed = printed.iter().filter(|(_, cell)| matches!(cell, Cell::Fail(_))).count();
    let wanted = printed.first() == Some(&("holds".into(), Cell::Ok)) && failed == 7 && printed.len() == 8;
    let silent = !printed.iter().any(|(id, _)| id == "ends-silently");
    match wanted && silent && !output.status.success() {
        true => Ok(()),
        false => Err(format!("rules that do not hold are not seen to fail:\n{text}")),
    }
}

/// The names of all programs.
pub(crate) fn list() -> Vec<String> {
    programs(&[])
}

/// Runs the programs whose names begin with one of the filters, or all, and prints the table; returns whether all rules
/// hold.
pub(crate) fn run(filters: &[String]) -> bool {
    let start = Instant::now();
    let folder = tempfile::Builder::new().prefix("unetmap-").tempdir().expect("a folder for the programs");
    let (mut table, mut failures) = (Vec::new(), Vec::new());
    match ACCESS_METHODS.map(|access| Build::new(folder.path(), access)).into_iter().collect::<Result<Vec<_>, _>>() {
        Ok(builds) => {
            failures.extend(check_the_checker(&builds[0]).err());
            for name in programs(filters) {
                match rows(&builds, &name) {
                    Ok(rows) => table.extend(rows),
                    Err(why) => failures.push(why),
                }
            }
        }
        Err(why) => failures.push(why),
    }
    let mut ids: Vec<&str> = table.iter().map(|row: &Row| &*row.id).collect();
    ids.sort_unstable();
    failures.extend(ids.windows(2).filter(|w| w[0] == w[1]).map(|w| format!("two rules are called {}", w[0])));
    failures.extend(print(&table));
    println!("{} rules in {:.0} s", table.len(), start.elapsed().as_secs_f64());
    for failure in &failures {
        println!("FAIL {failure}");
    }
    failures.is_empty()
}
