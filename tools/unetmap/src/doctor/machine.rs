//! What the machine, and whoever opens interfaces on it, can do.

use std::fmt;
use std::io;

use super::{Check, State};

/// The version of a kernel: major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kernel(pub(super) u32, pub(super) u32);

impl Kernel {
    /// The first with AF_XDP as it is needed here.
    const INTERFACES: Kernel = Kernel(5, 11);
    /// The first that spreads a frame over several buffers.
    pub(super) const FRAGS: Kernel = Kernel(6, 6);

    /// The beginning of a release such as `6.1.0-18-amd64`.
    pub(super) fn parse(release: &str) -> Option<Kernel> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some(Kernel(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The minimum of each part, whether interfaces need it, and how the part is called.
const PARTS: [(Kernel, bool, &str, &str); 3] = [
    (Kernel(5, 10), true, "pipes", "kernel: pipes"),
    (Kernel::INTERFACES, true, "interfaces", "kernel: interfaces"),
    (Kernel::FRAGS, false, "frames of several buffers", "kernel: large frames"),
];

/// Bytes of packet buffers that are locked for the ports of one user, as the daemon has it by default.
const LOCKED: u64 = 64 << 20;

/// Capabilities, as bits of `/proc/PID/status`.
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const IPC_LOCK: u64 = 1 << 14;
const SYS_ADMIN: u64 = 1 << 21;
const BPF: u64 = 1 << 39;

/// What is known about the machine.
#[derive(Debug)]
pub(super) struct Facts {
    /// As `uname -r` prints it.
    pub(super) release: String,
    /// Whether there is `membarrier`.
    pub(super) barrier: bool,
    /// Tries of this process.
    pub(super) socket: io::Result<()>,
    pub(super) program: io::Result<()>,
    pub(super) link: io::Result<()>,
    /// Our own effective user.
    pub(super) uid: u32,
    /// Ourselves.
    pub(super) own: Powers,
    /// The daemons that answer, the system's first; or why that cannot be known.
    pub(super) daemons: Result<Vec<Daemon>, String>,
}

/// What a process may do; `None` where that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Powers {
    /// Its effective capabilities.
    pub(super) capabilities: Option<u64>,
    /// Bytes that it may lock in memory; `u64::MAX`: no limit.
    pub(super) locked: Option<u64>,
}

/// A daemon that runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Daemon {
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) version: String,
    pub(super) powers: Powers,
    pub(super) ports: Vec<OpenPort>,
}

/// A port that a daemon serves on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenPort {
    /// The interface's name, in some namespace.
    pub(super) interface: String,
    /// How packets get in and out, in the daemon's words.
    pub(super) manner: Option<String>,
    /// Who has it open.
    pub(super) users: Vec<u32>,
}

impl Facts {
    pub(super) fn kernel(&self) -> Option<Kernel> {
        Kernel::parse(&self.release)
    }

    /// The daemon that opens interfaces, if one runs: root's.
    pub(super) fn system(&self) -> Option<&Daemon> {
        self.daemons.iter().flatten().find(|daemon| daemon.uid == 0)
    }

    /// What whoever will open an interface may do. `None`: there is nobody.
    fn opener(&self) -> Option<Powers> {
        match self.system() {
            Some(daemon) => Some(daemon.powers),
            None => (self.uid == 0 && self.daemons.is_ok()).then_some(self.own),
        }
    }
}

/// All that can be said about the machine.
pub(super) fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks: Vec<Check> = PARTS.iter().map(|part| kernel(facts.kernel(), part)).collect();
    checks.push(match facts.barrier {
        true => Check::ok("membarrier", "wake-ups cost the sleeper only").optional(),
        false => Check::missing("membarrier", "the kernel or a filter refuses it: each wake-up test costs a fence")
            .optional(),
    });
    let own = facts.own.capabilities;
    checks.push(attempt("AF_XDP sockets", "one was made", &facts.socket, own, NET_RAW));
    checks.push(attempt("BPF programs", "one was loaded", &facts.program, own, NET_ADMIN | BPF));
    let tried = "ours was attached, to lo of a network namespace made for it";
    checks.push(attempt("XDP links", tried, &facts.link, own, NET_ADMIN | BPF | SYS_ADMIN));
    checks.push(daemon(facts));
    if let Some(powers) = facts.opener() {
        checks.push(capabilities(powers.capabilities));
        checks.push(locked(powers));
    }
    checks
}

