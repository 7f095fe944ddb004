"""What the facts mean, and what to do about each that is not as it should be.  Pure."""

from __future__ import annotations

from collections.abc import Iterator

from reknit.runtime.doctor.facts import Clock, Facts, Kernel, Limits, Network, SocketFolder, Software, Training
from reknit.runtime.doctor.finding import BAD, OK, WARN, Finding, in_bytes, is_loopback, version_of
from reknit.runtime.doctor.judging_etcd import etcd

OLDEST_PYTHON, OLDEST_TORCH = (3, 10), (2, 6)
FILES = 4096  # a worker has sockets to every member of its groups
SHARED = 1 << 30  # bytes: what a data loader's workers soon ask for; Docker gives 64 MB
PORTS = 5000  # of the kernel's choice: a member needs some for each group
DRIFT = 0.01  # seconds in a tenth of a second
SLOW_INTERRUPT = 1.0  # seconds
TODAY = 1.7e9  # a wall clock before this has never been set (seconds since 1970)


def judge(facts: Facts) -> list[Finding]:
    """All findings, in the order in which they are read."""
    parts = (
        software(facts.software),
        training(facts.training),
        kernel(facts.kernel),
        limits(facts.limits),
        network(facts.network),
        clock(facts.clock),
        socket_folder(facts.socket),
        etcd(facts.etcd),
    )
    return [finding for part in parts for finding in part]


def software(found: Software) -> Iterator[Finding]:
    """Python, and the packages that an agent needs."""
    version = ".".join(map(str, found.python))
    if found.python[:2] < OLDEST_PYTHON:
        yield Finding("Python", BAD, version, "reknit needs Python 3.10 or newer: make its environment with that.")
    else:
        yield Finding("Python", OK, version)
    missing = [name for name, there in found.packages.items() if there is None]
    if missing:
        advice = "An agent needs them, a worker does not: pip install 'reknit[agent]'."
        yield Finding("packages", BAD, f"missing: {', '.join(missing)}", advice)
    else:
        yield Finding("packages", OK, ", ".join(f"{name} {there}" for name, there in found.packages.items()))


def training(found: Training) -> Iterator[Finding]:
    """torch, and whether groups can be built and interrupted here."""
    if found.torch is None:
        advice = "Where workers run: pip install 'reknit[worker]'.  A host with an agent only does without."
        yield Finding("torch", WARN, found.error or "not installed", advice)
        return
    says = f"{found.torch}, numpy {found.numpy or 'missing'}, {found.gpus or 'no'} GPU{'s' * (found.gpus != 1)}"
    if version_of(found.torch) < OLDEST_TORCH:
        yield Finding("torch", BAD, says, "reknit needs torch 2.6 or newer: pip install --upgrade 'torch>=2.6'.")
    elif found.numpy is None:
        yield Finding("torch", BAD, says, "Workers need it: pip install 'reknit[worker]'.")
    else:
        yield Finding("torch", OK, says)
    yield _gloo(found)


def _gloo(found: Training) -> Finding:
    if not found.gloo:
        advice = "The data axis runs over gloo: install a build of torch that has it (those for Linux on PyPI do)."
        return Finding("gloo", BAD, "this build of torch lacks it", advice)
    if not found.reduced:
        advice = (
            "Two processes on loopback could not build a group and sum: see the error.  A firewall within this host, "
            "a sandbox without loopback, or too small a limit on processes or open files would do that."
        )
        return Finding("gloo", BAD, found.error or "the sum came out wrong", advice)
    if found.interrupted is None or found.interrupted > SLOW_INTERRUPT:
        took = "never ended" if found.interrupted is None else f"ended after {found.interrupted:.1f} s"
        advice = "After a loss the survivors would wait so long.  Is this host very busy?  Else report it, please."
        return Finding("gloo", BAD, f"a wait that was interrupted {took}", advice)
    return Finding("gloo", OK, f"2 processes met; a blocked wait was cut in {1000 * found.interrupted:.0f} ms")


def kernel(found: Kernel) -> Iterator[Finding]:
    """System calls."""
    if not found.pidfd:
        advice = "Linux 5.3 or newer is needed; in a container the seccomp profile must let pidfd_open through."
        yield Finding("kernel", BAD, f"{found.system}: no pidfd_open", advice)
    elif not found.user_timeout:
        advice = "Without it a peer that vanished is noticed only after minutes: this needs Linux."
        yield Finding("kernel", BAD, f"{found.system}: no TCP_USER_TIMEOUT", advice)
    elif not found.private_table:
        advice = (
            "The sandbox forbids close_range and unshare: a worker's death is noticed only once its memory has been "
            "freed (0.4 s at 6 GB).  Let the seccomp profile allow close_range."
        )
        yield Finding("kernel", WARN, f"{found.system}: no descriptor table of a thread's own", advice)
    else:
        yield Finding("kernel", OK, f"{found.system}: pidfd, TCP_USER_TIMEOUT, close_range")


