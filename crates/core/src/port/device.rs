// SPDX-License-Identifier: BSD-2-Clause
//! Pass-through: ports whose memory is a device of a virtual machine (ivshmem), so that programs in the guest use them
//! without a daemon.
//!
//! ```text
//!   host:   daemon -- region, states, channels in one file --> unetmap vm device --> hypervisor
//!   guest:  program -- Port -- rings -- mapped PCI memory (resource2) == the same file
//!
//!   the file:  | region ................ | state and channel pages | unused .. | header, the last 16 KiB |
//!   header:    u64 magic | u64 beats | u32 lock holder | u32 bytes of the register request | u32 of the binding
//!              at 64: the port's name | at 512: the register request, and the binding
//! ```
//! The host's process holds the session. It counts the beats of its life, by which the guest notices its end, and
//! notifies the peer's doorbells when the guest has moved a position, as no notification crosses the border. The guest
//! looks at its rings by a timer while it sleeps. One process of the guest at a time has the device, by a lock on its
//! file; it frees the ring locks that its predecessor had when it was killed.
//!
//! All processes that map the file can write the header, too: it is read once, and validated as a daemon's reply; an
//! inconsistent one is refused.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use unetmap_abi::{NR_REG_ALL_NIC, NmreqRegister, PortSpec};
use unetmap_mem::{GuestWords, MappedRange};
use unetmap_sys::{Mapping, folder, process, socket};
use zerocopy::{FromBytes, IntoBytes};

use crate::backend::RingBackend;
use crate::control::binding::{Binding, DEVICE_HEADER_BYTES};
use crate::control::client::interface_exists;
use crate::control::request::NR_DEVICE;
use crate::error::{Error, errno};
use crate::port::Port;
use crate::port::open::{OpenOptions, Opened, assemble_in_device};
use crate::tuning::{DEVICE_LIMIT, PEER_POLL};

/// How often the host's process must call [`DevicePort::look`].
pub const LOOK_EVERY: Duration = PEER_POLL;

const MAGIC: u64 = u64::from_le_bytes(*b"unetmap1");
const BEATS: usize = 8;
const HOLDER: usize = 16;
const REGISTER_BYTES: usize = 20;
const BINDING_BYTES: usize = 24;
const NAME: usize = 64;
/// Bytes of a name with its NUL.
const NAME_BYTES: usize = 64;
const BODY: usize = 512;

/// In a guest, a socket of `unetmap vm device` whose memory is used as that of a PCI device would be.
const VARIABLE: &str = "UNETMAP_DEVICE";
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// Of QEMU's ivshmem.
const VENDOR_DEVICE: (&str, &str) = ("0x1af4", "0x1110");
/// All PCI devices, a line each (`show_device` in the kernel's drivers/pci/proc.c), and part of an ivshmem's line.
const PCI_LIST: (&str, &str) = ("/proc/bus/pci/devices", "\t1af41110\t");
/// The first message of a socket with a device's memory (QEMU's ivshmem protocol): its version.
pub const IVSHMEM_VERSION: i64 = 0;
/// The message beside which the memory's descriptor is sent.
pub const IVSHMEM_MEMORY: i64 = -1;

impl OpenOptions {
    /// Opens the port that `spec` names, in netmap's grammar: `netmap:p{1`, `netmap:p}1@5`, `netmap:eth0-2/R`.
    ///
    /// # Errors
    /// An invalid name, a refusal of the daemon, or no daemon.
    pub fn open(&self, spec: &str) -> Result<Port, Error> {
        let parsed = PortSpec::parse_with(spec, interface_exists)?;
        if let Some(port) = open(spec, &parsed, self.register.nr_flags | parsed.flags) {
            return port;
        }
        self.open_parsed(spec, &parsed).map(|opened| opened.port)
    }
}

/// A port on the host that a guest's programs use.
pub struct DevicePort {
    port: Port,
    file: OwnedFd,
    header: GuestWords,
    beats: u64,
    /// The positions that the guest has moved, by ring.
    seen: Vec<u32>,
}

