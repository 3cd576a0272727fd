"""`rlplat train`: from a name or a config file to a trained agent in a run directory."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlplat.cli.parser import command
from rlplat.config import Layer, layer_from_flags
from rlplat.config_sources import put
from rlplat.errors import ConfigError, UsageError
from rlplat.given.spelling import spelled
from rlplat.paths import shown, user_path
from rlplat.rl.user_code import located

_HELP = """\
Train an agent. Needs --algo and --env, or a config file, or --resume.

CONFIG?  a run's settings: a YAML file, or a shipped config such as ppo/Pong (rlplat configs lists them)
--no-config  the algorithm's plain defaults, not the tuned config of this environment
--algo NAME  ppo, dqn, pqn, r2d2, apex, sac, discrete_sac, td3, tqc, crossq, mbpo, impala, a3c, es, alphazero, bc, \
iql, td3_bc, cql, or module:Class
--env NAME  the environment: CartPole-v1, Pong, pkg.module:Env, ./file.py:Env
--seed N  root of all random numbers of the run
--seeds LIST  a run for each of these seeds, one after the other: 1-5, or 1,2,7
--together  the seeds in one program, which steps the environments of all at once (PPO, small policies)
--num-rollout-workers N  processes that step environments; 0: all in one process
--framework NAME  deep-learning framework: torch, tf
--policy CLASS  a network of your own: pkg.module:Class, ./file.py:Class (sets policy.custom)
--callback CLASS*  code of your own that hears of every step: ./file.py:Class; more than once (sets callbacks)
--spaces FILE  only with --env external: the spaces of the simulators (sets env_kwargs.spaces)
--listen ADDRESS  only with --env external: where simulators connect, [HOST]:PORT (default: :9900)
--inference WHERE  only with --env external: remote (default), or local, where simulators act by themselves
--out DIR  the run directory (default: runs/<algo>-<env>-<time>)
--resume DIR  resume the run in this directory, from its newest checkpoint; auto: that of --out begins or continues
--init-from CHECKPOINT  begin with the weights of another run: RUN (its newest checkpoint), RUN:best, RUN:step_N
--track TRACKER*  copy the run to wandb, mlflow, trackio, aim or pkg.module:Class, by a process of its own
--profile {start}  print what takes the time from here to the first line of progress
--set KEY=VALUE+  settings, e.g. discount=0.995
--backend {zmq,ray}  what the actors run on: processes of this machine, or Ray (default: $RLPLAT_BACKEND, or zmq)
--address ADDRESS  the join file of several machines; with --backend ray HOST:PORT, or auto (default: $RLPLAT_ADDRESS)

Settings come from the algorithm's defaults, then the config file, then flags; the later win. Any setting can be
given as a flag with dashes (--learning-rate 3e-4, --stop.env-steps 200000, --policy.hidden-sizes "[128, 128]")
or with --set. `rlplat settings ppo` lists the settings of an algorithm; those of a run are in its config.yaml.

examples:
  rlplat train --algo ppo --env CartPole-v1 --seed 1
  rlplat train --algo ppo --env ./my_env.py:MyEnv --env-kwargs.size 8 --num-rollout-workers 2
  rlplat train --algo ppo --env CartPole-v1 --policy ./my_policy.py:MyPolicy
  rlplat train ppo/Pong --stop.wall-s 3600 --out runs/pong-hour
  rlplat train --algo ppo --env CartPole-v1 --track wandb
  rlplat train --algo ppo --env CartPole-v1 --seeds 1-5 --out runs/five    ends with mean and interval
  rlplat train --algo ppo --env CartPole-v1 --seeds 0-31 --together --out runs/many
  rlplat train --resume runs/pong-hour --stop.env-steps 10000000
  rlplat train --algo ppo --env Pong --out runs/pong --resume auto    begins, or continues: the same command each time
  rlplat train --algo ppo --env ./harder.py:Env --init-from runs/easy:best

