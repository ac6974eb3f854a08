# SPDX-License-Identifier: BSD-2-Clause
"""The package `unetmap`, with a daemon: python3 -m unittest discover -s python/tests, where the wheel is installed."""
import ast
import asyncio
import errno
import gc
import os
import pathlib
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
import unittest

import numpy
import unetmap
from unetmap import RX, TX, Port, _core

#: Seconds after which what must come has not.
LIMIT = 60


def pipe(name, **options):
    return Port(f"netmap:{name}{{1", **options), Port(f"netmap:{name}}}1")


class Case(unittest.TestCase):
    def refuses(self, number, call, *args):
        """An OSError with this errno, whose text is a sentence about the port."""
        with self.assertRaises(OSError) as raised:
            call(*args)
        self.assertEqual(raised.exception.errno, number, raised.exception)
        self.assertRegex(raised.exception.strerror, r"^\S+: .*")
        return raised.exception.strerror


class Frames(Case):
    def test_frames_pass_through_pipes_and_switches(self):
        for one, other in [("netmap:f{1", "netmap:f}1"), ("vale3:a", "vale3:b")]:
            with Port(one) as a, Port(other) as b:
                # A switch learns nothing from what it floods, and sends it to all others.
                self.assertTrue(a.send(b"\xff" * 6 + b"\x02\0\0\0\0\1" + bytes(48), timeout=LIMIT))
                self.assertEqual(b.recv(timeout=LIMIT), b"\xff" * 6 + b"\x02\0\0\0\0\1" + bytes(48))
                self.assertIsNone(b.recv(timeout=0))
                self.assertEqual(str(a), f"<unetmap.Port {one!r}>")
            self.assertTrue(a.closed and b.closed)

    def test_a_batch_is_arrays_of_what_was_sent(self):
        with pipe("b")[0] as a, Port("netmap:b}1") as b:
            frames = [bytes([n]) * (60 + n) for n in range(200)]
            self.assertEqual(a.send_batch(frames, timeout=LIMIT), 200)
            batch = b.recv_batch(max_frames=150, timeout=LIMIT)
            self.assertEqual((len(batch), batch.nbytes), (150, sum(map(len, frames[:150]))))
            self.assertEqual((batch.data.dtype, batch.offsets.dtype, batch.lengths.dtype), ("u1", "u4", "u4"))
            self.assertEqual(batch.lengths.tolist(), [len(frame) for frame in frames[:150]])
            self.assertEqual(batch.offsets.tolist(), [0, *numpy.cumsum(batch.lengths)[:-1].tolist()])
            self.assertEqual(batch.data.tobytes(), b"".join(frames[:150]))
            self.assertEqual([bytes(frame) for frame in batch], frames[:150])
            self.assertEqual((bytes(batch[7]), bytes(batch[-1])), (frames[7], frames[149]))
            for index in (150, -151):
                self.assertRaises(IndexError, batch.__getitem__, index)
            # All views are of one memory, which the batch's end does not take from them.
            batch.data[batch.offsets[7]] = 0xAA
            self.assertEqual(batch[7][0], 0xAA)
            data, frame = batch.data, batch[9]
            del batch
            gc.collect()
            self.assertEqual((bytes(frame), data.sum(dtype="u8") > 0), (frames[9], True))

            rest = b.recv_batch(timeout=LIMIT)
            self.assertEqual([bytes(frame) for frame in rest], frames[150:])
            # A batch is sent as it is, and by its arrays in another order.
            self.assertEqual(b.send_batch(rest, timeout=LIMIT), 50)
            self.assertEqual([bytes(frame) for frame in a.recv_batch(timeout=LIMIT)], frames[150:])
            sent = b.send_batch(rest.data, rest.offsets[::-1].copy(), rest.lengths[::-1].copy(), timeout=LIMIT)
            self.assertEqual((sent, [bytes(f) for f in a.recv_batch(timeout=LIMIT)]), (50, frames[:149:-1]))
            none = a.recv_batch(timeout=0)
            self.assertEqual((len(none), none.data.size, none.lengths.size, list(none)), (0, 0, 0, []))
            self.assertEqual(b.send_batch(none, timeout=0), 0)

    def test_frames_that_no_slot_holds_are_refused_and_those_before_them_sent(self):
        with pipe("m")[0] as a, Port("netmap:m}1") as b:
            for bad in (b"", bytes(a.buf_size + 1)):
                self.assertIn("a frame must have", self.refuses(errno.EMSGSIZE, a.send_batch, [b"x" * 60, bad, b"y" * 60]))
                self.assertEqual(b.recv(timeout=LIMIT), b"x" * 60)
            self.assertIsNone(b.recv(timeout=0))
            data, words = numpy.zeros(100, "u1"), lambda *values: numpy.array(values, "u4")
            self.assertRaises(ValueError, a.send_batch, data, words(41), words(60))
            self.assertRaises(ValueError, a.send_batch, data, words(0xFFFFFFFF), words(0xFFFFFFFF))
            self.assertRaises(ValueError, a.send_batch, data, words(0, 40), words(60))
            self.assertRaises(TypeError, a.send_batch, data, words(0))
            self.assertRaises(BufferError, a.send_batch, data, words(0).astype("u8"), words(60))
            self.assertRaises(TypeError, a.send_batch, ["no bytes"])
            self.assertRaises(ValueError, a.recv_batch, 0)
            self.assertIsNone(b.recv(timeout=0))

    def test_a_full_ring_ends_a_send_at_its_timeout(self):
        with pipe("t", tx_slots=64)[0] as a:
            slots = len(a.tx_rings[0])
            sent = a.send_batch([bytes(60)] * (4 * slots), timeout=0)
            self.assertTrue(0 < sent < 4 * slots, sent)
            self.assertFalse(a.send(bytes(60), timeout=0.01))
            self.assertEqual(a.poll(TX, timeout=0.01), 0)

    def test_wrong_arguments_are_refused(self):
        self.refuses(errno.EINVAL, Port, "netmap:")
        self.assertIn("nosuchport", self.refuses(errno.ENXIO, Port, "netmap:nosuchport"))
        with pipe("w")[0] as a:
            for timeout in (-1, float("nan")):
                self.assertRaises(ValueError, a.recv, timeout)
            for want in (0, 4):
                self.assertRaises(ValueError, a.poll, want, 0)
                self.assertRaises(ValueError, a.arm, want)

    def test_frames_need_no_numpy(self):
        text = """if True:
            import sys
            sys.modules["numpy"] = None
            import unetmap
            with unetmap.Port("netmap:n{1") as a, unetmap.Port("netmap:n}1") as b:
                a.send_batch([bytes(60), bytes(61)])
                batch = b.recv_batch()
                assert [len(frame) for frame in batch] == [60, 61] and b.send_batch(batch) == 2
                try:
                    batch.lengths
                except ImportError:
                    print("right")
        """
        done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT)
        self.assertEqual(done.stdout, "right\n")

    def test_the_snapshot_has_the_ports(self):
        with pipe("s")[0]:
            self.assertIn("s{1", str(unetmap.snapshots()))


