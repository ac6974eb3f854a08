// SPDX-License-Identifier: BSD-2-Clause
//! The policy decides which user may open which interface, and a permitted user needs no privilege: here a user without
//! any capability, in another namespace than the daemon.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use conformance::home::{Guard, summary};
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, Tap, assert_works, policy_file, public_copy, set_policy};
use conformance::packet;
use conformance::{Home, LIMIT, isolated_with_interfaces, program, until};
use lab::Ns;
use unetmap::Port;

/// The user `nobody` on every system, or at least a user without privileges.
const NOBODY: u32 = 65534;
const PACKETS: u64 = 3000;
/// Packets on their way at most: fewer than a ring holds.
const WINDOW: u64 = 400;

/// Programs for a user without privileges.
struct Nobody {
    folder: PathBuf,
}

impl Nobody {
    /// Prints why and returns `None` if this process cannot become another user.
    fn new(home: &Home) -> Option<Nobody> {
        if let Err(e) = Command::new("setpriv").arg("--version").stdout(Stdio::null()).status() {
            summary(&format!("skipped: needs the program setpriv (Debian: util-linux): {e}"));
            return None;
        }
        let folder = home.folder().join("public");
        fs::create_dir(&folder).expect("a folder");
        for path in [home.folder(), &folder] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our own folder");
        }
        for name in
            [env!("CARGO_BIN_EXE_try_open"), env!("CARGO_BIN_EXE_traffic_client"), env!("CARGO_BIN_EXE_shared_sender")]
        {
            public_copy(&folder, name);
        }
        public_copy(&folder, &program("pkt-gen").display().to_string());
        public_copy(&folder, &program("unetmap").display().to_string());
        public_copy(&folder, &program("vale-ctl").display().to_string());
        Some(Nobody { folder })
    }

    /// Runs `program` in `ns`, without privileges and without a way to gain them.
    fn command(&self, ns: &Ns, program: &str) -> Command {
        let mut command = ns.command("setpriv");
        let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        command.args(user).args(["--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"]);
        command.arg(self.folder.join(program));
        command
    }

    /// The output of `try_open` for `spec` in that namespace.
    #[track_caller]
    fn try_open(&self, ns: &Ns, spec: &str) -> String {
        let output = self.command(ns, "try_open").arg(spec).output().expect("it runs");
        let printed = String::from_utf8(output.stdout).expect("text");
        assert!(printed.contains(&format!("uid {NOBODY}, capabilities 0000000000000000")), "{printed}");
        printed
    }

    /// Opens `spec`, which must be refused; returns the errno and the message.
    #[track_caller]
    fn refused(&self, ns: &Ns, spec: &str) -> (i32, String) {
        let printed = self.try_open(ns, spec);
        let errno = printed.strip_prefix("refused ").and_then(|rest| rest.split_once(',')).map(|(n, _)| n.parse());
        (errno.unwrap_or_else(|| panic!("{printed}")).expect("a number"), printed)
    }

    /// A file that holds a number, 0 at first.
    fn counter(&self, name: &str) -> String {
        let path = self.folder.join(name);
        File::create(&path).expect("a file").write_all(&0u64.to_ne_bytes()).expect("a file to write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("our own file");
        path.display().to_string()
    }

    /// Sends numbered packets from `va` of `ns`, and receives as many there.
    #[track_caller]
    fn assert_sends_and_receives(&self, home: &Home, ns: &Ns, tap: &Tap, label: &str) {
        let (file, count) = (self.counter(&format!("{label}-tx")), PACKETS.to_string());
        let mut sender = start(self.command(ns, "shared_sender").args(["netmap:va", &file, &count]));
        for seq in 0..PACKETS {
            let got = tap.next(LIMIT).unwrap_or_else(|| panic!("packet {seq} did not arrive: {}", end(&mut sender)));
            assert_eq!(packet::check(&got), Ok((1, seq)));
        }
        assert!(end(&mut sender).contains(&format!("sent {PACKETS}")));
        let file = self.counter(&format!("{label}-rx"));
        let mut receiver = start(self.command(ns, "traffic_client").args(["share", "netmap:va", &file, &count]));
        let taken = || {
            let bytes = fs::read(&file).expect("a file");
            bytes.get(..8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("8 bytes")))
        };
        let pid = receiver.0.id();
        until("the receiver has the interface", || home.snapshot().sessions.iter().any(|session| session.pid == pid));
        let mut sent = 0;
        until("all packets are taken", || {
            let end = PACKETS.min(taken() + WINDOW);
            (sent..end).for_each(|seq| tap.send(&packet::make(1, seq)));
            sent = sent.max(end);
            taken() == PACKETS
        });
        assert!(end(&mut receiver).contains("took "));
    }
}

