# SPDX-License-Identifier: BSD-2-Clause
# Copyright (c) 2026, the unetmap authors
"""Packets through a pipe, with what Python has: struct, fcntl, mmap and select.

    pipe.py DEVICE send NAME COUNT | pipe.py DEVICE receive NAME COUNT
"""
import ctypes
import fcntl
import mmap
import os
import select
import struct
import sys
import time

NIOCTXSYNC, NIOCRXSYNC, NIOCCTRL = 0x6994, 0x6995, 0xC0586997
REGISTER = struct.Struct("=QQIIHHHHHHIIQ")

device, what, name, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
send = what == "send"
fd = os.open(device, os.O_RDWR)
body = ctypes.create_string_buffer(REGISTER.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0), REGISTER.size)
header = bytearray(struct.pack("=HHI64sQQ", 14, 1, 0, name.encode(), 0, ctypes.addressof(body)))
fcntl.ioctl(fd, NIOCCTRL, header)
offset, memsize = REGISTER.unpack(body.raw)[:2]
mem = mmap.mmap(fd, memsize)
words = memoryview(mem).cast("I")

# The offsets of rings: one transmit ring, its host ring, one receive ring.
ring = offset + struct.unpack_from("=q", mem, offset + 56 + (0 if send else 16))[0]
buffers = ring + struct.unpack_from("=q", mem, ring)[0]
slots, size = struct.unpack_from("=II", mem, ring + 8)
HEAD, CUR, TAIL = (ring + 20) // 4, (ring + 24) // 4, (ring + 28) // 4

poller = select.poll()
poller.register(fd, select.POLLOUT if send else select.POLLIN)
done = 0
while done < count:
    # By turns: poll, select and epoll.
    if done % 3 == 0:
        assert poller.poll(10000) == [(fd, select.POLLOUT if send else select.POLLIN)]
    elif done % 3 == 1:
        ready = select.select([] if send else [fd], [fd] if send else [], [], 10)
        assert ready == ([], [fd], []) if send else ready == ([fd], [], [])
    else:
        with select.epoll() as set_:
            set_.register(fd, select.EPOLLOUT if send else select.EPOLLIN)
            assert set_.poll(10) == [(fd, select.EPOLLOUT if send else select.EPOLLIN)]
    while words[HEAD] != words[TAIL] and done < count:
        head = words[HEAD]
        slot = ring + 256 + 16 * head
        packet = buffers + size * words[slot // 4]
        if send:
            struct.pack_into("=Q", mem, packet, done)
            words[slot // 4 + 1] = 60
        else:
            got = (struct.unpack_from("=Q", mem, packet)[0], words[slot // 4 + 1] & 0xFFFF)
            assert got == (done, 60), f"packet {done} is {got} in slot {head} (cur {words[CUR]}, tail {words[TAIL]})"
        words[HEAD] = words[CUR] = (head + 1) % slots
        done += 1
while send and (words[TAIL] + 1) % slots != words[HEAD]:
    fcntl.ioctl(fd, NIOCTXSYNC)
    time.sleep(0.001)
if not send:
    fcntl.ioctl(fd, NIOCRXSYNC)
os.close(fd)
print(done)
