// SPDX-License-Identifier: BSD-2-Clause
//! bpf(2): elements of hash maps.

use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use aya::Ebpf;
use aya::maps::Map;

use super::{MAP_DELETE_ELEM, MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM, MapElem, bpf, element_of, object_mismatch};

/// Values of `enum bpf_cmd`.
const MAP_GET_NEXT_KEY: libc::c_int = 4;
const MAP_LOOKUP_AND_DELETE_ELEM: libc::c_int = 21;

/// Returns a hash map of a loaded object.
pub(crate) fn of(object: &Ebpf, name: &str) -> io::Result<OwnedFd> {
    match object.map(name) {
        Some(Map::HashMap(map)) => map.fd().as_fd().try_clone_to_owned(),
        _ => Err(object_mismatch()),
    }
}

/// Writes an element of a hash map.
///
/// # Safety
/// `map` is a hash map with keys of type `K` and elements of type `T`, neither with padding (K5).
pub(crate) unsafe fn set<K, T>(map: impl AsFd, key: &K, value: &T) -> io::Result<()> {
    let mut attr = element_of(map, key, &raw const *value as u64);
    // SAFETY: K1, K5: the caller's contract.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Reads an element of a hash map; returns whether there is one.
///
/// # Safety
/// As [`set`]; all values of `T` are valid.
pub(crate) unsafe fn get<K, T>(map: impl AsFd, key: &K, value: &mut T) -> io::Result<bool> {
    let mut attr = element_of(map, key, &raw mut *value as u64);
    // SAFETY: K1, K5: the caller's contract.
    unless_absent(unsafe { bpf(MAP_LOOKUP_ELEM, &mut attr) })
}

/// Deletes an element of a hash map, if there is one.
///
/// # Safety
/// `map` is a hash map with keys of type `K`, without padding (K5).
pub(crate) unsafe fn delete<K>(map: impl AsFd, key: &K) -> io::Result<()> {
    let mut attr = element_of(map, key, 0);
    // SAFETY: K1, K5: the caller's contract.
    unless_absent(unsafe { bpf(MAP_DELETE_ELEM, &mut attr) }).map(drop)
}

/// Reads an element of a hash map and deletes it; returns whether there was one (Linux 5.14).
///
/// # Safety
/// As [`get`].
pub(crate) unsafe fn take<K, T>(map: impl AsFd, key: &K, value: &mut T) -> io::Result<bool> {
    let mut attr = element_of(map, key, &raw mut *value as u64);
    // SAFETY: K1, K5: the caller's contract.
    unless_absent(unsafe { bpf(MAP_LOOKUP_AND_DELETE_ELEM, &mut attr) })
}

/// Returns the keys of a hash map, at most `most`. Those that come or go meanwhile may be missing.
///
/// # Safety
/// `map` is a hash map with keys of type `K`, without padding, all of whose values are valid (K5).
pub(crate) unsafe fn keys<K: Copy + Default>(map: impl AsFd, most: usize) -> io::Result<Vec<K>> {
    let (mut keys, mut next) = (Vec::new(), K::default());
    while keys.len() < most {
        let mut attr = match keys.last() {
            Some(last) => element_of(&map, last, &raw mut next as u64),
            None => MapElem { key: 0, ..element_of(&map, &0u32, &raw mut next as u64) },
        };
        // SAFETY: K1, K5: the kernel reads the key, if there is one, and writes the next one; the types are the
        // caller's contract.
        if !unless_absent(unsafe { bpf(MAP_GET_NEXT_KEY, &mut attr) })? {
            break;
        }
        keys.push(next);
    }
    Ok(keys)
}

/// Whether there was such an element.
fn unless_absent(result: io::Result<RawFd>) -> io::Result<bool> {
    match result {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        other => other.map(|_| true),
    }
}
