//! netmap's requests, answered from the books.

use std::os::fd::OwnedFd;

use unetmap::errno::{EBUSY, EINVAL, ENXIO, EOPNOTSUPP};
use unetmap::request::{Answer, Request};
use unetmap_abi::*;
use unetmap_sys::socket::Peer;
use zerocopy::{FromBytes, IntoBytes};

use crate::books::{Books, Registered, daemon_name};
use crate::refusal::{Refusal, refuse};

/// An answer, and what it changed.
pub(crate) struct Outcome {
    pub(crate) errno: i32,
    pub(crate) answer: Answer,
    pub(crate) fds: Vec<OwnedFd>,
    /// The connection is this session from now on.
    pub(crate) session: Option<u64>,
}

/// Answers one request of a client, which may have a session already.
pub(crate) fn answer(books: &mut Books, mut request: Request, peer: Peer, session: Option<u64>) -> Outcome {
    let mut bound = Vec::new();
    let (mut fds, mut opened) = (Vec::new(), None);
    let result = check_options(&mut request).and_then(|()| match request.header.nr_reqtype {
        NETMAP_REQ_REGISTER => {
            let registered = register(books, &mut request, peer, session)?;
            bound = registered.bound.encode();
            fds = registered.fds;
            opened = Some(registered.session);
            Ok(())
        }
        NETMAP_REQ_PORT_INFO_GET => port_info(books, &mut request, peer),
        NETMAP_REQ_POOLS_INFO_GET => pools_info(books, &mut request, peer),
        other => refuse(EOPNOTSUPP, format!("request {other} is not served")),
    });
    let (errno, why) = match result {
        Ok(()) => (0, String::new()),
        Err(refusal) => (refusal.errno, refusal.why),
    };
    Outcome { errno, answer: Answer { request, why, bound }, fds, session: opened }
}

/// No option is served; each is told so in its status, and one that is given twice or has type 0 is wrong.
fn check_options(request: &mut Request) -> Result<(), Refusal> {
    let kinds: Vec<u32> = request.options.iter().filter_map(|o| kind_of(o)).collect();
    let mut result = Ok(());
    for option in &mut request.options {
        let Some(kind) = kind_of(option) else { continue };
        let (errno, why) = if kind == 0 || kinds.iter().filter(|k| **k == kind).count() > 1 {
            (EINVAL, format!("option {kind} is given twice, or is no option"))
        } else {
            (EOPNOTSUPP, format!("option {kind} is not served"))
        };
        if let Ok((head, _)) = NmreqOption::mut_from_prefix(option) {
            head.nro_status = errno as u32;
        }
        if result.is_ok() || errno == EINVAL {
            result = refuse(errno, why);
        }
    }
    result
}

fn kind_of(option: &[u8]) -> Option<u32> {
    NmreqOption::read_from_prefix(option).ok().map(|(head, _)| head.nro_reqtype)
}

fn named(request: &Request) -> Result<String, Refusal> {
    match request.name() {
        Some(name) => Ok(name.into()),
        None => refuse(EINVAL, "the name is not text, or not ended within 64 bytes"),
    }
}

fn body<T: FromBytes>(request: &Request) -> Result<T, Refusal> {
    request.body_as().map_or_else(|| refuse(EINVAL, "the body is not of the request's size"), Ok)
}

fn register(books: &mut Books, request: &mut Request, peer: Peer, session: Option<u64>) -> Result<Registered, Refusal> {
    if session.is_some() {
        return refuse(EBUSY, "this file has a port bound already");
    }
    let name = named(request)?;
    let registered = books.register(&name, &body::<NmreqRegister>(request)?, peer)?;
    request.body = registered.register.as_bytes().to_vec();
    Ok(registered)
}

/// The figures of a port; one that does not exist yet is made for as long as that takes. Without a name: of a region.
fn port_info(books: &mut Books, request: &mut Request, peer: Peer) -> Result<(), Refusal> {
    let name = named(request)?;
    let asked = body::<NmreqPortInfoGet>(request)?;
    let info = if name.is_empty() {
        let Some(house) = books.houses.get(&asked.nr_mem_id.max(1)) else {
            return refuse(ENXIO, format!("there is no region {}", asked.nr_mem_id.max(1)));
        };
        NmreqPortInfoGet { nr_memsize: house.region.geometry().bytes(), nr_mem_id: house.mem_id, ..asked }
    } else {
        with_port(books, &name, asked.nr_mem_id, peer, |_, r| {
            Ok(NmreqPortInfoGet {
                nr_memsize: r.nr_memsize,
                nr_tx_slots: r.nr_tx_slots,
                nr_rx_slots: r.nr_rx_slots,
                nr_tx_rings: r.nr_tx_rings,
                nr_rx_rings: r.nr_rx_rings,
                nr_host_tx_rings: r.nr_host_tx_rings,
                nr_host_rx_rings: r.nr_host_rx_rings,
                nr_mem_id: r.nr_mem_id,
                ..asked
            })
        })?
    };
    request.body = info.as_bytes().to_vec();
    Ok(())
}

/// Where the pools of a port's region are.
fn pools_info(books: &mut Books, request: &mut Request, peer: Peer) -> Result<(), Refusal> {
    let name = named(request)?;
    let asked = body::<NmreqPoolsInfo>(request)?;
    let info = with_port(books, &name, asked.nr_mem_id, peer, |books, r| {
        let Some(house) = books.houses.get(&r.nr_mem_id) else { return refuse(ENXIO, "the region has gone") };
        let g = house.region.geometry();
        Ok(NmreqPoolsInfo {
            nr_memsize: g.bytes(),
            nr_mem_id: r.nr_mem_id,
            nr_if_pool_offset: g.ifs.offset,
            nr_if_pool_objtotal: g.ifs.count,
            nr_if_pool_objsize: g.ifs.size,
            nr_ring_pool_offset: g.rings.offset,
            nr_ring_pool_objtotal: g.rings.count,
            nr_ring_pool_objsize: g.rings.size,
            nr_buf_pool_offset: g.bufs.offset,
            nr_buf_pool_objtotal: g.bufs.count,
            nr_buf_pool_objsize: g.bufs.size,
            ..asked
        })
    })?;
    request.body = info.as_bytes().to_vec();
    Ok(())
}

/// Opens the port for a moment to ask about it.
fn with_port<T>(
    books: &mut Books,
    name: &str,
    mem_id: u16,
    peer: Peer,
    ask: impl FnOnce(&Books, &NmreqRegister) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    daemon_name(name)?;
    let register = NmreqRegister { nr_mode: NR_REG_ALL_NIC, nr_mem_id: mem_id, ..Default::default() };
    let registered = books.register(name, &register, peer)?;
    let told = ask(books, &registered.register);
    books.close(registered.session);
    told
}
