// SPDX-License-Identifier: BSD-2-Clause
//! A port as Python uses it.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use unetmap::Interest;

use crate::frames::Frames;
use crate::memory::Memory;
use crate::ring::{Direction, Ring};
use crate::turn::Turn;
use crate::{EBADF, os_error, refused};

/// Longest wait without a look at Python's signals and at whether the port was closed.
const SLICE: Duration = Duration::from_millis(250);

/// A port: see the package's class of this name.
#[pyclass(frozen, subclass, module = "unetmap._core")]
pub(crate) struct Port {
    spec: String,
    /// `None`: closed. Locked only with the GIL, so that no child of a fork finds it locked.
    port: RwLock<Option<Arc<unetmap::Port>>>,
    pub(crate) tx: Turn,
    pub(crate) rx: Turn,
    /// Ring with which the next batch begins.
    next_ring: AtomicUsize,
}

impl Port {
    /// Returns the open port.
    pub(crate) fn get(&self) -> PyResult<Arc<unetmap::Port>> {
        let port = self.port.read().unwrap_or_else(PoisonError::into_inner).clone();
        port.ok_or_else(|| refused(&self.spec, EBADF, "the port is closed (open it again)"))
    }

    pub(crate) fn spec(&self) -> &str {
        &self.spec
    }

    /// Attempts something without the GIL until it has a result or the time is over (`None`).
    ///
    /// # Errors
    /// The attempt's; the exception of a signal's handler; `EBADF` if the port was closed.
    fn until<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        mut attempt: impl FnMut(&unetmap::Port, Duration) -> Result<Option<T>, unetmap::Error> + Send,
    ) -> PyResult<Option<T>> {
        let end = deadline(timeout)?;
        loop {
            let port = self.get()?;
            let left = end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()).min(SLICE));
            let result = py.detach(|| attempt(&port, left)).map_err(os_error)?;
            if result.is_some() {
                return Ok(result);
            }
            drop(port);
            py.check_signals()?;
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(None);
            }
        }
    }

    /// Receives at least one frame, unless the time is over.
    fn receive(&self, py: Python<'_>, most: usize, timeout: Option<f64>) -> PyResult<Option<Frames>> {
        let _turn = self.rx.take(&self.spec)?;
        let first = self.next_ring.fetch_add(1, Relaxed);
        self.until(py, timeout, |port, left| {
            let rings = port.rx_rings();
            if rings.is_empty() {
                // The library's own words for a port without such rings.
                return port.recv(&mut [], Some(Duration::ZERO)).map(|_| None);
            }
            let take = || {
                let mut frames = Frames::with_capacity(most.min(1024), 64 * most.min(1024));
                for number in 0..rings.len() {
                    frames.take(&rings[first.wrapping_add(number) % rings.len()], most);
                }
                frames
            };
            if rings.iter().all(unetmap::Ring::is_empty) {
                port.poll(Interest::RX, Some(left))?;
            }
            let frames = take();
            Ok((frames.len() > 0).then_some(frames))
        })
    }

    /// Sends frames; returns how many.
    fn transmit(&self, py: Python<'_>, frames: &Frames, timeout: Option<f64>) -> PyResult<usize> {
        let _turn = self.tx.take(&self.spec)?;
        let mut sent = 0;
        self.until(py, timeout, |port, left| {
            sent += port.send_batch(frames.from(sent), Some(left))?;
            Ok((sent == frames.len()).then_some(()))
        })?;
        Ok(sent)
    }
}

/// Returns when a timeout in seconds ends; `None`: never.
fn deadline(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    match timeout {
        None => Ok(None),
        Some(seconds) if seconds >= 0.0 => {
            Ok(Duration::try_from_secs_f64(seconds).ok().and_then(|timeout| Instant::now().checked_add(timeout)))
        }
        Some(_) => Err(PyValueError::new_err("a timeout is a number of seconds from 0 on, or None for no limit")),
    }
}

