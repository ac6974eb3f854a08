//! netmap's constants, with netmap's names and the types of the fields that hold them.

use crate::layout::{NmIfreq, Nmreq, NmreqHeader};

/// Version of the interface that this crate describes.
pub const NETMAP_API: u16 = 14;
/// Least `nr_version` of a request.
pub const NETMAP_MIN_API: u16 = 14;
/// Greatest `nr_version` of a request.
pub const NETMAP_MAX_API: u16 = 15;
/// Alignment of a ring, in bytes.
pub const NM_CACHE_ALIGN: usize = 128;
/// The first letters of each VALE port's name.
pub const NM_BDG_NAME: &str = "vale";

// NetmapSlot::flags

/// `buf_idx` is not what it was at the last sync.
pub const NS_BUF_CHANGED: u16 = 0x0001;
/// tx: give this slot back as soon as it is sent.
pub const NS_REPORT: u16 = 0x0002;
/// rx: pass this packet on between the NIC and the host stack.
pub const NS_FORWARD: u16 = 0x0004;
/// VALE tx: do not learn the source address.
pub const NS_NO_LEARN: u16 = 0x0008;
/// VALE tx: the data is at `ptr`.
pub const NS_INDIRECT: u16 = 0x0010;
/// The packet goes on in the next slot.
pub const NS_MOREFRAG: u16 = 0x0020;
/// Monitor rx: this packet was being sent.
pub const NS_TXMON: u16 = 0x0040;
/// First bit of the VALE port number (tx) or of the number of fragments (rx).
pub const NS_PORT_SHIFT: u32 = 8;
/// Bits of the VALE port number or of the number of fragments.
pub const NS_PORT_MASK: u16 = 0xff << NS_PORT_SHIFT;
/// Slots of one packet, at most.
pub const NETMAP_MAX_FRAGS: u32 = 64;

// NetmapRing::flags

/// Set `ts` at each rx sync.
pub const NR_TIMESTAMP: u32 = 0x0002;
/// Obey [`NS_FORWARD`] in this rx ring.
pub const NR_FORWARD: u32 = 0x0004;

// NetmapIf::ni_flags

/// The region belongs to this port alone.
pub const NI_PRIV_MEM: u32 = 0x1;

// Requests

/// Bytes of a request's body and options together, at most.
pub const NETMAP_REQ_MAXSIZE: usize = 4096;
/// Bytes of a port name and its zero byte.
pub const NETMAP_REQ_IFNAMSIZ: usize = 64;

/// Bind an open file to rings of a port; [`crate::NmreqRegister`].
pub const NETMAP_REQ_REGISTER: u16 = 1;
/// What a port has; [`crate::NmreqPortInfoGet`].
pub const NETMAP_REQ_PORT_INFO_GET: u16 = 2;
/// Make an interface a port of a switch; [`crate::NmreqValeAttach`].
pub const NETMAP_REQ_VALE_ATTACH: u16 = 3;
/// Take it out again; [`crate::NmreqValeDetach`].
pub const NETMAP_REQ_VALE_DETACH: u16 = 4;
/// Look up or enumerate VALE ports; [`crate::NmreqValeList`].
pub const NETMAP_REQ_VALE_LIST: u16 = 5;
/// Set the length of the virtio-net header; [`crate::NmreqPortHdr`].
pub const NETMAP_REQ_PORT_HDR_SET: u16 = 6;
/// Get it; [`crate::NmreqPortHdr`].
pub const NETMAP_REQ_PORT_HDR_GET: u16 = 7;
/// Make a persistent VALE port; [`crate::NmreqValeNewif`].
pub const NETMAP_REQ_VALE_NEWIF: u16 = 8;
/// Delete it; no body.
pub const NETMAP_REQ_VALE_DELIF: u16 = 9;
/// Serve an attached NIC from given CPUs; [`crate::NmreqValePolling`].
pub const NETMAP_REQ_VALE_POLLING_ENABLE: u16 = 10;
/// No longer; [`crate::NmreqValePolling`].
pub const NETMAP_REQ_VALE_POLLING_DISABLE: u16 = 11;
/// What a region is made of; [`crate::NmreqPoolsInfo`].
pub const NETMAP_REQ_POOLS_INFO_GET: u16 = 12;
/// Sync in a loop; [`crate::NmreqSyncKloopStart`].
pub const NETMAP_REQ_SYNC_KLOOP_START: u16 = 13;
/// End that loop; no body.
pub const NETMAP_REQ_SYNC_KLOOP_STOP: u16 = 14;
/// Take the option CSB of a port already bound; no body.
pub const NETMAP_REQ_CSB_ENABLE: u16 = 15;

