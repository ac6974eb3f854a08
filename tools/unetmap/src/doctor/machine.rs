// SPDX-License-Identifier: BSD-2-Clause
//! Checks of the machine: the kernel, the daemon, and the privileges of the process that opens interfaces.

use std::io;

use unetmap_sys::kernel::{self, Feature, Version};
use unetmap_sys::probe;

use super::Check;

/// Bytes of locked packet buffers for the ports of one user, the daemon's default.
const LOCKED: u64 = 64 << 20;

/// Capabilities, as bits of `/proc/PID/status`.
pub(super) const NET_ADMIN: u64 = 1 << 12;
pub(super) const NET_RAW: u64 = 1 << 13;
const IPC_LOCK: u64 = 1 << 14;
pub(super) const SYS_ADMIN: u64 = 1 << 21;
pub(super) const BPF: u64 = 1 << 39;

const LACKS_BPF: &str = "unetmapd lacks CAP_BPF, which AF_XDP needs";

/// Facts about the machine.
#[derive(Debug)]
pub(super) struct Facts {
    /// The kernel release, as printed by `uname -r`.
    pub(super) release: String,
    /// True if `membarrier` works.
    pub(super) barrier: bool,
    /// Results of this process's attempts to create an AF_XDP socket, a BPF program and an XDP link.
    pub(super) socket: io::Result<()>,
    pub(super) program: io::Result<()>,
    pub(super) link: io::Result<()>,
    /// Attempts to use features of newer kernels, with the capabilities that they need.
    pub(super) tried: Vec<(&'static Feature, u64, io::Result<()>)>,
    /// Effective user id of this process.
    pub(super) uid: u32,
    /// Privileges of this process.
    pub(super) own: Privileges,
    /// Whether the privileges of the process that would open an interface are those of a user namespace, and not of the
    /// machine.
    pub(super) in_user_namespace: bool,
    /// The daemons that replied, the system's first; or why there is no reply.
    pub(super) daemons: Result<Vec<Daemon>, String>,
}

/// Privileges of a process; `None` if they cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Privileges {
    /// Its effective capabilities.
    pub(super) capabilities: Option<u64>,
    /// Limit of locked memory in bytes; `u64::MAX`: no limit.
    pub(super) locked: Option<u64>,
    /// Whether it is known to be in this process's network namespace, so that it need not enter it.
    pub(super) is_in_this_netns: bool,
}

impl Privileges {
    /// Whether it has all the capabilities `need`; false if they are unknown.
    pub(super) fn has(&self, need: u64) -> bool {
        // CAP_SYS_ADMIN includes CAP_BPF.
        let all = self.capabilities.map(|has| has | if has & SYS_ADMIN != 0 { BPF } else { 0 });
        all.is_some_and(|all| all & need == need)
    }
}

/// A running daemon.
#[derive(Clone, Debug, Default)]
pub(super) struct Daemon {
    pub(super) pid: u32,
    /// The process of the daemon that has the privileges.
    pub(super) privileged_pid: u32,
    pub(super) uid: u32,
    pub(super) version: String,
    pub(super) privileges: Privileges,
    pub(super) ports: Vec<OpenPort>,
    /// Whether a crash would end no port, and a text about it; `None`: the daemon does not say it.
    pub(super) protection: Option<(bool, String)>,
    /// Whether the threads that keep its interfaces from the kernel run before all others; `None`: they are not seen.
    pub(super) has_precedence: Option<bool>,
}

/// An open port on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenPort {
    /// The interface's name, possibly in another network namespace.
    pub(super) interface: String,
    /// The data path, as the daemon names it.
    pub(super) data_path: Option<String>,
    /// Why packets are copied, if they are and the driver runs the XDP program.
    pub(super) copied: Option<String>,
    /// The users that have the port open.
    pub(super) users: Vec<u32>,
}

impl Facts {
    pub(super) fn kernel(&self) -> Option<Version> {
        Version::parse(&self.release)
    }

