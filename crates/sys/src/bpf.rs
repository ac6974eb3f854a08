// SPDX-License-Identifier: BSD-2-Clause
//! bpf(2): loading objects, and the calls on loaded programs and maps, with the kernel's own `errno`.

use std::error::Error;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};

use aya::maps::Map;
use aya::programs::Program;
use aya::util::nr_cpus;
use aya::{Ebpf, EbpfLoader};

use crate::tuning::BPF_LOAD_TRIES;
use crate::xdp::translate::Insn;

mod found_maps;
pub(crate) mod hash;

use found_maps::FoundMap;
pub(crate) use found_maps::{FoundMaps, MapShape};

/// Values of `enum bpf_cmd`.
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const OBJ_PIN: libc::c_int = 6;
const OBJ_GET: libc::c_int = 7;
const PROG_ATTACH: libc::c_int = 8;
const PROG_DETACH: libc::c_int = 9;
const PROG_TEST_RUN: libc::c_int = 10;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const MAP_GET_FD_BY_ID: libc::c_int = 14;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;
const LINK_CREATE: libc::c_int = 28;

/// `BPF_PROG_TYPE_XDP` of `enum bpf_prog_type`.
const PROG_TYPE_XDP: u32 = 6;
/// `BPF_F_XDP_HAS_FRAGS`: frames may span several buffers (Linux 5.18).
pub(crate) const HAS_FRAGS: u32 = 1 << 5;

/// `BPF_XDP` of `enum bpf_attach_type`.
const ATTACH_XDP: u32 = 37;

/// Hook of a tcx program; values of `enum bpf_attach_type` (Linux 6.6).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Hook {
    /// Received packets.
    Ingress = 46,
    /// Packets to send.
    Egress = 47,
}

/// `skb->mark` of frames between an interface and the near end of its companion, and of those that bypass an interface.
pub(crate) const REDIRECT_MARK: u32 = 0x756e_6d68;

/// `BPF_F_REPLACE`: the program takes the place of another one.
const REPLACE: u32 = 1 << 2;
/// `BPF_F_BEFORE`, without another program: the program is the first.
const BEFORE: u32 = 1 << 3;

/// Prefixes of `union bpf_attr`, as far as each call reads them, without padding.
#[derive(Default)]
#[repr(C)]
struct ProgAttach {
    target_ifindex: u32,
    attach_bpf_fd: RawFd,
    attach_type: u32,
    attach_flags: u32,
    replace_bpf_fd: RawFd,
    relative_fd: u32,
    expected_revision: u64,
}

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
    prog_attach_flags: u64,
    link_ids: u64,
}

#[repr(C)]
struct ObjPath {
    path: u64,
    fd: RawFd,
    flags: u32,
}

