"""`rlplat compare RUNS...`: groups of seeds beside each other, and beside published values: what a reviewer asks for.

The figures are those of Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (NeurIPS
2021), with 95 % percentile intervals over bootstrap samples of the runs (`dashboard/bands.py`).
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlplat.catalog import settings_of
from rlplat.cli.look.cluster_view import plain_table
from rlplat.cli.output import print_json
from rlplat.cli.parser import command
from rlplat.cli.view.plot import COLORS, FEW, groups_of, picture, save_picture
from rlplat.dashboard.bands import curve_of, improvements, interval, performance_profile, summary
from rlplat.errors import ConfigError
from rlplat.figures import figure
from rlplat.metrics import read_records
from rlplat.rl.names_elsewhere import switches_of

_HELP = """\
Compare groups of runs: a group is the runs that differ by their seed alone, or those of a NAME=.

runs@[NAME=]RUN...  run directories, directories of runs, or patterns
--metric NAME  of each run's last line with it (default: the evaluation if every run has one, else episode_return_mean)
--threshold N  also: the env steps and seconds until episode_return_mean was N
--against FILE  published values: a table in Markdown or CSV with algo, env, mean (and std), as rl-zoo3's benchmark.md
--out FILE  the performance profiles as .png, .svg or .pdf, or the scores as .csv
--json  print one JSON object

examples:
  rlplat compare runs/five                               what the seeds say together
  rlplat compare ppo="runs/ppo/seed-*" dqn="runs/dqn/seed-*" --threshold 475
  rlplat compare runs/study --against benchmark.md --out profile.png

