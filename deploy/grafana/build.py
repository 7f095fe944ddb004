"""Builds the Grafana dashboards, whose JSON is committed beside this file: `python -m reknit.deploy.grafana.build`.

Needs grafana-foundation-sdk==0.0.21.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reknit.deploy.grafana.fleet import fleet_dashboard
from reknit.deploy.grafana.job import job_dashboard

DASHBOARDS = {"job.json": job_dashboard, "fleet.json": fleet_dashboard}


def main(folder: Path) -> int:
    """Write both dashboards."""
    for name, make in DASHBOARDS.items():
        (folder / name).write_text(make().encode())
        print(folder / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent))
