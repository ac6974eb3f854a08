//! Every byte that another party can write, and nothing else.
//!
//! A region, its rings and buffers, the end pages and the lines between two parties are shared memory: somebody
//! who is not trusted may write any of it at any moment. This crate is the only place that touches such bytes. Its
//! rules, cited by number in the `SAFETY` comments:
//!
//! * **M1** Shared words are read and written through atomics, payload through raw copies; there is never a `&` or
//!   `&mut` to bytes that others write (a `&AtomicU32` is fine: it promises nothing about the value).
//! * **M2** Every pointer is made by [`Window`], which checks once that the bytes lie inside the mapping; a view keeps
//!   its mapping alive, and a mapping cannot shrink, because its memfd is sealed.
//! * **M3** A [`Pos`] is below the [`Slots`] that made it; a [`SlotRing`] takes one of a larger ring for its last slot, so
//!   that every slot it touches is inside the ring.
//! * **M4** A value read from shared memory is judged on the copy, and only the copy is used.

mod atomic;
mod control;
mod copy;
mod fetch;
mod frame;
mod line;
mod pool;
mod pos;
mod region;
mod ring;
mod slot;
mod swap;
mod take;
mod window;
mod xring;

#[cfg(not(loom))]
pub use atomic::register_publisher;
pub use control::{BY_LOOP, ENDED, EndPage, JoinedState, RingState, SyncGuard};
pub use copy::{ADDRESSES, NOT_PLAIN, Run, Side, copy_packet, copy_run, copy_some};
pub use frame::Frame;
pub use line::{Consumer, Inbox, LINE_BYTES, LinePage, LineWords, Producer, SentWord, fence_before_sleep};
#[cfg(not(loom))]
pub use line::{Nap, Waiter};
pub use pool::{BufPool, Census, IndexSet, ObjectPool};
pub use pos::{BufIdx, Pos, Slots, Span};
pub use region::{Geometry, PoolShape, Region};
pub use ring::{Iface, IfaceShape, RingShape, RingView};
pub use slot::{Limits, Offsets, SlotHead, SlotRing, SlotValue};
pub use swap::{swap_one, swap_run};
pub use take::CopyKind;
pub use window::Window;
pub use xring::{Buffers, Packet, ReceiveRings, SendRings, SentPage};
