# SPDX-License-Identifier: BSD-2-Clause
"""netmap ports in user space: pipes between programs, ports of VALE switches, network interfaces, monitors.

| ports | names |
|---|---|
| pipes between programs | ``netmap:NAME{1`` and ``netmap:NAME}1`` |
| ports of a VALE switch | ``vale0:NAME`` |
| interfaces | ``netmap:eth0``, host rings ``netmap:eth0^`` |
| monitors of another port | its name with ``/t``, ``/r`` or ``/rt`` |

A port sends and receives frames one by one (``send``, ``recv``), in batches (``send_batch``, ``recv_batch``), or has its
slots and their buffers written and read in place (``tx_rings``, ``rx_rings``). Lengths are in bytes, without the frame
check sequence; times are in seconds.

Errors are ``OSError`` with the ``errno`` that netmap has, and a text that names the port, what is wrong, and what to do.
Waits and copies run without the GIL. One thread at a time may use each direction of a port: a second one gets ``EBUSY``.
A child of ``os.fork`` may use the ports of its parent.
"""
from __future__ import annotations

import errno
import json
import os
import select
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from ._core import Memory, Ring, Slot
from ._core import Port as _Port
from ._core import snapshots as _snapshots

if TYPE_CHECKING:
    from collections.abc import Buffer  # Of Python 3.12; type checkers know it.

    import numpy
    import numpy.typing

__all__ = ["RX", "TX", "Batch", "Memory", "Port", "Ring", "Slot", "snapshots"]

#: Receiving: packets to read.
RX = 1
#: Transmitting: free slots to fill.
TX = 2

#: A descriptor that is always readable: in the set of a port that is ready.
_READABLE = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def snapshots() -> list[dict[str, Any]]:
    """Returns the state of this user's daemon, and of the system's as far as it concerns this user: ports, regions,
    clients. The list is empty if no daemon runs; none is started.
    """
    return [json.loads(text) for text in _snapshots()]


