// SPDX-License-Identifier: BSD-2-Clause
//! The faults, each of which begins, lasts, and ends. What it ended is started again afterwards.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use conformance::cgroup::Group;
use conformance::home::{Guard, is_alive};
use conformance::program;
use rustix::process::{Pid, Signal, kill_process};

use crate::place::{run, wait_for};
use crate::scene::Scene;

/// A fault.
pub(crate) struct Fault {
    /// Its name in the table.
    pub name: &'static str,
    /// Whether `make test` has it.
    pub is_short: bool,
    /// Whether all interfaces are the same ones afterwards, with the kernel's counters.
    pub keeps_interfaces: bool,
    /// Whether a process is left that counts what the others lose.
    pub keeps_counts: bool,
    /// Has it happen. An error that begins with `skipped: ` says why it cannot happen here.
    pub run: fn(&mut Scene) -> Result<(), String>,
}

/// A fault of the short form, too.
const fn short(name: &'static str, run: fn(&mut Scene) -> Result<(), String>) -> Fault {
    Fault { name, is_short: true, keeps_interfaces: true, keeps_counts: true, run }
}

/// A fault of the whole form.
const fn whole(name: &'static str, run: fn(&mut Scene) -> Result<(), String>) -> Fault {
    Fault { is_short: false, ..short(name, run) }
}

/// Bytes of memory of a group in which the kernel has to kill a process.
const LITTLE: u64 = 32 << 20;
/// Percent of a processor of a group that starves.
const STARVED: u32 = 2;

/// All faults.
pub(crate) const FAULTS: &[Fault] = &[
    short("none", |scene| lasting(scene, || Ok(()), || Ok(()))),
    short("program killed", |scene| killed(scene, &[Who::Program])),
    short("program stopped", |scene| stopped(scene, &[Who::Program])),
    whole("program out of memory", |scene| out_of_memory(scene, Who::Program)),
    whole("program with 2 % of a CPU", |scene| starved(scene, false)),
    short("daemon killed", |scene| killed(scene, &[Who::Daemon])),
    short("daemon stopped", |scene| stopped(scene, &[Who::Daemon])),
    whole("daemon out of memory", |scene| out_of_memory(scene, Who::Daemon)),
    Fault { keeps_counts: false, ..short("broker killed", |scene| killed(scene, &[Who::Broker])) },
    whole("broker stopped", |scene| stopped(scene, &[Who::Broker])),
    whole("store killed", |scene| killed(scene, &[Who::Store])),
    whole("store stopped", |scene| stopped(scene, &[Who::Store])),
    Fault { keeps_counts: false, ..short("all killed", |scene| killed(scene, &[Who::Program, Who::AllDaemons])) },
    short("all stopped", |scene| stopped(scene, &[Who::Program, Who::AllDaemons])),
    short("all with 2 % of a CPU", |scene| starved(scene, true)),
    short("daemon replaced", replaced),
    whole("cable pulled and plugged", |scene| link_down(scene, true)),
    short("interface down and up", |scene| link_down(scene, false)),
    Fault { keeps_interfaces: false, ..whole("interface deleted and made again", remade) },
    whole("queues 2 to 1 and back", queues),
    whole("ring sizes changed", ring_sizes),
    whole("MTU 1500 to 1400 and back", mtu),
    whole("offloads switched on by someone else", offloads),
    whole("disk full, and the daemon killed", disk_full),
    whole("clock stepped", clock_stepped),
    whole("rules read again, 20 times", rules_read_again),
];

/// Whose process a fault concerns.
#[derive(Clone, Copy)]
enum Who {
    Program,
    Daemon,
    Broker,
    Store,
    AllDaemons,
}

fn processes(scene: &Scene, whose: &[Who]) -> Result<Vec<Pid>, String> {
    let [daemon, broker, store] = scene.place.daemons()?;
    let of = |who: &Who| match who {
        Who::Program => vec![scene.place.program()],
        Who::Daemon => vec![daemon],
        Who::Broker => vec![broker],
        Who::Store => vec![store],
        Who::AllDaemons => scene.place.processes(),
    };
    Ok(whose.iter().flat_map(of).collect())
}