/// Returns the directions of Python's flags `RX` and `TX`.
fn interest(want: u8) -> PyResult<Interest> {
    match want {
        1 => Ok(Interest::RX),
        2 => Ok(Interest::TX),
        3 => Ok(Interest::BOTH),
        _ => Err(PyValueError::new_err("the directions are unetmap.RX, unetmap.TX, or both joined by |")),
    }
}

fn flags(ready: Interest) -> u8 {
    u8::from(ready.rx()) | u8::from(ready.tx()) << 1
}

#[pymethods]
impl Port {
    #[new]
    #[pyo3(signature = (spec, *, tx_slots=None, rx_slots=None, tx_rings=None, rx_rings=None))]
    fn open(
        py: Python<'_>,
        spec: String,
        tx_slots: Option<u32>,
        rx_slots: Option<u32>,
        tx_rings: Option<u16>,
        rx_rings: Option<u16>,
    ) -> PyResult<Port> {
        let mut options = unetmap::Port::options();
        if let Some(slots) = tx_slots {
            options = options.tx_slots(slots);
        }
        if let Some(slots) = rx_slots {
            options = options.rx_slots(slots);
        }
        if let Some(rings) = tx_rings {
            options = options.tx_rings(rings);
        }
        if let Some(rings) = rx_rings {
            options = options.rx_rings(rings);
        }
        let port = py.detach(|| options.open(&spec)).map_err(os_error)?;
        let port = RwLock::new(Some(Arc::new(port)));
        Ok(Port { spec, port, tx: Turn::new(), rx: Turn::new(), next_ring: AtomicUsize::new(0) })
    }

