// SPDX-License-Identifier: BSD-2-Clause
//! netmap's constants, with netmap's names and the types of the fields that hold them.

use crate::layout::{NmIfreq, Nmreq, NmreqHeader};

/// Version of the interface that this crate describes.
pub const NETMAP_API: u16 = 14;
/// Lowest `nr_version` accepted in a request.
pub const NETMAP_MIN_API: u16 = 14;
/// Highest `nr_version` accepted in a request.
pub const NETMAP_MAX_API: u16 = 15;
/// Alignment of a ring, in bytes.
pub const NM_CACHE_ALIGN: usize = 128;
/// The prefix of every VALE port name.
pub const NM_BDG_NAME: &str = "vale";

// NetmapSlot::flags

/// `buf_idx` has changed since the last sync.
pub const NS_BUF_CHANGED: u16 = 0x0001;
/// tx: return this slot as soon as it is sent.
pub const NS_REPORT: u16 = 0x0002;
/// rx: forward this packet between the NIC and the host stack.
pub const NS_FORWARD: u16 = 0x0004;
/// VALE tx: do not learn the source address.
pub const NS_NO_LEARN: u16 = 0x0008;
/// VALE tx: the data is at `ptr`.
pub const NS_INDIRECT: u16 = 0x0010;
/// The packet continues in the next slot.
pub const NS_MOREFRAG: u16 = 0x0020;
/// Monitor rx: this packet was transmitted, not received.
pub const NS_TXMON: u16 = 0x0040;
/// Lowest bit of the VALE port number (tx) or of the number of fragments (rx).
pub const NS_PORT_SHIFT: u32 = 8;
/// Mask of the VALE port number or of the number of fragments.
pub const NS_PORT_MASK: u16 = 0xff << NS_PORT_SHIFT;
/// Maximum number of slots of one packet.
pub const NETMAP_MAX_FRAGS: u32 = 64;

// NetmapRing::flags

/// Set `ts` at each rx sync.
pub const NR_TIMESTAMP: u32 = 0x0002;
/// Honor [`NS_FORWARD`] in this rx ring.
pub const NR_FORWARD: u32 = 0x0004;

// NetmapIf::ni_flags

/// The region is private to this port.
pub const NI_PRIV_MEM: u32 = 0x1;

// Requests

/// Maximum size of a request's body and options together, bytes.
pub const NETMAP_REQ_MAXSIZE: usize = 4096;
/// Size of a port name with its terminating zero byte, bytes.
pub const NETMAP_REQ_IFNAMSIZ: usize = 64;

/// Bind an open file to rings of a port; [`crate::NmreqRegister`].
pub const NETMAP_REQ_REGISTER: u16 = 1;
/// Get a port's memory size, rings and slots; [`crate::NmreqPortInfoGet`].
pub const NETMAP_REQ_PORT_INFO_GET: u16 = 2;
/// Attach an interface to a switch; [`crate::NmreqValeAttach`].
pub const NETMAP_REQ_VALE_ATTACH: u16 = 3;
/// Detach an interface from a switch; [`crate::NmreqValeDetach`].
pub const NETMAP_REQ_VALE_DETACH: u16 = 4;
/// Look up or enumerate VALE ports; [`crate::NmreqValeList`].
pub const NETMAP_REQ_VALE_LIST: u16 = 5;
/// Set the length of the virtio-net header; [`crate::NmreqPortHdr`].
pub const NETMAP_REQ_PORT_HDR_SET: u16 = 6;
/// Get the length of the virtio-net header; [`crate::NmreqPortHdr`].
pub const NETMAP_REQ_PORT_HDR_GET: u16 = 7;
/// Create a persistent VALE port; [`crate::NmreqValeNewif`].
pub const NETMAP_REQ_VALE_NEWIF: u16 = 8;
/// Delete a persistent VALE port; no body.
pub const NETMAP_REQ_VALE_DELIF: u16 = 9;
/// Poll an attached NIC on given CPUs; [`crate::NmreqValePolling`].
pub const NETMAP_REQ_VALE_POLLING_ENABLE: u16 = 10;
/// Stop polling an attached NIC; [`crate::NmreqValePolling`].
pub const NETMAP_REQ_VALE_POLLING_DISABLE: u16 = 11;
/// Get the pools of a region; [`crate::NmreqPoolsInfo`].
pub const NETMAP_REQ_POOLS_INFO_GET: u16 = 12;
/// Run a sync loop; [`crate::NmreqSyncKloopStart`].
pub const NETMAP_REQ_SYNC_KLOOP_START: u16 = 13;
/// Stop the sync loop; no body.
pub const NETMAP_REQ_SYNC_KLOOP_STOP: u16 = 14;
/// Apply the CSB option to a port that is already bound; no body.
pub const NETMAP_REQ_CSB_ENABLE: u16 = 15;