IQM: interquartile mean; brackets: 95 % bootstrap interval over the seeds. `over the run` is the mean of
episode_return_mean over the env steps. P(a > b): how often a run of a is better than one of b (ties count half).
"""
_EVALUATION, _RETURN = "eval/return_mean", "episode_return_mean"


@dataclass(frozen=True)
class Group:
    """Runs of one environment under one name."""

    name: str
    algo: str
    env: str
    scores: np.ndarray
    """float64[N], N runs: the last value of the metric."""
    over_run: np.ndarray
    """float64[N]: the mean of the return over env steps, the area under the curve by its length."""
    env_steps: np.ndarray
    wall_s: np.ndarray
    """float64[N]: at the last line."""
    reached: list[tuple[float, float]]
    """(env steps, seconds) of the runs that came to the threshold."""


@dataclass(frozen=True)
class Published:
    algo: str
    env: str
    mean: float
    std: float | None
    env_steps: str


@command("compare", _HELP, {"N": float, "FILE": Path})
def run(options: argparse.Namespace) -> int:
    if options.out is not None and options.out.suffix.lower() not in (".png", ".svg", ".pdf", ".csv"):
        raise ConfigError(f"--out takes a file that ends in .png, .svg, .pdf or .csv, not '{options.out}'")
    published = read_published(options.against) if options.against else []
    records = {
        name: {path: read_records(path / "metrics.jsonl") for path in paths}
        for name, paths in groups_of(options.runs).items()
    }
    metric = options.metric or _metric_of(rows for runs in records.values() for rows in runs.values())
    groups = [group for name, runs in records.items() for group in _groups(name, runs, metric, options.threshold)]
    by_env: dict[str, list[Group]] = {}
    for group in groups:
        by_env.setdefault(group.env, []).append(group)
    found = {
        env: _comparison(
            members,
            [each for each in published if any(same_task(each, group.algo, group.env) for group in members)],
        )
        for env, members in by_env.items()
    }
    if options.json:
        print_json({"metric": metric, "threshold": options.threshold, "envs": found})
    else:
        for env, comparison in found.items():
            print("\n".join([f"{env}: {metric}", *_lines(comparison, options.threshold), ""]))
        _warn_of_few(groups)
        if options.against and not any(each["published"] for each in found.values()):
            print(f"{options.against} has no value of these algorithms in these environments")
    if options.out is not None:
        _write(by_env, metric, options.out)
        print(f"written: {options.out}")
    return 0


def _metric_of(runs: Any) -> str:
    has_all = all(any(row.get(_EVALUATION) is not None for row in rows) for rows in runs)
    return _EVALUATION if has_all else _RETURN


def _groups(
    name: str, runs: Mapping[Path, Sequence[Mapping[str, Any]]], metric: str, threshold: float | None
) -> list[Group]:
    """One for each environment of the runs."""
    by_env: dict[tuple[str, str], list[Path]] = {}
    for path in runs:
        settings = settings_of(path)
        by_env.setdefault((str(settings.get("env")), str(settings.get("algo"))), []).append(path)
    made = []
    for (env, algo), paths in by_env.items():
        scores, over_run, steps, seconds, reached = [], [], [], [], []
        for path in paths:
            values = [row[metric] for row in runs[path] if isinstance(row.get(metric), int | float)]
            if not values:
                raise ConfigError(f"{path} has no value of '{metric}'; --metric takes another one")
            x, y = curve_of(runs[path], _RETURN)
            last = runs[path][-1]
            scores.append(float(values[-1]))
            over_run.append(_mean_over(x, y))
            steps.append(float(last.get("env_steps") or 0))
            seconds.append(float(last.get("wall_s") or 0))
            if threshold is not None and (there := _first(runs[path], threshold)):
                reached.append(there)
        numbers = (np.array(scores), np.array(over_run), np.array(steps), np.array(seconds))
        made.append(Group(name, algo, env, *numbers, reached))
    return made


def _mean_over(x: np.ndarray, y: np.ndarray) -> float:
    if len(x) < 2:
        return float(y[0]) if len(y) else float("nan")
    return float((np.diff(x) * (y[1:] + y[:-1])).sum() / 2 / (x[-1] - x[0]))  # (np.trapezoid came with numpy 2)


def _first(rows: Sequence[Mapping[str, Any]], threshold: float) -> tuple[float, float] | None:
    for row in rows:
        if (value := row.get(_RETURN)) is not None and value >= threshold:
            return float(row["env_steps"]), float(row.get("wall_s") or 0)
    return None


def _comparison(groups: Sequence[Group], published: Sequence[Published]) -> dict[str, Any]:
    rows = []
    for each in groups:
        area, area_low, area_high = interval(each.over_run.tolist())
        rows.append(
            {
                "name": each.name, "algo": each.algo, **summary(each.scores.tolist()),
                "over_run_iqm": area, "over_run_interval": [area_low, area_high],
                "env_steps": float(np.median(each.env_steps)), "wall_s": float(np.median(each.wall_s)),
                "reached": len(each.reached),
                "steps_to_threshold": float(np.median([at for at, _ in each.reached])) if each.reached else None,
                "seconds_to_threshold": float(np.median([s for _, s in each.reached])) if each.reached else None,
            }
        )  # fmt: skip
    better = improvements({each.name: each.scores.tolist() for each in groups})
    return {"groups": rows, "better": better, "published": [asdict(each) for each in published]}


def _lines(comparison: Mapping[str, Any], threshold: float | None) -> list[str]:
    header = ["", "runs", "IQM", "", "mean", "", "worst", "best", "over the run", "env steps", "wall s"]
    header += [f"steps to {figure(threshold)}", "in s", "reached"] if threshold is not None else []
    rows = []
    for row in comparison["groups"]:
        cells = [row["name"], str(row["runs"]), figure(row["iqm"]), _between(row["iqm_interval"])]
        cells += [figure(row["mean"]), _between(row["mean_interval"]), figure(row["worst"])]
        cells += [figure(row["best"]), _or_none(row["over_run_iqm"]), f"{row['env_steps']:,.0f}"]
        cells += [figure(row["wall_s"])]
        if threshold is not None:
            steps, seconds = row["steps_to_threshold"], row["seconds_to_threshold"]
            cells += [f"{steps:,.0f}", figure(seconds)] if steps is not None else ["-", "-"]
            cells += [f"{row['reached']} of {row['runs']}"]
        rows.append(cells)
    for each in comparison["published"]:
        spread = "" if each["std"] is None else f"± {figure(each['std'])}"
        cells = [f"published: {each['algo']} {each['env']}", "", "", "", figure(each["mean"]), spread]
        rows.append(cells + [""] * 3 + [each["env_steps"]] + [""] * (len(header) - 10))
    lines = plain_table([header, *rows], [False] + [True] * (len(header) - 1))
    for each in comparison["better"]:
        lines.append(
            f"P({each['a']} > {each['b']}) = {each['p']:.2f} [{each['interval'][0]:.2f}, {each['interval'][1]:.2f}]"
        )
    return lines


def _or_none(value: float) -> str:
    return "-" if np.isnan(value) else figure(value)


def _between(ends: Sequence[float]) -> str:
    return f"[{figure(ends[0])}, {figure(ends[1])}]"


def _warn_of_few(groups: Sequence[Group]) -> None:
    if few := [f"{each.name} ({len(each.scores)})" for each in groups if len(each.scores) < FEW]:
        print(f"fewer than {FEW} runs say little: {', '.join(few)}")


def read_published(path: Path) -> list[Published]:
    """Rows of a table in Markdown (`| algo | env_id | mean_reward | std_reward | n_timesteps |`, the first one of the
    file that has these columns) or CSV."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--against {path}: {error}") from None
    lines = text.splitlines()
    if path.suffix.lower() == ".csv":
        rows = list(csv.reader(lines))
    else:
        cells = [line.strip().strip("|").split("|") for line in lines if line.strip().startswith("|")]
        rows = [[cell.strip() for cell in row] for row in cells]
    wanted = ("algo", "env", "mean")
    columns: dict[str, int] = {}
    found = []
    for row in rows:
        if not columns:
            names = [re.sub(r"_?(id|reward|return)$", "", cell.strip().lower()) for cell in row]
            if all(name in names for name in wanted):
                columns = {name: names.index(name) for name in names}
            continue
        try:
            value = {name: row[at].strip() for name, at in columns.items()}
            std = value.get("std")
            steps = value.get("n_timesteps") or value.get("env_steps") or ""
            found.append(
                Published(value["algo"], value["env"], float(value["mean"]), float(std) if std else None, steps)
            )
        except (IndexError, ValueError):
            continue  # the line below the header, or another table
    if not found:
        raise ConfigError(f"--against {path} has no table with the columns {', '.join(wanted)} and numbers")
    return found