    /// Returns the daemon that opens interfaces, if it runs: root's.
    pub(super) fn system_daemon(&self) -> Option<&Daemon> {
        self.daemons.iter().flatten().find(|daemon| daemon.uid == 0)
    }

    /// Why that process cannot have AF_XDP, as far as is known, so that it opens packet sockets.
    pub(super) fn no_bpf(&self) -> Option<String> {
        let lacks = |opener: Privileges| opener.capabilities.is_some() && !opener.has(BPF);
        match self.in_user_namespace {
            true => Some(probe::NOT_IN_USER_NAMESPACES.into()),
            false if self.opener().is_some_and(lacks) => Some(LACKS_BPF.into()),
            false => self.is_too_old().then(|| kernel::INTERFACES.requirement()),
        }
    }

    /// Whether the kernel is too old for AF_XDP as ports use it.
    fn is_too_old(&self) -> bool {
        self.kernel().is_some_and(|version| version < kernel::INTERFACES.least)
    }

    /// Returns the privileges of the process that would open an interface: root's daemon, else this process, which can
    /// start that daemon if it is root's. `None` if no process can.
    fn opener(&self) -> Option<Privileges> {
        match self.system_daemon() {
            Some(daemon) => Some(daemon.privileges),
            None => (self.uid == 0 && self.daemons.is_ok()).then_some(self.own),
        }
    }
}

/// Checks the machine.
pub(super) fn check(facts: &Facts) -> Vec<Check> {
    let mut checks: Vec<Check> = kernel::FEATURES.iter().map(|&feature| kernel(feature, facts)).collect();
    checks.push(match facts.barrier {
        true => Check::ok("membarrier", "only the waiting process pays for a wake-up").optional(),
        false => {
            let text = "the kernel or a seccomp filter refuses it: each test for a waiting process costs a fence";
            Check::missing("membarrier", text).optional()
        }
    });
    checks.push(user_namespace(facts));
    checks.push(attempt("AF_XDP sockets", "a socket was created", &facts.socket, facts, NET_RAW));
    checks.push(attempt("BPF programs", "a program was loaded", &facts.program, facts, NET_ADMIN | BPF));
    let done = "a program was attached to lo of a temporary network namespace";
    checks.push(attempt("XDP links", done, &facts.link, facts, NET_ADMIN | BPF | SYS_ADMIN));
    checks.push(daemon(facts));
    checks.extend(facts.daemons.iter().flatten().filter_map(crash_protection));
    checks.extend(facts.system_daemon().and_then(precedence));
    if let Some(privileges) = facts.opener() {
        checks.push(capabilities(privileges, facts.in_user_namespace));
        if !facts.in_user_namespace {
            checks.push(locked(privileges));
        }
    }
    checks
}

/// Tells in which user namespace interfaces are opened, and what that means.
fn user_namespace(facts: &Facts) -> Check {
    const WHAT: &str = "user namespace";
    match facts.in_user_namespace {
        false => Check::ok(WHAT, "the initial one, or that of a daemon elsewhere"),
        true => Check::ok(
            WHAT,
            "not the initial one: bpf(2) is not among root's privileges here, so interfaces are opened by packet sockets, \
             without host rings and filters",
        ),
    }
}

/// Checks that the kernel has a feature: by the attempt to use it, else by its version.
fn kernel(feature: &'static Feature, facts: &Facts) -> Check {
    let tried = facts.tried.iter().find(|(tried, ..)| *tried == feature);
    let check = match (tried, facts.kernel()) {
        (Some((.., Ok(()))), _) => Check::ok(feature.key, "tried"),
        (Some((.., Err(e))), _) if facts.in_user_namespace && e.kind() == io::ErrorKind::PermissionDenied => {
            Check::missing(feature.key, "not for user namespaces")
        }
        (Some((_, need, Err(e))), _) if e.kind() != io::ErrorKind::PermissionDenied || facts.own.has(*need) => {
            Check::missing(feature.key, format!("{} ({e})", feature.requirement()))
        }
        (_, Some(version)) if version >= feature.least => {
            Check::ok(feature.key, format!("Linux {} or newer", feature.least))
        }
        (_, Some(_)) => Check::missing(feature.key, feature.requirement()),
        (_, None) => Check::unknown(feature.key, format!("{}; the version cannot be read", feature.requirement())),
    };
    // In place of AF_XDP there are packet sockets.
    if feature == &kernel::PIPES { check } else { check.optional() }
}

