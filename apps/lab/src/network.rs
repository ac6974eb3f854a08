// SPDX-License-Identifier: BSD-2-Clause
//! Namespaces, veth pairs, addresses and routes.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use rustix::fs::{FileType, Mode};
use rustix::mount::{MountPropagationFlags, mount_bind_recursive, mount_change};
use tool_common::host::netns::Netns;
use tool_common::host::place::Place;

use crate::model::{End, Lab, Link};
use crate::state::{Folder, Identity, State};

/// The folder of `ip netns`.
const NAMES: &str = "/run/netns";
/// The folders of system programs, and then those of all.
const SYSTEM_FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// The namespaces of a lab.
pub(crate) struct Namespaces {
    /// As [`Lab::hosts`].
    pub(crate) hosts: Vec<Netns>,
    pub(crate) wire: Option<Netns>,
}

/// The path of a namespace's name.
pub(crate) fn path_of(name: &str) -> PathBuf {
    Path::new(NAMES).join(name)
}

/// Makes the namespaces of a lab and writes their numbers down before they get their names.
///
/// # Errors
/// A sentence: a namespace of such a name exists, or none can be made.
pub(crate) fn make(lab: &Lab, folder: &Folder, state: &mut State) -> Result<Namespaces, String> {
    let failed = |e: io::Error| format!("network namespaces cannot be made here: {e}");
    share_names().map_err(failed)?;
    let hosts = lab.hosts.iter().map(|_| Netns::new()).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let names: Vec<String> = (0..lab.hosts.len()).map(|host| lab.namespace(host)).collect();
    let identities = hosts.iter().map(Identity::of).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    state.namespaces = names.iter().cloned().zip(identities).collect();
    folder.write(state)?;
    for ((name, netns), host) in names.iter().zip(&hosts).zip(&lab.hosts) {
        let path = path_of(name);
        let keep = || {
            Place::of(&path)?.create_new(0o444)?;
            netns.keep_at(&path)
        };
        keep().map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => {
                let why = format!("there is a namespace {name}, which is not this lab's: ip netns del {name}");
                at(lab, host.line, &why)
            }
            _ => format!("{}: {e}", path.display()),
        })?;
    }
    let wire = lab.needs_wire().then(|| {
        let wire = Netns::new()?;
        folder.file("wire")?.create_new(0o400)?;
        wire.keep_at(&folder.wire())?;
        Ok(wire)
    });
    Ok(Namespaces { hosts, wire: wire.transpose().map_err(failed)? })
}

/// Opens the namespaces of a lab that was built.
///
/// # Errors
/// A sentence: one of them is no longer there.
pub(crate) fn open(lab: &Lab, folder: &Folder, state: &State) -> Result<Namespaces, String> {
    let gone = |what: &str| format!("{what} is no longer there: unetmap lab down {}, and up again", lab.name);
    let host = |host: usize| {
        let name = lab.namespace(host);
        let found = Netns::kept_at(&path_of(&name)).ok().flatten();
        let own = state.namespaces.get(&name);
        let is_own = |netns: &Netns| Identity::of(netns).is_ok_and(|found| own == Some(&found));
        found.filter(is_own).ok_or_else(|| gone(&format!("the namespace {name}")))
    };
    let hosts = (0..lab.hosts.len()).map(host).collect::<Result<Vec<_>, _>>()?;
    let wire = Netns::kept_at(&folder.wire()).ok().flatten();
    if lab.needs_wire() && wire.is_none() {
        return Err(gone("the wire"));
    }
    Ok(Namespaces { hosts, wire })
}

/// Removes the name of a namespace, if it still leads there, or nowhere yet. Returns whether it led there.
///
/// # Errors
/// The kernel's.
pub(crate) fn remove(name: &str, of: &Identity) -> io::Result<bool> {
    let path = path_of(name);
    // Held until the name is removed.
    let found = Netns::kept_at(&path)?;
    if found.is_none() {
        return remove_unmounted(&Place::of(&path)?).map(|()| false);
    }
    // Another one may be one that this user cannot enter.
    let Some(found) = found.filter(|found| found.id() == of.inode) else { return Ok(false) };
    if Identity::of(&found)? != *of {
        return Ok(false);
    }
    let place = Place::of(&path)?;
    Netns::release_at(&path)?;
    place.identity().map_or(Ok(()), |file| place.remove(file))?;
    Ok(true)
}

