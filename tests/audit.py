"""Looks up known vulnerabilities of everything in constraints.txt; says so, and fails nothing, where it cannot.

`python tests/audit.py`, or `make audit`. Asks api.osv.dev: with PyPI's service a mirror's silence is a clean bill.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

_CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def main() -> int:
    """Return 1 if anything we depend on has a known vulnerability."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        ran = _audit(report)
        if not report.exists():
            reason = (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
            sys.stderr.write(f"Not looked up: pip-audit could not ask api.osv.dev. {reason[:200]}\n")
            return 0
        dependencies = json.loads(report.read_text())["dependencies"]
    known = [
        (found["name"], found["version"], flaw) for found in dependencies for flaw in found.get("vulns", ())
    ]
    for name, version, flaw in known:
        fixed = ", ".join(flaw["fix_versions"]) or "nowhere yet"
        sys.stdout.write(f"{name} {version}: {flaw['id']}, fixed in {fixed}\n")
    sys.stdout.write(f"{len(dependencies)} dependencies, {len(known)} known vulnerabilities\n")
    return int(bool(known))


def _audit(report: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "pip_audit", "--vulnerability-service", "osv", "--timeout", "10"),
            *("--requirement", _CONSTRAINTS, "--no-deps", "--disable-pip", "--progress-spinner", "off"),
            *("--format", "json", "--output", report),
        ],
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main())
