"""`docs/results.md`: what the algorithms learn, from the files in `benchmarks/results/learning`.

    rlplat bench learning ppo/CartPole-v1 sac/Pendulum-v1 --seeds 1-5     # the runs; hours or days
    python -m benchmarks.learning_page collect runs/bench [COMMIT [FLAGS]]    # their curves: a CSV for each cell
    python -m benchmarks.learning_page                                    # the page and its picture

A cell is an algorithm on an environment. `published.md` has others' values: facts, with their source.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ROOT, hardware
from rlplat.catalog import settings_of
from rlplat.cli.view.compare import Published, read_published, same_task
from rlplat.dashboard.bands import Curve, band, interval
from rlplat.figures import figure
from rlplat.metrics import read_records

FILES = ROOT / "benchmarks" / "results" / "learning"
PAGE = ROOT / "docs" / "results.md"
PICTURE = ROOT / "docs" / "images" / "results.png"
POINTS = 40
"""Of each run's curve that are kept, beside its last line."""
COLUMNS = ("seed", "env_steps", "wall_s", "episode_return_mean", "eval/return_mean", "eval/episodes")


@dataclass(frozen=True)
class Cell:
    algo: str
    env: str
    about: str
    """Command, date, hardware, one line."""
    curves: list[Curve]
    """Training return over env steps, of each seed."""
    scores: list[float]
    """Of each seed: the mean return of the greedy episodes at the end."""
    episodes: int
    """Of each score."""
    env_steps: float
    """Median over the seeds, at the end."""
    wall_s: float


def collect(runs: Path, commit: str = "", flags: str = "") -> None:
    """commit: at which the runs were made, if it is not the one of this checkout; flags: of `rlplat bench`, other than
    the configs."""
    FILES.mkdir(exist_ok=True)
    for directory in sorted(path for path in runs.iterdir() if path.is_dir()):
        rows: list[list[Any]] = []
        settings: dict[str, Any] = {}
        for run in sorted(directory.glob("seed-*/"), key=lambda path: int(path.name.removeprefix("seed-"))):
            records = read_records(run / "metrics.jsonl")
            if not records or records[-1].get("eval/return_mean") is None:
                print(f"{run} has not ended: left out")
                continue
            settings = dict(settings_of(run))
            chosen = sorted({round(at) for at in np.linspace(0, len(records) - 1, POINTS)})
            rows += [[settings["seed"], *(records[at].get(name) for name in COLUMNS[1:])] for at in chosen]
        if not rows:
            continue
        machine = hardware(["torch", "numpy", "gymnasium"])
        about = (
            f"{date.today()}, commit {commit or machine['commit']}, one core of {machine['cpu']}, "
            f"Python {machine['python']}, {machine['packages']}; idle priority beside other work"
            + (f"; {settings['algo']} {settings['env']} with `{flags}`" if flags else "")
        )
        with open(FILES / f"{directory.name}.csv", "w", newline="", encoding="utf-8") as file:
            file.write(f"# {settings['algo']} {settings['env']}: {about}\n")
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows([[_short(value) for value in row] for row in rows])
        print(f"{directory.name}: {len({row[0] for row in rows})} seeds")


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else value


def read(path: Path) -> Cell:
    with open(path, encoding="utf-8") as file:
        algo, _, rest = file.readline().removeprefix("# ").strip().partition(" ")
        env, _, about = rest.partition(": ")
        by_seed: dict[str, list[dict[str, str]]] = defaultdict(list)
        for row in csv.DictReader(file):
            by_seed[row["seed"]].append(row)
    curves = []
    for rows in by_seed.values():
        known = [row for row in rows if row["episode_return_mean"]]
        curves.append(
            (
                np.array([float(row["env_steps"]) for row in known]),
                np.array([float(row["episode_return_mean"]) for row in known]),
            )
        )
    ends = [rows[-1] for rows in by_seed.values()]
    return Cell(
        algo,
        env,
        about,
        curves,
        [float(end["eval/return_mean"]) for end in ends],
        int(float(ends[0]["eval/episodes"])),
        float(np.median([float(end["env_steps"]) for end in ends])),
        float(np.median([float(end["wall_s"]) for end in ends])),
    )


