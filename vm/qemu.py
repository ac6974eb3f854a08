# SPDX-License-Identifier: BSD-2-Clause
"""Boots QEMU guests with stock Debian kernels. The trees and kernels are those of vm/prepare."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.append(str(PROJECT / ".ci"))
from faults import told  # noqa: E402, F401: for the scripts of this folder

CACHE = Path(os.environ.get("VM_CACHE", Path.home() / ".cache/unetmap-vm"))
NOT_FINISHED = 125
# MiB that a guest has.
MEMORY = 1536
# The kernel of another processor: Debian 13's, with programs that were built for it.
ARM64 = "arm64"
ARM64_TARGET = "aarch64-unknown-linux-gnu"
# A guest's clock runs with its instructions, 2 ns each: a busy host slows guests down, and no time limit in them
# expires because of that. One thread for all processors, which QEMU requires then; two guests run at a time.
EMULATION = ["-accel", "tcg,thread=single", "-icount", "shift=1"]
# Seconds in which KVM boots a guest; where it does not work a guest stands still.
KVM_TIMEOUT = 30
# Seconds between two looks for a guest's requests to QEMU.
MONITOR_POLL = 0.1
# Seconds between two looks whether a guest has had its time.
TIME_POLL = 1


def build_folder(kernel):
    target = Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target"))
    built = target / ARM64_TARGET / "debug" if kernel == ARM64 else target / "debug"
    return Path(os.environ.get("VM_BUILD", built)).resolve()


def tree(kernel):
    return CACHE / ("tree-arm64" if kernel == ARM64 else "tree")


def qemu_program():
    """QEMU of the tree, with the tree's loader and libraries: the machine's own may lack devices."""
    usr = CACHE / "tree/usr"
    libraries = usr / "lib/x86_64-linux-gnu"
    return [
        str(CACHE / "tree/lib64/ld-linux-x86-64.so.2"), "--library-path", f"{libraries}:{libraries}/pulseaudio",
        str(usr / "bin/qemu-system-x86_64"), "-L", str(usr / "share/seabios"), "-L", str(usr / "share/qemu"),
    ]  # fmt: skip


def machine(kernel):
    """QEMU's program and machine for a kernel, and what the kernel is told of its console and its clock."""
    if kernel == ARM64:
        # The machine's own. Pointer authentication as the processor defines it is slow to emulate.
        return ["qemu-system-aarch64", "-M", "virt", *EMULATION, "-cpu", "max,pauth-impdef=on"], "ttyAMA0"
    accelerate, clock = acceleration()
    return [*qemu_program(), "-M", "q35", *accelerate], f"ttyS0{clock}"


def acceleration():
    """KVM where VM_ACCEL or an earlier `probe_kvm` says so: in nested machines it may exist but boot no kernel."""
    probed = CACHE / "accelerator"
    if os.environ.get("VM_ACCEL", probed.read_text() if probed.exists() else "tcg") == "kvm":
        return ["-accel", "kvm", "-cpu", "host"], ""
    # The timer test fails here, and the TSC runs wild.
    return [*EMULATION, "-cpu", "max"], " no_timer_check tsc=unstable clocksource=acpi_pm"


def typed(value):
    """A value of an option, as QEMU's machine protocol wants it."""
    return {"on": True, "off": False}.get(value, int(value) if value.isdigit() else value)


def devices(specifications):
    """The cards: (hub, device as QEMU's device_add takes it, backend, queues, NUMA node). Each has a root port of its
    own, which igb needs."""
    cards = []
    for hub, specification in enumerate(specifications, start=1):
        model, _, rest = specification.partition(",")
        parts = rest.split(",") if rest else []
        queues = parts.pop(0) if parts and parts[0].isdigit() else None
        backend = next((p[len("backend=") :].replace(";", ",") for p in parts if p.startswith("backend=")), None)
        more = dict(part.split("=", 1) for part in parts if not part.startswith("backend="))
        node = more.pop("node", None)
        if queues and model.startswith("virtio"):
            more |= {"mq": "on", "vectors": str(2 * int(queues) + 2)}
        for _ in range(2 if model.endswith("x2") else 1):
            number = len(cards) + 1
            device = {
                "driver": model.removesuffix("x2"), "id": f"nic{number}", "netdev": f"net{number}",
                "bus": f"port{number}", "mac": f"02:00:00:00:00:{number:02x}", "romfile": "",
                **{name: typed(value) for name, value in more.items()},
            }  # fmt: skip
            cards.append((hub, device, backend, queues, node))
    return cards


def nic_options(specifications):
    """QEMU's options for the devices, and the taps with their bridges: a hub has one queue, a tap several."""
    cards = devices(specifications)
    options, taps = [], []
    for node in sorted({node for *_, node in cards if node}):
        options += ["-device", f"pxb-pcie,id=node{node},bus_nr={128 + int(node)},bus=pcie.0,numa_node={node}"]
    for number, (hub, device, backend, queues, node) in enumerate(cards, start=1):
        bus = f"node{node}" if node else "pcie.0"
        options += ["-device", f"pcie-root-port,id=port{number},bus={bus},chassis={number},slot={number}"]
        if queues and not backend:
            taps.append((f"tap{number}", f"br{hub}"))
            backend = f"tap,ifname=tap{number},script=no,downscript=no,vhost=off,queues={queues}"
        kind, _, settings = (backend or f"hubport,hubid={hub}").partition(",")
        options += ["-netdev", f"{kind},id=net{number},{settings}", "-device", json.dumps(device)]
    return options, taps