fn start(command: &mut Command) -> Guard {
    Guard::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// Waits for its exit; returns its output.
fn end(guard: &mut Guard) -> String {
    let status = guard.wait();
    let mut text = String::new();
    guard.0.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    guard.0.stderr.take().expect("piped").read_to_string(&mut text).expect("text");
    format!("{text}({status})")
}

fn rule(ports: &str, netns: Option<&Ns>, access: &str) -> String {
    let netns = netns.map(|ns| format!("netns = \"{}\"\n", ns.path().display())).unwrap_or_default();
    format!("[[rule]]\nports = [\"{ports}\"]\nusers = [{NOBODY}]\n{netns}access = \"{access}\"\n")
}

#[test]
fn users_are_refused_unless_a_rule_allows_them() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let Some(nobody) = Nobody::new(home) else { return };
        for (policy, spec) in [
            (DIRECT.to_owned(), "netmap:va"),
            (DIRECT.to_owned(), "netmap:va-0/R"),
            (DIRECT.to_owned(), "netmap:va/T"),
            // Rules for others, for other interfaces, and for other places.
            (MEDIATED.to_owned(), "netmap:va"),
            (rule("vb*", None, "direct"), "netmap:va"),
            (rule("v?", Some(&net.far), "direct"), "netmap:va"),
            (rule("va", None, "none") + &rule("*", None, "direct"), "netmap:va"),
        ] {
            set_policy(home, &policy);
            let (errno, printed) = nobody.refused(&net.near, spec);
            assert_eq!(errno, 13, "{policy}: {printed}");
            // The text depends on whether another rule names this user.
            let sentences = [
                format!("user {NOBODY} may not open it (the policy says who may"),
                "no rule of this daemon's policy".into(),
            ];
            let reported = sentences.iter().any(|sentence| printed.contains(sentence));
            assert!(reported && printed.contains(spec) && printed.contains("unetmap-policy(5)"), "{policy}: {printed}");
        }
        assert!(!net.has_xdp() && home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
        // The interface's pipes are refused too, and so are all other pipes.
        set_policy(home, DIRECT);
        for spec in ["netmap:va{1", "netmap:x{1"] {
            let (errno, printed) = nobody.refused(&net.near, spec);
            assert_eq!(errno, 13, "{printed}");
        }
        // A program started by a script prints the same, and fails.
        let output = nobody.command(&net.near, "pkt-gen").args(["-i", "netmap:va", "-f", "tx", "-n", "1"]).output();
        let output = output.expect("it runs");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && printed.contains("unetmap-policy(5)"), "{printed}");
        set_policy(home, &rule("*", None, "direct"));
        let (errno, printed) = nobody.refused(&net.near, "netmap:vx");
        assert!(errno == 6 && printed.contains("no such interface"), "{printed}");
        // Root can open it as before.
        assert_works(&net.open("netmap:va"), &net.tap(), 0);
        net.assert_given_back();
    });
}

fn with_a_rule(home: &Home, access: &str) {
    let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
    let Some(nobody) = Nobody::new(home) else { return };
    set_policy(home, &rule("va", Some(&net.near), access));
    let printed = nobody.try_open(&net.near, "netmap:va");
    assert!(printed.starts_with("opened "), "{printed}");
    assert_eq!(printed.starts_with("opened 1,"), access == "direct", "{printed}");
    nobody.assert_sends_and_receives(home, &net.near, &net.tap(), "one");
    // The same with pkt-gen, a program of netmap.
    until("the port is closed", || home.snapshot().ports.is_empty());
    let before = net.far.counters("vb").expect("an interface");
    let mut tx = start(nobody.command(&net.near, "pkt-gen").args(["-i", "va", "-f", "tx", "-n", "20000", "-w", "0"]));
    let printed = end(&mut tx);
    assert!(printed.contains("Sent 20000 packets"), "{printed}");
    assert_eq!(conformance::net::arrived(&net.far, "vb", before).0, 20_000);
    until("the port is closed", || home.snapshot().regions.is_empty());
    net.assert_given_back();
    summary(&format!("without a capability: packets sent {}, received {PACKETS}", PACKETS + 20_000));
}