fn signal(pids: &[Pid], signal: Signal) {
    // One may have ended with another one.
    pids.iter().for_each(|pid| _ = kill_process(*pid, signal));
}

/// Begins a fault, has it last, and ends it.
fn lasting(
    scene: &mut Scene,
    begin: impl FnOnce() -> Result<(), String>,
    end: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    begin()?;
    let held = scene.hold();
    end()?;
    held
}

fn killed(scene: &mut Scene, whose: &[Who]) -> Result<(), String> {
    let pids = processes(scene, whose)?;
    signal(&pids, Signal::KILL);
    scene.hold()
}

fn stopped(scene: &mut Scene, whose: &[Who]) -> Result<(), String> {
    let pids = processes(scene, whose)?;
    signal(&pids, Signal::STOP);
    let held = scene.hold();
    signal(&pids, Signal::CONT);
    held
}

/// Kills the program, which a service manager starts again at once.
pub(crate) fn kill_program(scene: &mut Scene) -> Result<(), String> {
    signal(&[scene.place.program()], Signal::KILL);
    // All of its threads: until then it has its ports.
    wait_for("the program ends", || scene.place.program_has_ended())
}

/// Stops the program for as long as a fault lasts.
pub(crate) fn stop_program(scene: &mut Scene) -> Result<(), String> {
    stopped(scene, &[Who::Program])
}

/// Gives all processes little of a processor for as long as a fault lasts, and stops one of them, another one each
/// time, or none.
pub(crate) fn starve_and_stop(scene: &mut Scene, time: usize) -> Result<(), String> {
    const STOPPED: [&[Who]; 6] =
        [&[], &[Who::Program], &[Who::Daemon], &[Who::Broker], &[Who::Store], &[Who::Program, Who::AllDaemons]];
    let pids = processes(scene, STOPPED[time % STOPPED.len()])?;
    let _group = starving(scene, true)?;
    signal(&pids, Signal::STOP);
    let held = scene.hold();
    signal(&pids, Signal::CONT);
    held
}

/// A process that uses a processor.
pub(crate) fn busy() -> Guard {
    let mut command = Command::new("sh");
    Guard::spawn(command.args(["-c", "while :; do :; done"]).stdin(Stdio::null()))
}