def with_taps(taps, command):
    """The command in a network namespace of its own, which has the taps."""
    if not taps:
        return command
    lines = ["set -e"]
    for bridge in sorted({bridge for _, bridge in taps}):
        lines.append(f"ip link add {bridge} type bridge ageing_time 0 mcast_snooping 0 && ip link set {bridge} up")
    for tap, bridge in taps:
        lines.append(
            f"ip tuntap add {tap} mode tap multi_queue && ip link set {tap} txqueuelen 10000 master {bridge} up"
        )
    user = [] if os.getuid() == 0 else ["--map-root-user"]
    return [
        "unshare",
        *user,
        "--net",
        "sh",
        "-c",
        "; ".join(["sysctl -qw net.ipv6.conf.default.disable_ipv6=1", *lines, 'exec "$@"']),
        "sh",
        *command,
    ]


def share(tag, path, readonly=True):
    mode = ",readonly=on" if readonly else ""
    return [
        "-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{mode}",
        "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}",
    ]  # fmt: skip


def nodes(memory):
    """Two NUMA nodes with a processor and half of the memory (MiB) each."""
    options = []
    for node in (0, 1):
        options += ["-object", f"memory-backend-ram,id=memory{node},size={memory // 2}M"]
        options += ["-numa", f"node,nodeid={node},cpus={node},memdev=memory{node}"]
    return options


class Monitor:
    """Lets a guest unplug and plug its cards: it writes `request-N.json` into the results folder, one command of QEMU's
    machine protocol, and reads the answer from `answer-N.json`."""

    def __init__(self, results):
        self.results, self.ended = results, threading.Event()
        self.ours, self.theirs = socket.socketpair()
        self.thread = threading.Thread(target=self._serve)

    def options(self):
        return ["-chardev", f"socket,id=monitor,fd={self.theirs.fileno()}", "-mon", "chardev=monitor,mode=control"]

    def start(self):
        self.theirs.close()
        for left in self.results.glob("request-*.json"):
            left.unlink()
        self.lines = self.ours.makefile("r")
        self.thread.start()

    def stop(self):
        """Once QEMU has ended."""
        self.ended.set()
        self.thread.join()
        self.ours.close()

    def _ask(self, request):
        """The answer to a command; events that come before it are passed over."""
        self.ours.sendall(json.dumps(request).encode() + b"\n")
        for line in self.lines:
            answer = json.loads(line)
            if "return" in answer or "error" in answer:
                return answer
        return {"error": "QEMU has ended"}

    def _serve(self):
        try:
            self._ask({"execute": "qmp_capabilities"})
            while not self.ended.wait(MONITOR_POLL):
                for path in sorted(self.results.glob("request-*.json")):
                    answer = self._ask(json.loads(path.read_text()))
                    path.unlink()
                    new = path.with_name("new-answer.json")
                    new.write_text(json.dumps(answer))
                    new.rename(path.with_name(path.name.replace("request", "answer")))
        except OSError:
            pass  # QEMU has ended.


def command(kernel, results, script, nics, cpus, memory, more):
    folder = CACHE / "kernels" / kernel
    program, console = machine(kernel)
    arguments = f"console={console} quiet panic=-1 mitigations=off random.trust_cpu=on script={script}"
    devices, taps = nic_options(nics)
    return with_taps(taps, [
        *program, "-nodefaults", "-no-user-config", "-nographic", "-no-reboot",
        "-smp", str(cpus), "-m", str(memory), "-serial", "stdio",
        "-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initramfs.gz"), "-append", arguments,
        *share("tree", tree(kernel)), *share("modules", folder / "lib/modules"), *share("project", PROJECT),
        *share("build", build_folder(kernel)), *share("results", results, readonly=False), *devices, *more,
    ])  # fmt: skip


def starved(pid):
    """Seconds for which the threads of a process were ready to run, and others ran."""
    nanoseconds = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            nanoseconds += int(path.read_text().split()[1])
        except (OSError, IndexError):
            pass  # The thread has ended.
    return nanoseconds / 1e9


def wait(guest, timeout):
    """Waits until a guest has ended, or had its time. While it waits for a processor of a busy machine, none passes."""
    began = time.monotonic()
    while time.monotonic() - began - starved(guest.pid) < timeout:
        try:
            guest.wait(TIME_POLL)
            return
        except subprocess.TimeoutExpired:
            pass


def run(kernel, script, nics, results, timeout, output, cpus=2, memory=MEMORY, more=()):
    """Boots the guest and waits for its end. Returns the script's exit status, or NOT_FINISHED."""
    name = script.name
    status = results / f"status-{name}"
    status.unlink(missing_ok=True)
    if script.parent != results:
        shutil.copy(script, results / name)
    (results / name).chmod(0o755)
    monitor = Monitor(results)
    guest = subprocess.Popen(
        command(kernel, results, name, nics, cpus, memory, [*more, *monitor.options()]),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=[monitor.theirs.fileno()],
    )
    monitor.start()
    try:
        wait(guest, timeout)
    finally:
        if guest.poll() is None:
            guest.kill()
            guest.wait()
        monitor.stop()
    try:
        return int(status.read_text())
    except (OSError, ValueError):
        return NOT_FINISHED


def probe_kvm(kernel):
    """Finds out once whether KVM boots a kernel here, and remembers it in the cache folder."""
    probed = CACHE / "accelerator"
    if kernel == ARM64 or "VM_ACCEL" in os.environ or probed.exists():
        return
    works = False
    if os.access("/dev/kvm", os.W_OK):
        os.environ["VM_ACCEL"] = "kvm"
        with tempfile.TemporaryDirectory(prefix="vm-") as results:
            works = run(kernel, Path("/bin/true"), [], Path(results), KVM_TIMEOUT, subprocess.DEVNULL) == 0
        del os.environ["VM_ACCEL"]
    probed.write_text("kvm" if works else "tcg")
