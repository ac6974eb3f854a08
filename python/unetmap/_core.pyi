# SPDX-License-Identifier: BSD-2-Clause
"""The extension module. Programs use the package ``unetmap``."""
from collections.abc import Buffer, Iterator
from typing import Self

def snapshots() -> list[str]: ...

class Memory:
    """Memory that memoryviews and arrays refer to, by the buffer protocol. It stays as long as one of them lives."""

    def __len__(self) -> int:
        """Bytes."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Port:
    def __new__(
        cls,
        spec: str,
        *,
        tx_slots: int | None = None,
        rx_slots: int | None = None,
        tx_rings: int | None = None,
        rx_rings: int | None = None,
    ) -> Self: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool:
        """Whether the port was closed."""
    @property
    def spec(self) -> str:
        """The name that the port was opened with."""
    @property
    def buf_size(self) -> int:
        """Bytes of each buffer."""
    @property
    def mem_id(self) -> int:
        """Number of the region of memory: another port is opened in it by ``@NUMBER`` behind its name."""
    def same_region(self, other: Port) -> bool:
        """Whether slots of the two ports can exchange their buffers (``Slot.swap_from``)."""
    @property
    def tx_rings(self) -> list[Ring]:
        """The transmit rings."""
    @property
    def rx_rings(self) -> list[Ring]:
        """The receive rings."""
    def send(self, frame: Buffer, timeout: float | None = None) -> bool:
        """Sends one frame; waits for room for at most ``timeout`` seconds (``None``: no limit). False after the timeout."""
    def recv(self, timeout: float | None = None) -> bytes | None:
        """Receives one frame; waits for at most ``timeout`` seconds (``None``: no limit). ``None`` after the timeout."""
    def send_frames(self, frames: list[Buffer], timeout: float | None = None) -> int: ...
    def send_arrays(self, data: Buffer, offsets: Buffer, lengths: Buffer, timeout: float | None = None) -> int: ...
    def recv_arrays(self, max_frames: int, timeout: float | None = None) -> tuple[Memory, Memory, Memory]: ...
    def poll(self, want: int = 1, timeout: float | None = None) -> int:
        """Syncs all rings, and waits for at most ``timeout`` seconds (``None``: no limit) until a direction is ready
        (``RX``, ``TX``, or both joined by ``|``). Returns which; 0 after the timeout. Slots before ``head`` are sent also
        if only ``RX`` is wanted.
        """
    def arm(self, want: int) -> int:
        """For event loops: syncs, and returns what is ready. If nothing is, a descriptor of ``wait_fds`` becomes readable
        when the port may be ready; then call ``arm`` again.
        """
    def wait_fds(self, want: int) -> list[int]:
        """The descriptors to wait for after ``arm`` has returned 0. They are the port's, and close with it."""
    def txsync(self) -> None:
        """Sends the slots before ``head`` of all transmit rings, and frees completed ones. Never waits."""
    def rxsync(self) -> None:
        """Releases the slots before ``head`` of all receive rings, and delivers what has arrived. Never waits."""

class Ring:
    """A ring: the slots from ``head`` to ``tail`` are the program's, free ones to fill or received ones to read."""

    def __len__(self) -> int:
        """Number of slots; the program has at most one less."""
    @property
    def id(self) -> int:
        """Number of the ring within its direction, from 0."""
    @property
    def head(self) -> int:
        """Index of the first of the program's slots."""
    @property
    def tail(self) -> int:
        """Index behind the last of the program's slots."""
    @property
    def space(self) -> int:
        """How many slots the program has."""
    @property
    def slot_size(self) -> int:
        """Most bytes of a packet in a slot."""
    @property
    def bad_slots(self) -> int:
        """How many slots were not sent, or delivered empty, as they were invalid: since the ring was made."""
    def __getitem__(self, index: int) -> Slot:
        """Slot ``index``, 0 to ``len(ring) - 1``."""
    def __iter__(self) -> Iterator[Slot]: ...
    def available(self) -> list[Slot]:
        """The program's slots, from ``head`` to ``tail``, as of this call."""
    def advance(self, slots: int) -> int:
        """Moves ``head`` by ``slots``, at most to ``tail``, and returns by how many. The next sync or poll sends or
        releases these slots; their buffers are not the program's any more.
        """

class Slot:
    """A slot of a ring, in shared memory."""

    @property
    def index(self) -> int:
        """Number of the slot in its ring."""
    length: int
    """Bytes of packet in the buffer."""
    flags: int
    """netmap's flags of slots (``NS_*``)."""
    @property
    def buffer(self) -> memoryview:
        """The slot's whole buffer, without a copy: the first ``length`` bytes are the packet's. Other processes may write
        it. It stays mapped as long as the view lives, but belongs to the program until the slot is sent or released.
        """
    def swap_from(self, other: Slot) -> None:
        """Moves a packet without copying: exchanges the buffers of the two slots, and takes length and flags of ``other``.
        ``EINVAL`` if their ports are in different regions.
        """