def same_task(published: Published, algo: str, env: str) -> bool:
    """Versions of environments are shown, not compared."""
    return _task(published.env) == _task(env) and _algorithm(published.algo) == _algorithm(algo)


def _task(env: str) -> str:
    """`ALE/Pong-v5`, `PongNoFrameskip-v4`, `Pong` -> `pong`."""
    return re.sub(r"(NoFrameskip)?(-v\d+)?$", "", env.rpartition("/")[2]).lower()


def _algorithm(name: str) -> str:
    known = switches_of(name)
    return known.algo if known and known.algo == "a3c" else name.lower().replace("-", "").replace("_", "")


def _write(by_env: Mapping[str, Sequence[Group]], metric: str, out: Path) -> None:
    if out.suffix.lower() == ".csv":
        with open(out, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["env", "group", "score"])
            for env, groups in by_env.items():
                writer.writerows([env, each.name, f"{score:.6g}"] for each in groups for score in each.scores)
        return
    drawn = picture(4.8 * len(by_env), 3.6)
    for axes, (env, groups) in zip(np.atleast_1d(drawn.subplots(1, len(by_env))), by_env.items(), strict=True):
        for each, color in zip(groups, COLORS * (1 + len(groups) // len(COLORS)), strict=False):
            scores, share, low, high = performance_profile(each.scores)
            axes.step(scores, share, where="post", color=color, label=f"{each.name} (n = {len(each.scores)})")
            axes.fill_between(scores, low, high, step="post", color=color, alpha=0.2, linewidth=0)
        axes.set_title(env, fontsize="medium")
        axes.set_xlabel(f"{metric} beyond")
        axes.set_ylabel("share of runs")
        axes.legend(frameon=False, fontsize="small")
        axes.grid(alpha=0.3)
    save_picture(drawn, out)
