"""`rlplat tune show`: what came out of an experiment, or has come out so far."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplat.cli.output import print_json
from rlplat.cli.parser import command
from rlplat.durations import duration_text
from rlplat.paths import expanded

if TYPE_CHECKING:
    from rlplat.tune.analysis import Analysis
    from rlplat.tune.trial import Trial


_HELP = """\
The best config, the best trials, which parameters matter, and pictures of an experiment; it may still be going.

directory@EXPERIMENT  the experiment's directory
--out DIR  where pictures go (default: EXPERIMENT/pictures)
--no-pictures  text only
--json  print one JSON object

examples:
  rlplat tune show runs/demo                       pictures go to runs/demo/pictures
  rlplat tune show runs/demo --no-pictures --json

The same while it runs, in a browser: tensorboard --logdir runs/demo, optuna-dashboard runs/demo/study.journal
In Python: analysis = rlplat.tune.load("runs/demo"); analysis.dataframe()
"""
_NUM_BEST = 10
_WIDE = 200


@command("tune show", _HELP, {"EXPERIMENT": expanded, "DIR": expanded})
def run(options: argparse.Namespace) -> int:
    from rlplat.errors import MissingExtra
    from rlplat.rl.run.run_directory import is_running
    from rlplat.tune.analysis import load

    analysis = load(options.directory)
    goes_on = is_running(options.directory)
    pictures, note = {}, ""
    if not options.no_pictures:
        try:
            pictures = _draw(analysis, options.out or options.directory / "pictures")
        except MissingExtra as missing:  # the table needs nothing
            note = f"{missing}"
    if options.json:
        print_json(summary(analysis, pictures, goes_on))
    else:
        _print(analysis, pictures, goes_on)
    if note:
        print(note, file=sys.stderr)
    return 0


def summary(analysis: Analysis, pictures: dict[str, Path], goes_on: bool) -> dict[str, Any]:
    """What --json prints."""
    from rlplat.tune.lines import as_json

    best = analysis.pareto_front if len(analysis.metric) > 1 else analysis.ranked[:_NUM_BEST]
    return {
        "experiment": str(analysis.directory),
        "name": analysis.name,
        "is_running": goes_on,
        "metric": list(analysis.metric),
        "mode": list(analysis.mode),
        "trials": dict(Counter(str(trial.state) for trial in analysis.trials)),
        "best": [
            {
                "trial": trial.number,
                "values": as_json(trial.values),
                "state": str(trial.state),
                "step": trial.step,
                "config": as_json(trial.config),
                "params": as_json(trial.params),
                "checkpoint": analysis.checkpoint_of(trial),
            }
            for trial in best
        ],
        "importance": [{"name": name, "share": round(share, 4)} for name, share in analysis.importances.items()],
        "pictures": {name: str(path) for name, path in pictures.items()},
    }


def _print(analysis: Analysis, pictures: dict[str, Path], goes_on: bool) -> None:
    from rich.console import Console
    from rich.padding import Padding

    from rlplat.tune.directory import config_text
    from rlplat.tune.live_table import table
    from rlplat.tune.trial import last_line

    print(headline(analysis, goes_on))
    best = analysis.pareto_front if len(analysis.metric) > 1 else analysis.ranked[:_NUM_BEST]
    if not best:
        print(f"\n{analysis.why_none()}")
    else:
        if len(analysis.metric) == 1:
            print(f"\nbest config (trial {best[0].number}){_best_file(analysis, best[0])}:")
            print(textwrap.indent(config_text(best[0].config).rstrip(), "  "))
        title = "the Pareto front" if len(analysis.metric) > 1 else "the best trials"
        print(f"\n{title}:", flush=True)
        # A file takes whole lines.
        console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
        console.print(
            Padding(table(best[: 2 * _NUM_BEST], analysis.metric, console.width - 2), (0, 0, 0, 2), expand=False)
        )
    failed = [trial for trial in analysis.trials if trial.error and str(trial.state) == "failed"]
    if failed:
        print(f"\n{len(failed)} failed, the last one (trial {failed[-1].number}): {last_line(failed[-1].error)}")
    if unsaved := [trial for trial in analysis.trials if "not_saved" in trial.notes]:
        print(
            f"\n{len(unsaved)} could not always be saved, the last one trial {unsaved[-1].number}: "
            f"{unsaved[-1].notes['not_saved']}"
        )
    print(f"\n{importance_text(analysis)}")
    for name, path in pictures.items():
        print(f"{name.replace('_', ' ')}: {path}")


def _best_file(analysis: Analysis, best: Trial) -> str:
    """Where else it is, unless a running trial is better than all that have ended."""
    path = (analysis.directory or Path()) / "best.yaml"
    is_there = (
        path.exists() and f": {best.number}," in path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    )
    return f", also in {path}" if is_there else ""


def headline(analysis: Analysis, goes_on: bool) -> str:
    """`demo: 40 trials (31 complete, 8 stopped, 1 failed), 2m03s of trials' time; still going`."""
    counts = Counter(str(trial.state) for trial in analysis.trials)
    shown = ", ".join(f"{count:,} {state}" for state, count in counts.most_common()) or "none yet"
    seconds = sum(trial.run_s for trial in analysis.trials)
    state = "; still going" if goes_on else ""
    trials = f"{len(analysis.trials):,} trials ({shown})"
    return f"{analysis.name}: {trials}, {duration_text(seconds)} of trials' time{state}"


def importance_text(analysis: Analysis) -> str:
    from rlplat.tune.analysis import MIN_TRIALS

    if not analysis.domains:
        return "importance of the parameters: there are none"
    if not analysis.importances:
        ended = sum(trial.state.has_ended for trial in analysis.judged)
        return f"importance of the parameters: needs {MIN_TRIALS} trials that ended with a value, there are {ended}"
    return "importance of the parameters: " + ", ".join(f"{n} {share:.0%}" for n, share in analysis.importances.items())


def _draw(analysis: Analysis, directory: Path) -> dict[str, Path]:
    from rlplat.errors import ConfigError
    from rlplat.tune.pictures import draw_all

    paths: dict[str, Path] = {}
    for name, figure in draw_all(analysis):
        paths[name] = path = directory / f"{name}.png"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, bbox_inches="tight")
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror or error}; choose another place: --out DIRECTORY"
            ) from None
    return paths
