// SPDX-License-Identifier: BSD-2-Clause
//! Small networks for tests, the demo and benchmarks: network namespaces, connected by veth pairs.
//!
//! The machine's own network is not changed, and no packet appears that the user of the lab did not send: IPv6, which
//! sends packets by itself, is off. Namespaces are those of `ip netns`, named `unm-<pid>-<n>-<label>`, so that they can
//! be inspected from a shell; the next [`Lab`] of any process removes namespaces that a killed process left behind.
//!
//! ```text
//!   namespace a               namespace b
//!   [va 10.9.0.1/24] -------- [10.9.0.2/24 vb]
//! ```
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, geteuid, getpid, test_kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

/// The prefix of the names of all namespaces of labs.
const PREFIX: &str = "unm-";
/// The folder of `ip netns`, with one file for each namespace.
const FOLDER: &str = "/var/run/netns";
/// Maximum time until a link is up; after it the link counts as failed.
const LINK_LIMIT: Duration = Duration::from_secs(5);

/// Namespaces and the interfaces in them, all removed on drop.
///
/// Processes that still run in a namespace keep it, and its interfaces, until they exit: stop them first.
#[derive(Debug)]
pub struct Lab {
    /// Begins the name of each namespace: `unm-<pid>-<n>-`.
    prefix: String,
    names: Mutex<Vec<String>>,
}

/// A network namespace of a [`Lab`]. Clones are the same namespace.
#[derive(Clone, Debug)]
pub struct Ns(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    id: u64,
}

/// Options of a veth pair.
#[derive(Clone, Copy, Debug)]
pub struct VethOptions<'a> {
    /// Number of receive queues, and of transmit queues, of each end; at least 1.
    pub queues: u32,
    /// Bytes of the largest packet, without the 14 bytes of the Ethernet header.
    pub mtu: u32,
    /// IPv4 addresses of the two ends, each with its prefix length: `("10.9.0.1/24", "10.9.0.2/24")`.
    pub addresses: Option<(&'a str, &'a str)>,
    /// The stack of each end computes checksums itself: needed where the other end's frames are received or
    /// sent by anything other than a network stack.
    pub tx_checksum_off: bool,
    /// Each end receives by NAPI (GRO on), so that frames which XDP redirects to its peer arrive, though no program is
    /// attached to it.
    pub native_xdp_peer: bool,
}

impl Default for VethOptions<'_> {
    fn default() -> Self {
        VethOptions { queues: 1, mtu: 1500, addresses: None, tx_checksum_off: false, native_xdp_peer: false }
    }
}

/// The kernel's counters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "as ip-link(8) calls them")]
pub struct Counters {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub rx_dropped: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_dropped: u64,
}

