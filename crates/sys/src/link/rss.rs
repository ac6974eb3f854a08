// SPDX-License-Identifier: BSD-2-Clause
//! Receive side scaling (RSS): how an interface distributes received frames over its queues, by `SIOCETHTOOL`.

use std::io;

use rustix::io::Errno;

use super::ethtool::ethtool;

/// Commands of linux/ethtool.h.
const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_SRSSH: u32 = 0x47;
const INDIR_NO_CHANGE: u32 = 0xffff_ffff;
/// Most entries of an indirection table; no known driver has a quarter of these.
const MAX_ENTRIES: usize = 16_384;
/// Most bytes of a hash key.
const MAX_KEY: usize = 1024;
/// Bytes after the header.
const ROOM: usize = MAX_ENTRIES * 4 + MAX_KEY;

/// The RSS configuration of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// Indirection table: the queue of each hash value modulo the number of entries.
    pub table: Vec<u32>,
    /// Hash key; empty if the driver does not report it.
    pub key: Vec<u8>,
}

/// `struct ethtool_rxfh`, and room for the table and the key that follow it.
#[repr(C)]
struct Request {
    command: u32,
    context: u32,
    indir_size: u32,
    key_size: u32,
    function: u8,
    transform: u8,
    reserved: [u8; 2],
    reserved32: u32,
    rest: [u8; ROOM],
}

const _: () = assert!(size_of::<Request>() == 24 + ROOM);

impl Request {
    fn new(command: u32) -> Box<Request> {
        Box::new(Request {
            command,
            context: 0,
            indir_size: 0,
            key_size: 0,
            function: 0,
            transform: 0,
            reserved: [0; 2],
            reserved32: 0,
            rest: [0; ROOM],
        })
    }

    /// Reads the configuration with the sizes that are set; reads only the sizes if both are 0.
    fn get(&mut self, name: &str) -> io::Result<bool> {
        // SAFETY: K5: ETHTOOL_GRSSH writes a `struct ethtool_rxfh`, and behind it, if the sizes are those of the
        // driver, the table and the key, for which `sizes` has checked the room.
        unsafe { ethtool(name, self) }
    }

    /// Returns the sizes of the driver's table and key, in bytes; `None` if there is no room for them.
    fn sizes(&self) -> Option<(usize, usize)> {
        let (table, key) = (self.indir_size as usize, self.key_size as usize);
        (table <= MAX_ENTRIES && key <= MAX_KEY).then_some((table * 4, key))
    }
}

/// Returns the configuration; `None` if the driver has no RSS or does not report it.
///
/// # Errors
/// `ENODEV`: no such interface; `E2BIG`: the driver's table or key is larger than supported.
pub fn rss(name: &str) -> io::Result<Option<Rss>> {
    Ok(read(name)?.map(|request| {
        let (table, key) = request.sizes().unwrap_or_default();
        let entry = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let table_bytes = &request.rest[..table];
        Rss { table: table_bytes.chunks_exact(4).map(entry).collect(), key: request.rest[table..table + key].to_vec() }
    }))
}

fn read(name: &str) -> io::Result<Option<Box<Request>>> {
    let mut request = Request::new(ETHTOOL_GRSSH);
    if !request.get(name)? {
        return Ok(None);
    }
    let sizes = request.sizes().ok_or(Errno::TOOBIG)?;
    if sizes == (0, 0) {
        return Ok(None);
    }
    request.command = ETHTOOL_GRSSH;
    if !request.get(name)? || request.sizes() != Some(sizes) {
        return Ok(None);
    }
    Ok(Some(request))
}

/// Sets the table and the key, each if given, with the lengths that [`rss`] returns. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// `EOPNOTSUPP`: the driver has no RSS; `EINVAL`: another length, a queue that does not exist, or the driver refuses
/// it; `EPERM`; `ENODEV`.
pub fn set_rss(name: &str, table: Option<&[u32]>, key: Option<&[u8]>) -> io::Result<()> {
    // Unchanged fields keep the values that the kernel reported.
    let mut request = read(name)?.ok_or(Errno::OPNOTSUPP)?;
    let (entries, key_bytes) = (request.indir_size as usize, request.key_size as usize);
    if table.is_some_and(|table| table.len() != entries) || key.is_some_and(|key| key.len() != key_bytes) {
        return Err(Errno::INVAL.into());
    }
    (request.command, request.function) = (ETHTOOL_SRSSH, 0);
    let bytes: Vec<u8> = table.unwrap_or_default().iter().flat_map(|queue| queue.to_ne_bytes()).collect();
    request.indir_size = table.map_or(INDIR_NO_CHANGE, |_| entries as u32);
    request.key_size = key.map_or(0, |key| key.len() as u32);
    let all = bytes.iter().chain(key.unwrap_or_default());
    request.rest.iter_mut().zip(all).for_each(|(to, byte)| *to = *byte);
    // SAFETY: K5: ETHTOOL_SRSSH reads a `struct ethtool_rxfh`, and table and key of the sizes in it, which are in
    // `rest`.
    match unsafe { ethtool(name, &mut *request) }? {
        true => Ok(()),
        false => Err(Errno::OPNOTSUPP.into()),
    }
}