class Rings(Case):
    def test_slots_are_written_and_read_in_place(self):
        with pipe("r")[0] as a, Port("netmap:r}1") as b:
            ring = a.tx_rings[0]
            head, slots = ring.head, ring.available()
            self.assertEqual((len(slots), slots[0].index), (ring.space, head))
            for n, slot in enumerate(slots[:3]):
                slot.buffer[:60] = bytes([n]) * 60
                slot.length, slot.flags = 60, 0
            self.assertEqual((ring.advance(3), ring.head), (3, (head + 3) % len(ring)))
            a.txsync()
            self.assertEqual(b.poll(RX, LIMIT), RX)
            received = b.rx_rings[0]
            for n, slot in enumerate(received.available()):
                frame = numpy.frombuffer(slot.buffer, "u1", slot.length)
                self.assertEqual((frame.size, set(frame.tolist())), (60, {n}))
            self.assertEqual(received.advance(100), 3)
            b.rxsync()
            self.assertEqual((received.space, received.bad_slots, received.id), (0, 0, 0))

    def test_an_index_out_of_range_is_an_error(self):
        with pipe("i")[0] as a:
            ring = a.tx_rings[0]
            for index in (-1, len(ring), 2**31, 2**40, -(2**40)):
                self.assertRaises(IndexError, ring.__getitem__, index)
            self.assertEqual([slot.index for slot in ring], list(range(len(ring))))
            buffer = ring[0].buffer
            self.assertEqual(len(buffer), a.buf_size)
            self.assertRaises(IndexError, buffer.__getitem__, a.buf_size)
            for length in (-1, 2**16):
                self.assertRaises(OverflowError, setattr, ring[0], "length", length)
            self.refuses(errno.EMSGSIZE, setattr, ring[0], "length", ring.slot_size + 1)
            self.assertRaises(OverflowError, ring.advance, -1)

    def test_a_view_outlives_its_port_and_all_else(self):
        a, b = pipe("o")
        slot = a.tx_rings[0][0]
        view, array = slot.buffer, numpy.frombuffer(slot.buffer, "u1")
        view[0] = 1
        a.close(), b.close()
        self.refuses(errno.EBADF, lambda: slot.buffer)
        del a, b, slot
        gc.collect()
        # Another port may have this memory by now; it is there all the same.
        for other in range(20):
            Port(f"netmap:o{other}{{1").close()
            view[:] = bytes([other]) * len(view)
            self.assertEqual(array.size, len(view))
            array[-1] = other
        view.release()
        self.assertRaises(ValueError, view.__getitem__, 0)
        self.assertEqual(array.max() >= 0, True)

    def test_buffers_are_exchanged_within_a_region_only(self):
        with pipe("x")[0] as source, Port("netmap:x}1") as taken, Port("netmap:y}1") as other:
            source.send(b"\x07" * 60)
            self.assertEqual(taken.poll(RX, LIMIT), RX)
            received = taken.rx_rings[0]
            from_slot = received[received.head]
            self.assertIn("region", self.refuses(errno.EINVAL, other.tx_rings[0][0].swap_from, from_slot))
            with Port(f"netmap:z{{1@{taken.mem_id}") as to, Port("netmap:z}1") as end:
                self.assertTrue(taken.same_region(to) and not taken.same_region(other))
                ring = to.tx_rings[0]
                ring[ring.head].swap_from(from_slot)
                ring.advance(1), received.advance(1)
                to.txsync()
                self.assertEqual(end.recv(LIMIT), b"\x07" * 60)

    def test_all_of_a_closed_port_says_so(self):
        with pipe("c")[0] as a:
            ring = a.tx_rings[0]
            slot = ring[0]
        a.close()
        calls = [
            lambda: a.send(bytes(60)), lambda: a.recv(), lambda: a.send_batch([bytes(60)]), lambda: a.recv_batch(),
            lambda: a.poll(), lambda: a.arm(RX), lambda: a.wait_fds(RX), a.txsync, a.rxsync, a.fileno,
            lambda: a.buf_size, lambda: a.mem_id, lambda: a.tx_rings, lambda: a.rx_rings, lambda: a.same_region(a),
            lambda: len(ring), lambda: ring.head, lambda: ring.tail, lambda: ring.space, lambda: ring[0],
            ring.available, lambda: ring.advance(1), lambda: slot.length, lambda: setattr(slot, "length", 1),
            lambda: slot.flags, lambda: slot.buffer, lambda: slot.swap_from(slot),
        ]
        for call in calls:
            self.assertIn("the port is closed (open it again)", self.refuses(errno.EBADF, call))
        self.assertEqual((repr(a), a.spec, slot.index), ("<unetmap.Port 'netmap:c{1', closed>", "netmap:c{1", 0))