#[repr(C)]
struct GetById {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
struct GetInfo {
    fd: RawFd,
    length: u32,
    info: u64,
}

/// A prefix of `struct bpf_prog_info`, up to the name.
#[derive(Default)]
#[repr(C)]
struct RawProgramInfo {
    kind: u32,
    id: u32,
    tag: u64,
    code: [u64; 3],
    load_time: u64,
    created_by_uid: u32,
    map_count: u32,
    map_ids: u64,
    name: [u8; 16],
}

/// A prefix of `struct bpf_map_info`.
#[derive(Default)]
#[repr(C)]
struct RawMapInfo {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    name: [u8; 16],
}

/// Most maps of a program whose ids are returned.
const MAP_IDS: usize = 32;

/// The kernel's record of a program.
#[derive(Clone, Debug)]
pub(crate) struct ProgramInfo {
    pub(crate) id: u32,
    /// A hash of its code.
    pub(crate) tag: u64,
    /// At most 15 bytes.
    pub(crate) name: String,
    /// The ids of its maps, at most [`MAP_IDS`].
    pub(crate) maps: Vec<u32>,
}

/// # Safety
/// `attr` is a prefix of `union bpf_attr` for `command`, without padding, and its pointers are valid for the reads and
/// writes of the command (K1, K5).
unsafe fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<RawFd> {
    // SAFETY: K1, K5: the kernel reads and writes `size_of::<T>()` bytes of `attr`; its pointers are the caller's
    // contract.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// Attaches an XDP program to an interface of the calling thread's network namespace, until the last duplicate of the
/// result is closed. `flags` are `XDP_FLAGS_*`.
pub(crate) fn link_xdp(program: impl AsFd, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
    link(program, ifindex, ATTACH_XDP, flags)
}

/// Attaches a tcx program, after those that are already attached, until the last duplicate of the result is closed.
pub(crate) fn link_tcx(program: impl AsFd, ifindex: u32, hook: Hook) -> io::Result<OwnedFd> {
    link(program, ifindex, hook as u32, 0)
}

/// Attaches a tcx program until it is detached or the interface is removed: in place of `old`, or after those that are
/// already attached.
pub(crate) fn attach_tcx(
    program: BorrowedFd<'_>,
    ifindex: u32,
    hook: Hook,
    old: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut attr = ProgAttach {
        attach_flags: if old.is_some() { REPLACE } else { 0 },
        replace_bpf_fd: old.map_or(0, |fd| fd.as_raw_fd()),
        ..ProgAttach::of(program, ifindex, hook)
    };
    // SAFETY: K5: the structure contains no pointer.
    unsafe { bpf(PROG_ATTACH, &mut attr) }.map(drop)
}

/// As [`attach_tcx`], but before those that are already attached, unless it takes the place of `old`.
pub(crate) fn attach_tcx_first(
    program: BorrowedFd<'_>,
    ifindex: u32,
    hook: Hook,
    old: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    if old.is_some() {
        return attach_tcx(program, ifindex, hook, old);
    }
    let mut attr = ProgAttach { attach_flags: BEFORE, ..ProgAttach::of(program, ifindex, hook) };
    // SAFETY: K5: the structure contains no pointer.
    unsafe { bpf(PROG_ATTACH, &mut attr) }.map(drop)
}

/// Detaches a program of [`attach_tcx`].
pub(crate) fn detach_tcx(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> io::Result<()> {
    // SAFETY: K5: the structure contains no pointer.
    unsafe { bpf(PROG_DETACH, &mut ProgAttach::of(program, ifindex, hook)) }.map(drop)
}

impl ProgAttach {
    fn of(program: BorrowedFd<'_>, target_ifindex: u32, hook: Hook) -> ProgAttach {
        let attach_bpf_fd = program.as_raw_fd();
        ProgAttach { target_ifindex, attach_bpf_fd, attach_type: hook as u32, ..ProgAttach::default() }
    }
}

/// Returns the ids of the tcx programs that are attached to a hook, at most 64, each with that of its link; 0: it has
/// none, and stays until it is detached.
pub(crate) fn attached_tcx(ifindex: u32, hook: Hook) -> io::Result<Vec<(u32, u32)>> {
    let (mut programs, mut links) = (vec![0u32; 64], vec![0u32; 64]);
    let mut attr = ProgQuery {
        target_ifindex: ifindex,
        attach_type: hook as u32,
        prog_ids: programs.as_mut_ptr() as u64,
        link_ids: links.as_mut_ptr() as u64,
        count: programs.len() as u32,
        ..ProgQuery::default()
    };
    // SAFETY: K1, K5: the kernel writes at most `count` ids to `programs`, and as many to `links`.
    unsafe { bpf(PROG_QUERY, &mut attr) }?;
    Ok(programs.into_iter().zip(links).take(attr.count as usize).collect())
}

fn link(program: impl AsFd, target_ifindex: u32, attach_type: u32, flags: u32) -> io::Result<OwnedFd> {
    let prog_fd = program.as_fd().as_raw_fd();
    let mut attr = LinkCreate { prog_fd, target_ifindex, attach_type, flags };
    // SAFETY: K5: the structure contains no pointer.
    let fd = unsafe { bpf(LINK_CREATE, &mut attr) }?;
    // SAFETY: K2: the kernel has just created this descriptor, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens the loaded program of this id.
pub(crate) fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    by_id(PROG_GET_FD_BY_ID, id)
}

/// Opens the map of this id.
fn map_by_id(id: u32) -> io::Result<OwnedFd> {
    by_id(MAP_GET_FD_BY_ID, id)
}

fn by_id(command: libc::c_int, id: u32) -> io::Result<OwnedFd> {
    let mut attr = GetById { id, next_id: 0, open_flags: 0 };
    // SAFETY: K5: the structure contains no pointer.
    let fd = unsafe { bpf(command, &mut attr) }?;
    // SAFETY: K2: the kernel has just created this descriptor, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns what the kernel knows about a loaded program.
pub(crate) fn program_info(program: impl AsFd) -> io::Result<ProgramInfo> {
    let mut ids = vec![0u32; MAP_IDS];
    let mut info =
        RawProgramInfo { map_count: MAP_IDS as u32, map_ids: ids.as_mut_ptr() as u64, ..RawProgramInfo::default() };
    // SAFETY: K1, K5: a prefix of the program's information; the kernel writes at most `map_count` ids.
    unsafe { object_info(program, &mut info) }?;
    ids.truncate(info.map_count as usize);
    Ok(ProgramInfo { id: info.id, tag: info.tag, name: text(&info.name), maps: ids })
}

/// Opens the map of this name among those of a program; `None`: it has none.
pub(crate) fn map_of(program: &ProgramInfo, name: &str) -> io::Result<Option<OwnedFd>> {
    Ok(maps_of(program)?.take_if(name, |_| true))
}

/// The text of a name that ends with a zero.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

/// Opens the maps of a program.
pub(crate) fn maps_of(program: &ProgramInfo) -> io::Result<FoundMaps> {
    let open = |&id: &u32| {
        let fd = map_by_id(id)?;
        let mut info = RawMapInfo::default();
        // SAFETY: K1, K5: a prefix of the map's information, without pointers.
        unsafe { object_info(&fd, &mut info) }?;
        let RawMapInfo { kind, key_size: key, value_size: value, max_entries: elements, .. } = info;
        Ok(FoundMap { fd, name: text(&info.name), shape: MapShape { kind, key, value, elements } })
    };
    program.maps.iter().map(open).collect::<Result<_, _>>().map(FoundMaps)
}

/// # Safety
/// `T` is a prefix of the information about this kind of object, and its pointers are valid for the kernel's writes
/// (K1, K5).
unsafe fn object_info<T>(object: impl AsFd, info: &mut T) -> io::Result<()> {
    let fd = object.as_fd().as_raw_fd();
    let mut attr = GetInfo { fd, length: size_of::<T>() as u32, info: &raw mut *info as u64 };
    // SAFETY: K1, K5: the kernel writes at most `length` bytes to `info`; the rest is the caller's contract.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attr) }.map(drop)
}

/// Pins a program, so that it stays after its last descriptor is closed.
pub(crate) fn pin(program: impl AsFd, path: &Path) -> io::Result<()> {
    obj_path(OBJ_PIN, program.as_fd().as_raw_fd(), path).map(drop)
}

/// Opens a pinned object.
pub(crate) fn object_at(path: &Path) -> io::Result<OwnedFd> {
    let fd = obj_path(OBJ_GET, 0, path)?;
    // SAFETY: K2: the kernel has just created this descriptor, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn obj_path(command: libc::c_int, fd: RawFd, path: &Path) -> io::Result<RawFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = ObjPath { path: path.as_ptr() as u64, fd, flags: 0 };
    // SAFETY: K1, K5: the path is NUL-terminated and outlives the call.
    unsafe { bpf(command, &mut attr) }
}

/// By what an XDP program is called: the kernel lets a program make tail calls only to those with its own flags and
/// attach type (the latter since Linux 6.18, and in later versions of older ones).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caller {
    /// A program that is attached to an interface; whether it supports frames of several buffers.
    Attached { frags: bool },
    /// A member of a dispatcher, which has neither.
    Member,
}

/// Loads an XDP program.
pub(crate) fn load_xdp(insns: &[Insn], caller: Caller) -> io::Result<OwnedFd> {
    let mut attr = ProgLoad {
        prog_type: PROG_TYPE_XDP,
        insn_cnt: insns.len() as u32,
        insns: insns.as_ptr() as u64,
        license: c"Dual BSD/GPL".as_ptr() as u64,
        prog_flags: if caller == (Caller::Attached { frags: true }) { HAS_FRAGS } else { 0 },
        prog_name: *b"unetmap_filter\0\0",
        expected_attach_type: if caller == Caller::Member { 0 } else { ATTACH_XDP },
        ..ProgLoad::default()
    };
    for tries in 1.. {
        // SAFETY: K1, K5: `insn_cnt` is the number of instructions, the licence is NUL-terminated; both outlive the
        // call.
        match unsafe { bpf(PROG_LOAD, &mut attr) } {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries < BPF_LOAD_TRIES => {}
            // SAFETY: K2: the kernel has just created this descriptor, close-on-exec.
            result => return Ok(unsafe { OwnedFd::from_raw_fd(result?) }),
        }
    }
    unreachable!("the last try returns")
}

/// Stores a descriptor (a socket, a program) in a map of such.
pub(crate) fn map_set(map: impl AsFd, key: u32, value: impl AsFd) -> io::Result<()> {
    let value = value.as_fd().as_raw_fd();
    let mut attr = element(map, &key, &raw const value as u64);
    // SAFETY: K1, K5: maps of descriptors have keys and values of 4 bytes, as have both arguments.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Deletes an entry of [`map_set`]; `ENOENT` if there is none.
pub(crate) fn map_unset(map: impl AsFd, key: u32) -> io::Result<()> {
    let mut attr = element(map, &key, 0);
    // SAFETY: K1, K5: as in `map_set`.
    unsafe { bpf(MAP_DELETE_ELEM, &mut attr) }.map(drop)
}

/// Writes element 0 of an array map.
///
/// # Safety
/// `map` is an array map with elements of type `T` (K5).
pub(crate) unsafe fn array_set<T: Copy>(map: impl AsFd, value: &T) -> io::Result<()> {
    // SAFETY: K5: the caller's contract.
    unsafe { array_set_at(map, 0, value) }
}

/// Writes an element of an array map.
///
/// # Safety
/// `map` is an array map with elements of type `T` (K5).
pub(crate) unsafe fn array_set_at<T: Copy>(map: impl AsFd, index: u32, value: &T) -> io::Result<()> {
    let mut attr = element(map, &index, &raw const *value as u64);
    // SAFETY: K1, K5: an array has keys of 4 bytes, and elements of the size that the caller guarantees.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Reads element 0 of an array map of numbers.
///
/// # Safety
/// `map` is an array map with elements of type `u64` (K5).
pub(crate) unsafe fn array_get(map: impl AsFd) -> io::Result<u64> {
    let mut value = 0u64;
    let mut attr = element(map, &0, &raw mut value as u64);
    // SAFETY: K1, K5: an array has keys of 4 bytes, and elements of the size of `value`.
    unsafe { bpf(MAP_LOOKUP_ELEM, &mut attr) }?;
    Ok(value)
}

/// Reads element 0 of an array map.
///
/// # Safety
/// `map` is an array map with elements of type `T`, all of whose values are valid (K5).
pub(crate) unsafe fn array_read<T>(map: impl AsFd, value: &mut T) -> io::Result<()> {
    let mut attr = element(map, &0, &raw mut *value as u64);
    // SAFETY: K1, K5: an array has keys of 4 bytes, and elements of the size of `value`.
    unsafe { bpf(MAP_LOOKUP_ELEM, &mut attr) }.map(drop)
}

/// Returns the sum over all processors of an element of a map with an array for each.
///
/// # Safety
/// `map` is such a map with elements of type `u64` (K5).
pub(crate) unsafe fn sum_of_processors(map: impl AsFd, index: u32) -> io::Result<u64> {
    let mut values = vec![0u64; nr_cpus().map_err(|(_, e)| e)?];
    let mut attr = element(map, &index, values.as_mut_ptr() as u64);
    // SAFETY: K1, K5: the kernel writes 8 bytes for each possible processor.
    unsafe { bpf(MAP_LOOKUP_ELEM, &mut attr) }?;
    Ok(values.iter().sum())
}

fn element(map: impl AsFd, key: &u32, value: u64) -> MapElem {
    element_of(map, key, value)
}

fn element_of<K>(map: impl AsFd, key: &K, value: u64) -> MapElem {
    MapElem { map_fd: map.as_fd().as_raw_fd(), zero: 0, key: &raw const *key as u64, value, flags: 0 }
}

/// Runs an XDP program on a frame, which is not delivered, and returns its result. The receive queue is queue 0 of `lo`
/// in the calling thread's network namespace.
pub(crate) fn test_run(program: impl AsFd, frame: &[u8]) -> io::Result<u32> {
    let mut attr = TestRun {
        prog_fd: program.as_fd().as_raw_fd(),
        data_size_in: u32::try_from(frame.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?,
        data_in: frame.as_ptr() as u64,
        repeat: 1,
        ..TestRun::default()
    };
    // SAFETY: K1, K5: the kernel reads the frame, which outlives the call, and writes only to `attr`.
    unsafe { bpf(PROG_TEST_RUN, &mut attr) }?;
    Ok(attr.retval)
}

/// Returns the `errno` inside an error of the loader. Without an `errno` the object file is invalid.
pub(crate) fn errno_of(error: &(dyn Error + 'static)) -> io::Error {
    std::iter::successors(Some(error), |&e| e.source())
        .find_map(|e| e.downcast_ref::<io::Error>()?.raw_os_error())
        .map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

/// Loads an object file and creates its maps; `sized` sets the number of entries of some. The objects do not depend
/// on the kernel's types, so the loader needs no list of them (BTF); but it reads that list, megabytes, when it is
/// created, and is therefore created once.
pub(crate) fn load(object: &[u8], sized: &[(&'static str, u32)]) -> io::Result<Ebpf> {
    static LOADER: LazyLock<Mutex<EbpfLoader<'static>>> = LazyLock::new(|| Mutex::new(EbpfLoader::new()));
    let mut loader = LOADER.lock().unwrap_or_else(PoisonError::into_inner);
    let loader = loader.btf(None);
    for &(map, entries) in sized {
        loader.map_max_entries(map, entries);
    }
    loader.load(object).map_err(|e| errno_of(&e))
}

/// Loads a tcx program of an object.
pub(crate) fn load_classifier(object: &mut Ebpf, name: &str) -> io::Result<OwnedFd> {
    let Some(Program::SchedClassifier(program)) = object.program_mut(name) else { return Err(object_mismatch()) };
    program.load().map_err(|e| errno_of(&e))?;
    program.fd().map_err(|e| errno_of(&e))?.as_fd().try_clone_to_owned()
}

/// Returns an array map of a loaded object, or one with an array for each processor.
pub(crate) fn array(object: &Ebpf, name: &str) -> io::Result<OwnedFd> {
    match object.map(name) {
        Some(Map::Array(map)) => map.fd().as_fd().try_clone_to_owned(),
        Some(Map::PerCpuArray(map)) => map.fd().as_fd().try_clone_to_owned(),
        _ => Err(object_mismatch()),
    }
}

/// The error for a program or map that an embedded object file lacks.
pub(crate) fn object_mismatch() -> io::Error {
    io::Error::other("an embedded BPF object does not match its source in crates/sys/bpf; build from unchanged sources")
}
