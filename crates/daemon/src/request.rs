//! netmap's requests, answered from the books.

use std::os::fd::OwnedFd;

use unetmap::errno::{EACCES, EBUSY, EINVAL, ENXIO, EOPNOTSUPP};
use unetmap::request::{Answer, Request};
use unetmap_abi::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::books::{Books, Options, Registered, daemon_name};
use crate::caller::Caller;
use crate::refusal::{Refusal, refuse};
use crate::region::HouseId;

/// An answer, and what it changed.
pub(crate) struct Outcome {
    pub(crate) errno: i32,
    pub(crate) answer: Answer,
    pub(crate) fds: Vec<OwnedFd>,
    /// The connection is this session from now on.
    pub(crate) session: Option<u64>,
}

/// Answers one request of a client, which may have a session already.
pub(crate) fn answer(books: &mut Books, mut request: Request, caller: &Caller, session: Option<u64>) -> Outcome {
    let mut bound = Vec::new();
    let (mut fds, mut opened) = (Vec::new(), None);
    let admitted = books.admits(caller).and_then(|admitted| match admitted {
        true => Ok(()),
        false => refuse(EACCES, "this daemon's policy has nothing for you (unetmap-policy(5))"),
    });
    let result = admitted.and_then(|()| check_options(&mut request)).and_then(|()| match request.header.nr_reqtype {
        NETMAP_REQ_REGISTER => {
            let registered = register(books, &mut request, caller, session)?;
            bound = registered.bound.encode();
            fds = registered.fds;
            opened = Some(registered.session);
            Ok(())
        }
        NETMAP_REQ_PORT_INFO_GET => port_info(books, &mut request, caller),
        NETMAP_REQ_POOLS_INFO_GET => pools_info(books, &mut request, caller),
        NETMAP_REQ_PORT_HDR_GET => port_header(books, &mut request, caller),
        NETMAP_REQ_PORT_HDR_SET => set_port_header(books, &request, caller),
        NETMAP_REQ_VALE_LIST => vale_list(books, &mut request, caller),
        NETMAP_REQ_VALE_ATTACH..=NETMAP_REQ_VALE_DETACH | NETMAP_REQ_VALE_NEWIF..=NETMAP_REQ_VALE_POLLING_DISABLE => {
            system_port(books, &mut request, caller)
        }
        other => absent(other, session),
    });
    let (errno, why) = match result {
        Ok(()) => (0, String::new()),
        Err(refusal) => (refusal.errno, refusal.why),
    };
    Outcome { errno, answer: Answer { request, why, bound }, fds, session: opened }
}

/// What REGISTER answered to the session, with its descriptors, for whoever holds its connection now.
pub(crate) fn again(books: &Books, session: Option<u64>) -> Outcome {
    let told = match session {
        Some(session) => books.again(session),
        None => refuse(ENXIO, "no port is bound to this file"),
    };
    let (errno, why, name, body, bound, fds) = match told {
        Ok((name, r)) => (0, String::new(), name, r.register.as_bytes().to_vec(), r.bound.encode(), r.fds),
        Err(Refusal { errno, why, .. }) => {
            (errno, why, String::new(), NmreqRegister::default().as_bytes().to_vec(), Vec::new(), Vec::new())
        }
    };
    // A name that was registered fits.
    let header = NmreqHeader { nr_version: NETMAP_API, nr_reqtype: NETMAP_REQ_REGISTER, ..Default::default() };
    let request = Request::new(NETMAP_REQ_REGISTER, &name, &body);
    let request = request.unwrap_or(Request { header, body, options: Vec::new() });
    Outcome { errno, answer: Answer { request, why, bound }, fds, session }
}