/// The region is in memory that the program provides; [`crate::NmreqOptExtmem`].
pub const NETMAP_REQ_OPT_EXTMEM: u32 = 1;
/// Eventfds of the sync loop; [`crate::NmreqOptSyncKloopEventfds`].
pub const NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS: u32 = 2;
/// Ring positions in two separate arrays (CSB mode); [`crate::NmreqOptCsb`].
pub const NETMAP_REQ_OPT_CSB: u32 = 3;
/// Mode of the sync loop; [`crate::NmreqOptSyncKloopMode`].
pub const NETMAP_REQ_OPT_SYNC_KLOOP_MODE: u32 = 4;
/// Packets begin at an offset in their buffer; [`crate::NmreqOptOffsets`].
pub const NETMAP_REQ_OPT_OFFSETS: u32 = 5;
/// One past the last option.
pub const NETMAP_REQ_OPT_MAX: u32 = 6;

// NmreqRegister::nr_mode

/// [`Nmreq`] only: `nr_ringid` selects the rings.
pub const NR_REG_DEFAULT: u32 = 0;
/// All NIC rings of the port.
pub const NR_REG_ALL_NIC: u32 = 1;
/// All host rings.
pub const NR_REG_SW: u32 = 2;
/// All NIC rings and all host rings.
pub const NR_REG_NIC_SW: u32 = 3;
/// The NIC ring pair `nr_ringid`.
pub const NR_REG_ONE_NIC: u32 = 4;
/// [`Nmreq`] only: the master end of a pipe.
pub const NR_REG_PIPE_MASTER: u32 = 5;
/// [`Nmreq`] only: the slave end of a pipe.
pub const NR_REG_PIPE_SLAVE: u32 = 6;
/// No rings: the port is only a region.
pub const NR_REG_NULL: u32 = 7;
/// The host ring pair `nr_ringid`.
pub const NR_REG_ONE_SW: u32 = 8;
/// Mask of the mode in `Nmreq::nr_flags`.
pub const NR_REG_MASK: u32 = 0xf;

// NmreqRegister::nr_flags

/// Monitor the packets that the rings transmit instead of binding the rings.
pub const NR_MONITOR_TX: u64 = 0x100;
/// Monitor the packets that the rings receive instead of binding the rings.
pub const NR_MONITOR_RX: u64 = 0x200;
/// Zero-copy monitor of both directions.
pub const NR_ZCOPY_MON: u64 = 0x400;
/// No other session may bind the rings.
pub const NR_EXCLUSIVE: u64 = 0x800;
/// Bind rx rings only.
pub const NR_RX_RINGS_ONLY: u64 = 0x2000;
/// Bind tx rings only.
pub const NR_TX_RINGS_ONLY: u64 = 0x4000;
/// Packets may begin with a virtio-net header.
pub const NR_ACCEPT_VNET_HDR: u64 = 0x8000;
/// Ignored.
pub const NR_DO_RX_POLL: u64 = 0x1_0000;
/// `poll` transmits only if `POLLOUT` is requested.
pub const NR_NO_TX_POLL: u64 = 0x2_0000;
/// Not a flag of netmap's (in C: `include/unetmap.h`): refused unless the host's stack neither receives frames of the
/// interface nor sends any.
pub const NR_DISCONNECTED: u64 = 1 << 27;

/// `NmreqValePolling::nr_mode`: one CPU for all queues.
pub const NETMAP_POLLING_MODE_SINGLE_CPU: u32 = 1;
/// `NmreqValePolling::nr_mode`: a CPU for each queue.
pub const NETMAP_POLLING_MODE_MULTI_CPU: u32 = 2;
/// `NmreqOptSyncKloopMode::mode`: sync tx in the thread that writes the ioeventfd.
pub const NM_OPT_SYNC_KLOOP_DIRECT_TX: u32 = 1;
/// `NmreqOptSyncKloopMode::mode`: sync rx in the thread that writes the ioeventfd.
pub const NM_OPT_SYNC_KLOOP_DIRECT_RX: u32 = 2;

