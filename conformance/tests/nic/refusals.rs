// SPDX-License-Identifier: BSD-2-Clause
//! Opens that fail because the daemon lacks a privilege: each error is one sentence that names the remedy, nothing is
//! left behind, and with the remedy the port opens.

use std::process::{Command, Stdio};

use conformance::bpf::check_xdp_socket;
use conformance::home::{Guard, summary};
use conformance::net::{CABLE, DIRECT, MEDIATED, Tap, assert_works, open_in, pings, policy_file, set_policy};
use conformance::tool::done;
use conformance::{Home, isolated_with_interfaces, program, until};
use lab::{Lab, Ns};
use unetmap::Port;

/// Bytes that may be locked in memory: less than a region has.
const FEW: u64 = 1 << 20;
/// More than a region has.
const PLENTY: u64 = 256 << 20;

/// Makes two namespaces and a veth pair; prints why and returns `None` if this machine cannot have them.
fn cable() -> Option<(Lab, Ns, Ns)> {
    let made = Lab::new().and_then(|lab| {
        check_xdp_socket().map_err(|e| format!("no AF_XDP sockets can be made here: {e}"))?;
        let (near, far) = (lab.namespace("near")?, lab.namespace("far")?);
        lab.veth(&near, "va", &far, "vb", CABLE)?;
        Ok((lab, near, far))
    });
    made.inspect_err(|why| summary(&format!("skipped: {why}"))).ok()
}

/// Starts a daemon in `ns` with a bounding set of capabilities in the form of setpriv, and a limit of locked memory.
#[track_caller]
fn start(home: &Home, ns: &Ns, lacks: &str, limit: u64) -> Guard {
    let mut command = ns.command("prlimit");
    command
        .args([&format!("--memlock={limit}"), "setpriv", "--inh-caps=-all", "--bounding-set", lacks])
        .arg(program("unetmapd"));
    command.args(["--foreground", "--policy"]).arg(policy_file(home)).arg("--socket").arg(home.socket());
    let daemon = Guard::spawn(command.stderr(Stdio::null()));
    until("the daemon serves", || home.serves());
    daemon
}

/// Whether the tests' own limit can be so high.
fn may_lock(bytes: u64) -> bool {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Memlock).maximum.is_none_or(|most| most >= bytes)
}