/// Removes a name at which nothing is mounted: a lab's building or removal was killed between the two steps. A name
/// that `ip netns add` is about to give has no permissions, and stays.
fn remove_unmounted(name: &Place) -> io::Result<()> {
    let Ok(file) = name.stat() else { return Ok(()) };
    let is_file = FileType::from_raw_mode(file.st_mode) == FileType::RegularFile;
    if !is_file || file.st_size != 0 || Mode::from_raw_mode(file.st_mode).is_empty() {
        return Ok(());
    }
    name.remove((&file).into())
}

/// Has other mount namespaces see the names, as `ip netns add` does.
fn share_names() -> io::Result<()> {
    let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match fs::create_dir(NAMES) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    // It fails for a folder at which nothing is mounted.
    mount_change(NAMES, flags)
        .or_else(|_| mount_bind_recursive(NAMES, NAMES).and_then(|()| mount_change(NAMES, flags)))?;
    Ok(())
}

/// A sentence about a line of the lab's file.
pub(crate) fn at(lab: &Lab, line: usize, why: &str) -> String {
    format!("{}:{line}: {why}", lab.file.display())
}

/// Makes and sets all interfaces.
///
/// # Errors
/// A sentence, with the line of the file.
pub(crate) fn connect(lab: &Lab, folder: &Folder, namespaces: &Namespaces) -> Result<(), String> {
    let failed = |e: io::Error| format!("network namespaces: {e}");
    if let Some(wire) = &namespaces.wire {
        // What passes there is the hosts'.
        wire.run(ipv6_off).and_then(|done| done).map_err(failed)?;
    }
    // In a namespace of its own: older kernels refuse names that the calling one has.
    let links: Vec<_> = lab.links.iter().flat_map(|link| veths(lab, folder, link)).collect();
    batch(lab, &Netns::new().map_err(failed)?, &links)?;
    if let Some(wire) = &namespaces.wire {
        let of_host = |link: &Link, end: usize| matches!(link.ends[end], End::Host { .. });
        let in_wire = lab.links.iter().filter(|link| link.is_in_wire());
        let ends = in_wire.flat_map(|link| [(link, 0), (link, 1)]).filter(|(link, end)| of_host(link, *end));
        let up = |(link, end): (&Link, usize)| (link.line, format!("link set dev {} up", link.wire_interface(end)));
        batch(lab, wire, &ends.map(up).collect::<Vec<_>>())?;
    }
    let share = lab.hosts.len().div_ceil(thread::available_parallelism().map_or(1, usize::from));
    let all: Vec<usize> = (0..lab.hosts.len()).collect();
    thread::scope(|scope| {
        let set = |part: &[usize]| part.iter().try_for_each(|host| set_host(lab, *host, &namespaces.hosts[*host]));
        let threads: Vec<_> = all.chunks(share).map(|part| scope.spawn(move || set(part))).collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        // All have ended before the first error is returned.
        joined.collect::<Vec<_>>().into_iter().collect()
    })
}

/// The commands that make the veth pairs of a link.
fn veths(lab: &Lab, folder: &Folder, link: &Link) -> Vec<(usize, String)> {
    let wire = folder.wire();
    let name = |end: &End| match end {
        End::Host { host, interface, .. } => Some((interface.clone(), lab.namespace(*host))),
        End::Switch(_) => None,
    };
    let pair = |(one, at): (String, String), (other, there): (String, String)| {
        (link.line, format!("link add name {one} netns {at} type veth peer name {other} netns {there}"))
    };
    match (link.is_in_wire(), [&link.ends[0], &link.ends[1]].map(name)) {
        (false, [Some(one), Some(other)]) => vec![pair(one, other)],
        (_, ends) => {
            let all = ends.into_iter().enumerate().filter_map(|(i, end)| Some((i, end?)));
            let in_wire = |i: usize| (link.wire_interface(i), wire.display().to_string());
            all.map(|(i, end)| pair(end, in_wire(i))).collect()
        }
    }
}

