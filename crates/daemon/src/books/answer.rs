//! What a client is told about its session: the request, filled in, and where everything is that it bound.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use unetmap::bound::{Bound, BoundHead, BoundPool, BoundRing, NO_TIMESTAMP, Path};
use unetmap::errno::{ENOMEM, ENXIO};
use unetmap_abi::*;
use unetmap_mem::{IfaceShape, PoolShape};

use super::{Books, By, Found, PortKey, Session};
use crate::end::{Binding, End, PortRing};
use crate::interfaces::DAEMON;
use crate::nic::Nic;
use crate::refusal::{Refusal, refuse};
use crate::region::House;

impl Books {
    /// What a session of the port would be told of it.
    pub(super) fn describe(&self, key: &PortKey, asked: &NmreqRegister) -> Result<NmreqRegister, Refusal> {
        let found = self.port(key)?;
        let Some(house) = self.houses.get(&found.house) else { return refuse(ENXIO, "the region has gone") };
        Ok(register_of(found.end, house, asked))
    }

    /// What the client is told about its session.
    pub(super) fn answer(&self, id: u64, session: &Session) -> Result<(NmreqRegister, Bound, Vec<OwnedFd>), Refusal> {
        let found = self.port(&session.port)?;
        let end = found.end;
        let Some(house) = self.houses.get(&session.house) else { return refuse(ENXIO, "the region has gone") };
        let geometry = house.region.geometry();
        let pool = |p: &PoolShape| BoundPool { offset: p.offset, count: p.count, size: p.size };
        let (third, page_bytes) = match found.by {
            By::Nothing => (&end.page_fd, 0),
            By::Pipe(pipe, _) => (&pipe.lines_fd, pipe.lines_bytes),
            By::Nic(nic) => (&nic.sent_fd, nic.sent_bytes),
            By::Vale(port) => (&port.lines_fd, port.lines_bytes),
            By::Monitor(monitor) => (&monitor.lines_fd, monitor.lines_bytes),
        };
        let mut fds = vec![house.fd.as_fd(), end.page_fd.as_fd(), third.as_fd()];
        let mut rings = Vec::new();
        let mediated = match &session.port {
            PortKey::Pipe(pipe, 0) => self.wires.get(pipe).and_then(|wire| self.nics.get(&wire.nic())),
            _ => None,
        };
        let mine = session.binding.tx.iter().map(|&i| &end.tx[i]).chain(session.binding.rx.iter().map(|&i| &end.rx[i]));
        for ring in mine {
            let (told, other_fd) = tell_ring(&found, ring, mediated)?;
            rings.push(told);
            fds.extend([ring.bell.as_fd(), other_fd]);
        }
        let head = BoundHead {
            pools: [pool(&geometry.ifs), pool(&geometry.rings), pool(&geometry.bufs)],
            if_offset: session.iface_offset,
            session: id,
            key: session.key,
            shelf: if let By::Monitor(monitor) = found.by { monitor.pools() } else { Default::default() },
            rings: rings.len() as u32,
            states: (end.tx.len() + end.rx.len()) as u32,
            page_bytes: page_bytes as u32,
            flags: if self.knobs.no_timestamp() { NO_TIMESTAMP } else { 0 },
        };
        let register = NmreqRegister {
            nr_offset: session.iface_offset,
            nr_extra_bufs: session.extra,
            ..register_of(end, house, &session.asked)
        };
        let fds = fds.into_iter().map(|fd| fd.try_clone_to_owned()).collect::<std::io::Result<Vec<_>>>();
        let fds = fds.or_else(|e| refuse(ENOMEM, format!("no file descriptors left in the daemon: {e}")))?;
        Ok((register, Bound { head, rings }, fds))
    }
}

/// What the client is told of a ring, and with which descriptor it reaches whoever is at the other end: a bell, or the
/// interface's socket. `mediated`: the interface that the daemon itself moves the ring's packets to and from.
fn tell_ring<'a>(
    found: &Found<'a>,
    ring: &'a PortRing,
    mediated: Option<&Nic>,
) -> Result<(BoundRing, BorrowedFd<'a>), Refusal> {
    let shape = ring.view.shape();
    let mut told = BoundRing {
        offset: shape.offset,
        slots: shape.slots.get(),
        path: Path::Null as u32,
        state: ring.state as u32,
        line: ring.line.unwrap_or(0) as u32,
        spare: ring.spare.map_or(0, |b| b.0),
        id: shape.id,
        dir: shape.dir,
        offset_mask: ring.offsets.mask,
        max_offset: ring.offsets.max,
        ..Default::default()
    };
    let bell = match found.by {
        By::Nothing => ring.bell.as_fd(),
        By::Pipe(pipe, at) => {
            let other = &pipe.ends[1 - at];
            let other = &(if shape.dir == 0 { &other.rx } else { &other.tx })[usize::from(shape.id)];
            (told.path, told.peer_offset) = (Path::Pipe as u32, other.view.shape().offset);
            told.features = mediated.map_or(0, Nic::forwarding);
            other.bell.as_fd()
        }
        By::Nic(nic) => {
            let Some(socket) = nic.socket(ring.pair) else { return refuse(ENXIO, "the interface has gone") };
            told.path = Path::Nic as u32;
            told.line = nic.first_sent(shape.id) as u32;
            // What the daemon itself reads is in other programs' hands first.
            let forwarding = if nic.scope.uid == DAEMON { 0 } else { nic.forwarding() };
            told.features = nic.features(ring.pair) | forwarding;
            told.headroom = nic.headroom(ring.pair);
            socket
        }
        By::Vale(port) => {
            told.path = Path::Vale as u32;
            port.bell.as_fd()
        }
        By::Monitor(monitor) => monitor.tell(&mut told).unwrap_or(ring.bell.as_fd()),
    };
    Ok((told, bell))
}

/// The request `asked`, answered as far as it is about the port.
fn register_of(end: &End, house: &House, asked: &NmreqRegister) -> NmreqRegister {
    NmreqRegister {
        nr_memsize: house.region.geometry().bytes(),
        nr_tx_slots: end.shape.tx_slots.get(),
        nr_rx_slots: end.shape.rx_slots.get(),
        nr_tx_rings: end.shape.tx_rings,
        nr_rx_rings: end.shape.rx_rings,
        nr_host_tx_rings: end.shape.host_tx_rings.max(1),
        nr_host_rx_rings: end.shape.host_rx_rings.max(1),
        nr_mem_id: house.mem_id,
        ..*asked
    }
}

/// The `netmap_if` of a session: offsets of the rings it bound, in netmap's order. Where there are no host rings the
/// counts say 1, as the original's do.
pub(super) fn iface_shape(name: &str, end: &End, binding: &Binding) -> IfaceShape {
    let offsets = |rings: &[PortRing], bound: &[usize], hosts: u16| {
        let all = rings.iter().enumerate();
        let mut all: Vec<_> = all.map(|(i, ring)| bound.contains(&i).then_some(ring.view.shape().offset)).collect();
        if hosts == 0 {
            all.push(None);
        }
        all
    };
    let shape = end.shape;
    let mut rings = offsets(&end.tx, &binding.tx, shape.host_tx_rings);
    rings.extend(offsets(&end.rx, &binding.rx, shape.host_rx_rings));
    IfaceShape {
        name: name.into(),
        tx_rings: shape.tx_rings.into(),
        rx_rings: shape.rx_rings.into(),
        host_tx_rings: shape.host_tx_rings.max(1).into(),
        host_rx_rings: shape.host_rx_rings.max(1).into(),
        rings,
    }
}