fn kernel(kernel: Option<Kernel>, part: &(Kernel, bool, &str, &'static str)) -> Check {
    let &(least, needed, part, what) = part;
    let (state, text) = match kernel {
        Some(kernel) if kernel >= least => (State::Ok, format!("from Linux {least} on")),
        Some(_) => (State::Missing, format!("{part} need Linux {least} or newer")),
        None => (State::Unknown, format!("{part} need Linux {least} or newer, and the version cannot be read")),
    };
    Check { needed, ..Check::new(what, state, text) }
}

/// Judges a try that needs all the capabilities `need` of this process, whose are `own`.
fn attempt(what: &'static str, done: &str, result: &io::Result<()>, own: Option<u64>, need: u64) -> Check {
    let Err(error) = result else { return Check::ok(what, done) };
    // CAP_SYS_ADMIN includes CAP_BPF.
    let has = own.map(|own| own | if own & SYS_ADMIN != 0 { BPF } else { 0 });
    match error.kind() {
        io::ErrorKind::PermissionDenied if has.is_some_and(|has| has & need == need) => {
            let why = "refused, though the capabilities are there: a container's filter or a security module does it";
            Check::missing(what, why)
        }
        io::ErrorKind::PermissionDenied => {
            Check::unknown(what, "this process may not try it").fix("run unetmap doctor as root")
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
    match (facts.system(), daemons.first()) {
        (Some(Daemon { pid, version, .. }), _) => {
            let policy = if facts.uid == 0 { "" } else { "; its policy decides who may open which interface" };
            Check::ok(WHAT, format!("{version}, process {pid}, serves{policy}"))
        }
        (None, Some(Daemon { uid, .. })) => {
            Check::missing(WHAT, format!("the one that runs is user {uid}'s, and interfaces are opened by root's"))
                .fix(START)
        }
        (None, None) if facts.uid == 0 => Check::ok(WHAT, "none runs; the first program that opens a port starts one"),
        (None, None) => Check::missing(WHAT, "none runs that opens interfaces for you").fix(START),
    }
}

/// Judges the capabilities of whoever opens interfaces.
fn capabilities(has: Option<u64>) -> Check {
    const WHAT: &str = "capabilities";
    let Some(has) = has else { return Check::unknown(WHAT, "those of unetmapd cannot be read") };
    // Every call about an interface is made in the client's network namespace, which takes CAP_SYS_ADMIN to enter.
    let need = [(NET_RAW, "CAP_NET_RAW"), (NET_ADMIN, "CAP_NET_ADMIN"), (SYS_ADMIN, "CAP_SYS_ADMIN")];
    let lacks: Vec<&str> = need.iter().filter(|(bit, _)| has & bit == 0).map(|&(_, name)| name).collect();
    if lacks.is_empty() {
        return Check::ok(WHAT, "unetmapd has CAP_NET_RAW, CAP_NET_ADMIN and CAP_SYS_ADMIN, which includes CAP_BPF");
    }
    Check::missing(WHAT, format!("unetmapd lacks {}", lacks.join(", "))).fix("start it as root, with all capabilities")
}

fn locked(powers: Powers) -> Check {
    const WHAT: &str = "locked memory";
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    match powers {
        Powers { capabilities: Some(has), .. } if has & IPC_LOCK != 0 => Check::ok(WHAT, "no limit, by CAP_IPC_LOCK"),
        Powers { locked: Some(u64::MAX), .. } => Check::ok(WHAT, "no limit"),
        Powers { locked: Some(limit), .. } if limit >= LOCKED => Check::ok(WHAT, format!("limit {}", mib(limit))),
        Powers { locked: Some(limit), capabilities: Some(_) } => {
            Check::missing(WHAT, format!("the limit is {}, packet buffers take {}", mib(limit), mib(LOCKED)))
                .fix("ulimit -l unlimited before unetmapd starts, or CAP_IPC_LOCK for it")
        }
        _ => Check::unknown(WHAT, "the limit of unetmapd cannot be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = (1 << 41) - 1;

    fn powers(capabilities: u64, locked: u64) -> Powers {
        Powers { capabilities: Some(capabilities), locked: Some(locked) }
    }

    fn facts() -> Facts {
        Facts {
            release: "6.18.44-x".into(),
            barrier: true,
            socket: Ok(()),
            program: Ok(()),
            link: Ok(()),
            uid: 0,
            own: powers(ALL, u64::MAX),
            daemons: Ok(vec![]),
        }
    }

    fn refused(errno: i32) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(errno))
    }

    fn find(facts: &Facts, what: &str) -> Check {
        judge(facts).into_iter().find(|check| check.what == what).unwrap_or_else(|| panic!("{what}"))
    }

    fn blocking(facts: &Facts) -> Vec<&'static str> {
        judge(facts).iter().filter(|check| check.blocks()).map(|check| check.what).collect()
    }

    #[test]
    fn releases() {
        for (release, kernel) in [
            ("6.18.44-fc-v669", Some(Kernel(6, 18))),
            ("5.10.0-9-amd64", Some(Kernel(5, 10))),
            ("6.7-rc3", Some(Kernel(6, 7))),
            ("6", None),
            ("", None),
            ("x.1", None),
        ] {
            assert_eq!(Kernel::parse(release), kernel, "{release}");
        }
        assert!(Kernel(6, 10) > Kernel(6, 9) && Kernel(5, 99) < Kernel(6, 0));
    }

    #[test]
    fn each_part_has_its_kernel() {
        for (release, missing) in [("5.9.1", 3), ("5.10.1", 2), ("5.11.0", 1), ("6.5.9", 1), ("6.6.0", 0), ("7.0.0", 0)]
        {
            let facts = Facts { release: release.into(), ..facts() };
            let checks = judge(&facts);
            let count = checks.iter().filter(|check| check.state == State::Missing).count();
            assert_eq!(count, missing, "{release}");
            let blocked = checks.iter().any(Check::blocks);
            assert_eq!(blocked, Kernel::parse(release) < Some(Kernel(5, 11)), "{release}");
        }
        let unreadable = Facts { release: "?".into(), ..facts() };
        assert_eq!(find(&unreadable, "kernel: interfaces").state, State::Unknown);
    }

    #[test]
    fn all_is_well() {
        assert!(judge(&facts()).iter().all(|check| check.state == State::Ok), "{:?}", judge(&facts()));
    }

    #[test]
    fn what_cannot_be_tried_is_unknown() {
        let mut facts =
            Facts { own: powers(0, 0), socket: refused(1), program: refused(1), link: refused(1), ..facts() };
        for what in ["AF_XDP sockets", "BPF programs", "XDP links"] {
            assert_eq!(find(&facts, what).state, State::Unknown, "{what}");
        }
        facts.own = powers(ALL & !BPF, 0);
        assert_eq!(
            find(&facts, "BPF programs").state,
            State::Missing,
            "CAP_SYS_ADMIN is enough, so something else refuses"
        );
        facts.own = Powers::default();
        assert_eq!(find(&facts, "BPF programs").state, State::Unknown);
    }

    #[test]
    fn what_the_kernel_does_not_have_is_missing() {
        let facts = Facts { own: powers(0, 0), socket: refused(97), program: refused(38), uid: 7, ..facts() };
        for (what, config) in [("AF_XDP sockets", "CONFIG_XDP_SOCKETS"), ("BPF programs", "CONFIG_BPF_SYSCALL")] {
            let check = find(&facts, what);
            assert!(check.blocks() && check.sentence().contains(config), "{check:?}");
        }
        let slow = Facts { barrier: false, ..self::facts() };
        assert!(find(&slow, "membarrier").state == State::Missing && blocking(&slow).is_empty());
    }

    #[test]
    fn who_opens_interfaces() {
        let nobodys = Daemon { pid: 9, uid: 1000, version: "1".into(), ..Daemon::default() };
        let roots = Daemon { uid: 0, powers: powers(ALL, 0), ..nobodys.clone() };
        let user = Facts { uid: 1000, own: powers(0, 8 << 20), ..facts() };
        assert_eq!(blocking(&user), ["unetmapd"], "a user's own daemon opens none");
        let user = |daemons| Facts { uid: 1000, own: powers(0, 8 << 20), daemons: Ok(daemons), ..facts() };
        assert!(find(&user(vec![nobodys.clone()]), "unetmapd").text.contains("user 1000's"));
        assert!(blocking(&user(vec![roots.clone(), nobodys.clone()])).is_empty());
        assert!(find(&user(vec![roots.clone()]), "unetmapd").text.contains("policy"));
        assert!(!find(&Facts { daemons: Ok(vec![roots]), ..facts() }, "unetmapd").text.contains("policy"));
        let unclear = Facts { daemons: Err("why".into()), ..facts() };
        assert_eq!(find(&unclear, "unetmapd").state, State::Unknown);
        assert!(judge(&unclear).iter().all(|check| check.what != "capabilities"));
    }

    #[test]
    fn the_opener_needs_capabilities() {
        let daemon = |powers| {
            let daemon = Daemon { pid: 9, powers, ..Daemon::default() };
            Facts { daemons: Ok(vec![daemon]), own: powers_of_nobody(), ..facts() }
        };
        fn powers_of_nobody() -> Powers {
            powers(0, 0)
        }
        assert!(blocking(&daemon(powers(ALL & !BPF, 0))).is_empty());
        for (lacks, name) in [(NET_RAW, "CAP_NET_RAW"), (NET_ADMIN, "CAP_NET_ADMIN"), (SYS_ADMIN, "CAP_SYS_ADMIN")] {
            let facts = daemon(powers(ALL & !lacks, 0));
            assert_eq!(blocking(&facts), ["capabilities"]);
            assert_eq!(find(&facts, "capabilities").text, format!("unetmapd lacks {name}"));
        }
        assert_eq!(find(&daemon(Powers::default()), "capabilities").state, State::Unknown);
        assert!(blocking(&daemon(Powers::default())).is_empty());
        assert_eq!(blocking(&Facts { own: powers(0, 0), ..facts() }), ["capabilities", "locked memory"]);
    }

    #[test]
    fn buffers_must_be_locked() {
        let limited = ALL & !IPC_LOCK;
        for (has, limit, state) in [
            (ALL, 0, State::Ok),
            (limited, u64::MAX, State::Ok),
            (limited, LOCKED, State::Ok),
            (limited, LOCKED - 1, State::Missing),
        ] {
            assert_eq!(locked(powers(has, limit)).state, state, "{limit}");
        }
        assert_eq!(locked(Powers { capabilities: None, locked: Some(0) }).state, State::Unknown);
        assert_eq!(locked(Powers { capabilities: Some(limited), locked: None }).state, State::Unknown);
        assert!(locked(powers(limited, 8 << 20)).text.contains("is 8 MiB, packet buffers take 64 MiB"));
    }
}
