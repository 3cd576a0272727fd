"""`rlplat tune`: from an experiment file, or an algorithm and a search space, to the best config."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlplat.cli.exit_codes import is_usage_error, message_of
from rlplat.cli.output import print_json
from rlplat.cli.parser import command
from rlplat.cli.train import choose_engine, settings_layer
from rlplat.config import Layer, layer_from_flags
from rlplat.errors import ConfigError, RlplatError
from rlplat.figures import figure
from rlplat.given.spelling import spelled
from rlplat.paths import expanded

if TYPE_CHECKING:
    from rlplat.tune.analysis import Analysis
    from rlplat.tune.spec import ExperimentSpec

_HELP = """\
Search for the best config. Needs an experiment file, or --algo; `rlplat tune show DIR` looks at what came out.

experiment@EXPERIMENT.yaml?  what is to be tried; with --resume also the directory of an experiment
--algo NAME  without a file: the algorithm, or ./file.py:trainable
--env NAME  without a file: the environment; its tuned config is the base
--num-samples N  trials (with grids: how often the whole grid)
--max-concurrent N  trials at once (default: as many as have room)
--out DIR  the experiment's directory (default: runs/<name of the file>)
--storage URL  postgresql://user@host/database (default: a file in the directory)
--resume auto?  resume the experiment in its directory; `auto`: begin it if there is none yet (requeued jobs)
--set KEY=VALUE+  keys of the experiment or of the config, e.g. seed=2 "gamma={uniform: [0.9, 1]}"
--only NAME+  with a file of `runs`: only these
--json  print one JSON object per experiment, and no table
--backend {zmq,ray}  what the actors run on: processes of this machine, or Ray (default: $RLPLAT_BACKEND, or zmq)
--address ADDRESS  the join file of several machines; with --backend ray HOST:PORT, or auto (default: $RLPLAT_ADDRESS)

An experiment file says what is tried (docs/tuning.md). --set changes its keys; a key that an experiment does not have
belongs to the config of the trials (--set learning_rate=1e-3, or config.learning_rate=1e-3). Several experiments in one
file (`runs:`) run one after another.

examples:
  rlplat tune configs/tune/ppo-cartpole.yaml
  rlplat tune configs/tune/ppo-cartpole.yaml --num-samples 40 --set scheduler=asha --out runs/forty
  rlplat tune configs/tune/ppo-cartpole.yaml --out runs/forty --resume        (or --resume auto: begins, or resumes)
  rlplat tune --algo ppo --env CartPole-v1 --set "learning_rate={loguniform: [1e-4, 1e-2]}" --num-samples 8
  rlplat tune show runs/forty                      best config, importance of the parameters, pictures

