// SPDX-License-Identifier: BSD-2-Clause
//! The operations of the broker.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use std::vec;

use serde::Serialize;
use unetmap_core::control::trusted_file;
use unetmap_core::errno::EPERM;
use unetmap_sys::link::{self, LinkWatch, NetnsLinkWatch, veth};
use unetmap_sys::netns::Netns;
use unetmap_sys::tcx::{self, RelayEnds, Tcx};
use unetmap_sys::thread::RemoteThread;
use unetmap_sys::xdp::{Mode, Xdp, dispatcher};
use unetmap_sys::xsk::{self, BusyPoll, Queue, Umem};
use unetmap_sys::{Mapping, memfd, probe, process};

use super::serve::{Broker, Object, fault, lock};
use super::undo::{Change, UndoOnDrop};
use super::{Answer, Handle, Request, inside, mounts, offloads, veth as pairs};
use crate::log;
use crate::owner::owner;
use crate::policy::{self, Policy};
use crate::privileged;
use crate::tuning::broker::{MAX_DEADLINE, MAX_HELPERS};

/// A program that was attached: its handle, and its properties.
pub(super) type AttachedProgram = (Handle, Mode, bool, bool);

/// The descriptors of a request, in order.
struct Descriptors(vec::IntoIter<OwnedFd>);

impl Descriptors {
    fn next(&mut self) -> io::Result<OwnedFd> {
        self.0.next().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a descriptor is missing"))
    }

    fn netns(&mut self) -> io::Result<Netns> {
        Netns::of_fd(self.next()?)
    }
}

fn value(value: impl Serialize) -> io::Result<Answer> {
    Ok((serde_json::to_value(value)?, Vec::new()))
}

fn descriptor(of: impl AsFd) -> io::Result<Answer> {
    Ok((serde_json::Value::Null, vec![of.as_fd().try_clone_to_owned()?]))
}

fn busy_poll(usec: u32, budget: u32) -> io::Result<BusyPoll> {
    BusyPoll::new(usec, budget).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))
}