// ioctl requests

/// Any request, with an [`NmreqHeader`].
pub const NIOCCTRL: u64 = iowr::<NmreqHeader>(151);
/// Sync all bound tx rings; no argument.
pub const NIOCTXSYNC: u64 = io(148);
/// Sync all bound rx rings; no argument.
pub const NIOCRXSYNC: u64 = io(149);
/// Get information on a port or region, with an [`Nmreq`].
pub const NIOCGINFO: u64 = iowr::<Nmreq>(145);
/// Bind an open file, or execute `nr_cmd`, with an [`Nmreq`].
pub const NIOCREGIF: u64 = iowr::<Nmreq>(146);
/// A message to the module that implements a switch, with an [`NmIfreq`].
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

/// Bind one ring pair.
pub const NETMAP_HW_RING: u16 = 0x4000;
/// Bind the host rings.
pub const NETMAP_SW_RING: u16 = 0x2000;
/// Mask of the ring number; the largest number in a port name is one less.
pub const NETMAP_RING_MASK: u16 = 0x0fff;
/// `poll` transmits only if `POLLOUT` is requested.
pub const NETMAP_NO_TX_POLL: u16 = 0x1000;
/// Ignored.
pub const NETMAP_DO_RX_POLL: u16 = 0x8000;

// Nmreq::nr_cmd

/// Attach an interface to a switch.
pub const NETMAP_BDG_ATTACH: u16 = 1;
/// Detach an interface from a switch.
pub const NETMAP_BDG_DETACH: u16 = 2;
/// Not for programs.
pub const NETMAP_BDG_REGOPS: u16 = 3;
/// Look up or enumerate VALE ports.
pub const NETMAP_BDG_LIST: u16 = 4;
/// Set the length of the virtio-net header.
pub const NETMAP_BDG_VNET_HDR: u16 = 5;
/// Create a persistent VALE port.
pub const NETMAP_BDG_NEWIF: u16 = 6;
/// Delete a persistent VALE port.
pub const NETMAP_BDG_DELIF: u16 = 7;
/// Refused.
pub const NETMAP_PT_HOST_CREATE: u16 = 8;
/// Refused.
pub const NETMAP_PT_HOST_DELETE: u16 = 9;
/// Poll an attached NIC on given CPUs.
pub const NETMAP_BDG_POLLING_ON: u16 = 10;
/// Stop polling an attached NIC.
pub const NETMAP_BDG_POLLING_OFF: u16 = 11;
/// Get the length of the virtio-net header.
pub const NETMAP_VNET_HDR_GET: u16 = 12;
/// `nr_arg1` of [`NETMAP_BDG_ATTACH`]: attach the host rings as well.
pub const NETMAP_BDG_HOST: u16 = 1;
/// Size of `NmIfreq::data`, bytes.
pub const NM_IFRDATA_LEN: usize = 256;

// The C helpers of net/netmap_user.h and libnetmap.h

/// Size of a descriptor's error message, bytes.
pub const NM_ERRBUF_SIZE: usize = 512;
/// Flag in a packet header: more packets of this batch follow.
pub const NM_MORE_PKTS: u64 = 1;
/// `nm_open`: do not map the region, use the parent's mapping.
pub const NM_OPEN_NO_MMAP: u64 = 0x4_0000;
/// `nm_open`: use the parent's name.
pub const NM_OPEN_IFNAME: u64 = 0x8_0000;
/// `nm_open`: use the parent's `nr_arg1`.
pub const NM_OPEN_ARG1: u64 = 0x10_0000;
/// `nm_open`: use the parent's `nr_arg2`.
pub const NM_OPEN_ARG2: u64 = 0x20_0000;
/// `nm_open`: use the parent's `nr_arg3`.
pub const NM_OPEN_ARG3: u64 = 0x40_0000;
/// `nm_open`: use the parent's numbers of rings and slots.
pub const NM_OPEN_RING_CFG: u64 = 0x80_0000;
/// Maximum number of keys of one option in a port name.
pub const NMREQ_OPT_MAXKEYS: usize = 16;
