"""What the doctor makes of facts: what is not as it should be is named, with what to do; and it fits a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reknit.runtime.doctor.facts import (
    Clock,
    Cluster,
    Facts,
    Kernel,
    Limits,
    Member,
    Network,
    SocketFolder,
    Software,
    Standalone,
    Training,
)
from reknit.runtime.doctor.finding import BAD, OK, WARN, Finding, version_of
from reknit.runtime.doctor.judging import judge
from reknit.runtime.doctor.report import as_json, render

MEMBER = Member("e1:2379", "", "3.5.9", True, (), True, 20480, 0.2, 300.0)
WELL = Facts(
    software=Software((3, 11, 7), {"etcd3": "0.12.0", "grpcio": "1.80.0"}),
    training=Training("2.13.0+cpu", "2.1.0", True, 0, True, 0.002),
    kernel=Kernel("Linux 6.1", True, True, True),
    limits=Limits((65536, 65536), 8 << 30, 8 << 30),
    network=Network("node-a", "10.0.0.7", "eth0", "", ("10.0.0.7",), "", (32768, 60999), False),
    clock=Clock(1.8e9, 0.0001),
    socket=SocketFolder("/tmp", 0o600, True),
    etcd=Cluster(
        tuple(replace(MEMBER, address=f"e{i}:2379", leads=i == 1) for i in (1, 2, 3)), (0.002, 0.009), "", 90.0, 900.0
    ),
)


def named(facts: Facts, name: str) -> Finding:
    (found,) = [finding for finding in judge(facts) if finding.name == name]
    return found


def test_where_all_is_well_nothing_is_advised() -> None:
    findings = judge(WELL)
    assert {finding.verdict for finding in findings} == {OK}
    assert not any(finding.advice for finding in findings)
    assert render(findings).endswith(f"{len(findings)} checks: all is well")
    assert len({finding.name for finding in findings}) == len(findings)


@pytest.mark.parametrize(
    ("part", "changes", "name", "verdict", "says"),
    [
        ("software", {"python": (3, 9, 1)}, "Python", BAD, "3.9.1"),
        ("software", {"packages": {"etcd3": None, "rich": "1"}}, "packages", BAD, "missing: etcd3"),
        ("training", {"torch": None, "error": "No module named 'torch'"}, "torch", WARN, "No module named"),
        ("training", {"torch": "2.5.1"}, "torch", BAD, "2.5.1"),
        ("training", {"numpy": None}, "torch", BAD, "numpy missing"),
        ("training", {"gloo": False}, "gloo", BAD, "lacks it"),
        ("training", {"reduced": False, "error": "Interrupted: refused"}, "gloo", BAD, "refused"),
        ("training", {"interrupted": None}, "gloo", BAD, "never ended"),
        ("training", {"interrupted": 4.2}, "gloo", BAD, "4.2 s"),
        ("kernel", {"pidfd": False}, "kernel", BAD, "pidfd"),
        ("kernel", {"user_timeout": False}, "kernel", BAD, "TCP_USER_TIMEOUT"),
        ("kernel", {"private_table": False}, "kernel", WARN, "descriptor table"),
        ("limits", {"files": (1024, 4096)}, "open files", WARN, "1024 (hard limit 4096)"),
        ("limits", {"shared_free": 60_000_000, "shared_size": 64_000_000}, "shared memory", WARN, "60 MB of 64 MB"),
        ("limits", {"shared_free": None, "shared_size": None}, "shared memory", WARN, "no /dev/shm"),
        ("network", {"address": None, "error": "cannot tell"}, "address", BAD, "cannot tell"),
        ("network", {"address": "127.0.0.1"}, "address", BAD, "127.0.0.1"),
        ("network", {"bound": "no port can be opened (x)"}, "address", BAD, "no port"),
        ("network", {"names": ()}, "host name", WARN, "cannot be resolved"),
        ("network", {"names": ("127.0.1.1",)}, "host name", WARN, "127.0.1.1"),
        ("network", {"ports": (60000, 60999)}, "ports", WARN, "60000-60999"),
        ("clock", {"drift": 0.5}, "clock", WARN, "+0.500 s"),
        ("clock", {"wall": 1000.0}, "clock", BAD, "never been set"),
        ("socket", {"error": "open to other users"}, "agent socket", BAD, "open to other users"),
        ("socket", {"mode": 0o755}, "agent socket", BAD, "755"),
        ("socket", {"peer_known": False}, "agent socket", BAD, "/tmp"),
        ("etcd", {"error": "permission denied", "put_seconds": None}, "etcd writes", BAD, "permission denied"),
        ("etcd", {"put_seconds": (0.1, 0.2)}, "etcd writes", WARN, "100.0 ms"),
        ("etcd", {"put_seconds": (0.7, 1.2)}, "etcd writes", BAD, "700.0 ms"),
        ("etcd", {"members": (MEMBER,)}, "etcd cluster", WARN, "one endpoint"),
        ("etcd", {"ca_days": -2.0}, "certificates", BAD, "the CA's has ended 2 days ago"),
        ("etcd", {"client_certificate_days": 3.0}, "certificates", WARN, "ours ends in 3 days"),
    ],
)
def test_what_is_not_as_it_should_be_is_named_with_what_to_do(
    part: str, changes: dict[str, Any], name: str, verdict: str, says: str
) -> None:
    found = named(replace(WELL, **{part: replace(getattr(WELL, part), **changes)}), name)
    assert found.verdict == verdict
    assert says in found.says
    assert found.advice.endswith(".")


@pytest.mark.parametrize(
    ("changes", "verdict", "says", "advice"),
    [
        ({"error": "Connection refused"}, BAD, "refused", "firewall"),
        ({"error": "[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired"}, BAD, "expired", "--etcd-ca"),
        ({"error": "[SSL] tlsv1 alert bad certificate"}, BAD, "alert", "--etcd-cert"),
        ({"error": "Remote end closed connection without response"}, BAD, "closed", "may speak TLS"),
        ({"version": "3.3.27"}, BAD, "3.3.27", "3.4"),
        ({"version": "3.5.1"}, WARN, "3.5.1", "3.5.3"),
        ({"alarms": ("NOSPACE",), "healthy": False}, BAD, "NOSPACE", "defrag"),
        ({"healthy": False}, BAD, "not healthy", "quorum"),
        ({"skew": -40.0}, WARN, "-40 s", "chrony"),
        ({"size": 1_900_000_000}, WARN, "1.9 GB", "compact"),
    ],
)
def test_each_endpoint_is_judged(changes: dict[str, Any], verdict: str, says: str, advice: str) -> None:
    assert isinstance(WELL.etcd, Cluster)
    one, *others = WELL.etcd.members
    facts = replace(WELL, etcd=replace(WELL.etcd, members=(replace(one, **changes), *others)))
    found = named(facts, "etcd e1:2379")
    assert found.verdict == verdict
    assert says in found.says
    assert advice in found.advice
    assert named(facts, "etcd e2:2379").verdict == OK


def test_an_etcd_that_nobody_reaches_is_complained_of_once() -> None:
    facts = replace(WELL, etcd=Cluster((Member("e1:2379", "Connection refused"),), None, "did not answer"))
    assert [finding.name for finding in judge(facts) if finding.verdict == BAD] == ["etcd e1:2379"]


def test_without_an_etcd_the_one_of_a_standalone_job_is_looked_for() -> None:
    assert named(replace(WELL, etcd=Standalone("/usr/bin/etcd")), "etcd").verdict == OK
    assert named(replace(WELL, etcd=Standalone(None, "no etcd was found")), "etcd").verdict == WARN
    alone = replace(WELL.network, address="127.0.0.1", names=("127.0.0.1",), etcd_is_here=True)
    assert {finding.verdict for finding in judge(replace(WELL, network=alone))} == {OK}


def test_the_answer_fits_a_terminal() -> None:
    long = "word " * 40
    findings = [Finding("etcd some.long.name.example.org:2379", BAD, long, long), Finding("Python", WARN, long, long)]
    text = render([*judge(WELL), *findings])
    assert max(map(len, text.splitlines())) <= 80
    assert text.endswith("1 failed, 1 to look at")
    assert len(as_json(findings).splitlines()) == 2


def test_versions_are_read_as_far_as_they_are_numbers() -> None:
    assert version_of("2.13.0+cpu") == (2, 13)
    assert version_of("2.14.0a0+git") == (2, 14)
    assert version_of("2.7rc1") == (2, 7)
    assert version_of("main") == ()
