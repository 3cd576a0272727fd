"""`rlplat plot RUNS... --out FILE`: learning curves with their interval over seeds, as a picture for a paper."""

from __future__ import annotations

import argparse
import csv
import glob
from itertools import islice
from pathlib import Path
from typing import Any

from rlplat.catalog import find, flat, settings_of
from rlplat.cli.parser import command
from rlplat.errors import ConfigError, MissingExtra
from rlplat.metrics import read_records
from rlplat.paths import expanded

FEW = 5
"""Runs below which an interval says little."""
COLORS = ("#1f77e0", "#e8702a", "#2a9d5c", "#b453c6", "#d43d51", "#0fa3b1", "#9c7a23", "#6b7785")
_FORMATS = (".pdf", ".png", ".svg", ".csv")
_OF_OTHERS = {
    "events.out.tfevents*": "TensorBoard's (CleanRL writes those)",
    "progress.csv": "SB3's",
    "*monitor.csv": "SB3's",
    "evaluations.npz": "SB3's",
}
_X_NAMES = {"env_steps": "env steps", "wall_s": "wall time (s)"}

_HELP = """\
Draw a metric of runs: one curve for each config (or each NAME=), with an interval over seeds.

runs@[NAME=]RUN...  run directories, directories of runs, or patterns
--out! FILE  curve.pdf, curve.png, curve.svg or curve.csv
--metric NAME:episode_return_mean  what is drawn
--x {env_steps,wall_s}:env_steps  over what
--middle {iqm,mean}:iqm  of the runs: interquartile mean, or mean
--title TEXT:  above the picture (default: none)

examples:
  rlplat plot runs/seed-* --out curve.pdf                      one curve with its interval over the seeds
  rlplat plot runs/ppo runs/sac --out both.svg                 directories of runs; one curve for each config
  rlplat plot old=runs/a-* new=runs/b-* --out two.png          one curve for each name
  rlplat plot runs/seed-* --metric eval/return_mean --x wall_s --out evaluation.pdf
  rlplat plot runs/seed-* --out curve.csv                      its numbers

Runs that differ by their seed alone are one curve: the interquartile mean (--middle mean: the mean) and a 95 %
bootstrap interval. An evaluation is drawn at the env steps of the weights that it played. Needs matplotlib (but for
.csv): pip install 'rlplat[plots]'.
"""


@command("plot", _HELP)
def run(options: argparse.Namespace) -> int:
    out: Path = options.out
    if out.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--out takes a file that ends in {', '.join(_FORMATS)}, not '{out}'")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no directory {out.parent}")
    from rlplat.dashboard.bands import band, curve_of

    bands: dict[str, Any] = {}
    for label, paths in groups_of(options.runs).items():
        curves = []
        for path in paths:
            records = read_records(path / "metrics.jsonl")
            x, y = curve_of(records, options.metric, options.x)
            if not len(x):
                names = sorted({name for record in records for name, value in record.items() if value is not None})
                raise ConfigError(_nothing_there(path, options.metric, names))
            curves.append((x, y))
        bands[label] = band(curves, middle_of=options.middle)
    for label, each in bands.items():
        num = int(each.num_runs.max())
        few = f"; {num} seeds: the interval says little, draw at least {FEW}" if 1 < num < FEW else ""
        print(f"{label}: {num} run{'s' if num > 1 else ''}, {_end_of(each, _X_NAMES[options.x])}{few}")
    if out.suffix.lower() == ".csv":
        write_csv(bands, options.x, out)
    else:
        draw(bands, options.metric, _X_NAMES[options.x], options.middle, options.title, out)
    print(f"written: {out}")
    return 0


