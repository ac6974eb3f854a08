//! The calls of bpf(2) that are needed once an object file is loaded, with the kernel's own `errno`.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{LazyLock, Mutex, PoisonError};

use aya::maps::Map;
use aya::{Ebpf, EbpfLoader};

use crate::xdp::classic::Insn;

/// Values of `enum bpf_cmd`.
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;
const PROG_QUERY: libc::c_int = 16;
const LINK_CREATE: libc::c_int = 28;

/// `BPF_PROG_TYPE_XDP` of `enum bpf_prog_type`.
const PROG_TYPE_XDP: u32 = 6;
/// `BPF_F_XDP_HAS_FRAGS`: frames may consist of several buffers (Linux 5.18).
const HAS_FRAGS: u32 = 1 << 5;
/// Tries at loading a program: the kernel gives up with `EAGAIN` when a signal comes.
const TRIES: u32 = 5;

/// `BPF_XDP` of `enum bpf_attach_type`.
const ATTACH_XDP: u32 = 37;

/// Where a packet meets a program of the traffic control kind; values of `enum bpf_attach_type` (Linux 6.6).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Hook {
    /// After it was received.
    Ingress = 46,
    /// Before it is sent.
    Egress = 47,
}

/// The beginnings of `union bpf_attr`, as far as each call looks, with no padding.
#[repr(C)]
struct LinkCreate {
    prog_fd: RawFd,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct MapElem {
    map_fd: RawFd,
    zero: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[derive(Default)]
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

#[derive(Default)]
#[repr(C)]
struct TestRun {
    prog_fd: RawFd,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
}

#[derive(Default)]
#[repr(C)]
struct ProgQuery {
    target_ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    count: u32,
    zero: u32,
}

/// # Safety
/// `attr` is the beginning of a `union bpf_attr` that fits `command`, without padding, and what its pointers point to
/// is what the command reads and writes.
unsafe fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads and writes `size_of::<T>()` bytes of a place that is ours; the rest is the caller's
    // promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// Attaches an XDP program to an interface of the calling thread's network namespace; gone with the last duplicate of
/// the result. `flags` as in `XDP_FLAGS_*`.
pub(crate) fn link_xdp(program: impl AsFd, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
    link(program, ifindex, ATTACH_XDP, flags)
}

/// The same for a program of the traffic control kind, behind those that are attached already.
pub(crate) fn link_tcx(program: impl AsFd, ifindex: u32, hook: Hook) -> io::Result<OwnedFd> {
    link(program, ifindex, hook as u32, 0)
}

/// The numbers of the programs of the traffic control kind that are attached there, 64 at most.
pub(crate) fn attached_tcx(ifindex: u32, hook: Hook) -> io::Result<Vec<u32>> {
    let mut ids = vec![0u32; 64];
    let mut attr = ProgQuery {
        target_ifindex: ifindex,
        attach_type: hook as u32,
        prog_ids: ids.as_mut_ptr() as u64,
        count: ids.len() as u32,
        ..ProgQuery::default()
    };
    // SAFETY: the kernel writes at most `count` numbers to `ids`, which is alive.
    unsafe { bpf(PROG_QUERY, &mut attr) }?;
    ids.truncate(attr.count as usize);
    Ok(ids)
}

fn link(program: impl AsFd, target_ifindex: u32, attach_type: u32, flags: u32) -> io::Result<OwnedFd> {
    let prog_fd = program.as_fd().as_raw_fd();
    let mut attr = LinkCreate { prog_fd, target_ifindex, attach_type, flags };
    // SAFETY: no pointers.
    let fd = unsafe { bpf(LINK_CREATE, &mut attr) }?;
    // SAFETY: the kernel just made this descriptor, close-on-exec, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Loads an XDP program.
pub(crate) fn load_xdp(insns: &[Insn], frags: bool) -> io::Result<OwnedFd> {
    let mut attr = ProgLoad {
        prog_type: PROG_TYPE_XDP,
        insn_cnt: insns.len() as u32,
        insns: insns.as_ptr() as u64,
        license: c"Dual BSD/GPL".as_ptr() as u64,
        prog_flags: if frags { HAS_FRAGS } else { 0 },
        prog_name: *b"unetmap_filter\0\0",
        expected_attach_type: ATTACH_XDP,
        ..ProgLoad::default()
    };
    for tries in 1.. {
        // SAFETY: `insns` is as many of the kernel's instructions as it says, the licence ends with a NUL; both are
        // alive.
        match unsafe { bpf(PROG_LOAD, &mut attr) } {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries < TRIES => {}
            // SAFETY: the kernel just made this descriptor, close-on-exec, for us alone.
            result => return Ok(unsafe { OwnedFd::from_raw_fd(result?) }),
        }
    }
    unreachable!("the last try returns")
}

/// Puts a descriptor (a socket, a program) into a map from numbers to such.
pub(crate) fn map_set(map: impl AsFd, key: u32, value: impl AsFd) -> io::Result<()> {
    let value = value.as_fd().as_raw_fd();
    let mut attr = element(map, &key, &raw const value as u64);
    // SAFETY: the maps that hold descriptors have keys and values of 4 bytes, which is what both are.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Takes out what [`map_set`] put in: `ENOENT` if there is nothing.
pub(crate) fn map_unset(map: impl AsFd, key: u32) -> io::Result<()> {
    let mut attr = element(map, &key, 0);
    // SAFETY: as in `map_set`.
    unsafe { bpf(MAP_DELETE_ELEM, &mut attr) }.map(drop)
}

/// Writes the only value of an array.
///
/// # Safety
/// The values of `map`, an array, are `T`s.
pub(crate) unsafe fn array_set<T: Copy>(map: impl AsFd, value: &T) -> io::Result<()> {
    let mut attr = element(map, &0, &raw const *value as u64);
    // SAFETY: an array has keys of 4 bytes, and values of the caller's size.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Reads the only value of an array of numbers.
///
/// # Safety
/// The values of `map`, an array, are `u64`s.
pub(crate) unsafe fn array_get(map: impl AsFd) -> io::Result<u64> {
    let mut value = 0u64;
    let mut attr = element(map, &0, &raw mut value as u64);
    // SAFETY: an array has keys of 4 bytes, and values of the size of `value`, which is ours.
    unsafe { bpf(MAP_LOOKUP_ELEM, &mut attr) }?;
    Ok(value)
}

fn element(map: impl AsFd, key: &u32, value: u64) -> MapElem {
    MapElem { map_fd: map.as_fd().as_raw_fd(), zero: 0, key: &raw const *key as u64, value, flags: 0 }
}

/// What an XDP program returns for a frame that it is shown and that goes nowhere. The receive queue is queue 0 of `lo`
/// in the calling thread's network namespace.
pub(crate) fn test_run(program: impl AsFd, frame: &[u8]) -> io::Result<u32> {
    let mut attr = TestRun {
        prog_fd: program.as_fd().as_raw_fd(),
        data_size_in: u32::try_from(frame.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?,
        data_in: frame.as_ptr() as u64,
        repeat: 1,
        ..TestRun::default()
    };
    // SAFETY: the kernel reads the frame, which is alive, and writes nowhere but into `attr`.
    unsafe { bpf(PROG_TEST_RUN, &mut attr) }?;
    Ok(attr.retval)
}

/// The `errno` at the bottom of a loader's error. Where the kernel said nothing, the object file is at fault.
pub(crate) fn kernels_error(error: &(dyn Error + 'static)) -> io::Error {
    std::iter::successors(Some(error), |&e| e.source())
        .find_map(|e| e.downcast_ref::<io::Error>()?.raw_os_error())
        .map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

/// Takes up an object file and makes its maps, the one that `sized` names with so many entries. Nothing in our objects
/// depends on the kernel's own types, so the loader needs no list of them; but it reads that list, megabytes, when it is
/// made, and therefore is made once.
pub(crate) fn load(object: &[u8], sized: Option<(&'static str, u32)>) -> io::Result<Ebpf> {
    static LOADER: LazyLock<Mutex<EbpfLoader<'static>>> = LazyLock::new(|| Mutex::new(EbpfLoader::new()));
    let mut loader = LOADER.lock().unwrap_or_else(PoisonError::into_inner);
    let loader = loader.btf(None);
    if let Some((map, entries)) = sized {
        loader.map_max_entries(map, entries);
    }
    loader.load(object).map_err(|e| kernels_error(&e))
}

/// A map of a loaded object.
pub(crate) fn array(object: &Ebpf, name: &str) -> io::Result<OwnedFd> {
    match object.map(name) {
        Some(Map::Array(map)) => map.fd().as_fd().try_clone_to_owned(),
        _ => Err(foreign_object()),
    }
}

/// What an embedded object file lacks.
pub(crate) fn foreign_object() -> io::Error {
    io::Error::other("an embedded object is not what its source in bpf/ compiles to; build from unchanged sources")
}