    /// Closes the port. A thread that waits for it gets `EBADF` within a quarter of a second.
    fn close(&self, py: Python<'_>) {
        let port = self.port.write().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(port));
    }

    /// Whether the port was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.port.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// The name that the port was opened with.
    #[getter(spec)]
    fn py_spec(&self) -> &str {
        &self.spec
    }

    /// Bytes of each buffer.
    #[getter]
    fn buf_size(&self) -> PyResult<u32> {
        Ok(self.get()?.buf_size())
    }

    /// Number of the region of memory.
    #[getter]
    fn mem_id(&self) -> PyResult<u16> {
        Ok(self.get()?.mem_id())
    }

    /// Whether slots of the two ports can exchange their buffers.
    fn same_region(&self, other: PyRef<'_, Port>) -> PyResult<bool> {
        Ok(self.get()?.same_region(&*other.get()?))
    }

    /// The transmit rings.
    #[getter]
    fn tx_rings(slf: PyRef<'_, Self>) -> PyResult<Vec<Ring>> {
        let rings = slf.get()?.tx_rings().len();
        let port: Py<Port> = slf.into();
        Ok((0..rings).map(|number| Ring::new(&port, Direction::Tx, number)).collect())
    }

    /// The receive rings.
    #[getter]
    fn rx_rings(slf: PyRef<'_, Self>) -> PyResult<Vec<Ring>> {
        let rings = slf.get()?.rx_rings().len();
        let port: Py<Port> = slf.into();
        Ok((0..rings).map(|number| Ring::new(&port, Direction::Rx, number)).collect())
    }

    /// Sends one frame.
    #[pyo3(signature = (frame, timeout=None))]
    fn send(&self, py: Python<'_>, frame: PyBuffer<u8>, timeout: Option<f64>) -> PyResult<bool> {
        let mut frames = Frames::default();
        frames.push(&frame.to_vec(py)?);
        Ok(self.transmit(py, &frames, timeout)? == 1)
    }

    /// Sends frames; returns how many.
    #[pyo3(signature = (frames, timeout=None))]
    fn send_frames(&self, py: Python<'_>, frames: Vec<PyBuffer<u8>>, timeout: Option<f64>) -> PyResult<usize> {
        let bytes = frames.iter().map(|frame| frame.len_bytes()).sum();
        let mut copies = Frames::with_capacity(frames.len(), bytes);
        for frame in &frames {
            if copies.data.len() + frame.len_bytes() > u32::MAX as usize {
                return Err(PyValueError::new_err("a batch has at most 4 GiB"));
            }
            copies.push(&frame.to_vec(py)?);
        }
        self.transmit(py, &copies, timeout)
    }

    /// Sends the frames at these places of the data; returns how many.
    #[pyo3(signature = (data, offsets, lengths, timeout=None))]
    fn send_arrays(
        &self,
        py: Python<'_>,
        data: PyBuffer<u8>,
        offsets: PyBuffer<u32>,
        lengths: PyBuffer<u32>,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let [offsets, lengths] = [offsets.to_vec(py)?, lengths.to_vec(py)?];
        if offsets.len() != lengths.len() {
            return Err(PyValueError::new_err("there must be as many lengths as offsets"));
        }
        let frames = Frames { data: data.to_vec(py)?, offsets, lengths };
        let end = |(at, len): (&u32, &u32)| *at as usize + *len as usize;
        if frames.offsets.iter().zip(&frames.lengths).any(|place| end(place) > frames.data.len()) {
            return Err(PyValueError::new_err("a frame ends behind the data: offset and length are in bytes of it"));
        }
        self.transmit(py, &frames, timeout)
    }

    /// Receives one frame; `None` after the timeout.
    #[pyo3(signature = (timeout=None))]
    fn recv<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.receive(py, 1, timeout)?.map(|frames| PyBytes::new(py, &frames.data)))
    }

    /// Receives frames: their bytes, offsets and lengths.
    #[pyo3(signature = (max_frames, timeout=None))]
    fn recv_arrays(
        &self,
        py: Python<'_>,
        max_frames: usize,
        timeout: Option<f64>,
    ) -> PyResult<(Memory, Memory, Memory)> {
        if max_frames == 0 {
            return Err(PyValueError::new_err("max_frames is at least 1"));
        }
        let Frames { data, offsets, lengths } = self.receive(py, max_frames, timeout)?.unwrap_or_default();
        Ok((Memory::bytes(data), Memory::words(offsets), Memory::words(lengths)))
    }

    /// Syncs and waits; returns the directions that are ready, 0 after the timeout.
    #[pyo3(signature = (want=1, timeout=None))]
    fn poll(&self, py: Python<'_>, want: u8, timeout: Option<f64>) -> PyResult<u8> {
        let want = interest(want)?;
        let ready = self.until(py, timeout, |port, left| {
            let ready = port.poll(want, Some(left))?;
            Ok((!ready.is_none()).then_some(ready))
        })?;
        Ok(ready.map_or(0, flags))
    }

    /// Syncs without waiting; requests a wake-up if nothing is ready.
    fn arm(&self, py: Python<'_>, want: u8) -> PyResult<u8> {
        let (port, want) = (self.get()?, interest(want)?);
        py.detach(|| port.arm(want)).map(flags).map_err(os_error)
    }

    /// Returns the descriptors to wait for.
    fn wait_fds(&self, want: u8) -> PyResult<Vec<RawFd>> {
        Ok(self.get()?.wait_fds(interest(want)?).iter().map(AsRawFd::as_raw_fd).collect())
    }

    /// Sends the slots before `head` of all transmit rings, and frees completed ones.
    fn txsync(&self, py: Python<'_>) -> PyResult<()> {
        let port = self.get()?;
        py.detach(|| port.txsync()).map_err(os_error)
    }

    /// Releases the slots before `head` of all receive rings, and delivers what has arrived.
    fn rxsync(&self, py: Python<'_>) -> PyResult<()> {
        let port = self.get()?;
        py.detach(|| port.rxsync()).map_err(os_error)
    }
}
