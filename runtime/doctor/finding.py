"""One line of the doctor's answer, and what several judgements need."""

from __future__ import annotations

import math
from dataclasses import dataclass

OK, WARN, BAD = "ok", "warn", "FAIL"


@dataclass(frozen=True)
class Finding:
    """One line of the answer; `advice`: what to do, empty where all is well."""

    name: str
    verdict: str
    says: str
    advice: str = ""


def version_of(text: str) -> tuple[int, ...]:
    """`2.13.0+cpu` → (2, 13); what is no number ends it."""
    numbers = []
    for part in text.split("."):
        digits = part[: next((i for i, c in enumerate(part) if not c.isdigit()), len(part))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers[:2])


def is_loopback(address: str) -> bool:
    """Whether no other host reaches this address."""
    return address.startswith("127.") or address in ("::1", "localhost")


def in_bytes(count: float) -> str:
    """A number of bytes for people: "64 MB"."""
    if count <= 0:
        return "0 B"
    power = min(4, int(math.log(count, 1000)))
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