class Threads(Case):
    def receive(self, port, results):
        """Receives a frame in a thread; returns when that has the direction, which it keeps until the frame has come."""

        def run():
            try:
                results.append(port.recv())
            except OSError as error:
                results.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        ring = port.rx_rings[0]
        # This takes the direction, too, but not while another thread of Python runs: the thread is never refused.
        with self.assertRaises(OSError) as raised:
            while True:
                ring.advance(0)
                time.sleep(0.001)
        self.assertEqual(raised.exception.errno, errno.EBUSY)
        return thread

    def test_one_thread_waits_in_each_direction_and_others_run(self):
        results = []
        with pipe("g")[0] as a, Port("netmap:g}1") as b:
            thread = self.receive(b, results)
            self.assertIn("another thread", self.refuses(errno.EBUSY, b.recv_batch))
            self.refuses(errno.EBUSY, b.rx_rings[0].advance, 1)
            # The other direction is free, and so is the GIL.
            self.assertTrue(b.send(b"\1" * 60, timeout=LIMIT))
            self.assertEqual(a.recv(timeout=LIMIT), b"\1" * 60)
            self.assertEqual(results, [])
            a.send(b"\2" * 60)
            thread.join(LIMIT)
            self.assertEqual(results, [b"\2" * 60])

    def test_close_ends_the_wait_of_a_thread(self):
        results = []
        b = pipe("k")[1]
        thread = self.receive(b, results)
        b.close()
        thread.join(LIMIT)
        self.assertEqual([error.errno for error in results], [errno.EBADF])

    def test_two_threads_lose_nothing(self):
        count, got = 20000, []
        with pipe("l")[0] as a, Port("netmap:l}1") as b:

            def send():
                for first in range(0, count, 100):
                    a.send_batch([n.to_bytes(4, "big") + bytes(56) for n in range(first, first + 100)])

            thread = threading.Thread(target=send)
            thread.start()
            while len(got) < count:
                batch = b.recv_batch(timeout=LIMIT)
                self.assertGreater(len(batch), 0)
                got += [int.from_bytes(frame[:4], "big") for frame in batch]
            thread.join(LIMIT)
        self.assertEqual(got, list(range(count)))

    def test_a_signal_ends_a_wait(self):
        class Rung(Exception):
            pass

        def ring(*_):
            raise Rung

        old = signal.signal(signal.SIGALRM, ring)
        try:
            with pipe("q")[0] as a:
                with self.assertRaises(Rung):
                    signal.setitimer(signal.ITIMER_REAL, 0.02)
                    a.recv()
                # The direction is free again.
                self.assertIsNone(a.recv(timeout=0))
        finally:
            signal.signal(signal.SIGALRM, old)

    def test_a_forked_child_uses_the_ports_also_if_a_thread_had_them(self):
        results = []
        with pipe("h")[0] as a, Port("netmap:h}1") as b:
            b.send(b"\1" * 60)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    status = 0 if a.recv(LIMIT) == b"\1" * 60 and a.send(b"\2" * 60, LIMIT) else 2
                finally:
                    os._exit(status)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual(b.recv(timeout=LIMIT), b"\2" * 60)

            thread = self.receive(b, results)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    # The thread, which is not in this process, had the direction. The parent's may take the frame.
                    b.recv(timeout=0)
                    b.fileno()
                    status = 0
                finally:
                    os._exit(status)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            # The child's end closed nothing.
            a.send(b"\3" * 60)
            thread.join(LIMIT)
            self.assertEqual(results, [b"\3" * 60])


