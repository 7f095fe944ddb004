"""What the facts about an etcd mean, and what to do.  Pure."""

from __future__ import annotations

from collections.abc import Iterator

from reknit.runtime.doctor.facts import Cluster, Member, Standalone
from reknit.runtime.doctor.finding import BAD, OK, WARN, Finding, in_bytes, version_of

OLDEST_ETCD = (3, 4)
INCONSISTENT = ("3.5.0", "3.5.1", "3.5.2")  # members may come to hold different data
SKEW = 2.5  # seconds; the answer is given to a second
SOON = 14  # days to the end of a certificate
SLOW_PUT, TOO_SLOW_PUT = 0.05, 0.5  # seconds
FULL = 1.6e9  # bytes of a database; etcd's quota is 2 GB by default


def etcd(found: Cluster | Standalone) -> Iterator[Finding]:
    """The etcd that was named, or the one that a standalone job would start."""
    if isinstance(found, Standalone):
        if found.program is None:
            advice = "Name one that runs by --etcd H:P; for standalone jobs: pip install 'reknit[embedded]'."
            yield Finding("etcd", WARN, found.error or "none was named, and none is installed", advice)
        else:
            yield Finding("etcd", OK, f"none was named; standalone jobs start {found.program}")
        return
    for member in found.members:
        yield _member(member, len(found.members) > 1)
    yield from _certificates(found)
    if not all(member.error for member in found.members):  # else why it can't be written to has been said
        yield _writes(found)
    if not found.error and len(found.members) == 1:
        advice = "While it is away nobody can join or be replaced (training goes on).  In production: 3 members."
        yield Finding("etcd cluster", WARN, "one endpoint", advice)


def _member(found: Member, one_of_several: bool) -> Finding:
    name = f"etcd {found.address}"
    if found.error:
        return Finding(name, BAD, found.error, _why_unreachable(found.error.lower()))
    says = f"version {found.version or 'unknown'}"
    if found.version is not None and version_of(found.version) < OLDEST_ETCD:
        return Finding(name, BAD, says, "reknit needs etcd 3.4 or newer, with the v3 API.")
    if one_of_several and found.version in INCONSISTENT:
        return Finding(name, WARN, says, "With several members it may lose writes: take 3.5.3 or newer.")
    if found.alarms:
        advice = (
            "It refuses every write.  NOSPACE: etcdctl compact and defrag, then etcdctl alarm disarm; raise "
            "--quota-backend-bytes.  CORRUPT: replace that member."
        )
        return Finding(name, BAD, f"{says}, alarm: {', '.join(found.alarms)}", advice)
    if found.healthy is False:
        return Finding(name, BAD, f"{says}, not healthy", "It has no leader, or a quorum is missing: see its log.")
    if found.skew is not None and abs(found.skew) > SKEW:
        advice = "Membership does not go by it, but logs and certificates do: let chrony or timesyncd keep both."
        return Finding(name, WARN, f"{says}, its clock is {found.skew:+.0f} s from ours", advice)
    if found.size is not None and found.size > FULL:
        advice = "At its quota (2 GB by default) it refuses every write: etcdctl compact and defrag."
        return Finding(name, WARN, f"{says}, its database has {in_bytes(found.size)}", advice)
    more = [" leads" if found.leads else "", "" if found.skew is None else "clock as ours"]
    return Finding(name, OK, ", ".join([says, "healthy", *(word.strip() for word in more if word)]))


def _why_unreachable(error: str) -> str:
    if "alert" in error:
        return "It asks for a certificate of ours: give --etcd-cert and --etcd-key, signed by the CA that it trusts."
    if "certificate" in error or "ssl" in error:
        return "TLS: --etcd-ca must be the CA that signed its certificate, which must name this address."
    if "closed connection" in error:
        return "It may speak TLS only: give --etcd-ca FILE, the CA that signed its certificate."
    return "Does it run there?  Does a firewall or a NetworkPolicy let this host through?"


def _certificates(found: Cluster) -> Iterator[Finding]:
    ends = [(f"that of {member.address}", member.certificate_days) for member in found.members]
    ends += [("ours", found.client_certificate_days), ("the CA's", found.ca_days)]
    known = [(days, whose) for whose, days in ends if days is not None]
    if not known:
        return
    days, whose = min(known)
    advice = "Replace it; reknit takes new files up by itself, without a restart."
    if days <= 0:
        yield Finding("certificates", BAD, f"{whose} has ended {-days:.0f} days ago", advice)
    elif days < SOON:
        yield Finding("certificates", WARN, f"{whose} ends in {days:.0f} days", advice)
    else:
        yield Finding("certificates", OK, f"the first one ({whose}) ends in {days:.0f} days")


def _writes(found: Cluster) -> Finding:
    if found.error or found.put_seconds is None:
        advice = "An agent needs to read and write under /reknit/: check user, password and role, and its quorum."
        return Finding("etcd writes", BAD, found.error or "none succeeded", advice)
    median, worst = found.put_seconds
    says = f"{1000 * median:.1f} ms, the slowest {1000 * worst:.1f} ms"
    advice = "A loss costs two of them.  etcd wants a fast disk of its own, and members near by: see its log."
    if median > TOO_SLOW_PUT:
        return Finding("etcd writes", BAD, says, advice)
    return Finding("etcd writes", WARN if median > SLOW_PUT else OK, says, advice if median > SLOW_PUT else "")