impl Broker {
    /// Does an operation. The descriptors are closed afterwards.
    // Long: one line for each operation.
    pub(super) fn serve(&self, request: Request, fds: Vec<OwnedFd>) -> io::Result<Answer> {
        let mut fds = Descriptors(fds.into_iter());
        match request {
            Request::Link(index) => value(inside(&fds.netns()?, || link::by_index(index))?),
            Request::LinkNamed(name) => {
                let found = inside(&fds.netns()?, || link::by_name(&name))?;
                if found.is_some() {
                    fault::wait("network-lock", &self.setup.socket);
                }
                value(found)
            }
            Request::IsAbsent(name) => value(inside(&fds.netns()?, || Ok(link::is_absent(&name)))?),
            Request::Links => {
                fault::wait("network-lock", &self.setup.socket);
                value(inside(&fds.netns()?, link::all)?)
            }
            Request::DefaultRoutes => value(inside(&fds.netns()?, link::default_routes)?),
            Request::Driver(name) => value(inside(&fds.netns()?, || link::driver(&name))?),
            Request::XdpFeatures(index) => value(inside(&fds.netns()?, || link::xdp_features(index))?),
            Request::Channels(name) => {
                fault::wait("network-lock", &self.setup.socket);
                value(inside(&fds.netns()?, || link::channels(&name))?)
            }
            Request::NumaNode(name) => value(inside(&fds.netns()?, || link::numa_node(&name))?),
            Request::TxDropped(index) => value(inside(&fds.netns()?, || link::tx_dropped(index))?),
            Request::ProbeXdpSockets => value(inside(&fds.netns()?, probe::xdp_socket)?),
            Request::MapsBoundRings(index) => value(inside(&fds.netns()?, || xsk::maps_bound_rings(index))?),
            Request::AttachedXdp(index) => value(inside(&fds.netns()?, || dispatcher::attached(index))?),
            Request::VethEndIn(index) => {
                let (netns, other) = (fds.netns()?, fds.netns()?);
                value(inside(&netns, || veth::peer_index_in(index, &other))?)
            }
            Request::WatchLinks => descriptor(inside(&fds.netns()?, LinkWatch::new)?),
            Request::WatchNamespaces => descriptor(NetnsLinkWatch::new()?),
            Request::WatchedNamespace => value(NetnsLinkWatch::new()?.add(&fds.netns()?)?),
            Request::ExistsIn(nsid, index) => value(NetnsLinkWatch::new()?.exists(nsid, index)?),
            Request::ProgramName(id) => value(probe::program_name(id)?),
            Request::DispatchersAreUsed => value(dispatcher::are_used()),
            Request::UsedNamespaces(ids) => value(self.used_namespaces(ids)),
            Request::NamespaceAt(path) => value(policy::namespace_at(&path)),
            Request::TryBusyPoll { usec, budget } => {
                let busy = busy_poll(usec, budget)?;
                value(inside(&fds.netns()?, || xsk::try_busy_poll(busy))?)
            }
            Request::SetBusyPoll { usec, budget } => {
                value(xsk::set_busy_poll(xsk::checked(fds.next()?)?, busy_poll(usec, budget)?)?)
            }
            Request::OpenXsk { queue, at, bytes, buffer, registers } => {
                fault::wait("interfaces", &self.setup.socket);
                open_xsk(&fds.netns()?, &fds.next()?, &queue, (at, bytes, buffer), registers)
            }
            Request::TryFilter(program) => value(Xdp::try_filter(&program)?),
            Request::AttachXdp { index, queues, mode } => {
                let xdp = inside(&fds.netns()?, || Xdp::attach(index, queues, mode))?;
                value(self.keep_xdp(xdp, None)?)
            }
            Request::JoinXdp { index, queues, mode, extras } => {
                value(self.join(&fds.netns()?, (index, queues), (mode, extras))?)
            }
            Request::XdpInsert(handle, queue) => {
                let socket = xsk::checked(fds.next()?)?;
                self.with(handle, Object::xdp, |xdp| xdp.insert(queue, &socket))
            }
            Request::XdpRemove(handle, queue) => self.with(handle, Object::xdp, |xdp| xdp.remove(queue)),
            Request::XdpMark(handle, mark) => self.with(handle, Object::xdp, |xdp| xdp.set_mark(mark)),
            Request::XdpFilter(handle, filter) => {
                self.with(handle, Object::xdp, |xdp| xdp.set_filter(filter.as_deref()))
            }
            Request::AttachTcx(index) => value(self.keep(Object::Tcx(inside(&fds.netns()?, || Tcx::attach(index))?))?),
            Request::TcxCompanion(handle, near) => {
                let netns = fds.netns()?;
                self.with(handle, Object::tcx, |tcx| match near {
                    Some(near) => inside(&netns, || tcx.attach_companion(near)),
                    None => {
                        tcx.detach_companion();
                        Ok(())
                    }
                })
            }
            Request::TcxRelayed(handle, relayed) => self.with(handle, Object::tcx, |tcx| tcx.set_relayed(relayed)),
            Request::AttachRelay { nic, near, far } => {
                let (netns, far_netns) = (fds.netns()?, fds.netns()?);
                let at_far_end = |program: &OwnedFd| inside(&far_netns, || tcx::attach_to_far_end(program, far));
                let relay = inside(&netns, || tcx::Relay::attach(RelayEnds { nic, near, far }, at_far_end))?;
                value(self.keep(Object::Relay(relay))?)
            }
            Request::TcxMark(handle, mark) => self.with(handle, Object::tcx, |tcx| tcx.set_mark(mark)),
            Request::TcxHostTx(handle, action) => self.with(handle, Object::tcx, |tcx| tcx.set_host_tx(action)),
            Request::TcxDropped(handle) => self.with(handle, Object::tcx, |tcx| Ok(tcx.dropped())),
            Request::Extend(handle, ms) => self.extend(handle, Duration::from_millis(ms.into())),
            Request::DisableOffloads(index) => self.keep_undo(offloads::disable(&fds.netns()?, index, &self.undo_log)?),
            Request::DisableMerging { index, name } => {
                self.keep_undo(offloads::disable_merging(&fds.netns()?, (index, &name), &self.undo_log))
            }
            Request::Drop(handle) => self.drop_object(handle),
            Request::CreateVeth { nic, queues, relay } => {
                let netns = fds.netns()?;
                let name = if relay { pairs::relay_name(nic) } else { pairs::near_name(nic) };
                let pair = pairs::create_pair(&netns, &name, queues)?;
                let near = pair.near;
                lock(&self.pairs).extend([(netns.id(), near), (pair.far_netns.id(), pair.far)]);
                let (far, namespace) = (pair.far, pair.far_netns.as_fd().try_clone_to_owned()?);
                Ok((serde_json::to_value((near, far, self.keep_xdp(pair.xdp, None)?))?, vec![namespace]))
            }
            Request::SetLink(index, up) => {
                let netns = fds.netns()?;
                if !lock(&self.pairs).contains(&(netns.id(), index)) {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "the broker has not made this interface"));
                }
                value(inside(&netns, || veth::set_state(index, up))?)
            }
            Request::HiddenNamespace => descriptor(hidden_namespace()?),
            Request::CreatePersistentVeth { name, queues } => {
                let (netns, hidden) = (fds.netns()?, fds.netns()?);
                let index = pairs::create_persistent(&name, queues, &netns, &hidden)?;
                lock(&self.pairs).insert((hidden.id(), index));
                value(index)
            }
            Request::DeleteVeth(index) => {
                let netns = fds.netns()?;
                if !lock(&self.pairs).remove(&(netns.id(), index)) {
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, "the broker has not made this interface"));
                }
                value(inside(&netns, || veth::delete(index))?)
            }
            Request::NamespaceOfPeer => descriptor(Netns::of_socket(fds.next()?)?),
            Request::NamespaceOfThread(tid) => {
                let thread = RemoteThread::from_parts(tid, fds.next()?).ok_or(io::ErrorKind::InvalidInput)?;
                descriptor(thread.netns()?)
            }
            Request::MountNode(number) => match mounts::mount(&self.setup, number, &mut lock(&self.devices)) {
                Ok(device) => Ok((serde_json::to_value(Ok::<(), (i32, String)>(()))?, vec![device.into_fd()])),
                Err(refusal) => value(Err::<(), (i32, String)>((refusal.errno, refusal.why))),
            },
            Request::UnmountNode => {
                mounts::unmount(&self.setup);
                value(())
            }
            Request::CheckNodeLink(path) => {
                value(mounts::check(&self.setup, &path).map_err(|refusal| (refusal.errno, refusal.why)))
            }
            Request::LinkNode(path) => {
                value(mounts::link(&self.setup, &path).map_err(|refusal| (refusal.errno, refusal.why)))
            }
            Request::UnlinkNode(path) => {
                mounts::unlink(&self.setup, &path);
                value(())
            }
            Request::OpenBacking => {
                let (device, file) = (fds.next()?, fds.next()?);
                value(mounts::open_backing(device, file.as_fd())?)
            }
            Request::CloseBacking(number) => {
                mounts::close_backing(fds.next()?, number)?;
                value(())
            }
            Request::StartMemoryHelper => self.start_helper(),
            Request::UseMemoryHelper(handle, tid) => {
                let pidfd = fds.next()?;
                if !mounts::has_node_open(tid, &lock(&self.devices)) || !mounts::runs(&pidfd) {
                    return Err(io::Error::from_raw_os_error(EPERM));
                }
                let thread = RemoteThread::from_parts(tid, pidfd).ok_or(io::ErrorKind::InvalidInput)?;
                value(lock(&self.helpers).get(&handle).ok_or(io::ErrorKind::NotFound)?.approve(&thread)?)
            }
            Request::KillMemoryHelper(handle) => {
                let helper = lock(&self.helpers).remove(&handle);
                value(helper.ok_or(io::ErrorKind::NotFound)?.kill()?)
            }
            Request::ProcessId => value(process::pid()),
            Request::LastHandle => value(self.last_handle()),
            Request::Echo(text) => value(text),
            Request::ForgetSince(last) => {
                self.forget_since(last);
                value(())
            }
            Request::ForbidRemoval => {
                fault::wait("files", &self.setup.socket);
                value(fds.0.try_for_each(|fd| memfd::forbid_removal(fd.as_fd()))?)
            }
            Request::Policy => value(self.setup.policy.as_deref().map(Policy::load)),
            Request::Configuration => {
                let config = self.setup.config.as_ref();
                value(config.map(|path| trusted_file::read(path, owner(), "configuration")))
            }
            Request::OpenLog => {
                log::tend()?;
                descriptor(io::stderr().as_fd().try_clone_to_owned()?)
            }
            Request::RemoveSocket => match self.setup.socket.as_os_str().is_empty() {
                // There is no broker.
                true => value(false),
                false => value(privileged::remove_own_socket(&self.setup.socket).map(|()| true)?),
            },
        }
    }

    fn keep_xdp(&self, xdp: Xdp, place: Option<UndoOnDrop>) -> io::Result<AttachedProgram> {
        let (mode, frags, calls_filter) = (xdp.mode(), xdp.frags(), xdp.calls_filter());
        Ok((self.keep(Object::Xdp(xdp, place))?, mode, frags, calls_filter))
    }

    fn keep_undo(&self, undo: Option<UndoOnDrop>) -> io::Result<Answer> {
        value(undo.map(|undo| self.keep(Object::Undo(undo))).transpose()?)
    }

    fn join(&self, netns: &Netns, place: (u32, u32), mode_and_extras: (Mode, bool)) -> io::Result<AttachedProgram> {
        let (log, mut membership) = (&self.undo_log, None);
        let mut announce = |program| {
            membership = Some(UndoOnDrop::new(Change::Member { netns: netns.id(), program }, log)?);
            Ok(())
        };
        // On failure the program leaves the dispatcher, should it be in one.
        let xdp = inside(netns, || Xdp::join(place.0, place.1, mode_and_extras, &mut announce))?;
        self.keep_xdp(xdp, membership)
    }

    /// Works with an object of the kind that `select` accepts; requests about others do not wait for it.
    fn with<O, T: Serialize>(
        &self,
        handle: Handle,
        select: fn(&mut Object) -> Option<&mut O>,
        work: impl FnOnce(&mut O) -> io::Result<T>,
    ) -> io::Result<Answer> {
        let object = lock(&self.objects).get(&handle).cloned().ok_or(io::ErrorKind::NotFound)?;
        let mut object = lock(&object);
        value(work(select(&mut object).ok_or(io::ErrorKind::NotFound)?)?)
    }

    fn extend(&self, handle: Handle, time: Duration) -> io::Result<Answer> {
        let deadline = lock(&self.deadlines).get(&handle).cloned().ok_or(io::ErrorKind::NotFound)?;
        value(deadline.extend(time.min(MAX_DEADLINE))?)
    }

    fn start_helper(&self) -> io::Result<Answer> {
        let mut helpers = lock(&self.helpers);
        helpers.retain(|_, helper| mounts::runs(helper.pidfd()));
        if helpers.len() >= MAX_HELPERS {
            return Err(io::Error::other("too many processes access the memory of programs"));
        }
        let (helper, approvals) = mounts::start_helper(&self.setup.socket)?;
        let (connection, pidfd) = helper.into_parts()?;
        let handle = self.handle();
        helpers.insert(handle, approvals);
        Ok((serde_json::to_value(handle)?, vec![connection, pidfd]))
    }
}

/// Creates a socket for a queue. The file is mapped as long as the kernel needs its address.
fn open_xsk(
    netns: &Netns,
    file: &OwnedFd,
    queue: &Queue,
    (at, bytes, buffer): (u64, u64, u32),
    registers: bool,
) -> io::Result<Answer> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let before = xsk::pool_offset_in_page(buffer);
    let start = at.checked_sub(before.into()).ok_or_else(invalid)?;
    let length = bytes.checked_add(before.into()).and_then(|all| usize::try_from(all).ok()).ok_or_else(invalid)?;
    let map = Arc::new(Mapping::part(file.as_fd(), start, length)?);
    let umem = Umem { map, offset: before as usize, bytes: length - before as usize, buffer };
    descriptor(inside(netns, || xsk::create(queue, &umem, registers))?)
}

/// A network namespace for the hidden ends of persistent ports. Its own stack must send nothing to the switches:
/// without IPv6 it sends nothing.
fn hidden_namespace() -> io::Result<Netns> {
    let created = Netns::new()?;
    let _ = created.run(|| fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"));
    Ok(created)
}