def limits(found: Limits) -> Iterator[Finding]:
    """Open files and shared memory."""
    soft, hard = found.files
    if soft < FILES:
        raised = "ulimit -n 65536, LimitNOFILE=65536 in a systemd unit, --ulimit nofile=65536 for Docker"
        advice = f"Workers hold sockets to every member of their groups.  Raise it: {raised}."
        yield Finding("open files", WARN, f"{soft} (hard limit {hard})", advice)
    else:
        yield Finding("open files", OK, f"{soft} at most")
    if found.shared_size is None or found.shared_free is None:
        yield Finding("shared memory", WARN, "no /dev/shm", "Mount a tmpfs there: data loaders' workers need it.")
        return
    says = f"{in_bytes(found.shared_free)} of {in_bytes(found.shared_size)} free"
    if found.shared_free < SHARED:
        advice = (
            "Data loaders with workers fail when it is full.  Docker: --shm-size 8g; Kubernetes: an emptyDir with "
            "medium Memory at /dev/shm.  What lies there already: ls -l /dev/shm."
        )
        yield Finding("shared memory", WARN, says, advice)
    else:
        yield Finding("shared memory", OK, says)


def network(found: Network) -> Iterator[Finding]:
    """Address, name, ports."""
    if found.address is None:
        yield Finding("address", BAD, found.error or "none", "Say which one other hosts reach: --address IP.")
        return
    says = f"{found.address} ({found.interface})" if found.interface else found.address
    loopback = is_loopback(found.address)
    if loopback and not found.etcd_is_here:
        advice = "etcd is elsewhere, but the other hosts would be told a loopback address: give --address IP."
        yield Finding("address", BAD, says, advice)
    elif found.bound:
        advice = "No port can be opened at this address: give one of this host's own by --address IP."
        yield Finding("address", BAD, f"{says}: {found.bound}", advice)
    else:
        yield Finding("address", OK, says)
    yield _name(found)
    if found.ports is None:
        return
    low, high = found.ports
    if high - low + 1 < PORTS:
        advice = "Groups take free ports from there: sysctl net.ipv4.ip_local_port_range='32768 60999'."
        yield Finding("ports", WARN, f"{low}-{high} are given out", advice)
    else:
        yield Finding("ports", OK, f"{low}-{high} are given out, on all interfaces")


def _name(found: Network) -> Finding:
    if not found.names:
        advice = "Nothing of reknit's asks for it, but torch and many scripts do: add it to /etc/hosts."
        return Finding("host name", WARN, f"{found.host} cannot be resolved", advice)
    says = f"{found.host} is {', '.join(found.names[:3])}"
    if not found.etcd_is_here and all(is_loopback(name) for name in found.names):
        advice = (
            "NCCL and scripts that go by the host's name would use loopback: let /etc/hosts name its real address, "
            f"{found.address}."
        )
        return Finding("host name", WARN, says, advice)
    return Finding("host name", OK, says)


def clock(found: Clock) -> Iterator[Finding]:
    """Whether time passes; reknit goes by the monotonic clock, and the wall's is for people and certificates."""
    if abs(found.drift) > DRIFT:
        advice = "It is being set, or a virtual machine's clock jumps: let chrony or systemd-timesyncd keep it."
        yield Finding("clock", WARN, f"the wall clock ran {found.drift:+.3f} s from the monotonic one", advice)
    elif found.wall < TODAY:
        advice = "Certificates count as not valid yet, and logs have wrong times: set it (timedatectl set-ntp true)."
        yield Finding("clock", BAD, "the wall clock has never been set", advice)
    else:
        yield Finding("clock", OK, "monotonic and wall clock agree")


def socket_folder(found: SocketFolder) -> Iterator[Finding]:
    """Whether an agent can open a socket that only its user reaches."""
    if found.error:
        advice = "Give the socket a folder of its own, mode 700, on a file system that has sockets: --socket PATH."
        yield Finding("agent socket", BAD, found.error, advice)
    elif found.mode is None or found.mode & 0o077 or not found.peer_known:
        advice = "This file system cannot keep other users out: choose another folder by --socket PATH."
        mode = "unknown" if found.mode is None else f"{found.mode:o}"
        yield Finding("agent socket", BAD, f"{found.folder}: its mode is {mode}", advice)
    else:
        yield Finding("agent socket", OK, f"{found.folder}: mode 600, and the kernel names who asks")
