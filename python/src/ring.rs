// SPDX-License-Identifier: BSD-2-Clause
//! Rings and slots as Python uses them. Each refers to its port, and fails with `EBADF` when that is closed.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use unetmap::{Pos, SlotRef, errno};

use crate::memory::Memory;
use crate::port::Port;
use crate::refused;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Tx,
    Rx,
}

/// Where a ring is.
struct Place {
    port: Py<Port>,
    direction: Direction,
    number: usize,
}

impl Place {
    fn clone_ref(&self, py: Python<'_>) -> Place {
        Place { port: self.port.clone_ref(py), ..*self }
    }

    /// Calls `with` with the ring.
    fn ring<T>(&self, with: impl FnOnce(&unetmap::Port, &unetmap::Ring) -> PyResult<T>) -> PyResult<T> {
        let port = self.port.get().get()?;
        let rings = match self.direction {
            Direction::Tx => port.tx_rings(),
            Direction::Rx => port.rx_rings(),
        };
        // A port has the same rings as long as it is open.
        let ring = rings.get(self.number).ok_or_else(|| PyIndexError::new_err("the port has no such ring"))?;
        with(&port, ring)
    }
}

/// A ring: see the package's type stub.
#[pyclass(frozen, module = "unetmap._core")]
pub(crate) struct Ring(Place);

impl Ring {
    pub(crate) fn new(port: &Py<Port>, direction: Direction, number: usize) -> Ring {
        Python::attach(|py| Ring(Place { port: port.clone_ref(py), direction, number }))
    }
}

#[pymethods]
impl Ring {
    fn __len__(&self) -> PyResult<usize> {
        self.0.ring(|_, ring| Ok(ring.num_slots() as usize))
    }

    /// Number of the ring within its direction.
    #[getter]
    fn id(&self) -> PyResult<u16> {
        self.0.ring(|_, ring| Ok(ring.id()))
    }

    /// First of the program's slots.
    #[getter]
    fn head(&self) -> PyResult<u32> {
        self.0.ring(|_, ring| Ok(ring.head().raw()))
    }

    /// The slot after the last of the program's.
    #[getter]
    fn tail(&self) -> PyResult<u32> {
        self.0.ring(|_, ring| Ok(ring.tail().raw()))
    }

    /// Number of the program's slots.
    #[getter]
    fn space(&self) -> PyResult<u32> {
        self.0.ring(|_, ring| Ok(ring.space()))
    }

    /// Most bytes of a packet in a slot.
    #[getter]
    fn slot_size(&self) -> PyResult<u32> {
        self.0.ring(|_, ring| Ok(ring.slot_size()))
    }

    /// Slots that were not sent, or delivered empty, as they were invalid.
    #[getter]
    fn bad_slots(&self) -> PyResult<u64> {
        self.0.ring(|_, ring| Ok(ring.bad_slots()))
    }

    /// Returns slot `index`.
    fn __getitem__(&self, py: Python<'_>, index: isize) -> PyResult<Slot> {
        self.0.ring(|_, ring| {
            let at = u32::try_from(index).ok().and_then(|index| ring.pos(index));
            let slots = ring.num_slots();
            let at = at.ok_or_else(|| PyIndexError::new_err(format!("a ring of {slots} slots has no slot {index}")))?;
            Ok(Slot { place: self.0.clone_ref(py), at })
        })
    }

    /// Returns the program's slots, from `head` to `tail`.
    fn available(&self, py: Python<'_>) -> PyResult<Vec<Slot>> {
        let slot = |slot: SlotRef<'_>| Slot { place: self.0.clone_ref(py), at: slot.pos() };
        self.0.ring(|_, ring| Ok(ring.available().map(slot).collect()))
    }

    /// Moves `head` by `slots`, at most to `tail`; returns by how many.
    fn advance(&self, slots: u32) -> PyResult<u32> {
        let port = self.0.port.get();
        let turn = if self.0.direction == Direction::Tx { &port.tx } else { &port.rx };
        let _turn = turn.take(port.spec())?;
        self.0.ring(|_, ring| Ok(ring.advance(slots)))
    }
}

/// A slot: see the package's type stub.
#[pyclass(frozen, module = "unetmap._core")]
pub(crate) struct Slot {
    place: Place,
    at: Pos,
}

impl Slot {
    fn slot<T>(&self, with: impl FnOnce(SlotRef<'_>) -> T) -> PyResult<T> {
        self.place.ring(|_, ring| Ok(with(ring.slot(self.at))))
    }

    fn memory(&self) -> PyResult<Memory> {
        self.place.ring(|port, ring| Ok(Memory::buffer(port.shared_region().clone(), ring.slot(self.at).buf_idx())))
    }
}

#[pymethods]
impl Slot {
    /// Number of the slot in its ring.
    #[getter]
    fn index(&self) -> u32 {
        self.at.raw()
    }

    /// Bytes of packet.
    #[getter]
    fn length(&self) -> PyResult<u16> {
        self.slot(|slot| slot.len())
    }

    #[setter]
    fn set_length(&self, length: u16) -> PyResult<()> {
        let most = self.place.ring(|_, ring| Ok(ring.slot_size()))?;
        if u32::from(length) > most {
            let reason = format!("a slot has at most {most} bytes of packet");
            return Err(refused(self.place.port.get().spec(), errno::EMSGSIZE, &reason));
        }
        self.slot(|slot| slot.set_len(length))
    }

    /// Flags of netmap (`NS_*`).
    #[getter]
    fn flags(&self) -> PyResult<u16> {
        self.slot(|slot| slot.flags())
    }

    #[setter]
    fn set_flags(&self, flags: u16) -> PyResult<()> {
        self.slot(|slot| slot.set_flags(flags))
    }

    /// The whole buffer, shared with other processes.
    #[getter]
    fn buffer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let memory = Bound::new(py, self.memory()?)?;
        PyMemoryView::from(memory.as_any())
    }

    /// Exchanges buffers with a slot of a port in the same region, and takes its length and flags.
    fn swap_from(&self, other: PyRef<'_, Slot>) -> PyResult<()> {
        self.place.ring(|port, ring| {
            other.place.ring(|other_port, other_ring| {
                if !port.same_region(other_port) {
                    let reason = format!(
                        "its region is another than that of {} (open one of them with @{}, the region of the other)",
                        other_port.spec(),
                        port.mem_id()
                    );
                    return Err(refused(port.spec(), errno::EINVAL, &reason));
                }
                ring.slot(self.at).swap_from(&other_ring.slot(other.at));
                Ok(())
            })
        })
    }
}