impl Lab {
    /// Returns an empty lab; removes namespaces that exited processes left behind.
    ///
    /// # Errors
    /// One line with the reason why this machine cannot have one: not root, no `ip` program, a kernel without
    /// namespaces.
    pub fn new() -> Result<Lab, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !geteuid().is_root() {
            return Err("network namespaces need root".into());
        }
        if let Err(e) = Command::new("ip").arg("-V").stdout(Stdio::null()).status() {
            return Err(format!("network namespaces need the program ip (Debian: iproute2): {e}"));
        }
        if !Path::new("/proc/self/ns/net").exists() {
            return Err("this kernel has no network namespaces".into());
        }
        remove_left_behind();
        let prefix = format!("{PREFIX}{}-{}-", getpid().as_raw_pid(), NEXT.fetch_add(1, Ordering::Relaxed));
        let lab = Lab { prefix, names: Mutex::default() };
        // Fails here instead of at the first namespace: tests are skipped if this function returns an error.
        lab.namespace("probe").map_err(|e| format!("network namespaces cannot be made here: {e}"))?;
        lab.remove_all();
        Ok(lab)
    }

    /// Makes a namespace: `lo` is up, IPv6 is off for every interface that is made in it.
    ///
    /// # Errors
    /// The label is in use or not of `[a-z0-9]`, or `ip` failed: its error output.
    pub fn namespace(&self, label: &str) -> Result<Ns, String> {
        if label.is_empty() || !label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
            return Err(format!("namespace {label:?}: a label consists of lower case letters and digits"));
        }
        let name = format!("{}{label}", self.prefix);
        ip(&["netns", "add", &name])?;
        self.names.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
        let path = path_of(&name);
        let id = fs::metadata(&path).map_err(|e| format!("{}: {e}", path.display()))?.ino();
        let ns = Ns(Arc::new(Inner { name, id }));
        ns.run(ipv6_off)?.map_err(|e| format!("{}: turning IPv6 off: {e}", ns.name()))?;
        ns.ip(&["link", "set", "lo", "up"])?;
        Ok(ns)
    }

    /// Makes a veth pair of a new interface `a_name` in `a` and a new interface `b_name` in `b`, and waits until both
    /// are up.
    ///
    /// # Errors
    /// `ip` or `ethtool` failed: its error output. Or a link does not come up.
    pub fn veth(&self, a: &Ns, a_name: &str, b: &Ns, b_name: &str, options: VethOptions) -> Result<(), String> {
        let (queues, mtu) = (options.queues.to_string(), options.mtu.to_string());
        let end = ["mtu", &mtu, "numtxqueues", &queues, "numrxqueues", &queues];
        let head = [&["link", "add", a_name], &end[..]].concat();
        let tail = [&["type", "veth", "peer", "name", b_name, "netns", b.name()], &end[..]].concat();
        a.ip(&[head, tail].concat())?;
        let addresses = options.addresses.map(|(a, b)| [a, b]);
        for (i, (ns, name)) in [(a, a_name), (b, b_name)].into_iter().enumerate() {
            // One call for each: `ethtool` fails when one of several changes nothing.
            for (wanted, feature, state) in
                [(options.tx_checksum_off, "tx", "off"), (options.native_xdp_peer, "gro", "on")]
            {
                if wanted {
                    ns.tool("ethtool", &["-K", name, feature, state])?;
                }
            }
            if let Some(addresses) = addresses {
                ns.ip(&["addr", "add", addresses[i], "dev", name])?;
            }
            ns.ip(&["link", "set", name, "up"])?;
        }
        a.wait_up(a_name)?;
        b.wait_up(b_name)
    }

    fn remove_all(&self) {
        for name in self.names.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // This fails only if the namespace has already been removed.
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.remove_all();
    }
}

impl Ns {
    /// Its name in `ip netns`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The inode number, by which the kernel identifies namespaces.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The file of the namespace, which can be opened for `setns`.
    pub fn path(&self) -> PathBuf {
        path_of(self.name())
    }

    /// Removes its name, as `ip netns del` does. It ends when nothing else refers to it.
    ///
    /// # Errors
    /// It has no name any more.
    pub fn remove_name(&self) -> Result<(), String> {
        ip(&["netns", "del", self.name()]).map(drop)
    }