impl DevicePort {
    /// Opens the pipe's end that `spec` names, for a guest.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]; the port is no pipe, or its parent has ports outside of a device.
    pub fn open(spec: &str) -> Result<DevicePort, Error> {
        let parsed = PortSpec::parse(spec)?;
        let refused = |errno, why: &str| Error::refused(spec, errno, why);
        if parsed.pipe.is_none() {
            return Err(refused(
                errno::EINVAL,
                "only ends of pipes can be given to a guest: name one, as netmap:vm1{1",
            ));
        }
        let Opened { port, register, binding, region } =
            OpenOptions::default().flags(NR_DEVICE).open_parsed(spec, &parsed)?;
        let host = |e| Error::host(spec, e);
        let [states, channels] = binding.head.page_offsets;
        if states == 0 || channels == 0 {
            let why = "the pipe exists already outside of a guest's device: close it, and start this first";
            return Err(refused(errno::EBUSY, why));
        }
        let bytes = File::from(region.try_clone().map_err(host)?).metadata().map_err(host)?.len();
        let memory =
            Mapping::part(region.as_fd(), bytes - DEVICE_HEADER_BYTES, DEVICE_HEADER_BYTES as usize).map_err(host)?;
        let header = GuestWords::new(MappedRange::whole(Arc::new(memory)));
        let body = [register.as_bytes(), &binding.encode()].concat();
        if BODY + body.len() > DEVICE_HEADER_BYTES as usize {
            return Err(refused(errno::EINVAL, "the port has too many rings for a guest's device"));
        }
        store_bytes(&header, NAME, parsed.name.as_bytes());
        store_bytes(&header, BODY, &body);
        header.store_u32(HOLDER, port.holder_id());
        header.store_u32(REGISTER_BYTES, size_of::<NmreqRegister>() as u32);
        header.store_u32(BINDING_BYTES, (body.len() - size_of::<NmreqRegister>()) as u32);
        header.store_u64(0, MAGIC, std::sync::atomic::Ordering::Release);
        Ok(DevicePort { port, file: region, header, beats: 0, seen: Vec::new() })
    }

    /// The memory's file, to give to the hypervisor; its size is a power of two.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Tells the guest that its host lives, and wakes the pipe's other end if the guest has moved a position. Returns
    /// whether it has.
    ///
    /// # Errors
    /// The daemon has exited.
    pub fn look(&mut self) -> Result<bool, Error> {
        if unetmap_sys::event::hung_up(self.port.as_fd()) {
            self.header.store_u64(0, 0, Relaxed);
            return Err(Error::DaemonGone { subject: self.port.spec().to_owned() });
        }
        self.beats += 1;
        self.header.store_u64(BEATS, self.beats, Relaxed);
        let (mut moved, mut seen) = (false, self.seen.iter());
        let mut now = Vec::with_capacity(self.seen.len());
        for ring in self.port.tx.iter().chain(&self.port.rx) {
            let (position, doorbell) = match &ring.inner.backend {
                RingBackend::PipeTx(tx) => (tx.channel.words().raw_prod(), &tx.peer_doorbell),
                RingBackend::PipeRx(rx) => (rx.channel.words().raw_cons(), &rx.peer_doorbell),
                _ => continue,
            };
            if seen.next().is_some_and(|seen| *seen != position) {
                doorbell.notify();
                moved = true;
            }
            now.push(position);
        }
        self.seen = now;
        Ok(moved)
    }
}

impl Drop for DevicePort {
    fn drop(&mut self) {
        self.header.store_u64(0, 0, Relaxed);
    }
}

fn store_bytes(words: &GuestWords, at: usize, bytes: &[u8]) {
    for (n, chunk) in bytes.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        words.store_u64(at + 8 * n, u64::from_le_bytes(word), Relaxed);
    }
}

fn load_bytes(words: &GuestWords, at: usize, bytes: usize) -> Vec<u8> {
    let mut out: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|n| words.load_u64(at + 8 * n).to_le_bytes()).collect();
    out.truncate(bytes);
    out
}

/// A device's memory, mapped in a guest.
struct Device {
    /// Locked by the process that has the device.
    file: File,
    /// Of a socket: closed last, as its server gives the memory to one client at a time.
    _socket: Option<UnixStream>,
    memory: MappedRange,
    header: GuestWords,
}

impl Device {
    fn map(file: File, socket: Option<UnixStream>) -> io::Result<Device> {
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let memory = MappedRange::whole(Arc::new(Mapping::of_guest(file.as_fd(), 0, bytes)?));
        let header = bytes
            .checked_sub(DEVICE_HEADER_BYTES as usize)
            .and_then(|at| memory.part(at, DEVICE_HEADER_BYTES as usize));
        let header = GuestWords::new(header.ok_or(io::ErrorKind::InvalidData)?);
        Ok(Device { file, _socket: socket, memory, header })
    }

    fn is_of(&self, name: &str) -> bool {
        self.header.load_u64(0) == MAGIC
            && load_bytes(&self.header, NAME, NAME_BYTES).split(|byte| *byte == 0).next() == Some(name.as_bytes())
    }
}

