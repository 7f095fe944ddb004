"""The doctor's answer as text, for a terminal of 80 columns."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from reknit.runtime.doctor.finding import BAD, WARN, Finding

WIDTH = 80
_NAMES = 14  # characters; longer ones have a line of their own


def render(findings: Sequence[Finding], width: int = WIDTH) -> str:
    """One line or more for each finding, and what they come to."""
    lines = [line for finding in findings for line in _lines(finding, width)]
    bad = sum(finding.verdict == BAD for finding in findings)
    warned = sum(finding.verdict == WARN for finding in findings)
    counts = [f"{bad} failed"] * bool(bad) + [f"{warned} to look at"] * bool(warned)
    total = ", ".join(counts) or "all is well"
    return "\n".join([*lines, f"{len(findings)} checks: {total}"])


def as_json(findings: Sequence[Finding]) -> str:
    """One object a line."""
    return "\n".join(json.dumps(asdict(finding)) for finding in findings)


def _lines(finding: Finding, width: int) -> list[str]:
    head = f"{finding.verdict:<4}  {finding.name:<{_NAMES}}"
    indent = " " * (len(f"{'':<4}  {'':<{_NAMES}}") + 1)
    if len(finding.name) > _NAMES:
        first, rest = [head], [indent + finding.says]
    else:
        first, rest = [], [f"{head} {finding.says}"]
    lines = [
        *first,
        *(
            part
            for text in rest
            for part in textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
        ),
    ]
    if finding.advice:
        lines += textwrap.wrap(finding.advice, width, initial_indent=f"{indent}> ", subsequent_indent=f"{indent}  ")
    return lines