/// What a client library checks, too: each option exists, and none is given twice.
fn check_options(request: &mut Request) -> Result<(), Refusal> {
    request.check_options().or_else(|errno| refuse(errno, "an option does not exist, or is given twice"))
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

fn register(
    books: &mut Books,
    request: &mut Request,
    caller: &Caller,
    session: Option<u64>,
) -> Result<Registered, Refusal> {
    if session.is_some() {
        return refuse(EBUSY, "this file has a port bound already");
    }
    let name = named(request)?;
    let options = Options { offsets: request.option(NETMAP_REQ_OPT_OFFSETS) };
    let mut asked = body::<NmreqRegister>(request)?;
    let extmem = extmem(books, request, caller)?;
    if let Some(house) = extmem {
        asked.nr_mem_id = books.houses.get(&house).map_or(0, |house| house.mem_id);
    }
    let registered = books.register(&name, &asked, &options, caller);
    let registered = registered.inspect_err(|refusal| {
        if let Some(kind) = refusal.option {
            request.set_status(kind, refusal.errno);
        }
        extmem.into_iter().for_each(|house| books.drop_house_if_unused(house));
    })?;
    // Control blocks are the program's library's: it has the memory that they lie in.
    request.set_status(NETMAP_REQ_OPT_CSB, 0);
    if let (Some(wanted), Some(option)) = (registered.offsets, options.offsets) {
        let granted = NmreqOptOffsets { nro_max_offset: wanted.offsets.max.into(), ..option };
        request.set_option(NETMAP_REQ_OPT_OFFSETS, &granted);
        request.set_status(NETMAP_REQ_OPT_OFFSETS, 0);
    }
    // As in the original, the last of all refusals.
    if let Some(kind) = request.unserved() {
        books.close(registered.session);
        return refuse(EOPNOTSUPP, format!("option {kind} is not served here"));
    }
    request.body = registered.register.as_bytes().to_vec();
    Ok(registered)
}

/// The region that the option EXTMEM asks for, if it is there.
fn extmem(books: &mut Books, request: &mut Request, caller: &Caller) -> Result<Option<HouseId>, Refusal> {
    let Some(option) = request.option::<NmreqOptExtmem>(NETMAP_REQ_OPT_EXTMEM) else { return Ok(None) };
    let made = books.extmem_region(&option, caller);
    let made = made.map_err(|refusal| refusal.of_option(NETMAP_REQ_OPT_EXTMEM)).inspect_err(|refusal| {
        request.set_status(NETMAP_REQ_OPT_EXTMEM, refusal.errno);
    })?;
    let nro_info = books.pools(made).unwrap_or_default();
    request.set_option(NETMAP_REQ_OPT_EXTMEM, &NmreqOptExtmem { nro_info, ..option });
    request.set_status(NETMAP_REQ_OPT_EXTMEM, 0);
    Ok(Some(made))
}

/// The figures of a port; one that does not exist yet is made for as long as that takes. Without a name: of a region.
fn port_info(books: &mut Books, request: &mut Request, caller: &Caller) -> Result<(), Refusal> {
    let name = named(request)?;
    let asked = body::<NmreqPortInfoGet>(request)?;
    let info = if name.is_empty() {
        let mem_id = asked.nr_mem_id.max(1);
        let bytes = match books.numbered(mem_id, caller) {
            Ok(id) => books.houses.get(&id).map_or(0, |house| house.region.geometry().bytes()),
            // Region 1 is always there in the original: so that is what it will be.
            Err(_) if mem_id == 1 => books.knobs.of_interfaces(0).bytes()?,
            Err(refusal) => return Err(refusal),
        };
        NmreqPortInfoGet { nr_memsize: bytes, nr_mem_id: mem_id, ..asked }
    } else {
        let wish = NmreqRegister {
            nr_tx_slots: asked.nr_tx_slots,
            nr_rx_slots: asked.nr_rx_slots,
            nr_tx_rings: asked.nr_tx_rings,
            nr_rx_rings: asked.nr_rx_rings,
            nr_host_tx_rings: asked.nr_host_tx_rings,
            nr_host_rx_rings: asked.nr_host_rx_rings,
            ..Default::default()
        };
        with_port(books, &name, wish, caller, |_, r| {
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

/// The virtio-net header that a port's packets begin with: only those of switches have any.
fn port_header(books: &mut Books, request: &mut Request, caller: &Caller) -> Result<(), Refusal> {
    let (name, asked) = (named(request)?, body::<NmreqPortHdr>(request)?);
    let info = with_port(books, &name, Default::default(), caller, |books, _| {
        Ok(NmreqPortHdr { nr_hdr_len: books.vale_header(&name, caller).into(), ..asked })
    })?;
    request.body = info.as_bytes().to_vec();
    Ok(())
}

fn set_port_header(books: &Books, request: &Request, caller: &Caller) -> Result<(), Refusal> {
    let (name, asked) = (named(request)?, body::<NmreqPortHdr>(request)?);
    match asked.nr_hdr_len {
        _ if !books.has_vale(&name, caller) => refuse(ENXIO, "there is no switch that has this port"),
        bytes @ (0 | 10 | 12) => {
            books.set_vale_header(&name, bytes as u8, caller);
            Ok(())
        }
        other => refuse(EINVAL, format!("a virtio-net header has 0, 10 or 12 bytes, not {other}")),
    }
}

fn vale_list(books: &Books, request: &mut Request, caller: &Caller) -> Result<(), Refusal> {
    let (name, asked) = (named(request)?, body::<NmreqValeList>(request)?);
    let (name, found) = books.vale_list(&name, &asked, caller)?;
    request.body = found.as_bytes().to_vec();
    if let Ok(named) = Request::new(NETMAP_REQ_VALE_LIST, &name, &request.body) {
        request.header.nr_name = named.header.nr_name;
    }
    Ok(())
}

/// About ports of switches that belong to no program.
fn system_port(books: &mut Books, request: &mut Request, caller: &Caller) -> Result<(), Refusal> {
    let name = named(request)?;
    request.body = match request.header.nr_reqtype {
        NETMAP_REQ_VALE_ATTACH => {
            let asked = body::<NmreqValeAttach>(request)?;
            let port_index = books.attach(&name, &asked.reg, caller)?;
            NmreqValeAttach { port_index, ..asked }.as_bytes().to_vec()
        }
        NETMAP_REQ_VALE_DETACH => {
            let port_index = books.detach(&name, caller)?;
            NmreqValeDetach { port_index, ..body(request)? }.as_bytes().to_vec()
        }
        NETMAP_REQ_VALE_NEWIF => {
            books.new_port(&name, body(request)?, caller)?;
            return Ok(());
        }
        NETMAP_REQ_VALE_DELIF => return books.delete_port(&name, caller),
        NETMAP_REQ_VALE_POLLING_ENABLE => return books.polling_on(&name, &body(request)?, caller),
        _ => return books.polling_off(&name, caller),
    };
    Ok(())
}

/// What is not served, refused as the original refuses it where the thing does not exist: no port has control blocks.
fn absent(reqtype: u16, session: Option<u64>) -> Result<(), Refusal> {
    match reqtype {
        NETMAP_REQ_SYNC_KLOOP_START | NETMAP_REQ_SYNC_KLOOP_STOP if session.is_none() => {
            refuse(ENXIO, "no port is bound to this file")
        }
        NETMAP_REQ_SYNC_KLOOP_START => refuse(EINVAL, "a sync loop needs control blocks (the option CSB)"),
        NETMAP_REQ_CSB_ENABLE => refuse(EINVAL, "control blocks are enabled with the option CSB"),
        other => refuse(EOPNOTSUPP, format!("request {other} is not served")),
    }
}

/// Where the pools of a port's region are.
fn pools_info(books: &mut Books, request: &mut Request, caller: &Caller) -> Result<(), Refusal> {
    let name = named(request)?;
    let info = with_port(books, &name, Default::default(), caller, |books, r| {
        let pools = books.pools(books.numbered(r.nr_mem_id, caller)?);
        pools.map_or_else(|| refuse(ENXIO, "the region has gone"), Ok)
    })?;
    request.body = info.as_bytes().to_vec();
    Ok(())
}

/// Opens the port for a moment to ask about it; one that does not exist is made as `wish` says, for so long.
fn with_port<T>(
    books: &mut Books,
    name: &str,
    wish: NmreqRegister,
    caller: &Caller,
    ask: impl FnOnce(&Books, &NmreqRegister) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let register = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..wish };
    books.look_at(&daemon_name(name)?, &register, caller, ask)
}