/// The region lies in memory of the program; [`crate::NmreqOptExtmem`].
pub const NETMAP_REQ_OPT_EXTMEM: u32 = 1;
/// Eventfds of the sync loop; [`crate::NmreqOptSyncKloopEventfds`].
pub const NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS: u32 = 2;
/// Positions in two arrays of their own; [`crate::NmreqOptCsb`].
pub const NETMAP_REQ_OPT_CSB: u32 = 3;
/// How the sync loop works; [`crate::NmreqOptSyncKloopMode`].
pub const NETMAP_REQ_OPT_SYNC_KLOOP_MODE: u32 = 4;
/// Packets begin at an offset in their buffer; [`crate::NmreqOptOffsets`].
pub const NETMAP_REQ_OPT_OFFSETS: u32 = 5;
/// One past the last option.
pub const NETMAP_REQ_OPT_MAX: u32 = 6;

// NmreqRegister::nr_mode

/// [`Nmreq`] only: `nr_ringid` says which rings.
pub const NR_REG_DEFAULT: u32 = 0;
/// All of the port's own rings.
pub const NR_REG_ALL_NIC: u32 = 1;
/// All host rings.
pub const NR_REG_SW: u32 = 2;
/// Both.
pub const NR_REG_NIC_SW: u32 = 3;
/// The pair of rings `nr_ringid`.
pub const NR_REG_ONE_NIC: u32 = 4;
/// [`Nmreq`] only: a pipe's master end.
pub const NR_REG_PIPE_MASTER: u32 = 5;
/// [`Nmreq`] only: a pipe's slave end.
pub const NR_REG_PIPE_SLAVE: u32 = 6;
/// No ring: a port that is only a region.
pub const NR_REG_NULL: u32 = 7;
/// The host pair `nr_ringid`.
pub const NR_REG_ONE_SW: u32 = 8;
/// The mode's bits in `Nmreq::nr_flags`.
pub const NR_REG_MASK: u32 = 0xf;

// NmreqRegister::nr_flags

/// See what the rings send instead of binding them.
pub const NR_MONITOR_TX: u64 = 0x100;
/// See what the rings receive instead of binding them.
pub const NR_MONITOR_RX: u64 = 0x200;
/// A monitor without copies, of both directions.
pub const NR_ZCOPY_MON: u64 = 0x400;
/// Nobody else may bind the rings.
pub const NR_EXCLUSIVE: u64 = 0x800;
/// Bind rx rings only.
pub const NR_RX_RINGS_ONLY: u64 = 0x2000;
/// Bind tx rings only.
pub const NR_TX_RINGS_ONLY: u64 = 0x4000;
/// Packets may begin with a virtio-net header.
pub const NR_ACCEPT_VNET_HDR: u64 = 0x8000;
/// Not looked at.
pub const NR_DO_RX_POLL: u64 = 0x1_0000;
/// poll sends only if it is asked for POLLOUT.
pub const NR_NO_TX_POLL: u64 = 0x2_0000;

/// `NmreqValePolling::nr_mode`: one CPU for all queues.
pub const NETMAP_POLLING_MODE_SINGLE_CPU: u32 = 1;
/// `NmreqValePolling::nr_mode`: a CPU for each queue.
pub const NETMAP_POLLING_MODE_MULTI_CPU: u32 = 2;
/// `NmreqOptSyncKloopMode::mode`: sync tx where the ioeventfd is written.
pub const NM_OPT_SYNC_KLOOP_DIRECT_TX: u32 = 1;
/// `NmreqOptSyncKloopMode::mode`: sync rx where the ioeventfd is written.
pub const NM_OPT_SYNC_KLOOP_DIRECT_RX: u32 = 2;

// Requests of ioctl