/// Sets interfaces, addresses and routes of a host.
fn set_host(lab: &Lab, host: usize, netns: &Netns) -> Result<(), String> {
    let of_host = &lab.hosts[host];
    let failed = |e: io::Error| at(lab, of_host.line, &format!("{}: {e}", of_host.name));
    if of_host.forward {
        netns.run(forward).and_then(|done| done).map_err(failed)?;
    }
    let mut commands = vec![(of_host.line, "link set dev lo up".to_owned())];
    for (link, _, interface, addresses) in lab.interfaces(host) {
        if link.is_in_wire() {
            // What a program sends and receives has its checksums.
            let mut ethtool = program("ethtool");
            ethtool.args(["-K", interface, "tx", "off"]);
            netns.run(|| output(&mut ethtool, "")).map_err(failed)?.map_err(|(_, why)| at(lab, link.line, &why))?;
        }
        for address in addresses {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            commands.push((link.line, format!("address add {address} dev {interface}{nodad}")));
        }
        commands.push((link.line, format!("link set dev {interface} up")));
    }
    commands.extend(of_host.routes.iter().map(|route| (of_host.line, format!("route add {route}"))));
    batch(lab, netns, &commands)
}

/// Has the thread's namespace forward packets.
fn forward() -> io::Result<()> {
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    set_ipv6("/proc/sys/net/ipv6/conf/all/forwarding")
}

/// Turns IPv6 off for the interfaces that the thread's namespace will have.
fn ipv6_off() -> io::Result<()> {
    set_ipv6("/proc/sys/net/ipv6/conf/default/disable_ipv6")
}

fn set_ipv6(path: &str) -> io::Result<()> {
    // Path: the kernel's, in /proc.
    match fs::write(path, "1") {
        // A kernel without IPv6.
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Has `ip` run commands in a namespace, each with its line in the lab's file.
fn batch(lab: &Lab, netns: &Netns, commands: &[(usize, String)]) -> Result<(), String> {
    let text: String = commands.iter().map(|(_, command)| format!("{command}\n")).collect();
    let mut ip = program("ip");
    ip.args(["-batch", "-"]);
    let done = netns.run(|| output(&mut ip, &text)).map_err(|e| format!("network namespaces: {e}"))?;
    done.map_err(|(number, why)| match number.checked_sub(1).and_then(|i| commands.get(i)) {
        Some((line, command)) => at(lab, *line, &format!("ip {command}: {why}")),
        None => why,
    })
}

/// A program of the system's, also if the user's `PATH` lacks its folders: Debian's lacks those of ethtool.
fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", search_path(&env::var_os("PATH").unwrap_or_default()));
    command
}

/// The folders in which programs are looked for: those of `path`, then the system's.
fn search_path(path: &OsStr) -> OsString {
    let given = env::split_paths(path).filter(|folder| !folder.as_os_str().is_empty());
    let folders: Vec<PathBuf> = given.chain(SYSTEM_FOLDERS.map(PathBuf::from)).collect();
    env::join_paths(folders).unwrap_or_else(|_| path.to_owned())
}

/// Runs a program with this input. An error is the number of the command that failed, 0 if none is known, and what the
/// program said.
fn output(command: &mut Command, input: &str) -> Result<(), (usize, String)> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |e: io::Error| (0, format!("the program {name} cannot be run: {e} (Debian: iproute2, ethtool)"));
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = pipes.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends early says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let number = text.lines().find_map(|line| line.strip_prefix("Command failed -:")?.trim().parse().ok());
    let lines = text.lines().filter(|line| !line.starts_with("Command failed"));
    let why = lines.map(|line| line.trim_start_matches("RTNETLINK answers: ").trim_start_matches("Error: "));
    Err((number.unwrap_or(0), why.collect::<Vec<_>>().join(", ").trim_end_matches('.').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_system_are_found_without_its_path() {
        for (given, wanted) in [
            ("/usr/local/bin:/usr/bin:/bin", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/usr/bin:/bin"),
            ("", "/usr/sbin:/sbin:/usr/bin:/bin"),
        ] {
            assert_eq!(search_path(given.as_ref()), wanted);
        }
        let path = |command: &Command| {
            command.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path?.to_str().map(str::to_owned))
        };
        assert!(path(&program("ethtool")).is_some_and(|path| path.ends_with("/usr/sbin:/sbin:/usr/bin:/bin")));
    }
}