/// Evaluates an attempt that needs all the capabilities `need`.
fn attempt(what: &'static str, done: &str, result: &io::Result<()>, facts: &Facts, need: u64) -> Check {
    let Err(error) = result else { return Check::ok(what, done) };
    match error.kind() {
        io::ErrorKind::PermissionDenied if facts.in_user_namespace => {
            let why = match need & BPF {
                0 => "not allowed in this user namespace: the network namespace belongs to another one",
                _ => "not for user namespaces; packet sockets take their place",
            };
            Check::missing(what, why).optional()
        }
        io::ErrorKind::PermissionDenied if facts.own.has(need) => {
            let why = "refused despite the capabilities: by a seccomp filter of a container, or a security module";
            Check::missing(what, why)
        }
        io::ErrorKind::PermissionDenied => {
            Check::unknown(what, "this process has no permission to test it").fix("run unetmap doctor as root")
        }
        _ if facts.is_too_old() => {
            let text = format!("this kernel is too old ({error}); packet sockets take their place");
            Check::missing(what, text).optional()
        }
        _ => {
            let config = match what {
                "AF_XDP sockets" => "a kernel with CONFIG_XDP_SOCKETS",
                _ => "a kernel with CONFIG_BPF_SYSCALL and CONFIG_BPF_JIT",
            };
            Check::missing(what, error.to_string()).fix(config)
        }
    }
}

fn daemon(facts: &Facts) -> Check {
    const WHAT: &str = "unetmapd";
    const START: &str = "start one as root: unetmapd";
    let daemons = match &facts.daemons {
        Ok(daemons) => daemons,
        Err(why) => return Check::unknown(WHAT, why.clone()),
    };
    match (facts.system_daemon(), daemons.first()) {
        (Some(Daemon { pid, version, .. }), _) => {
            let policy = if facts.uid == 0 { "" } else { "; its policy decides which users may open which interfaces" };
            Check::ok(WHAT, format!("{version}, process {pid}, is running{policy}"))
        }
        (None, Some(Daemon { uid, .. })) => {
            let text = format!("only user {uid}'s daemon is running; interfaces need root's daemon");
            Check::missing(WHAT, text).fix(START)
        }
        (None, None) if facts.uid == 0 => Check::ok(WHAT, "not running; the first program that opens a port starts it"),
        (None, None) => Check::missing(WHAT, "root's daemon, which opens interfaces, is not running").fix(START),
    }
}

/// Checks whether ports go on after a crash of a daemon.
fn crash_protection(daemon: &Daemon) -> Option<Check> {
    const WHAT: &str = "crash protection";
    let (is_on, text) = daemon.protection.as_ref()?;
    let text = format!("of process {}: {text}", daemon.pid);
    Some(if *is_on { Check::ok(WHAT, text) } else { Check::missing(WHAT, text) }.optional())
}

/// Checks whether a busy machine can give the interfaces of a daemon to the kernel.
fn precedence(daemon: &Daemon) -> Option<Check> {
    const WHAT: &str = "real-time threads";
    let kept = "by two threads of the daemon that run before all others";
    let check = match daemon.has_precedence? {
        true => Check::ok(WHAT, format!("the deadlines of interfaces are kept {kept}")),
        false => {
            Check::missing(WHAT, format!("on a busy machine interfaces may be the kernel's: none are kept {kept}"))
                .fix("restart it, with CAP_SYS_NICE, in no control group without real-time threads (cpu.rt_runtime_us)")
        }
    };
    Some(check.optional())
}