class Events(Case):
    def test_select_and_selectors_wait_for_a_port(self):
        with pipe("e")[0] as a, Port("netmap:e}1") as b:
            self.assertEqual(select.select([b], [], [], 0), ([], [], []))
            a.send(bytes(60))
            self.assertEqual(select.select([b], [], [], LIMIT), ([b], [], []))
            # It is readable until all was read.
            self.assertEqual(select.select([b], [], [], LIMIT), ([b], [], []))
            self.assertEqual(len(b.recv_batch(timeout=0)), 1)
            self.assertEqual(select.select([b], [], [], 0), ([], [], []))

            with selectors.DefaultSelector() as selector:
                selector.register(b, selectors.EVENT_READ)
                a.send(bytes(60))
                self.assertEqual(len(selector.select(LIMIT)), 1)
                self.assertEqual(b.recv(timeout=0), bytes(60))

    def test_asyncio_receives_batches_until_the_port_closes(self):
        async def main():
            a, b = pipe("a", tx_slots=64)
            got = []

            async def receive():
                async for batch in b:
                    got.extend(bytes(frame) for frame in batch)
                    if len(got) == 1000:
                        b.close()

            task = asyncio.create_task(receive())
            frames = [n.to_bytes(2, "big") + bytes(58) for n in range(1000)]
            # More than the rings hold, so the sender waits, too.
            sent = await asyncio.wait_for(a.asend_batch(frames), LIMIT)
            await asyncio.wait_for(task, LIMIT)
            self.assertEqual((sent, got == frames), (1000, True))
            a.close()

        asyncio.run(main())

    def test_asyncio_waits_can_be_cancelled_and_refused(self):
        async def main():
            a, b = pipe("u")
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(b.arecv_batch(), 0.01)
            task = asyncio.create_task(b.arecv_batch())
            while not b._tasks:
                await asyncio.sleep(0)
            with self.assertRaises(OSError) as raised:
                await b.ready(RX)
            self.assertEqual(raised.exception.errno, errno.EBUSY)
            self.assertEqual(await b.ready(TX), TX)
            a.send(bytes(60))
            self.assertEqual(len(await asyncio.wait_for(task, LIMIT)), 1)
            # A port that closes ends the wait.
            task = asyncio.create_task(b.arecv_batch())
            while not b._tasks:
                await asyncio.sleep(0)
            b.close()
            with self.assertRaises(OSError) as raised:
                await asyncio.wait_for(task, LIMIT)
            self.assertEqual(raised.exception.errno, errno.EBADF)
            a.close()

        asyncio.run(main())


class Package(Case):
    def test_the_stubs_name_all_that_there_is(self):
        folder = pathlib.Path(unetmap.__file__).parent
        self.assertTrue((folder / "py.typed").exists())
        classes = {}
        for node in ast.parse((folder / "_core.pyi").read_text()).body:
            if isinstance(node, ast.ClassDef):
                names = {n.target.id if isinstance(n, ast.AnnAssign) else getattr(n, "name", "") for n in node.body}
                classes[node.name] = {name for name in names if name and not name.startswith("_")}
        for name, members in classes.items():
            there = {member for member in vars(getattr(_core, name)) if not member.startswith("_")}
            self.assertEqual(there, members, name)
        self.assertEqual(set(classes), {name for name, v in vars(_core).items() if isinstance(v, type)})

    def test_all_that_is_public_has_a_docstring(self):
        for name in ("Batch", "Port", "snapshots"):
            self.assertTrue(getattr(unetmap, name).__doc__, name)
        for owner in (unetmap.Port, unetmap.Batch):
            for name, member in vars(owner).items():
                if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                    self.assertTrue(member.__doc__, name)


if __name__ == "__main__":
    unittest.main()
