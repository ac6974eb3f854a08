// SPDX-License-Identifier: BSD-2-Clause
//! Other XDP programs beside a port, in libxdp's dispatchers: `xdp-filter` of Debian's xdp-tools, which drops frames
//! of one address here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use conformance::home::summary;
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, Tap, assert_same, collect, empty, frame, start_daemon};
use conformance::tool::done;
use conformance::{Home, isolated_with_interfaces, program, until};
use lab::output;
use rustix::process::{Signal, kill_process};
use unetmap::{Interest, Port};

/// The MAC address of which `xdp-filter` drops frames: the source of the tests' frames.
const DROPPED: &str = "02:00:00:00:00:01";
/// The daemon's message if the kernel cannot replace functions of XDP programs, as the programs of dispatchers do.
const NO_FREPLACE: &str = "other XDP programs cannot be added while the port is open: Operation not permitted";

/// A BPF file system, in which libxdp and the daemon pin programs.
struct Bpffs(PathBuf);

impl Bpffs {
    fn mount(home: &Home) -> Result<Bpffs, String> {
        let path = home.folder().join("bpf");
        std::fs::create_dir(&path).map_err(|e| e.to_string())?;
        output(Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&path)).map(|_| Bpffs(path))
    }

    /// Pinned programs of dispatchers.
    fn pins(&self) -> usize {
        let folders = std::fs::read_dir(self.0.join("xdp")).into_iter().flatten().flatten();
        folders.flat_map(|folder| std::fs::read_dir(folder.path()).into_iter().flatten()).count()
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        let _ = output(Command::new("umount").arg("-l").arg(&self.0));
    }
}

/// A machine with xdp-tools, and a daemon.
struct Setup {
    net: Net,
    bpffs: Bpffs,
}

impl Setup {
    fn new(home: &Home, policy: &str, args: &[&str]) -> Option<Setup> {
        let skip = |why: &str| {
            summary(&format!("skipped: {why}"));
            None
        };
        for tool in ["xdp-filter", "xdp-loader"] {
            if Command::new(tool).arg("help").output().is_err() {
                return skip("no xdp-tools are installed (Debian: xdp-tools)");
            }
        }
        let bpffs = match Bpffs::mount(home) {
            Ok(bpffs) => bpffs,
            Err(why) => return skip(&format!("no BPF file system can be mounted: {why}")),
        };
        let lab = Setup { net: Net::with(home, policy, CABLE, args)?, bpffs };
        drop(lab.net.open("netmap:va"));
        let log = std::fs::read_to_string(home.log()).unwrap_or_default();
        if log.contains(NO_FREPLACE) {
            return skip("this kernel loads no freplace programs, of which dispatchers consist (EPERM)");
        }
        until("the first port is closed", || lab.programs().is_empty());
        Some(lab)
    }

    /// Runs one of xdp-tools, in the namespace of the port and with the BPF file system where it expects it.
    fn run(&self, tool: &str, args: &[&str]) -> Result<String, String> {
        let script = "mount --bind \"$0\" /sys/fs/bpf && exec nsenter --net=\"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(&self.bpffs.0).arg(self.net.near.path()).arg(tool);
        output(command.args(args))
    }