/// The kernel kills a process of a group whose memory another one has used up.
fn out_of_memory(scene: &mut Scene, who: Who) -> Result<(), String> {
    let pid = processes(scene, &[who])?[0];
    let group = Group::of_memory(LITTLE).map_err(|why| format!("skipped: {why}"))?;
    group.add(pid.as_raw_pid().cast_unsigned())?;
    // The kernel chooses it before the other one.
    fs::write(format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero()), "1000").map_err(|e| e.to_string())?;
    // It keeps all that it reads, as it looks for the end of a line.
    let mut command = Command::new("sh");
    command.args(["-c", "read -r line; exec tail /dev/zero"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut hog = Guard::spawn(command.stderr(Stdio::null()));
    group.add(hog.0.id())?;
    drop(hog.0.stdin.take());
    let killed = wait_for("the kernel kills the process", || !is_alive(pid));
    hog.kill();
    killed?;
    scene.hold()
}

fn starved(scene: &mut Scene, with_daemons: bool) -> Result<(), String> {
    let _group = starving(scene, with_daemons)?;
    scene.hold()
}

/// Gives processes little of a processor, until the result is dropped.
fn starving(scene: &Scene, with_daemons: bool) -> Result<Group, String> {
    let whose = if with_daemons { &[Who::Program, Who::AllDaemons][..] } else { &[Who::Program] };
    let pids = processes(scene, whose)?;
    let group = Group::of_cpu(STARVED).map_err(|why| format!("skipped: {why}"))?;
    pids.iter().try_for_each(|pid| group.add(pid.as_raw_pid().cast_unsigned()))?;
    Ok(group)
}

fn replaced(scene: &mut Scene) -> Result<(), String> {
    let mut command = Command::new(program("unetmapd"));
    command.args(["--replace", "--keep-ports", "--idle-exit", "0", "--socket"]).arg(scene.place.home.socket());
    run(command.env("LIBXDP_BPFFS", scene.place.home.folder().join("bpf")))?;
    scene.hold()
}

fn link_down(scene: &mut Scene, of_peer: bool) -> Result<(), String> {
    let place = &scene.place;
    let (ns, interface) = if of_peer { (place.client.clone(), "c0") } else { (place.middle.clone(), "m0") };
    let set = |state| ns.ip(&["link", "set", interface, state]).map(drop);
    set("down")?;
    scene.hold_cut();
    set("up")
}

fn remade(scene: &mut Scene) -> Result<(), String> {
    scene.place.delete()?;
    scene.hold_cut();
    scene.place.make_again()
}

/// Runs `ethtool` on `m0`.
fn ethtool(scene: &Scene, args: &str) -> Result<(), String> {
    let words: Vec<&str> = args.split(' ').collect();
    scene.place.middle.tool("ethtool", &words).map(drop)
}

fn queues(scene: &mut Scene) -> Result<(), String> {
    ethtool(scene, "-L m0 rx 1 tx 1").map_err(|why| {
        format!("skipped: the kernel refuses it: {}", why.split("netlink error: ").nth(1).unwrap_or(&why))
    })?;
    let held = scene.hold();
    ethtool(scene, "-L m0 rx 2 tx 2")?;
    held
}

fn ring_sizes(scene: &mut Scene) -> Result<(), String> {
    ethtool(scene, "-G m0 rx 512").map_err(|_| "skipped: a veth pair has no rings".to_owned())?;
    let held = scene.hold();
    ethtool(scene, "-G m0 rx 256")?;
    held
}

fn mtu(scene: &mut Scene) -> Result<(), String> {
    let middle = scene.place.middle.clone();
    middle.ip(&["link", "set", "m0", "mtu", "1400"])?;
    let held = scene.hold();
    middle.ip(&["link", "set", "m0", "mtu", "1500"])?;
    held
}

fn offloads(scene: &mut Scene) -> Result<(), String> {
    let of = |state: &str| format!("-K m0 tx {state} tso {state} gso {state} gro {state}");
    ethtool(scene, &of("on"))?;
    let held = scene.hold();
    ethtool(scene, &of("off"))?;
    held
}

fn disk_full(scene: &mut Scene) -> Result<(), String> {
    let filler = scene.place.disk().join("filler");
    // Writes until there is no room, which is no success.
    let _ = Command::new("dd")
        .args(["if=/dev/zero", "bs=4k"])
        .arg(format!("of={}", filler.display()))
        .stderr(Stdio::null())
        .status();
    let room = fs::write(scene.place.disk().join("one-more"), [0; 8192]);
    let pids = processes(scene, &[Who::Daemon])?;
    signal(&pids, Signal::KILL);
    let held = scene.hold();
    let removed = fs::remove_file(&filler).and(remove_if_there(&scene.place.disk().join("one-more")));
    removed.map_err(|e| e.to_string())?;
    if room.is_ok() { Err("the disk was not full".into()) } else { held }
}

fn remove_if_there(path: &Path) -> std::io::Result<()> {
    if path.exists() { fs::remove_file(path) } else { Ok(()) }
}

/// An hour ahead, then an hour back.
fn clock_stepped(scene: &mut Scene) -> Result<(), String> {
    for seconds in [3600, -3600] {
        scene.place.step_clock(seconds)?;
        scene.hold()?;
    }
    scene.place.step_clock(0)
}

/// As by a reload of the unit.
fn rules_read_again(scene: &mut Scene) -> Result<(), String> {
    if !scene.place.way.denies {
        return Err("skipped: it has no rules".into());
    }
    for _ in 0..20 {
        let before = scene.place.times_rules_were_read();
        signal(&[scene.place.program()], scene.place.way.reload.0);
        scene.wait_until_it_passes()?;
        wait_for("the rules are read", || scene.place.times_rules_were_read() > before)?;
    }
    Ok(())
}
