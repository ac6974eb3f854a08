# SPDX-License-Identifier: BSD-2-Clause
"""xdp-filter, of Debian's xdp-tools, on the interface of a port: loaded before and after the port is opened."""

from pathlib import Path

from net import FAR, Failed, PacketSocket, attached_program, frame, is_returned, run, until

# Where libxdp and the daemon pin the programs of dispatchers.
PINS = Path("/sys/fs/bpf/xdp")
# The sender whose frames xdp-filter drops.
DROPPED = "02:00:00:00:99:99"
FRAMES = 32


def load(device):
    run(["xdp-filter", "load", "-m", "native", device.name])
    run(["xdp-filter", "ether", "-m", "src", DROPPED])
    device.wait()


def unload(device):
    run(["xdp-filter", "unload", device.name])
    device.wait()


def send(receiver, first, filtered):
    """Sends frames of both senders, and waits for those that arrive. Returns these."""
    device, before = receiver.device, receiver.packets()
    dropped = [frame(device.mac(), DROPPED, first + i) for i in range(FRAMES)]
    passed = [frame(device.mac(), device.peer_mac(), first + FRAMES + i) for i in range(FRAMES)]
    wanted = passed if filtered else dropped + passed
    far = PacketSocket(device.peer, FAR)
    far.send(dropped + passed)
    far.close()
    until(lambda: receiver.packets() - before >= len(wanted), "frames that xdp-filter passes arrive")
    return wanted


def compare(receiver, wanted, when):
    got = sorted(data[:60] for _, data in receiver.finish())
    if got != sorted(wanted):
        raise Failed(f"xdp-filter loaded {when}: {len(got)} frames instead of {len(wanted)}, or others")


def xdp_filter(device, open_receiver):
    """Both programs work, in either order, and none is left."""
    load(device)
    receiver = open_receiver(device)
    device.wait()
    if "unetmap" not in run(["xdp-loader", "status", device.name]):
        raise Failed("the port's program is not in the dispatcher")
    compare(receiver, send(receiver, 60000, True), "first")
    until(lambda: "unetmap" not in run(["xdp-loader", "status", device.name], check=False), "the port's program leaves")
    if attached_program(device.name) is None:
        raise Failed("the port has taken xdp-filter with it")
    unload(device)
    until(lambda: is_returned(device.name), "nothing is attached")

    receiver = open_receiver(device)
    device.wait()
    wanted = send(receiver, 61000, False)
    load(device)
    wanted += send(receiver, 62000, True)
    unload(device)
    wanted += send(receiver, 63000, False)
    compare(receiver, wanted, "last")
    until(lambda: is_returned(device.name), "nothing is attached")
    until(lambda: not list(PINS.glob("dispatch-*")), "nothing is pinned")
    # The ports of other checks are attached directly, as on a machine without other XDP programs.
    PINS.rmdir()
