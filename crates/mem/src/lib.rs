// SPDX-License-Identifier: BSD-2-Clause
//! All access to memory that other processes can write, and nothing else.
//!
//! Regions, their rings and buffers, endpoint state pages and channel pages are shared memory: a process that is not
//! trusted may write any of it at any time. This crate is the only one that accesses such bytes. Its rules, cited by
//! number in the `SAFETY` comments:
//!
//! * **M1** Shared words are read and written through atomics, payload through raw copies (or volatile accesses of
//!   single words); there is never a `&` or `&mut` to bytes that other processes write. A `&AtomicU32` is sound: it
//!   promises nothing about the value.
//! * **M2** Every pointer is derived from a [`MappedRange`], which checks once that the bytes lie inside the mapping. A
//!   view keeps its mapping alive, and a mapping cannot shrink, because its memfd is sealed.
//! * **M3** A [`Pos`] is below the [`Slots`] that made it. A [`SlotRing`] cuts a position of a larger ring to its last
//!   slot, so every slot that it accesses is inside the ring.
//! * **M4** A value from shared memory is loaded once, the copy is validated, and only the copy is used.
//! * **M5** Vector instructions run only on a CPU that has them: a [`SimdLevel`] above the portable one is made only
//!   after the CPU was checked.
//! * **M6** A buffer is addressed by an index below the pool's count, and its size is a multiple of 64 bytes, at least
//!   64 ([`Geometry`]). So whole blocks of 64 bytes stay inside a buffer.
//! * **M7** A prefetch is a hint: it faults at no address and changes no memory, so its address needs no check.
//!
//! Tests under the loom model checker access slots through the checker's cells, which report every access that is not
//! ordered; their `SAFETY` comments cite **M8**: the model checks exclusive access.

mod atomic;
mod channel;
mod copy;
mod counters;
mod endpoint;
mod frame;
#[cfg(not(loom))]
mod guest;
mod mapped_range;
#[cfg(not(loom))]
mod mirror;
mod polled_rings;
mod pool;
mod pos;
mod prefetch;
mod region;
mod ring;
mod slot;
mod slot_copy;
mod swap;
mod tuning;
mod xsk_rings;

#[cfg(not(loom))]
pub use atomic::register_publisher;
pub use channel::{
    CHANNEL_BYTES, ChannelPage, ChannelWords, ConsWord, Consumer, ProdWord, Producer, Received, Receiver,
    fence_before_sleep,
};
#[cfg(not(loom))]
pub use channel::{FutexWaitSet, Waiter};
pub use copy::{MAC_PAIR_BYTES, Moved, RUN_BREAK_FLAGS, RingRef, Run, copy_list, copy_packet, copy_run};
pub use counters::{Counter, CounterPage};
pub use endpoint::{EndpointPage, OWNED_BY_SYNC_LOOP, PORT_REMOVED, SyncGuard, SyncState, SyncStateRef};
pub use frame::Frame;
#[cfg(not(loom))]
pub use guest::{GuestMemory, GuestPlace, GuestWords};
pub use mapped_range::MappedRange;
#[cfg(not(loom))]
pub use mirror::{MirrorSet, MirrorTx};
pub use polled_rings::{ChannelRef, PolledRings};
pub use pool::{BufPool, BufUsage, IndexSet, ObjectPool, SavedBufs};
pub use pos::{BufIdx, Pos, Slots, Span};
pub use prefetch::prefetch_value;
pub use region::{Geometry, PoolShape, Region};
pub use ring::{Iface, IfaceShape, RingShape, RingView};
pub use slot::{Limits, Offsets, SharedLimits, SlotHead, SlotRing, SlotValue};
pub use slot_copy::SimdLevel;
pub use swap::{swap_one, swap_run};
pub use xsk_rings::{RxProgress, TxFramesPage, UmemLayout, XskDesc, XskRxRings, XskTxRings};
