"""Learning curves of runs, as a PNG and as a compact CSV beside it, for committing under benchmarks/results/.

    ./scripts/bench curves bf16=runs/pong-bf16 float32=runs/pong-float32 --out benchmarks/results/pong-curves.png

PATH is a run directory or its metrics.jsonl. The CSV has `label,env_steps,wall_s,episode_return_mean`: at most --points
rows a run, evenly spaced in env steps, the last one always.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Point(NamedTuple):
    env_steps: int
    wall_s: float
    episode_return_mean: float


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="LABEL=PATH")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.png")
    parser.add_argument("--title", default="")
    parser.add_argument(
        "--points", type=int, default=400, metavar="N", help="rows of the CSV per run (default: 400)"
    )
    return parser


def main() -> None:
    parser = build_parser()
    options = parser.parse_args()
    curves: dict[str, list[Point]] = {}
    for text in options.runs:
        label, equals, path = text.partition("=")
        if not equals:
            parser.error(f"{text!r} is not LABEL=PATH")
        curves[label] = thinned(read(Path(path)), options.points)
        if not curves[label]:
            parser.error(f"no episode has finished in {path}: nothing to draw")
    write_csv(curves, options.out.with_suffix(".csv"))
    draw(curves, options.title, options.out)
    for label, points in curves.items():
        last = points[-1]
        print(
            f"{label}: {last.env_steps:,} env steps in {last.wall_s:,.0f} s, return {last.episode_return_mean:.1f}"
        )


def read(path: Path) -> list[Point]:
    """The records that have a mean return."""
    file = path / "metrics.jsonl" if path.is_dir() else path
    records = [json.loads(line) for line in file.read_text().splitlines() if line]
    return [
        Point(record["env_steps"], record["wall_s"], record["episode_return_mean"])
        for record in records
        if record["episode_return_mean"] is not None
    ]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """The first point at or after each of `most` evenly spaced numbers of env steps, and the last one."""
    if len(points) <= most:
        return list(points)
    step = points[-1].env_steps / most
    kept: list[Point] = []
    for point in points:
        if point.env_steps >= len(kept) * step and len(kept) < most:
            kept.append(point)
    if kept[-1] != points[-1]:
        kept[-1] = points[-1]
    return kept


def write_csv(curves: dict[str, list[Point]], path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["label", *Point._fields])
        for label, points in curves.items():
            for point in points:
                writer.writerow(
                    [label, point.env_steps, f"{point.wall_s:.1f}", f"{point.episode_return_mean:.2f}"]
                )


def draw(curves: dict[str, list[Point]], title: str, path: Path) -> None:
    """Two panels: over env steps (does it learn the same?) and over wall seconds (how fast?)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for label, points in curves.items():
        returns = [point.episode_return_mean for point in points]
        axes[0].plot([point.env_steps for point in points], returns, label=label)
        axes[1].plot([point.wall_s for point in points], returns, label=label)
    axes[0].set(xlabel="env steps", ylabel="return, mean of the last 100 episodes")
    axes[1].set(xlabel="wall time, s")
    axes[0].legend(frameon=False)
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
