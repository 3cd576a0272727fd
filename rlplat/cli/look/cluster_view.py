"""What the commands that look into a running cluster share: choosing it, tables, figures for people."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rlplat.cli.parser import Command, command
from rlplat.errors import ConfigError


def looking(name: str, text: str) -> Callable[[Callable[[Any], int]], Command]:
    """As `command`; ConfigError for `rlplat logs lab.yaml`: other commands look at a cluster of several machines."""

    def refuse_cluster_file(words: list[str]) -> None:
        for file in words:
            if file.endswith((".yaml", ".yml")) and not file.startswith("-"):
                raise ConfigError(
                    f"{file} describes a cluster of several machines, and `{name}` looks at programs on this one: "
                    f"rlplat status {file} (its nodes), rlplat jobs {file} (programs on it), "
                    f"rlplat jobs {file} logs ID (what one printed), "
                    f"rlplat exec {file} -- rlplat {name} (this on its head)"
                )

    return command(name, text, check=refuse_cluster_file)


def chosen(options: argparse.Namespace) -> str | None:
    if options.pid and options.session:
        raise ConfigError("--pid and --session both name a cluster: omit one of them")
    return options.session or options.pid


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]], indent: str = "") -> None:
    """In colour on a terminal; elsewhere plain columns that stay the same for `grep` and `awk`."""
    cells = [
        [str(value) if name == "pid" else _cell(value) for name, value in zip(header, row, strict=True)] for row in rows
    ]
    right = [bool(rows) and all(_is_number(row[column]) for row in rows) for column in range(len(header))]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name, is_right in zip(header, right, strict=True):
            table.add_column(name, justify="right" if is_right else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
        Console().print(Padding(table, (0, 0, 0, len(indent))))
        return
    for line in plain_table([list(header), *cells], right):
        print(indent + line)


def plain_table(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Columns side by side; right: which of them are right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(right))]
    lines = []
    for row in rows:
        cells = zip(row, widths, right, strict=True)
        padded = [text.rjust(width) if is_right else text.ljust(width) for text, width, is_right in cells]
        lines.append("  ".join(padded).rstrip())
    return lines


_STYLES = {
    "running": "green", "alive": "green", "idle": "dim", "queued": "cyan", "dead": "red", "failed": "red",
    "lost": "red", "error": "red", "restarting": "yellow", "pending": "yellow", "dying": "yellow",
}  # fmt: skip


def print_silent(silent: Sequence[dict[str, Any]]) -> None:
    """Whose part is missing above."""
    for row in silent:
        who = f"{row['client']} (pid {row['pid']})" if row["pid"] else f"machine {row['client']}"
        print(f"{who} did not answer: {row['why']}", file=sys.stderr)


def on_node(row: dict[str, Any]) -> str:
    """Behind a pid: on which machine, if not on the head's."""
    return "" if row["node"] == "node" else f" on {row['node']}"


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return amounts(value) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_cell, value)) or "-"
    text = "-" if value is None or value == "" else str(value)
    return text.replace("\n", " | ")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def amounts(resources: dict[str, Any]) -> str:
    return " ".join(f"{name}:{amount:g}" for name, amount in resources.items())


def size_of(num_bytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} GB"


def store_text(store: dict[str, Any]) -> str:
    text = f"{size_of(store['bytes'])} of {size_of(store['limit_bytes'])} in shared memory"
    if store["spare_bytes"]:
        text += f" ({size_of(store['spare_bytes'])} of that kept for reuse)"
    if store["spilled_bytes"]:
        text += f", {size_of(store['spilled_bytes'])} spilled to disk"
    return text