/// Checks the capabilities of the process that opens interfaces.
fn capabilities(privileges: Privileges, in_user_namespace: bool) -> Check {
    const WHAT: &str = "capabilities";
    let Some(has) = privileges.capabilities else {
        return Check::unknown(WHAT, "the capabilities of unetmapd cannot be read");
    };
    if in_user_namespace && has & NET_RAW != 0 && has & NET_ADMIN != 0 {
        return Check::ok(WHAT, "unetmapd has CAP_NET_RAW and CAP_NET_ADMIN in its user namespace");
    }
    // CAP_SYS_ADMIN, with which the daemon enters the client's network namespace, includes CAP_BPF.
    let admin = match privileges.is_in_this_netns {
        true => (SYS_ADMIN | BPF, "CAP_BPF"),
        false => (SYS_ADMIN, "CAP_SYS_ADMIN"),
    };
    let need = [(NET_RAW, "CAP_NET_RAW"), (NET_ADMIN, "CAP_NET_ADMIN"), admin];
    let lacks: Vec<&str> = need.iter().filter(|(bits, _)| has & bits == 0).map(|&(_, name)| name).collect();
    if lacks == ["CAP_BPF"] {
        let text = "unetmapd lacks CAP_BPF, so interfaces are opened by packet sockets";
        return Check::missing(WHAT, text).fix("start it as root, with all capabilities").optional();
    }
    if !lacks.is_empty() {
        let text = format!("unetmapd lacks {}", lacks.join(", "));
        return Check::missing(WHAT, text).fix("start it as root, with all capabilities");
    }
    let admin = match has & SYS_ADMIN {
        0 => "CAP_BPF; for other network namespaces and host rings it needs CAP_SYS_ADMIN",
        _ => "CAP_SYS_ADMIN, which includes CAP_BPF",
    };
    Check::ok(WHAT, format!("unetmapd has CAP_NET_RAW, CAP_NET_ADMIN and {admin}"))
}