/// Returns the device with the port of that name, if this machine has one.
fn find(name: &str) -> io::Result<Option<Device>> {
    if let Some(path) = process::variable(VARIABLE) {
        let device = of_socket(Path::new(&path))?;
        return Ok(Some(device).filter(|device| device.is_of(name)));
    }
    // One file tells most machines that there is none: the folder has three files to read for each device.
    if fs::read_to_string(PCI_LIST.0).is_ok_and(|list| !list.contains(PCI_LIST.1)) {
        return Ok(None);
    }
    for folder in folder::paths(Path::new(PCI_DEVICES)) {
        let is = |file: &str, id: &str| fs::read_to_string(folder.join(file)).is_ok_and(|text| text.trim_end() == id);
        if !is("vendor", VENDOR_DEVICE.0) || !is("device", VENDOR_DEVICE.1) {
            continue;
        }
        if is("enable", "0") {
            // The mapping would fail, and says why.
            // Path: of the kernel, below /sys.
            let _ = fs::write(folder.join("enable"), "1");
        }
        let file = File::options().read(true).write(true).open(folder.join("resource2"))?;
        let device = Device::map(file, None)?;
        if device.is_of(name) {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

/// Receives the memory as a hypervisor would.
fn of_socket(path: &Path) -> io::Result<Device> {
    let socket = UnixStream::connect(path)?;
    socket.set_read_timeout(Some(DEVICE_LIMIT))?;
    let mut fds = Vec::new();
    loop {
        let mut message = [0; 8];
        if socket::recv(&socket, &mut message, &mut fds)?.bytes < message.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if i64::from_le_bytes(message) == IVSHMEM_MEMORY {
            let file = fds.pop().ok_or(io::ErrorKind::InvalidData)?;
            return Device::map(file.into(), Some(socket));
        }
    }
}

/// Opens the port in a device of this machine; `None` if none has it.
fn open(spec: &str, parsed: &PortSpec, flags: u64) -> Option<Result<Port, Error>> {
    parsed.pipe.as_ref()?;
    match find(&parsed.name) {
        Ok(None) => None,
        Ok(Some(device)) if parsed.nr_mode() != NR_REG_ALL_NIC => {
            drop(device);
            Some(Err(Error::refused(spec, errno::EINVAL, "a port of a device is opened with all of its rings")))
        }
        Ok(Some(device)) => Some(attach(spec, device, flags).map(|(port, _)| port)),
        Err(e) => Some(Err(Error::host(format!("{spec}: the memory of a device (ivshmem)"), e))),
    }
}

/// As [`open`], for a file: returns the register request as the daemon completed it, and the file of the memory.
pub(super) fn open_name(name: &str, flags: u64) -> Option<Result<(Port, NmreqRegister, OwnedFd), Error>> {
    if !name.contains(['{', '}']) {
        return None;
    }
    let device = find(name).ok().flatten()?;
    Some(device.file.try_clone().map_err(|e| Error::host(name, e)).and_then(|file| {
        let (port, register) = attach(name, device, flags)?;
        Ok((port, register, file.into()))
    }))
}

fn attach(spec: &str, device: Device, flags: u64) -> Result<(Port, NmreqRegister), Error> {
    match device.file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(Error::refused(spec, errno::EBUSY, "another process of this machine has the device open"));
        }
        Err(TryLockError::Error(e)) => return Err(Error::host(spec, e)),
    }
    let header = &device.header;
    let [word, bytes] = [HOLDER, BINDING_BYTES].map(|at| header.load_u64(at));
    let (holder, register_bytes, binding_bytes) = (word as u32, (word >> 32) as usize, bytes as u32 as usize);
    let malformed = || Error::malformed_reply(spec);
    if register_bytes != size_of::<NmreqRegister>()
        || binding_bytes > DEVICE_HEADER_BYTES as usize - BODY - register_bytes
    {
        return Err(malformed());
    }
    let body = load_bytes(header, BODY, register_bytes + binding_bytes);
    let register = NmreqRegister::read_from_bytes(&body[..register_bytes]).map_err(|_| malformed())?;
    let register = NmreqRegister { nr_flags: register.nr_flags & !NR_DEVICE | flags, ..register };
    let binding = Binding::decode(&body[register_bytes..]).ok_or_else(malformed)?;
    process::count_forks().map_err(|e| Error::host(spec, e))?;
    wait_for_beat(spec, header)?;
    let (connection, other_end) = socket::pair().map_err(|e| Error::host(spec, e))?;
    let port = assemble_in_device(spec, (connection, holder), register, &binding, &device.memory)?;
    for ring in port.tx.iter().chain(&port.rx) {
        // Of a process of this machine that was killed: it had the lock of the device.
        ring.inner.state().break_lock(holder);
    }
    watch_beats(&port, device, other_end);
    Ok((port, register))
}

/// Waits until the host shows that it lives.
fn wait_for_beat(spec: &str, header: &GuestWords) -> Result<(), Error> {
    let (first, start) = (header.load_u64(BEATS), Instant::now());
    while header.load_u64(BEATS) == first {
        if start.elapsed() > DEVICE_LIMIT {
            return Err(Error::DaemonGone { subject: spec.to_owned() });
        }
        std::thread::sleep(PEER_POLL);
    }
    Ok(())
}

/// Lets the port end, by its connection, when the device's beats stand still.
fn watch_beats(port: &Port, device: Device, other_end: OwnedFd) {
    let state = Mutex::new((Some(other_end), device.header.load_u64(BEATS), Instant::now()));
    port.watch_file(move || {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let beats = device.header.load_u64(BEATS);
        if beats != state.1 {
            (state.1, state.2) = (beats, Instant::now());
        } else if state.2.elapsed() > DEVICE_LIMIT || device.header.load_u64(0) != MAGIC {
            state.0 = None;
        }
        false
    });
}