Ctrl-C once: finishes the step, saves a checkpoint, says how to resume (exit code 130). Twice: leaves at once.
"""

_SETTING_FLAGS = ("env", "seed", "num_rollout_workers", "framework")


@command("train", _HELP, types={}, takes_words=True)
def run(arguments: list[str]) -> int:
    parser = run.parser()
    known, flags = split_setting_flags(parser, arguments)
    options, further = parser.parse_known_args(known)
    if further or options.config:
        _refuse_names(options.config, further)
    if further:
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    if options.no_config and options.config:
        raise ConfigError(f"--no-config is without a config file: omit it, or {options.config}")
    choose_engine(options)
    if options.profile:
        from rlplat.cli.start_profile import StartProfile

        profile = StartProfile()
    options.track = [located(name) for name in options.track]
    for name in options.track:
        from rlplat.tracking.tracker import load_tracker

        load_tracker(name)  # before anything starts: is it there?
    # the heavy half comes after the arguments are known to be good
    gc.disable()  # a tenth of the imports would be collections, which find nothing
    from rlplat.rl.run.training_loop import TrainOptions, stop_rules, train_layers

    gc.enable()

    if options.together and options.seeds is None:
        raise ConfigError("--together goes with --seeds LIST")
    if options.seeds is not None and not options.together:
        from rlplat.cli.seeds import train_seeds

        return train_seeds(options, arguments)
    given = [(name.replace("_", "-"), getattr(options, name)) for name in _SETTING_FLAGS]
    named = layer_from_flags([*((name, text) for name, text in given if text is not None), *flags])
    if options.policy is not None:
        put(named, ("policy", "custom"), options.policy, "--policy")
    if options.callback:
        put(named, ("callbacks",), options.callback, "--callback")
    layers = [*external_layers(options), named, settings_layer(options.set)]
    try:
        with tracking(options.track) as callbacks:
            if options.profile:
                callbacks.append(profile.callback())
            if options.together:
                from rlplat.cli.seeds import train_seeds_together

                return train_seeds_together(options, layers, callbacks)
            places = TrainOptions(options.out, options.config, options.resume, options.init_from)
            if options.no_config:
                places = replace(places, config=False)
            trained = train_layers(options.algo, layers, places, callbacks)
    except KeyboardInterrupt as interrupt:
        if not hasattr(interrupt, "exit_code"):  # the run, which tells of its own interruptions, had not begun
            print("rlplat: interrupted before the run began; nothing was saved", file=sys.stderr)
        raise
    if trained.num_iterations == 0:
        rules = stop_rules(trained.config)
        reached = " or ".join(f"{key} {limit:,.10g}" for key, limit in rules.items())
        flags_of_all = " ".join(f"--stop.{key.replace('_', '-')} N" for key in rules)
        print(f"{shown(trained.directory)} has already reached its stop, {reached}; to train on: {flags_of_all}")
        return 0
    print(trained.summary)
    directory = shown(trained.directory)
    print(spelled(f"the run is in {directory}; evaluate it: rlplat evaluate {shlex.quote(str(directory))}"))
    return 0


def choose_engine(options: argparse.Namespace) -> None:
    """For this process; `rlplat.init` reads it there. UsageError where an address leads nowhere."""
    backend = options.backend or os.environ.get("RLPLAT_BACKEND") or "zmq"
    if options.address is not None and backend != "ray":
        options.address = str(user_path(options.address))
        if not os.path.isfile(options.address):
            raise UsageError(
                f"--address {options.address}: there is no join file (rlplat start --head writes one); for a Ray "
                "cluster add --backend ray"
            )
    for name in ("backend", "address"):
        if getattr(options, name) is not None:
            os.environ[f"RLPLAT_{name.upper()}"] = getattr(options, name)


def _refuse_names(first: str | None, further: Sequence[str]) -> None:
    """`rlplat train ppo CartPole-v1`: the call that was meant."""
    from rlplat.rl.run.registry import algorithm_homes

    if first is not None and first.lower() in algorithm_homes() and not Path(first).exists():
        env = further[0] if further and not further[0].startswith("-") else "NAME"
        raise ConfigError(f"algorithm and environment are flags: rlplat train --algo {first} --env {env}")


@contextlib.contextmanager
def tracking(names: Sequence[str]) -> Iterator[list[Any]]:
    """The callback that starts the trackers of a run; they are waited for when the training has ended."""
    from rlplat.rl.callbacks import Callback
    from rlplat.tracking.sidecar import Sidecar

    started: list[Sidecar] = []

    class StartTrackers(Callback):
        def on_start(self, algorithm: Any, directory: Path | None) -> None:
            assert directory is not None, "a run of this command has one"
            started.extend(Sidecar(directory, name) for name in names)

    try:
        yield [StartTrackers()] if names else []
    finally:
        for sidecar in started:
            sidecar.wait()


def external_layers(options: argparse.Namespace) -> list[Layer]:
    """What goes with `--env external`: spaces and address; one process that listens, and no evaluation, which would
    need simulators of its own."""
    if options.env != "external":
        if options.spaces or options.listen or options.inference:
            raise ConfigError(
                "--spaces, --listen and --inference go with --env external: simulators that connect by themselves"
            )
        return []
    if not options.spaces:
        raise ConfigError("--env external needs --spaces FILE: what simulators observe and which actions they take")
    from rlplat.rl.envs.external.spaces_file import read_spaces

    layer = layer_from_flags([("num-rollout-workers", "0"), ("evaluation.episodes", "0")])
    put(layer, ("env_kwargs", "spaces"), read_spaces(options.spaces), "--spaces")
    if options.listen:
        put(layer, ("env_kwargs", "listen"), options.listen, "--listen")
    if options.inference:
        put(layer, ("env_kwargs", "inference"), options.inference, "--inference")
    return [layer]


def settings_layer(items: Sequence[str]) -> Layer:
    """--set KEY=VALUE ..."""
    pairs = []
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key:
            hint = "; a config file goes before --set" if item.endswith((".yaml", ".yml")) else ""
            raise ConfigError(f"--set takes KEY=VALUE, not '{item}'{hint}")
        pairs.append((key, text))
    return layer_from_flags(pairs, prefix="--set ")


def split_setting_flags(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[list[str], list[tuple[str, str | None]]]:
    """Take the flags that are settings (`--stop.env-steps 200000`) out of the arguments; None for one that stands
    alone (`--deterministic`).

    argparse cannot know them and would take their values for the config file.
    """
    options = parser._option_string_actions
    known: list[str] = []
    flags: list[tuple[str, str | None]] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        name, equals, text = argument.partition("=")
        if not name.startswith("--") or name == "--" or name in options:
            known.append(argument)
            continue
        key, value = name.removeprefix("--"), text if equals else None
        if not equals and position < len(arguments):
            following = arguments[position]
            if not following.startswith("--") and not _is_config_after_switch(key, following, arguments):
                value, position = following, position + 1
        flags.append((key, value))
    return known, flags


def _is_config_after_switch(key: str, following: str, arguments: Sequence[str]) -> bool:
    """Whether `--deterministic configs/ppo/Pong.yaml` is a switch and the config file, not a setting and its value."""
    from rlplat.rl.run.registry import find_config

    path = find_config(following)
    if path is None or not path.is_file() or path.suffix not in (".yaml", ".yml"):
        return False
    from rlplat.config import takes_value
    from rlplat.rl.run.registry import load_algorithm
    from rlplat.rl.run.training_plan import algorithm_of_file

    given = [after for flag, after in pairwise(arguments) if flag == "--algo"]
    given += [each.removeprefix("--algo=") for each in arguments if each.startswith("--algo=")]
    algo = given[0] if given else algorithm_of_file(path)
    return algo is not None and not takes_value(load_algorithm(algo).config_class, key.replace("-", "_"))