Ctrl-C once: trials that can be saved are saved at their next report, and the command says how to resume (exit 130).
"""

SHOWN_OF_FRONT = 5
"""Trials of a Pareto front that are printed; the rest is in the table of `rlplat tune show`."""
_SETTING_FLAGS = ("num_samples", "max_concurrent", "storage")


@command("tune", _HELP, types={}, takes_words=True)
def run(arguments: list[str]) -> int:
    if arguments[:1] == ["show"]:
        from rlplat.cli import tune_show

        return tune_show.run(arguments[1:])
    options = run.parser().parse_args(arguments)
    if options.resume not in (None, "yes", "auto"):  # the word after it is the experiment
        if options.experiment is not None:
            raise ConfigError(f"--resume takes nothing or `auto`, not {options.resume!r}")
        options.experiment, options.resume = options.resume, "yes"
    choose_engine(options)
    from rlplat.tune.directory import can_resume, refuse_existing

    specs = [spec.checked() for spec in planned(options)]
    is_auto = options.resume == "auto"
    if is_auto and not (options.experiment or options.out):
        raise ConfigError("--resume auto needs --out DIR: else each start has a directory of its own")
    resumed = {spec.name: bool(options.resume) and can_resume(spec.out, spec.storage * is_auto) for spec in specs}
    if options.resume == "yes" and not any(resumed.values()):
        raise ConfigError(
            f"--resume: there is no experiment in {specs[0].out}; omit --resume to begin it, or say where it is: "
            "--out DIR"
        )
    for spec in specs:  # all of them, before the first one begins
        if not resumed[spec.name]:
            refuse_existing(spec.out)
    exit_code = 0
    for number, spec in enumerate(specs, 1):
        if len(specs) > 1 and not options.json:
            print(f"experiment {number} of {len(specs)}: {spec.name}", file=sys.stderr)
        try:
            code = _run_one(spec, resumed[spec.name], arguments, options)
        except RlplatError as error:
            if len(specs) == 1:
                raise
            print(f"rlplat: {spec.name}: {message_of(error)}", file=sys.stderr)  # the others have their turn
            code = 2 if is_usage_error(error) else 1
        exit_code = max(exit_code, code)
    return exit_code


def planned(options: argparse.Namespace) -> list[ExperimentSpec]:
    """The experiments of the command line, not checked yet."""
    from rlplat.rl.run.registry import require_config
    from rlplat.tune.experiment_file import SAVED_AS, load_experiments

    given = [(name.replace("_", "-"), getattr(options, name)) for name in _SETTING_FLAGS]
    flags = layer_from_flags([(name, text) for name, text in given if text is not None])
    settings = [settings_layer(options.set), flags]
    if options.experiment is None:
        return [_without_file(options, settings)]
    if options.algo or options.env:
        raise ConfigError(
            f"{options.experiment} says the trainable and its config; omit --algo and --env "
            "(--set trainable=..., --set env=...)"
        )
    path = expanded(options.experiment)
    if path.is_dir():
        if not (path / SAVED_AS).exists():
            raise ConfigError(f"there is no experiment in {path}: it has no {SAVED_AS}")
        if not options.resume:
            raise ConfigError(
                f"{path} is an experiment's directory: --resume continues it, rlplat tune show {shlex.quote(str(path))}"
            )
        if options.out:
            raise ConfigError(f"an experiment resumes in its own directory, {path}: omit --out")
        options.out, path = str(path), path / SAVED_AS
    elif options.resume and not path.exists() and path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--resume: there is no experiment in {path}")
    if options.out:
        settings.append(layer_from_flags([("out", options.out)]))
    return load_experiments(require_config(path), settings, options.only)


def _without_file(options: argparse.Namespace, settings: Sequence[Layer]) -> ExperimentSpec:
    """--algo and --env; the tuned config of that environment, where there is one, is what the settings change."""
    from rlplat.config import load_yaml
    from rlplat.rl.run.registry import algorithm_homes, base_config
    from rlplat.tune.experiment_file import aimed, experiment_of, overlay

    if options.algo is None:
        raise ConfigError(
            "what is to be tuned? Give an experiment file: rlplat tune EXPERIMENT.yaml, or --algo ppo --env NAME --set "
            '"learning_rate={loguniform: [1e-4, 1e-2]}"'
        )
    if options.only:
        raise ConfigError("--only chooses among the `runs` of an experiment file, and there is no file")
    base = Layer({"trainable": options.algo, "config": {"env": options.env} if options.env else {}})
    if options.algo.lower() in algorithm_homes():
        base.values["trainable"] = options.algo.lower()
        tuned = base_config(options.algo, options.env).path if options.env else None
        if tuned is not None:  # its other settings are what a trial's config is laid over (rl_config.py)
            base.values["stop"] = {"env_steps": load_yaml(tuned).values.get("stop", {}).get("env_steps")}
    if options.out:
        base.values["out"] = options.out
    return experiment_of(overlay([base, *(aimed(layer) for layer in settings)]))


def _run_one(spec: ExperimentSpec, resume: bool, arguments: Sequence[str], options: argparse.Namespace) -> int:
    from rlplat.tune.run_experiment import run_experiment

    try:
        analysis = run_experiment(spec, resume=resume, progress=not options.json)
    except KeyboardInterrupt:
        print(
            f"the experiment is in {spec.out}; to resume: {_resuming(arguments, spec, options)}",
            file=sys.stderr,
        )
        raise
    if options.json:
        print_json(summary(spec, analysis))
    elif analysis.pareto_front:
        print(spelled("\n".join(_result(spec, analysis))))
    if not analysis.pareto_front:
        print(
            f"rlplat: no trial of {spec.name} has a result{_last_error(analysis)}\nmore: {spec.out}/log.txt",
            file=sys.stderr,
        )
    return 0 if analysis.pareto_front else 1


def summary(spec: ExperimentSpec, analysis: Analysis) -> dict[str, Any]:
    """What --json prints: JSON without NaN; with several objectives `best` is the Pareto front."""
    states = [str(trial.state) for trial in analysis.trials]
    return {
        "name": spec.name,
        "directory": str(spec.out),
        "trials": {state: states.count(state) for state in sorted(set(states))},
        "metric": list(spec.metric),
        "mode": list(spec.mode),
        "best": [
            {
                "trial": trial.number,
                "values": dict(zip(spec.metric, trial.values, strict=True)),
                "params": trial.params,
                "config": trial.config,
            }
            for trial in (analysis.pareto_front if len(spec.metric) > 1 else analysis.pareto_front[:1])
        ],
    }


def _result(spec: ExperimentSpec, analysis: Analysis) -> list[str]:
    """Lines for people: the best trial (or trials), where everything is, what to do next."""
    from rlplat.tune.trials.trainables import check_trainable

    states = [str(trial.state) for trial in analysis.trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lines = [f"{spec.name}: {len(states)} trials ({counts})"]
    several = len(spec.metric) > 1
    shown = analysis.pareto_front[:SHOWN_OF_FRONT] if several else analysis.pareto_front[:1]
    if several:
        lines.append(f"{len(analysis.pareto_front)} trials that no other one beats in everything:")
    for trial in shown:
        values = ", ".join(f"{name} {figure(value)}" for name, value in zip(spec.metric, trial.values, strict=True))
        lines.append(f"{'' if several else 'best: '}trial {trial.number}, {values}")
        lines += [f"  {name}: {_short(value)}" for name, value in trial.params.items()]
    if any("seed" in trial.params for trial in shown):
        lines.append(
            "warning: `seed` is searched, so that the best trial is the luckiest seed, not the best config; mean and "
            "interval over seeds: rlplat train ... --seeds 1-5, or seeds_per_trial here"
        )
    out = shlex.quote(str(spec.out))
    if check_trainable(spec.trainable).is_algorithm:
        lines.append(f"train with {'the first' if several else 'the best'} config: rlplat train {out}/best.yaml")
    else:
        lines.append(f"{'the first' if several else 'the best'} config is in {out}/best.yaml")
    lines.append(f"everything is in {out}; look at it: rlplat tune show {out}")
    return lines


def _resuming(arguments: Sequence[str], spec: ExperimentSpec, options: argparse.Namespace) -> str:
    """The command that goes on with what this one began; without the password of a storage, which a log would keep."""
    from rlplat.tune.address import shown

    if options.resume == "auto":
        return spelled(shlex.join(["rlplat", "tune", *map(shown, arguments)]))
    words = [shown(word) for word in arguments if word not in ("--resume", "--json")]
    out = [] if "runs" in spec.origins or _has_option(words, "--out") else ["--out", str(spec.out)]
    return spelled(shlex.join(["rlplat", "tune", *words, *out, "--resume"]))


def _has_option(words: Sequence[str], name: str) -> bool:
    return any(word == name or word.startswith(f"{name}=") for word in words)


def _last_error(analysis: Analysis) -> str:
    from rlplat.tune.trial import first_line

    for trial in reversed(analysis.trials):
        if said := first_line(trial.error):
            return f"; trial {trial.number}: {said}"
    return ""


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
