"""Boots QEMU guests with stock Debian kernels. The trees and kernels are those of vm/prepare."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("VM_CACHE", Path.home() / ".cache/unetmap-vm"))
NOT_FINISHED = 125
# Seconds in which KVM boots a guest; where it does not work a guest stands still.
KVM_TIMEOUT = 30


def build_folder():
    target = Path(os.environ.get("CARGO_TARGET_DIR", PROJECT / "target"))
    return Path(os.environ.get("VM_BUILD", target / "debug")).resolve()


def qemu_program():
    """QEMU of the tree, with the tree's loader and libraries: the machine's own may lack devices."""
    usr = CACHE / "tree/usr"
    libraries = usr / "lib/x86_64-linux-gnu"
    return [
        str(CACHE / "tree/lib64/ld-linux-x86-64.so.2"), "--library-path", f"{libraries}:{libraries}/pulseaudio",
        str(usr / "bin/qemu-system-x86_64"), "-L", str(usr / "share/seabios"), "-L", str(usr / "share/qemu"),
    ]  # fmt: skip


def acceleration():
    """KVM where VM_ACCEL or an earlier `probe_kvm` says so: in nested machines it may exist but boot no kernel."""
    probed = CACHE / "accelerator"
    if os.environ.get("VM_ACCEL", probed.read_text() if probed.exists() else "tcg") == "kvm":
        return ["-accel", "kvm", "-cpu", "host"], ""
    # Without a steady clock: the timer test panics a guest that the host holds up, and its TSC runs wild.
    return ["-accel", "tcg,thread=multi", "-cpu", "max"], " no_timer_check tsc=unstable clocksource=acpi_pm"


def nic_options(specifications):
    """QEMU's options for the devices, and the taps with their bridges: a hub has one queue, a tap several. Each device
    has a root port of its own, which igb needs."""
    options, taps, number = [], [], 0
    for hub, specification in enumerate(specifications, start=1):
        model, _, rest = specification.partition(",")
        parts = rest.split(",") if rest else []
        queues = parts.pop(0) if parts and parts[0].isdigit() else None
        backend = next((p[len("backend=") :].replace(";", ",") for p in parts if p.startswith("backend=")), None)
        parts = [p for p in parts if not p.startswith("backend=")]
        copies = 2 if model.endswith("x2") else 1
        model = model.removesuffix("x2")
        for _ in range(copies):
            number += 1
            extra = list(parts)
            if queues and model.startswith("virtio"):
                extra += ["mq=on", f"vectors={2 * int(queues) + 2}"]
            name = f"net{number}"
            options += ["-device", f"pcie-root-port,id=port{number},chassis={number},slot={number}"]
            if queues and not backend:
                taps.append((f"tap{number}", f"br{hub}"))
                backend_ = f"tap,ifname=tap{number},script=no,downscript=no,vhost=off,queues={queues}"
            else:
                backend_ = backend or f"hubport,hubid={hub}"
            kind, _, settings = backend_.partition(",")
            options += ["-netdev", f"{kind},id={name},{settings}"]
            device = [
                model,
                f"netdev={name}",
                f"bus=port{number}",
                f"mac=02:00:00:00:00:{number:02x}",
                "romfile=",
                *extra,
            ]
            options += ["-device", ",".join(device)]
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


def command(kernel, results, script, nics, cpus, memory, more):
    folder = CACHE / "kernels" / kernel
    accelerate, clock = acceleration()
    arguments = f"console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on script={script}{clock}"
    devices, taps = nic_options(nics)
    return with_taps(taps, [
        *qemu_program(), "-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-M", "q35", *accelerate,
        "-smp", str(cpus), "-m", str(memory), "-serial", "stdio",
        "-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initramfs.gz"), "-append", arguments,
        *share("tree", CACHE / "tree"), *share("modules", folder / "lib/modules"), *share("project", PROJECT),
        *share("build", build_folder()), *share("results", results, readonly=False), *devices, *more,
    ])  # fmt: skip


def run(kernel, script, nics, results, timeout, output, cpus=2, memory=1536, more=()):
    """Boots the guest and waits for its end. Returns the script's exit status, or NOT_FINISHED."""
    name = script.name
    status = results / f"status-{name}"
    status.unlink(missing_ok=True)
    if script.parent != results:
        shutil.copy(script, results / name)
    (results / name).chmod(0o755)
    guest = subprocess.Popen(
        command(kernel, results, name, nics, cpus, memory, more),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    try:
        guest.wait(timeout)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if guest.poll() is None:
            guest.kill()
            guest.wait()
    try:
        return int(status.read_text())
    except (OSError, ValueError):
        return NOT_FINISHED


def probe_kvm(kernel):
    """Finds out once whether KVM boots a kernel here, and remembers it in the cache folder."""
    probed = CACHE / "accelerator"
    if "VM_ACCEL" in os.environ or probed.exists():
        return
    works = False
    if os.access("/dev/kvm", os.W_OK):
        os.environ["VM_ACCEL"] = "kvm"
        with tempfile.TemporaryDirectory(prefix="vm-") as results:
            works = run(kernel, Path("/bin/true"), [], Path(results), KVM_TIMEOUT, subprocess.DEVNULL) == 0
        del os.environ["VM_ACCEL"]
    probed.write_text("kvm" if works else "tcg")