/// Any request, with an [`NmreqHeader`].
pub const NIOCCTRL: u64 = iowr::<NmreqHeader>(151);
/// Sync all bound tx rings; no argument.
pub const NIOCTXSYNC: u64 = io(148);
/// Sync all bound rx rings; no argument.
pub const NIOCRXSYNC: u64 = io(149);
/// What a port or region has, with an [`Nmreq`].
pub const NIOCGINFO: u64 = iowr::<Nmreq>(145);
/// Bind an open file, or do `nr_cmd`, with an [`Nmreq`].
pub const NIOCREGIF: u64 = iowr::<Nmreq>(146);
/// A message to the module that runs a switch, with an [`NmIfreq`].
pub const NIOCCONFIG: u64 = iowr::<NmIfreq>(150);

/// Linux's `_IO('i', nr)`.
const fn io(nr: u64) -> u64 {
    (b'i' as u64) << 8 | nr
}

/// Linux's `_IOWR('i', nr, T)`: both directions, and the size of `T` in 14 bits.
const fn iowr<T>(nr: u64) -> u64 {
    assert!(size_of::<T>() < 1 << 14);
    3 << 30 | (size_of::<T>() as u64) << 16 | io(nr)
}

// Nmreq::nr_ringid

/// One pair of rings.
pub const NETMAP_HW_RING: u16 = 0x4000;
/// The host rings.
pub const NETMAP_SW_RING: u16 = 0x2000;
/// The ring number; the greatest that a name may give is one less.
pub const NETMAP_RING_MASK: u16 = 0x0fff;
/// poll sends only if it is asked for POLLOUT.
pub const NETMAP_NO_TX_POLL: u16 = 0x1000;
/// Not looked at.
pub const NETMAP_DO_RX_POLL: u16 = 0x8000;

// Nmreq::nr_cmd

/// Make an interface a port of a switch.
pub const NETMAP_BDG_ATTACH: u16 = 1;
/// Take it out again.
pub const NETMAP_BDG_DETACH: u16 = 2;
/// Not for programs.
pub const NETMAP_BDG_REGOPS: u16 = 3;
/// Look up or enumerate VALE ports.
pub const NETMAP_BDG_LIST: u16 = 4;
/// Set the length of the virtio-net header.
pub const NETMAP_BDG_VNET_HDR: u16 = 5;
/// Make a persistent VALE port.
pub const NETMAP_BDG_NEWIF: u16 = 6;
/// Delete it.
pub const NETMAP_BDG_DELIF: u16 = 7;
/// Refused.
pub const NETMAP_PT_HOST_CREATE: u16 = 8;
/// Refused.
pub const NETMAP_PT_HOST_DELETE: u16 = 9;
/// Serve an attached NIC from given CPUs.
pub const NETMAP_BDG_POLLING_ON: u16 = 10;
/// No longer.
pub const NETMAP_BDG_POLLING_OFF: u16 = 11;
/// Get the length of the virtio-net header.
pub const NETMAP_VNET_HDR_GET: u16 = 12;
/// `nr_arg1` of [`NETMAP_BDG_ATTACH`]: the host stack as well.
pub const NETMAP_BDG_HOST: u16 = 1;
/// Bytes of `NmIfreq::data`.
pub const NM_IFRDATA_LEN: usize = 256;

// The C helpers of net/netmap_user.h and libnetmap.h

/// Bytes of a descriptor's error message.
pub const NM_ERRBUF_SIZE: usize = 512;
/// A packet header's flag: more packets of this batch follow.
pub const NM_MORE_PKTS: u64 = 1;
/// `nm_open`: do not map, take the parent's mapping.
pub const NM_OPEN_NO_MMAP: u64 = 0x4_0000;
/// `nm_open`: take the parent's name.
pub const NM_OPEN_IFNAME: u64 = 0x8_0000;
/// `nm_open`: take the parent's `nr_arg1`.
pub const NM_OPEN_ARG1: u64 = 0x10_0000;
/// `nm_open`: take the parent's `nr_arg2`.
pub const NM_OPEN_ARG2: u64 = 0x20_0000;
/// `nm_open`: take the parent's `nr_arg3`.
pub const NM_OPEN_ARG3: u64 = 0x40_0000;
/// `nm_open`: take the parent's numbers of rings and slots.
pub const NM_OPEN_RING_CFG: u64 = 0x80_0000;
/// Keys of one option in a port name, at most.
pub const NMREQ_OPT_MAXKEYS: usize = 16;