class Batch:
    """Frames that were received together, in order: one buffer, and where each frame is in it.

    ``batch[i]`` is frame ``i`` as a memoryview, without a copy. The arrays need numpy; all else does not. All of them
    refer to the same memory, which belongs to the batch alone: it may be changed, and sent by ``Port.send_batch``.
    """

    __slots__ = ("_data", "_lengths", "_offsets")

    def __init__(self, data: Memory, offsets: Memory, lengths: Memory) -> None:
        self._data, self._offsets, self._lengths = data, offsets, lengths

    @property
    def data(self) -> numpy.typing.NDArray[numpy.uint8]:
        """The bytes of all frames, one after the other. Shape ``(nbytes,)``, uint8."""
        import numpy

        # An array of no bytes cannot be made of a buffer.
        return numpy.frombuffer(self._data, numpy.uint8) if len(self._data) else numpy.empty(0, numpy.uint8)

    @property
    def offsets(self) -> numpy.typing.NDArray[numpy.uint32]:
        """Where each frame begins in ``data``, in bytes. Shape ``(len(batch),)``, uint32."""
        return _numbers(self._offsets)

    @property
    def lengths(self) -> numpy.typing.NDArray[numpy.uint32]:
        """Bytes of each frame. Shape ``(len(batch),)``, uint32."""
        return _numbers(self._lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of all frames."""
        return len(self._data)

    def __len__(self) -> int:
        """Number of frames."""
        return len(self._lengths) // 4

    def __getitem__(self, index: int) -> memoryview:
        """Frame ``index``, from the end if it is negative. Writable, no copy."""
        lengths = memoryview(self._lengths).cast("I")
        try:
            length, offset = lengths[index], memoryview(self._offsets).cast("I")[index]
        except IndexError:
            raise IndexError(f"a batch of {len(self)} frames has no frame {index}") from None
        return memoryview(self._data)[offset : offset + length]

    def __iter__(self) -> Iterator[memoryview]:
        data = memoryview(self._data)
        places = zip(memoryview(self._offsets).cast("I"), memoryview(self._lengths).cast("I"))
        return (data[offset : offset + length] for offset, length in places)

    def __repr__(self) -> str:
        return f"<unetmap.Batch: {len(self)} frames, {self.nbytes} bytes>"


class Port(_Port):
    """An open port. ``Port(name, tx_slots=N, rx_slots=N, tx_rings=N, rx_rings=N)``: sizes that are left out are the
    daemon's defaults; a port that exists keeps its own.

    It is closed by ``close``, at the end of a ``with`` block, or with its last reference. Its rings and slots then fail
    with ``EBADF``; memoryviews of buffers, and batches, remain valid.
    """

    _epoll: select.epoll | None = None
    _epoll_pid = 0
    #: Tasks that wait, by direction.
    _tasks: dict[int, Any] | None = None

    def __enter__(self) -> Port:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<unetmap.Port {self.spec!r}{', closed' if self.closed else ''}>"

    def close(self) -> None:
        """Closes the port; what was sent stays for the receiver. Tasks that wait for it wake up at once, and get
        ``EBADF``; threads within a quarter of a second. Closing twice is no error.
        """
        super().close()
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        for future in (self._tasks or {}).values():
            _wake(future)

    def recv_batch(self, max_frames: int = 512, timeout: float | None = None) -> Batch:
        """Receives the frames that have arrived, at most ``max_frames``, and waits for the first one for at most
        ``timeout`` seconds (``None``: no limit). The batch is empty after the timeout.

        Frames are copied, once. Their slots return to the sender when a later call finds none that it has not read.
        """
        return Batch(*self.recv_arrays(max_frames, timeout))

    def send_batch(
        self,
        frames: Batch | Buffer | Iterable[Buffer],
        offsets: Any = None,
        lengths: Any = None,
        timeout: float | None = None,
    ) -> int:
        """Sends frames in order, and waits for room for at most ``timeout`` seconds in all (``None``: no limit). Returns
        how many were sent: fewer than given after the timeout.

        Frames are a ``Batch``, an iterable of bytes-like objects, or three arrays: the bytes (uint8), and with them for
        each frame its offset and its length in bytes (uint32, shape ``(n,)`` both). ``EMSGSIZE`` if a frame is empty or
        longer than a slot; those before it were sent.
        """
        if isinstance(frames, Batch):
            return self.send_arrays(frames._data, _words(frames._offsets), _words(frames._lengths), timeout)
        if offsets is not None and lengths is not None:
            return self.send_arrays(cast("Buffer", frames), offsets, lengths, timeout)
        if offsets is not lengths:
            raise TypeError("offsets and lengths are given both, or not at all")
        return self.send_frames(list(cast("Iterable[Buffer]", frames)), timeout)

    def fileno(self) -> int:
        """Returns a descriptor for ``select``, ``selectors`` and event loops: readable when there may be packets to read.

        Each call syncs the port, and requests a wake-up if nothing has arrived: so it belongs before each wait, and after
        all that arrived was read. ``select.select([port], ...)`` calls it by itself.
        """
        if self._epoll is None or self._epoll_pid != os.getpid():
            # A set that a parent process uses, too, would show its readiness.
            self._epoll, self._epoll_pid = select.epoll(), os.getpid()
        ready = self.arm(RX)
        for fd in self.wait_fds(RX) + [_READABLE] * bool(ready):
            try:
                self._epoll.register(fd, select.EPOLLIN)
            except FileExistsError:
                pass
        if not ready:
            try:
                self._epoll.unregister(_READABLE)
            except FileNotFoundError:
                pass
        return self._epoll.fileno()

    async def ready(self, want: int = RX) -> int:
        """Waits in asyncio until a direction is ready (``RX``, ``TX``, or both joined by ``|``); returns which. One task
        at a time may wait for each direction. It is safe to cancel.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        if self._tasks is None:
            self._tasks = {}
        for direction in self._tasks:
            if direction & want:
                raise OSError(errno.EBUSY, f"{self.spec}: another task waits for this direction of the port")
        while not (ready := self.arm(want)):
            with select.epoll() as epoll:
                for fd in self.wait_fds(want):
                    epoll.register(fd, select.EPOLLIN)
                self._tasks[want] = future = loop.create_future()
                loop.add_reader(epoll.fileno(), _wake, future)
                try:
                    await future
                finally:
                    loop.remove_reader(epoll.fileno())
                    del self._tasks[want]
        return ready

    async def arecv_batch(self, max_frames: int = 512) -> Batch:
        """As ``recv_batch`` without a limit of time, for asyncio: other tasks run meanwhile."""
        while True:
            batch = self.recv_batch(max_frames, timeout=0)
            if len(batch):
                return batch
            await self.ready(RX)

    async def asend_batch(self, frames: Batch | Iterable[Buffer]) -> int:
        """As ``send_batch`` without a limit of time, for asyncio: other tasks run while there is no room."""
        frames = list(frames)
        sent = 0
        while sent < len(frames):
            sent += self.send_frames(frames[sent:], 0)
            if sent < len(frames):
                await self.ready(TX)
        return sent

    def __aiter__(self) -> Port:
        """``async for batch in port`` receives batches until the port is closed."""
        return self

    async def __anext__(self) -> Batch:
        try:
            return await self.arecv_batch()
        except OSError as error:
            if error.errno == errno.EBADF and self.closed:
                raise StopAsyncIteration from None
            raise


def _wake(future: Any) -> None:
    if not future.done():
        future.set_result(None)


def _words(memory: Memory) -> memoryview:
    return memoryview(memory).cast("I")


def _numbers(memory: Memory) -> numpy.typing.NDArray[numpy.uint32]:
    import numpy

    return numpy.frombuffer(memory, numpy.uint32) if len(memory) else numpy.empty(0, numpy.uint32)