    #[track_caller]
    fn tool(&self, tool: &str, args: &[&str]) {
        self.run(tool, args).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Loads `xdp-filter` with its rule.
    #[track_caller]
    fn load_filter(&self, mode: &str) {
        self.tool("xdp-filter", &["load", "-m", mode, "va"]);
        self.tool("xdp-filter", &["ether", "-m", "src", DROPPED]);
    }

    /// The names of the programs of the interface's dispatcher, or of the program that is attached.
    fn programs(&self) -> Vec<String> {
        let status = self.run("xdp-loader", &["status", "va"]).unwrap_or_default();
        let known = ["xdpfilt_alw_all", "unetmap_member", "unetmap_filters", "unetmap_frags", "unetmap_plain"];
        let named = |line: &str| known.iter().find(|name| line.contains(**name)).map(|name| (*name).to_owned());
        status.lines().filter_map(named).collect()
    }

    /// Waits until only `names` are in the dispatcher: libxdp's programs read pins without a lock, and fail if the
    /// daemon exchanges the dispatcher meanwhile.
    #[track_caller]
    fn wait_for(&self, names: &[&str]) {
        until("the port's program has left", || self.programs() == names);
    }

    /// Checks that nothing is attached or pinned.
    #[track_caller]
    fn assert_clean(&self) {
        until("nothing is attached", || !self.net.has_xdp());
        until("nothing is pinned", || self.bpffs.pins() == 0);
    }
}

/// A frame that `xdp-filter` passes.
fn passed(seq: u64) -> Vec<u8> {
    let mut frame = frame(80, seq);
    frame[11] = 0x02;
    frame
}

/// Sends frames of both addresses; `filtered`: one of them must not arrive.
#[track_caller]
fn assert_traffic(port: &Port, tap: &Tap, filtered: bool) {
    empty(port);
    let (dropped, passes) = (frame(80, 1), [passed(2), passed(3)]);
    tap.send(&passes[0]);
    tap.send(&dropped);
    tap.send(&passes[1]);
    let wanted = if filtered { passes.to_vec() } else { vec![passes[0].clone(), dropped, passes[1].clone()] };
    assert_same(&collect(port, wanted.len()), &wanted);
    assert!(!port.poll(Interest::RX, Some(Duration::from_millis(20))).expect("the daemon runs").rx());
}

fn beside(home: &Home, policy: &str, mode: &str) {
    let admode = if mode == "skb" { "generic" } else { "best" };
    let Some(lab) = Setup::new(home, policy, &["--admode", admode]) else { return };
    let member = if mode == "skb" { "unetmap_filters" } else { "unetmap_member" };
    let tap = lab.net.tap();

    // The filter is loaded first, and stays.
    lab.load_filter(mode);
    let port = lab.net.open("netmap:va");
    assert_eq!(lab.programs(), ["xdpfilt_alw_all", member]);
    assert_traffic(&port, &tap, true);
    drop(port);
    lab.wait_for(&["xdpfilt_alw_all"]);
    let host = Tap::on(&lab.net.near, "va");
    tap.send_all(&[frame(80, 1), passed(2)]);
    assert_same(&host.collect(1), &[passed(2)]);
    lab.tool("xdp-filter", &["unload", "va"]);
    lab.assert_clean();

    // The port is opened first, and stays.
    let port = lab.net.open("netmap:va");
    assert_eq!(lab.programs(), [member]);
    assert_traffic(&port, &tap, false);
    if mode == "native" {
        lab.load_filter(mode);
        assert_eq!(lab.programs(), ["xdpfilt_alw_all", member]);
        assert_traffic(&port, &tap, true);
        lab.tool("xdp-filter", &["unload", "va"]);
        assert_traffic(&port, &tap, false);
    }
    drop(port);
    lab.assert_clean();
    summary(&format!("xdp-filter before and after a port, {mode}: both work, nothing left"));
}

#[test]
fn xdp_filter_works_beside_a_direct_port() {
    isolated_with_interfaces(|home| beside(home, DIRECT, "native"));
}

#[test]
fn xdp_filter_works_beside_a_mediated_port() {
    isolated_with_interfaces(|home| beside(home, MEDIATED, "native"));
}

#[test]
fn xdp_filter_works_beside_a_port_in_generic_mode() {
    isolated_with_interfaces(|home| beside(home, DIRECT, "skb"));
}

#[test]
fn a_killed_daemon_leaves_only_the_other_programs() {
    isolated_with_interfaces(|home| {
        let Some(lab) = Setup::new(home, DIRECT, &[]) else { return };
        let mut daemon = None;
        for filtered in [false, true] {
            if filtered {
                lab.load_filter("native");
            }
            let args = ["-i", "netmap:va", "-f", "rx", "-w", "0"];
            let client = lab.net.start(home, program("pkt-gen"), &args, 1);
            assert!(lab.programs().contains(&"unetmap_member".to_owned()));
            kill_process(home.daemon(), Signal::KILL).expect("our own daemon");
            let left: &[&str] = if filtered { &["xdpfilt_alw_all"] } else { &[] };
            lab.wait_for(left);
            drop((client, daemon.replace(start_daemon(home, &[]))));
            let port = lab.net.open("netmap:va");
            assert_traffic(&port, &lab.net.tap(), filtered);
            drop(port);
            lab.wait_for(left);
        }
        lab.tool("xdp-filter", &["unload", "va"]);
        lab.assert_clean();
        summary("killed daemons 2: only the other programs left");
    });
}

#[test]
fn a_port_in_a_dispatcher_has_filters() {
    isolated_with_interfaces(|home| {
        let Some(lab) = Setup::new(home, DIRECT, &[]) else { return };
        lab.load_filter("native");
        let (port, tap) = (lab.net.open("netmap:va"), lab.net.tap());
        done(&lab.net.near, &["va", "filter", "ether src 02:00:00:00:00:03"]);
        let mut third = passed(1);
        third[11] = 0x03;
        empty(&port);
        tap.send_all(&[frame(80, 1), passed(2), third.clone()]);
        assert_same(&collect(&port, 1), &[third]);
        assert_eq!(lab.programs(), ["xdpfilt_alw_all", "unetmap_filters"]);
        done(&lab.net.near, &["va", "filter", "off"]);
        assert_traffic(&port, &tap, true);
        drop(port);
        lab.wait_for(&["xdpfilt_alw_all"]);
        lab.tool("xdp-filter", &["unload", "va"]);
        lab.assert_clean();
    });
}

/// The interface of an open port is deleted: its pins do not stay.
#[test]
fn a_deleted_interface_leaves_no_pins() {
    isolated_with_interfaces(|home| {
        let Some(lab) = Setup::new(home, DIRECT, &[]) else { return };
        let port = lab.net.open("netmap:va");
        assert!(lab.bpffs.pins() > 0);
        lab.net.near.ip(&["link", "del", "va"]).expect("our own interface");
        until("nothing is pinned", || lab.bpffs.pins() == 0);
        drop(port);
    });
}

/// Where a path could be mistaken for one of a BPF file system, nothing is pinned there.
#[test]
fn without_a_bpf_file_system_the_program_is_attached_directly() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let folder: &Path = &home.folder().join("bpf");
        std::fs::create_dir_all(folder.join("xdp")).expect("a folder");
        let port = net.open("netmap:va");
        assert!(net.near.ip(&["-d", "link", "show", "dev", "va"]).expect("an interface").contains("unetmap_frags"));
        assert_eq!(std::fs::read_dir(folder.join("xdp")).expect("a folder").count(), 0);
        drop(port);
        net.assert_given_back();
    });
}