#[test]
fn a_rule_grants_direct_access() {
    isolated_with_interfaces(|home| with_a_rule(home, "direct"));
}

#[test]
fn a_rule_grants_mediated_access() {
    isolated_with_interfaces(|home| with_a_rule(home, "mediated"));
}

/// Interfaces of the same name in two namespaces: each user opens the one of its own namespace, at the same time.
fn same_name_twice(home: &Home, access: &str) {
    let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
    let Some(nobody) = Nobody::new(home) else { return };
    let (c, d) = (net.lab.namespace("c").expect("a namespace"), net.lab.namespace("d").expect("a namespace"));
    net.lab.veth(&c, "va", &d, "vb", CABLE).expect("a cable");
    net.lab.veth(&c, "only", &d, "other", lab::VethOptions { addresses: None, ..CABLE }).expect("a cable");
    set_policy(home, &rule("*", None, access));
    let taps = [net.tap(), Tap::on(&d, "vb")];
    std::thread::scope(|scope| {
        let both = [(&net.near, &taps[0], "near"), (&c, &taps[1], "c")];
        let both = both.map(|(ns, tap, label)| {
            let nobody = &nobody;
            scope.spawn(move || nobody.assert_sends_and_receives(home, ns, tap, label))
        });
        both.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
    taps.iter().for_each(Tap::assert_quiet);
    // Both are open at the same time.
    let hold = |ns: &Ns| start(nobody.command(ns, "traffic_client").args(["hold", "netmap:va"]));
    let _both = [hold(&net.near), hold(&c)];
    let kind = if access == "direct" { "nic" } else { "mediated" };
    let open = || home.snapshot().ports.iter().filter(|port| port.name == "va" && port.kind == kind).count();
    until("both are open", || open() == 2);
    // An interface of one namespace cannot be opened from the other.
    let (errno, printed) = nobody.refused(&net.near, "netmap:only");
    assert!(errno == 6 && printed.contains("no such interface"), "{printed}");
    assert!(nobody.try_open(&c, "netmap:only").starts_with("opened "));
    summary(&format!("the same name in two namespaces, {access}: packets {PACKETS} each way in both, none astray"));
}

#[test]
fn a_name_means_the_interface_of_the_callers_namespace_direct() {
    isolated_with_interfaces(|home| same_name_twice(home, "direct"));
}

#[test]
fn a_name_means_the_interface_of_the_callers_namespace_mediated() {
    isolated_with_interfaces(|home| same_name_twice(home, "mediated"));
}

/// An interface has one user at a time.
#[test]
fn a_refusal_names_the_process_that_has_the_interface_open() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let Some(nobody) = Nobody::new(home) else { return };
        for access in ["direct", "mediated"] {
            set_policy(home, &rule("va", None, access));
            let port = net.open("netmap:va");
            let (errno, printed) = nobody.refused(&net.near, "netmap:va");
            assert!(errno == 16 && printed.contains("user 0 has it open"), "{printed}");
            assert_works(&port, &net.tap(), 0);
            drop(port);
            until("it is closed", || home.snapshot().ports.is_empty());
            let mut holder = start(nobody.command(&net.near, "traffic_client").args(["hold", "netmap:va"]));
            until("it is open", || !home.snapshot().sessions.is_empty());
            let (errno, printed) = net.refused("netmap:va");
            assert_eq!(errno, 16, "{printed}");
            let who = if access == "direct" {
                "user 65534 has it open"
            } else {
                "user 65534 has it open, through the daemon"
            };
            assert!(printed.contains(who), "{printed}");
            // Ports of other users are not shown to everybody.
            let ls = |mut command: Command| {
                let output = command.args(["ls", "--json"]).env("UNETMAP_SOCKET", home.socket()).output();
                String::from_utf8(output.expect("it runs").stdout).expect("text")
            };
            let pipe = net.near.run(|| Port::open("netmap:secret{1")).expect("a namespace").expect("a pipe");
            let (all, own) = (ls(Command::new(program("unetmap"))), ls(nobody.command(&net.near, "unetmap")));
            assert!(all.contains("secret{1") && all.contains("\"va\""), "{all}");
            assert!(!own.contains("secret") && own.contains("\"va\""), "{own}");
            drop(pipe);
            holder.kill();
            until("it is closed", || home.snapshot().ports.is_empty());
        }
    });
}