fn locked(privileges: Privileges) -> Check {
    const WHAT: &str = "locked memory";
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    match privileges {
        Privileges { capabilities: Some(has), .. } if has & IPC_LOCK != 0 => {
            Check::ok(WHAT, "no limit, by CAP_IPC_LOCK")
        }
        Privileges { locked: Some(u64::MAX), .. } => Check::ok(WHAT, "no limit"),
        Privileges { locked: Some(limit), .. } if limit >= LOCKED => Check::ok(WHAT, format!("limit {}", mib(limit))),
        Privileges { locked: Some(limit), capabilities: Some(_), .. } => {
            Check::missing(WHAT, format!("the limit is {}, packet buffers need {}", mib(limit), mib(LOCKED)))
                .fix("run ulimit -l unlimited before unetmapd is started, or give it CAP_IPC_LOCK")
        }
        _ => Check::unknown(WHAT, "the limit of unetmapd cannot be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    const ALL: u64 = (1 << 41) - 1;

    fn privileges(capabilities: u64, locked: u64) -> Privileges {
        Privileges { capabilities: Some(capabilities), locked: Some(locked), is_in_this_netns: false }
    }

    fn facts() -> Facts {
        Facts {
            release: "6.18.44-x".into(),
            barrier: true,
            socket: Ok(()),
            program: Ok(()),
            link: Ok(()),
            tried: vec![],
            uid: 0,
            own: privileges(ALL, u64::MAX),
            in_user_namespace: false,
            daemons: Ok(vec![]),
        }
    }

    fn refused(errno: i32) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(errno))
    }

    fn find(facts: &Facts, what: &str) -> Check {
        check(facts).into_iter().find(|check| check.what == what).unwrap_or_else(|| panic!("{what}"))
    }

    fn blocking(facts: &Facts) -> Vec<&'static str> {
        check(facts).iter().filter(|check| check.blocks()).map(|check| check.what).collect()
    }

    #[test]
    fn each_feature_has_a_minimum_kernel() {
        for (release, missing) in
            [("5.9.1", 10), ("5.10.1", 9), ("5.11.0", 7), ("6.5.9", 5), ("6.6.0", 2), ("7.0.0", 0)]
        {
            let facts = Facts { release: release.into(), ..facts() };
            let checks = check(&facts);
            let count = checks.iter().filter(|check| check.state == State::Missing).count();
            assert_eq!(count, missing, "{release}");
            let blocked = checks.iter().any(Check::blocks);
            assert_eq!(blocked, Version::parse(release) < Some(Version(5, 10)), "{release}");
        }
        let unreadable = Facts { release: "?".into(), ..facts() };
        assert_eq!(find(&unreadable, "kernel: interfaces").state, State::Unknown);
    }

    #[test]
    fn an_attempt_counts_more_than_the_version() {
        let with = |release: &str, result| Facts {
            release: release.into(),
            tried: vec![(&kernel::HOST_RINGS, NET_ADMIN | BPF, result)],
            ..facts()
        };
        let state = |facts: &Facts| find(facts, "kernel: host rings").state;
        assert_eq!(state(&with("5.14.0-el9", Ok(()))), State::Ok, "a distribution added it");
        assert_eq!(state(&with("6.12.0", refused(22))), State::Missing);
        assert_eq!(state(&with("6.12.0", refused(1))), State::Missing);
        let unprivileged = Facts { own: privileges(0, 0), ..with("6.12.0", refused(1)) };
        assert_eq!(state(&unprivileged), State::Ok, "it could not be tried");
        assert!(check(&with("6.12.0", refused(22))).iter().all(|check| !check.blocks()), "interfaces do not need it");
    }

    #[test]
    fn an_old_kernel_is_not_blamed_on_its_build_options() {
        let old = Facts { release: "5.10.0-32-amd64".into(), link: refused(22), ..facts() };
        let check = find(&old, "XDP links");
        assert!(check.fix.is_none() && check.text.starts_with("this kernel is too old"), "{check:?}");
        assert_eq!(blocking(&old), [""; 0], "packet sockets take the place of AF_XDP");
        assert!(old.no_bpf().is_some_and(|why| why.starts_with("interfaces by AF_XDP need Linux 5.11")));
    }

    #[test]
    fn all_checks_are_ok_on_a_complete_machine() {
        assert!(check(&facts()).iter().all(|check| check.state == State::Ok), "{:?}", check(&facts()));
    }

    #[test]
    fn attempts_without_permission_are_unknown() {
        let mut facts =
            Facts { own: privileges(0, 0), socket: refused(1), program: refused(1), link: refused(1), ..facts() };
        for what in ["AF_XDP sockets", "BPF programs", "XDP links"] {
            assert_eq!(find(&facts, what).state, State::Unknown, "{what}");
        }
        facts.own = privileges(ALL & !BPF, 0);
        assert_eq!(
            find(&facts, "BPF programs").state,
            State::Missing,
            "CAP_SYS_ADMIN includes CAP_BPF, so the refusal has another reason"
        );
        facts.own = Privileges::default();
        assert_eq!(find(&facts, "BPF programs").state, State::Unknown);
    }

    #[test]
    fn a_user_namespace_is_named_and_blocks_nothing() {
        let tried = vec![(&kernel::HOST_RINGS, NET_ADMIN | BPF | SYS_ADMIN, refused(1))];
        let own = privileges(ALL, 8 << 20);
        let facts = Facts { in_user_namespace: true, program: refused(1), link: refused(1), tried, own, ..facts() };
        for what in ["BPF programs", "XDP links", "kernel: host rings"] {
            let check = find(&facts, what);
            assert!(check.text.starts_with("not for user namespaces"), "{check:?}");
        }
        assert!(find(&facts, "user namespace").text.contains("packet sockets"));
        assert_eq!(blocking(&facts), [""; 0]);
    }

    #[test]
    fn features_that_the_kernel_lacks_are_missing() {
        let facts = Facts { own: privileges(0, 0), socket: refused(97), program: refused(38), uid: 7, ..facts() };
        for (what, config) in [("AF_XDP sockets", "CONFIG_XDP_SOCKETS"), ("BPF programs", "CONFIG_BPF_SYSCALL")] {
            let check = find(&facts, what);
            assert!(check.blocks() && check.sentence().contains(config), "{check:?}");
        }
        let slow = Facts { barrier: false, ..self::facts() };
        assert!(find(&slow, "membarrier").state == State::Missing && blocking(&slow).is_empty());
    }

    #[test]
    fn interfaces_need_the_daemon_of_root() {
        let users = Daemon { pid: 9, uid: 1000, version: "1".into(), ..Daemon::default() };
        let roots = Daemon { uid: 0, privileges: privileges(ALL, 0), ..users.clone() };
        let user = Facts { uid: 1000, own: privileges(0, 8 << 20), ..facts() };
        assert_eq!(blocking(&user), ["unetmapd"], "a user's own daemon opens no interfaces");
        let user = |daemons| Facts { uid: 1000, own: privileges(0, 8 << 20), daemons: Ok(daemons), ..facts() };
        assert!(find(&user(vec![users.clone()]), "unetmapd").text.contains("user 1000's"));
        assert!(blocking(&user(vec![roots.clone(), users.clone()])).is_empty());
        assert!(find(&user(vec![roots.clone()]), "unetmapd").text.contains("policy"));
        assert!(!find(&Facts { daemons: Ok(vec![roots]), ..facts() }, "unetmapd").text.contains("policy"));
        let no_reply = Facts { daemons: Err("why".into()), ..facts() };
        assert_eq!(find(&no_reply, "unetmapd").state, State::Unknown);
        assert!(check(&no_reply).iter().all(|check| check.what != "capabilities"));
    }

    #[test]
    fn the_opener_needs_capabilities() {
        fn no_privileges() -> Privileges {
            privileges(0, 0)
        }
        let daemon = |privileges| {
            let daemon = Daemon { pid: 9, privileges, ..Daemon::default() };
            Facts { daemons: Ok(vec![daemon]), own: no_privileges(), ..facts() }
        };
        assert!(blocking(&daemon(privileges(ALL & !BPF, 0))).is_empty());
        for (lacks, name) in [(NET_RAW, "CAP_NET_RAW"), (NET_ADMIN, "CAP_NET_ADMIN"), (SYS_ADMIN, "CAP_SYS_ADMIN")] {
            let facts = daemon(privileges(ALL & !lacks, 0));
            assert_eq!(blocking(&facts), ["capabilities"]);
            assert_eq!(find(&facts, "capabilities").text, format!("unetmapd lacks {name}"));
        }
        let in_this_netns = |has| Privileges { is_in_this_netns: true, ..privileges(has, 0) };
        assert!(blocking(&daemon(in_this_netns(ALL & !SYS_ADMIN))).is_empty());
        let without_bpf = daemon(in_this_netns(ALL & !SYS_ADMIN & !BPF));
        assert!(find(&without_bpf, "capabilities").text.starts_with("unetmapd lacks CAP_BPF, so"));
        assert!(blocking(&without_bpf).is_empty() && without_bpf.no_bpf().as_deref() == Some(LACKS_BPF));
        assert_eq!(daemon(privileges(ALL & !BPF, 0)).no_bpf(), None);
        assert_eq!(find(&daemon(Privileges::default()), "capabilities").state, State::Unknown);
        assert!(blocking(&daemon(Privileges::default())).is_empty());
        assert_eq!(blocking(&Facts { own: privileges(0, 0), ..facts() }), ["capabilities", "locked memory"]);
    }

    #[test]
    fn the_limit_of_locked_memory_must_hold_the_buffers() {
        let limited = ALL & !IPC_LOCK;
        for (has, limit, state) in [
            (ALL, 0, State::Ok),
            (limited, u64::MAX, State::Ok),
            (limited, LOCKED, State::Ok),
            (limited, LOCKED - 1, State::Missing),
        ] {
            assert_eq!(locked(privileges(has, limit)).state, state, "{limit}");
        }
        assert_eq!(locked(Privileges { locked: Some(0), ..Privileges::default() }).state, State::Unknown);
        assert_eq!(locked(Privileges { capabilities: Some(limited), ..Privileges::default() }).state, State::Unknown);
        assert!(locked(privileges(limited, 8 << 20)).text.contains("is 8 MiB, packet buffers need 64 MiB"));
    }
}