def page(cells: dict[str, Cell], published: list[Published]) -> str:
    """The text of docs/results.md. cells: by the name of the file."""
    lines, at_least, compared = [], 0, 0
    for name, cell in cells.items():
        iqm, low, high = interval(cell.scores)
        mean, mean_low, mean_high = interval(cell.scores, "mean")
        cells_of_row = [
            f"[{cell.algo}, {cell.env}](../benchmarks/results/learning/{name}.csv)",
            f"{len(cell.scores)}",
            f"**{figure(iqm)}** [{figure(low)}, {figure(high)}]",
            f"{figure(mean)} [{figure(mean_low)}, {figure(mean_high)}]",
            figure(min(cell.scores)),
            f"{cell.env_steps:,.0f}",
            f"{cell.wall_s:,.0f}",
        ]
        there = [each for each in published if same_task(each, cell.algo, cell.env)]
        if there:
            anchor = there[0]
            compared += 1
            at_least += iqm >= anchor.mean
            std = anchor.std or 0.0
            verdict = "at least" if iqm >= anchor.mean else "within" if low >= anchor.mean - std else "**below**"
            cells_of_row += [f"{figure(anchor.mean)} ± {figure(std)} after {anchor.env_steps}", verdict]
        else:
            cells_of_row += ["", ""]
        lines.append(f"| {' | '.join(cells_of_row)} |")
    abouts = "\n".join(f"- {line}" for line in dict.fromkeys(cell.about for cell in cells.values()))
    return _PAGE.format(rows="\n".join(lines), at_least=at_least, compared=compared, abouts=abouts)


_PAGE = """\
# Results

<!-- made by `python -m benchmarks.learning_page` from benchmarks/results/learning: change those files -->

Algorithms on the environments that people compare, with several seeds each. A score is the mean return of the greedy
episodes at the end of a run (Atari: of episodes with exploration, stopped at a mean return of 18 or with what the
config says); IQM is the interquartile mean over the seeds, in brackets 95 % bootstrap intervals
(Agarwal et al. 2021). `Published` is one agent of
[rl-zoo3](https://github.com/DLR-RM/rl-baselines3-zoo/blob/22e3ff2450fd92033f7f032915e1f64894a09584/benchmark.md): mean
± standard deviation over its episodes, with MuJoCo -v3 and LunarLander-v2 where ours are newer versions. The last
column: `at least`, our IQM is their mean or more; `within`, our interval begins above their mean minus a deviation.

Two things to keep in mind: budgets differ where the steps do (A3C on LunarLander has 20 times those of the published
A2C), and PPO's values on Pendulum (six tried), HalfCheetah (three) and Walker2d (two) were chosen by these very seeds.

**{at_least} of {compared} cells with a published value have its mean or more.**

| cell | seeds | IQM | mean | worst seed | env steps | wall s | published | ours is |
|---|---|---|---|---|---|---|---|---|
{rows}

![Training return over env steps, a panel for each cell](images/results.png)

Env steps and seconds are medians over the seeds, at the end of the run: most configs stop where the training return is
reached. The dashed lines are the published means, the others interquartile means of the training return (with
exploration, over the last 100 episodes), the bands 95 % intervals.

A cell again, here PPO's CartPole; the names of the cells are those of the files:

```text
rlplat bench learning ppo/CartPole-v1 --seeds 1-5
python -m benchmarks.learning_page collect runs/bench
python -m benchmarks.learning_page
```

Where the runs were made:

{abouts}

Atari, several agents, planning, offline and model-based learning, most of them with fewer seeds:
[one table](../benchmarks/results/learning_xeon-2c_202611.md) with links to curves, commands and what was tried.
"""


def draw(cells: dict[str, Cell], published: list[Published]) -> None:
    from matplotlib.figure import Figure

    columns = 4
    rows = math.ceil(len(cells) / columns)
    picture = Figure(figsize=(2.9 * columns, 2.1 * rows), layout="constrained")
    panels = np.atleast_2d(picture.subplots(rows, columns, squeeze=False)).ravel()
    for axes, cell in zip(panels, cells.values(), strict=False):
        curve = band(cell.curves)
        axes.plot(curve.x, curve.middle, color="#1f77e0", linewidth=1.2)
        axes.fill_between(curve.x, curve.low, curve.high, color="#1f77e0", alpha=0.25, linewidth=0)
        for each in published:
            if same_task(each, cell.algo, cell.env):
                axes.axhline(each.mean, color="#e8702a", linewidth=0.9, linestyle="--")
        axes.set_title(f"{cell.algo} {cell.env} (n = {len(cell.scores)})", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.ticklabel_format(axis="x", style="sci", scilimits=(0, 3))
        axes.xaxis.get_offset_text().set_fontsize(7)
        axes.grid(alpha=0.3)
    for axes in panels[len(cells) :]:
        axes.set_visible(False)
    picture.savefig(PICTURE, dpi=110)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["collect"] and 2 <= len(arguments) <= 4:
        collect(Path(arguments[1]), *arguments[2:])
    elif arguments:
        sys.exit("python -m benchmarks.learning_page [collect DIR [COMMIT [FLAGS]]]")
    else:
        cells = read_all()
        published = read_published(FILES / "published.md")
        PAGE.write_text(page(cells, published), encoding="utf-8")
        draw(cells, published)
        print(f"written: {PAGE} and {PICTURE} of {len(cells)} cells")


def read_all() -> dict[str, Cell]:
    return {path.stem: read(path) for path in sorted(FILES.glob("*.csv"))}


if __name__ == "__main__":
    main(sys.argv[1:])