/// The error message of opening a port in `ns`.
#[track_caller]
fn refusal(ns: &Ns, spec: &str) -> String {
    match ns.run(|| Port::open(spec)).expect("a namespace") {
        Ok(_) => panic!("{spec} was opened"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn a_missing_capability_or_limit_is_named() {
    isolated_with_interfaces(|home| {
        let Some((_lab, near, far)) = cable() else { return };
        // The daemon's namespace, the missing capability, the limit, and the expected message.
        let here = &near;
        let table = [
            (
                here,
                "-ipc_lock",
                FEW,
                "locked in memory: raise the limit (ulimit -l unlimited), or give the daemon CAP_IPC_LOCK",
            ),
            (here, "-net_raw", FEW, "may not open AF_XDP sockets: it needs CAP_NET_RAW"),
            (here, "-net_admin", FEW, "cannot see your network namespace: give it CAP_NET_ADMIN"),
            (&far, "-sys_admin", FEW, "may not enter your network namespace: give it CAP_SYS_ADMIN"),
        ];
        for policy in [DIRECT, MEDIATED] {
            set_policy(home, policy);
            for (at, lacks, limit, wanted) in table {
                let daemon = start(home, at, lacks, limit);
                // Twice: the first try leaves nothing behind that would change the result of the second.
                for _ in 0..2 {
                    let printed = refusal(&near, "netmap:va");
                    assert!(printed.starts_with("netmap:va: ") && printed.contains(wanted), "{lacks}: {printed}");
                    assert!(!printed.contains('\n') && !printed.contains("os error"), "one sentence: {printed}");
                }
                let left = home.snapshot();
                assert!(left.ports.is_empty() && left.regions.is_empty() && left.sessions.is_empty(), "{left:?}");
                let links = near.ip(&["-d", "link"]).expect("a namespace");
                assert!(!links.contains("prog/xdp"), "{links}");
                // Pipes need none of these privileges.
                home.assert_serves();
                home.end_daemon();
                drop(daemon);
            }
            // The least privileges that are sufficient.
            let enough = [
                (here, "-bpf", FEW),
                (&far, "-bpf,-net_broadcast", FEW),
                (here, "-all,+net_admin,+sys_admin,+net_raw,+ipc_lock", FEW),
                (here, "-ipc_lock", PLENTY),
                // By packet sockets.
                (here, "-bpf,-sys_admin", FEW),
            ];
            for (at, lacks, limit) in enough.into_iter().filter(|row| row.2 == FEW || may_lock(PLENTY)) {
                let daemon = start(home, at, lacks, limit);
                let port = open_in(&near, "netmap:va");
                assert_works(&port, &Tap::on(&far, "vb"), 0);
                drop(port);
                home.end_daemon();
                drop(daemon);
            }
        }
        summary("refused for want of 4 things, opened with just enough: direct and mediated");
    });
}

/// Starts a daemon without the kernel feature `what`.
#[track_caller]
fn start_without(home: &Home, what: &str) -> Guard {
    let mut command = Command::new(env!("CARGO_BIN_EXE_without_kernel_feature"));
    command.arg(what).arg(program("unetmapd")).args(["--foreground", "--policy"]).arg(policy_file(home));
    let daemon = Guard::spawn(command.stderr(Stdio::null()));
    until("the daemon serves", || home.serves());
    daemon
}

/// Checks that opening `spec` is refused with a message that begins so if the daemon runs without the kernel feature
/// `what`.
#[track_caller]
fn lacks(home: &Home, what: &str, spec: &str, wanted: &str) {
    let Some((_lab, near, _far)) = cable() else { return };
    for policy in [DIRECT, MEDIATED] {
        set_policy(home, policy);
        let daemon = start_without(home, what);
        let said = refusal(&near, spec);
        assert!(said.starts_with(&format!("{spec}: {wanted}")), "{said}");
        assert!(home.snapshot().regions.is_empty());
        let links = near.ip(&["-o", "link"]).expect("a namespace");
        assert!(!links.contains("nmh"), "{links}");
        home.assert_serves();
        home.end_daemon();
        drop(daemon);
    }
}

/// Simulates a kernel that was built without AF_XDP, where packet sockets take its place.
#[test]
fn an_interface_opens_on_a_kernel_without_af_xdp() {
    isolated_with_interfaces(|home| {
        let Some((_lab, near, far)) = cable() else { return };
        for policy in [DIRECT, MEDIATED] {
            set_policy(home, policy);
            let mut daemon = start_without(home, "af_xdp");
            let port = open_in(&near, "netmap:va");
            assert_works(&port, &Tap::on(&far, "vb"), 0);
            let why = home.snapshot().ports.into_iter().find_map(|port| port.copied).unwrap_or_default();
            assert_eq!(why, "this kernel has no AF_XDP sockets (packet sockets)");
            drop(port);
            home.end_daemon();
            daemon.wait();
        }
    });
}

/// Simulates a kernel without nftables: by packet sockets the host's stack has the frames, too, which a program can
/// refuse.
#[test]
fn an_interface_is_shared_with_the_stack_unless_the_program_refuses_that() {
    isolated_with_interfaces(|home| {
        let Some((_lab, near, far)) = cable() else { return };
        set_policy(home, DIRECT);
        let mut daemon = start_without(home, "nftables");
        let insists = || {
            let said = refusal(&near, "netmap:va/d");
            assert!(said.starts_with("netmap:va/d: it cannot be disconnected from the host's stack"), "{said}");
            assert!(said.contains("shared with the stack (no table of nftables"), "{said}");
            assert!(said.ends_with("without that it can be opened") && !said.contains('\n'), "{said}");
        };
        done(&near, &["va", "way", "packet"]);
        insists();
        until("nothing is left", || home.snapshot().regions.is_empty());
        let port = open_in(&near, "netmap:va");
        assert_works(&port, &Tap::on(&far, "vb"), 0);
        let manner = home.snapshot().ports.into_iter().find_map(|port| port.manner).unwrap_or_default();
        assert!(manner.starts_with("packet socket, shared with the stack"), "{manner}");
        assert!(pings(&near, "10.9.0.2"), "the stack has the interface, too");
        // A program that has it open already goes on.
        insists();
        port.txsync().expect("it is open");
        drop(port);
        home.end_daemon();
        daemon.wait();
    });
}

/// Simulates a kernel without BPF links at an interface's egress (tcx).
#[test]
fn an_error_names_a_kernel_without_tcx() {
    isolated_with_interfaces(|home| {
        let wanted = "host rings need Linux 6.6 or newer";
        lacks(home, "links", "netmap:va^", wanted);
    });
}