/// The policy applies to opens: open ports stay open when the file changes. With an invalid file every open is refused,
/// and the error names the line.
#[test]
fn a_policy_change_applies_from_the_next_open() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let Some(nobody) = Nobody::new(home) else { return };
        for access in ["direct", "mediated"] {
            set_policy(home, &rule("va", None, access));
            let (file, tap) = (nobody.counter("next"), net.tap());
            let mut receiver =
                start(nobody.command(&net.near, "traffic_client").args(["share", "netmap:va", &file, "100"]));
            until("it is open", || !home.snapshot().sessions.is_empty());
            set_policy(home, DIRECT);
            assert_eq!(nobody.refused(&net.near, "netmap:va").0, 13);
            // A user with an open port can still connect.
            let ls = nobody.command(&net.near, "unetmap").args(["ls", "--json"]).output().expect("it runs");
            assert!(String::from_utf8_lossy(&ls.stdout).contains("\"va\""), "{ls:?}");
            set_policy(home, "[[rule]]\nports = [\"va\"]\n\nusers = [-1]\n");
            let (errno, printed) = nobody.refused(&net.near, "netmap:va");
            assert!(errno == 13 && printed.contains(&format!("{}:4:", policy_file(home).display())), "{printed}");
            let (errno, printed) = net.refused("netmap:va");
            assert!(errno == 13 && printed.contains("policy.toml:4:"), "root as well: {printed}");
            (0..100).for_each(|seq| tap.send(&packet::make(1, seq)));
            let printed = end(&mut receiver);
            assert!(printed.contains("took 100"), "{printed}");
            until("it is closed", || home.snapshot().ports.is_empty());
        }
        // A policy file that other users can write is rejected.
        set_policy(home, &rule("va", None, "direct"));
        fs::set_permissions(policy_file(home), fs::Permissions::from_mode(0o666)).expect("our own file");
        let (errno, printed) = nobody.refused(&net.near, "netmap:va");
        assert!(errno == 13 && printed.contains("can be written by others"), "{printed}");
        set_policy(home, &rule("va", None, "direct"));
        assert!(nobody.try_open(&net.near, "netmap:va").starts_with("opened "));
        // A rule can exclude root, too.
        set_policy(home, "[[rule]]\nports = [\"va\"]\nusers = [\"*\"]\naccess = \"none\"\n");
        let (errno, printed) = net.refused("netmap:va");
        assert!(errno == 13 && printed.contains("user 0 may not open it"), "{printed}");
    });
}

/// Two users share no region, though both have interfaces in region 1 of the same namespace.
#[test]
fn two_users_of_one_namespace_share_no_memory() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let Some(nobody) = Nobody::new(home) else { return };
        net.lab.veth(&net.near, "vc", &net.far, "vd", lab::VethOptions { addresses: None, ..CABLE }).expect("a cable");
        set_policy(home, &rule("va", None, "direct"));
        let mine = net.open("netmap:vc");
        let mut holder = start(nobody.command(&net.near, "traffic_client").args(["hold", "netmap:va"]));
        until("both are open", || home.snapshot().sessions.len() == 2);
        let regions = home.snapshot().regions;
        assert_eq!(regions.iter().map(|region| region.mem_id).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(regions.iter().map(|region| region.sessions).collect::<Vec<_>>(), [1, 1]);
        // Pipes of the other user's interface are refused, too.
        let (errno, printed) = nobody.refused(&net.near, "netmap:vc{1");
        assert_eq!(errno, 13, "{printed}");
        assert!(nobody.try_open(&net.near, "netmap:va{1").starts_with("opened 1,"));
        let tap = Tap::on(&net.far, "vd");
        assert_works(&mine, &tap, 10);
        holder.kill();
        drop(mine);
        until("all is closed", || home.snapshot().regions.is_empty());
    });
}

#[test]
fn only_root_changes_the_switches_of_the_system() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, "[[rule]]\nusers = [65534]\npipes = true\naccess = \"direct\"\n", CABLE) else {
            return;
        };
        let Some(nobody) = Nobody::new(home) else { return };
        // The user may create a switch in the daemon that serves its pipes.
        assert!(nobody.try_open(&net.near, "vale0:mine").starts_with("opened"));
        for args in [["-n", "vi0"], ["-r", "va"], ["-a", "vale0:va"], ["-d", "vale0:va"], ["-p", "vale0:va"]] {
            let out = nobody.command(&net.near, "vale-ctl").args(args).output().expect("it runs");
            let printed = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.code() == Some(1) && printed.contains("only root"), "{args:?}: {printed}");
        }
        assert!(!net.has_xdp());
    });
}
