"""Samples to rows to tables: what every benchmark shares. Median, spread, ratio, JSON, Markdown, the hardware.

    samples.append(Sample("rlplat", "task round trip p50 / p99, µs", "p50", "µs", 83.0))
    rows = summarize(samples)
    print(render(rows, peers=["rlplat", "ray"], higher_is_better=set()))

A row may have several parts (`p50 / p99`): each part is a figure of its own, and the table shows them side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path

from rlplat.paths import expanded

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Sample:
    """One measured figure of one repeat."""

    peer: str
    row: str
    part: str
    """Which of the row's figures; "" where it has one."""
    unit: str
    value: float


@dataclass(frozen=True)
class Row:
    """The repeats of one figure: median, smallest, largest."""

    peer: str
    row: str
    part: str
    value: float
    unit: str
    min: float
    max: float
    repeats: int


def summarize(samples: Iterable[Sample]) -> list[Row]:
    """One `Row` per peer, row and part, in order of first appearance."""
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for sample in samples:
        values.setdefault((sample.peer, sample.row, sample.part, sample.unit), []).append(sample.value)
    return [
        Row(peer, row, part, statistics.median(found), unit, min(found), max(found), len(found))
        for (peer, row, part, unit), found in values.items()
    ]


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def number(value: float) -> str:
    """Three figures where they matter, thousands separated."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def cell(row: Row | None) -> str:
    """`83.0 [81.2, 90.4]`; the spread is left out where there is one repeat."""
    if row is None:
        return "-"
    spread = f" [{number(row.min)}, {number(row.max)}]" if row.repeats > 1 else ""
    return number(row.value) + spread


def ratio(ours: Row | None, theirs: Row | None, higher_is_better: bool) -> str:
    """How many times better the first is: 2.0 is twice as fast, or half the memory."""
    if ours is None or theirs is None:
        return "-"
    better, worse = (ours.value, theirs.value) if higher_is_better else (theirs.value, ours.value)
    return number(better / worse) if worse else "-"


def table_cells(rows: Sequence[Row], peers: Sequence[str], higher_is_better: set[str]) -> list[list[str]]:
    """Header and a line per row name, parts joined by ` / `. The ratios compare the first peer with the others."""
    first, *others = peers
    by_key = {(row.peer, row.row, row.part): row for row in rows}
    parts: dict[str, list[str]] = {}
    for row in rows:
        known = parts.setdefault(row.row, [])
        if row.part not in known:
            known.append(row.part)
    lines = [["row", *peers, *(f"{first} : {other}" for other in others)]]
    for name, row_parts in parts.items():
        line = [name]
        line += [_joined([cell(by_key.get((peer, name, part))) for part in row_parts]) for peer in peers]
        for other in others:
            pairs = [(by_key.get((first, name, part)), by_key.get((other, name, part))) for part in row_parts]
            line.append(_joined([ratio(ours, theirs, name in higher_is_better) for ours, theirs in pairs]))
        lines.append(line)
    return lines


def _joined(parts: Sequence[str]) -> str:
    return "-" if all(part == "-" for part in parts) else " / ".join(parts)


def render(rows: Sequence[Row], peers: Sequence[str], higher_is_better: set[str]) -> str:
    """The table for a terminal."""
    lines = table_cells(rows, peers, higher_is_better)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


# ---------------------------------------------------------------- where and how it was measured


def hardware(packages: Sequence[str]) -> dict[str, str]:
    """What the figures depend on."""
    model = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory_bytes / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {version}" for name in packages if (version := _version(name))),
        "commit": _commit(),
        "load average at the start": f"{os.getloadavg()[0]:.2f}",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def add_output_options(parser: argparse.ArgumentParser, peers: Sequence[str]) -> None:
    """--peer, --repeats, --quick, --json, --markdown: the same for every benchmark."""
    parser.add_argument(
        "--peer", action="append", default=[], choices=peers, help="measure this one as well, alternating"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works, measures nothing")
    parser.add_argument("--json", type=expanded, metavar="FILE", help="one object per figure")
    parser.add_argument("--markdown", type=expanded, metavar="FILE", help="the table, with command, date and hardware")


@dataclass(frozen=True)
class Report:
    """Everything that goes into a result file."""

    title: str
    peers: Sequence[str]
    rows: Sequence[Row]
    higher_is_better: set[str]
    hardware: dict[str, str]
    notes: Sequence[str]
    spread: str = "smallest, largest"
    """What the brackets hold: `min` and `max` of the rows."""

    def publish(self, json_file: Path | None, markdown_file: Path | None) -> None:
        print(render(self.rows, self.peers, self.higher_is_better))
        for note in self.notes:
            print(f"- {note}")
        if json_file is not None:
            json_file.write_text("".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in self.rows))
        if markdown_file is not None:
            markdown_file.write_text(self.markdown())

    def markdown(self) -> str:
        header, *body = table_cells(self.rows, self.peers, self.higher_is_better)
        repeats = max((row.repeats for row in self.rows), default=0)
        lines = [
            f"# {self.title}",
            "",
            f"`{_command_line()}`, {datetime.now():%Y-%m-%d}. Medians of {repeats} repeats, "
            f"[{self.spread}]; "
            f"the last columns say how many times better {self.peers[0]} is.",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in self.hardware.items()),
            "",
            "| " + " | ".join(header) + " |",
            "|" + "---|" * len(header),
            *("| " + " | ".join(line) + " |" for line in body),
            "",
            *(f"- {note}" for note in self.notes),
        ]
        return "\n".join(lines) + "\n"


def _command_line() -> str:
    """As one would type it: `python -m benchmarks.runtime --peer ray`."""
    return shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