def groups_of(given: list[str]) -> dict[str, list[Path]]:
    """Runs by the label of their curve: the NAME of `NAME=RUN`, else what they are (those that differ by their seed
    alone have one)."""
    from rlplat.dashboard.pages import differences, group_of

    named: dict[str, list[Path]] = {}
    by_group: dict[str, list[Path]] = {}
    for text in given:
        name, equals, pattern = text.partition("=") if not Path(text).exists() else ("", "", text)
        found = _runs_at(pattern if equals else text)
        if equals:
            named.setdefault(name, []).extend(found)
            continue
        for path in found:
            members = by_group.setdefault(group_of(settings_of(path)), [])
            members += [path] if path not in members else []
    settings = {key: flat(settings_of(paths[0])) for key, paths in by_group.items()}
    told = differences(settings) if len(settings) > 1 else {}
    ignored = ("seed", "out", "stop.", "evaluation.", "expect.")
    keys = [key for key in told if not key.startswith(ignored)]
    main = [key for key in keys if key in ("algo", "env")]
    if len({tuple(told[key][group] for key in main) for group in by_group}) == len(by_group):
        keys = main  # what else differs follows from these
    for key, paths in by_group.items():
        label = ", ".join(
            f"{told[name][key]}" if name in ("algo", "env") else f"{name}={told[name][key]}" for name in keys[:3]
        )
        label = label or f"{settings[key].get('algo')} {settings[key].get('env')}"
        named.setdefault(label if label not in named else f"{label} ({paths[0].name})", []).extend(paths)
    return named


def _runs_at(text: str) -> list[Path]:
    pattern = str(expanded(text))
    paths = [Path(found) for found in sorted(glob.glob(pattern))] or [Path(pattern)]
    found: list[Path] = []
    for path in paths:
        if (path / "metrics.jsonl").exists():
            found.append(path)
        elif path.is_dir():
            found += sorted(run for kind, run in find(path) if kind == "run" and (run / "metrics.jsonl").exists())
    if not found:
        raise ConfigError(f"no run with metrics in '{text}'{_of_others(paths) or '; `rlplat runs` lists the runs'}")
    return found


def _of_others(paths: list[Path]) -> str:
    """Which files of other programs are there, and what would be read."""
    there = (file for path in paths for file in islice([path] if path.is_file() else path.rglob("*"), 10_000))
    for file in there:
        if whose := [whose for pattern, whose in _OF_OTHERS.items() if file.match(pattern)]:
            return (
                f": {file.name} is {whose[0]}. A run that can be read is a directory with metrics.jsonl (a JSON object "
                "a line: env_steps, episode_return_mean, wall_s) and config.yaml (algo, env, seed)"
            )
    return ""


def _nothing_there(path: Path, metric: str, names: list[str]) -> str:
    from rlplat.config import closest

    if not names:
        return f"{path} has no metrics yet"
    return f"{path} has no value of '{metric}'{closest(metric, names)} (it has {', '.join(names)})"


def _end_of(band: Any, x_name: str) -> str:
    """What it was where the first of the runs ended."""
    from rlplat.figures import figure

    at = int((band.num_runs == band.num_runs.max()).nonzero()[0][-1])
    text = f"{figure(band.middle[at])} at {x_name} {band.x[at]:,.0f}"
    if band.num_runs[at] > 1:
        text += f", 95 % interval {figure(band.low[at])} to {figure(band.high[at])}"
    return text


def draw(bands: dict[str, Any], metric: str, x_name: str, middle: str, title: str, out: Path) -> None:
    figure = picture(6.4, 4.0)
    axes = figure.add_subplot()
    for (label, each), color in zip(bands.items(), COLORS * (1 + len(bands) // len(COLORS)), strict=False):
        num = int(each.num_runs.max())
        axes.plot(each.x, each.middle, color=color, label=f"{label} (n = {num})", linewidth=1.6)
        if num > 1:
            axes.fill_between(each.x, each.low, each.high, color=color, alpha=0.2, linewidth=0)
    several = any(each.num_runs.max() > 1 for each in bands.values())
    of_runs = f"{'interquartile mean' if middle == 'iqm' else 'mean'}, 95 % interval" if several else None
    names = {"episode_return_mean": "return (mean of 100 episodes)", "eval/return_mean": "evaluation return"}
    axes.set_xlabel(x_name)
    axes.set_ylabel(names.get(metric, metric))
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize="small", title=of_runs, title_fontsize="small")
    if title:
        axes.set_title(title)
    save_picture(figure, out)


def picture(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure  # without pyplot: no window, no global state
    except ImportError:
        raise MissingExtra("matplotlib", "plots", "a picture") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_picture(figure: Any, out: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.fonttype": "none"}):  # text stays text
        figure.savefig(out, dpi=200)


def write_csv(bands: dict[str, Any], x: str, out: Path) -> None:
    with open(out, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["label", x, "middle", "low", "high", "num_runs"])
        for label, each in bands.items():
            for row in zip(each.x, each.middle, each.low, each.high, each.num_runs, strict=True):
                writer.writerow([label, *(f"{value:.6g}" for value in row)])