    /// A command that runs `program` in the namespace: the process that is spawned becomes the program, so its id and
    /// exit status are the program's.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name()]).arg(program);
        command
    }

    /// Runs `work` in a thread of this process that has moved into the namespace. Sockets that it opens are the
    /// namespace's, wherever they are used; a panic of `work` is resumed in the caller.
    ///
    /// # Errors
    /// The namespace is gone, or the thread could not be made or moved.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, String> {
        let failed = |e: io::Error| format!("entering the namespace {}: {e}", self.name());
        let file = File::open(self.path()).map_err(failed)?;
        let inside = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        };
        thread::scope(|scope| {
            let thread = thread::Builder::new().spawn_scoped(scope, inside)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
        .map_err(failed)
    }

    /// Runs `ip` with these arguments in the namespace and returns what it printed.
    ///
    /// # Errors
    /// The command, and its error output.
    pub fn ip(&self, args: &[&str]) -> Result<String, String> {
        ip(&[&["-n", self.name()], args].concat())
    }

    /// Runs another program with these arguments in the namespace, waits for it and returns what it printed.
    ///
    /// # Errors
    /// The command, and its error output.
    pub fn tool(&self, program: &str, args: &[&str]) -> Result<String, String> {
        let mut command = self.command(program);
        output(command.args(args))
    }

    /// The kernel's counters of `interface` since it was created.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn counters(&self, interface: &str) -> Result<Counters, String> {
        let link = self.link(interface)?;
        let count = |direction: &str, what: &str| {
            let value = link["stats64"][direction][what].as_u64();
            value.ok_or_else(|| format!("{interface}: ip prints no {direction} {what}"))
        };
        Ok(Counters {
            rx_packets: count("rx", "packets")?,
            rx_bytes: count("rx", "bytes")?,
            rx_dropped: count("rx", "dropped")?,
            tx_packets: count("tx", "packets")?,
            tx_bytes: count("tx", "bytes")?,
            tx_dropped: count("tx", "dropped")?,
        })
    }

    /// The Ethernet address of `interface`.
    ///
    /// # Errors
    /// There is no such interface, or it has none.
    pub fn mac(&self, interface: &str) -> Result<[u8; 6], String> {
        let link = self.link(interface)?;
        let text = link["address"].as_str().unwrap_or_default();
        let bytes: Option<Vec<u8>> = text.split(':').map(|hex| u8::from_str_radix(hex, 16).ok()).collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| format!("{interface}: its address is {text:?}, not an Ethernet address"))
    }

    fn link(&self, interface: &str) -> Result<Value, String> {
        let text = self.ip(&["-j", "-s", "link", "show", "dev", interface])?;
        let mut links: Value = serde_json::from_str(&text).map_err(|e| format!("ip -j wrote no JSON: {e}"))?;
        // Some versions of ip write an empty object for each link that was not requested.
        let all = links.as_array_mut().map(std::mem::take).unwrap_or_default();
        let found = all.into_iter().find(|link| link["ifname"] == interface);
        found.ok_or_else(|| format!("{interface}: ip does not list it"))
    }

    /// Waits until `interface` is up and has a carrier.
    ///
    /// # Errors
    /// It is not up after five seconds.
    pub fn wait_up(&self, interface: &str) -> Result<(), String> {
        let deadline = Instant::now() + LINK_LIMIT;
        loop {
            let state = self.link(interface)?["operstate"].clone();
            if state == "UP" {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{interface} in {}: still {state} after {LINK_LIMIT:?}", self.name()));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn path_of(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// Turns IPv6 off for this thread's namespace: for its interfaces, present and future.
fn ipv6_off() -> io::Result<()> {
    for which in ["all", "default"] {
        match fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1") {
            // A kernel without IPv6.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

fn ip(args: &[&str]) -> Result<String, String> {
    output(Command::new("ip").args(args))
}

/// Runs a command, waits for it and returns what it printed.
///
/// # Errors
/// The command, and its error output.
pub fn output(command: &mut Command) -> Result<String, String> {
    let what = || {
        let args = command.get_args().map(|arg| arg.to_string_lossy());
        format!("{} {}", command.get_program().to_string_lossy(), args.collect::<Vec<_>>().join(" "))
    };
    let what = what();
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{what}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let printed = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(format!("{what}: {} ({printed})", output.status))
}

/// Removes namespaces of processes that have exited.
fn remove_left_behind() {
    let Ok(entries) = fs::read_dir(FOLDER) else {
        // No namespace was ever made here.
        return;
    };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if maker(&name).is_some_and(|pid| test_kill_process(pid).is_err()) {
            // Another lab may just have removed it.
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

/// The process that made the namespace of this name; `None` if no lab made it.
fn maker(name: &str) -> Option<Pid> {
    let mut words = name.strip_prefix(PREFIX)?.splitn(3, '-');
    let pid = words.next()?.parse().ok()?;
    let _: u32 = words.next()?.parse().ok()?;
    words.next()?;
    Pid::from_raw(pid)
}

#[cfg(test)]
mod tests;
