"""Learning tests: train tuned configs to their `stop` and check what they `expect`.

./scripts/learning-tests                                       every file in configs/ but configs/tune/ and _families
./scripts/learning-tests configs/ppo/CartPole-v1.yaml --seeds 1 2 3 4 5        and mean ± deviation over the seeds
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rlplat.cli.train import settings_layer
from rlplat.config import layer_from_arguments, load_yaml
from rlplat.errors import RlplatError
from rlplat.rl.run.training_loop import TrainOptions, train_layers

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def run_configs() -> list[Path]:
    """Every file in configs/ that is one training run: the experiments of configs/tune/ are many, and a family's
    (`_atari.yaml`) has no environment."""
    return sorted(path for path in CONFIGS.glob("*/[!_]*.yaml") if path.parent.name != "tune")


@dataclass(frozen=True)
class Outcome:
    config: str
    """`<algorithm>/<file>`."""
    seed: int
    env_steps: int
    seconds: float
    """From the call of `train` to its return: start-up, training, final evaluation."""
    episode_return_mean: float | None
    evaluation_return_mean: float | None
    failure: str
    """Which expectation was missed, or the error; empty when the test passed."""


def learn(config: Path, seed: int, out: Path, settings: Sequence[str] = ()) -> Outcome:
    """One run of one config with one seed; `settings` are KEY=VALUE as in `rlplat train --set`."""
    started_s = time.monotonic()
    layers = [settings_layer(settings), layer_from_arguments({"seed": seed})]
    run = train_layers(None, layers, TrainOptions(out=out, config=config))
    seconds = time.monotonic() - started_s
    reached = {
        "episode_return_mean": run.result.episode_return_mean if run.result else None,
        "evaluation_return_mean": run.evaluation.get("eval/return_mean"),
    }
    expected = {name: value for name, value in run.config.expect.model_dump().items() if value is not None}
    misses = [
        f"{name} is {_number(reached[name])}, expected at least {value:g}"
        for name, value in expected.items()
        if reached[name] is None or reached[name] < value  # type: ignore[operator]
    ]
    if not expected:
        misses = ["the config expects nothing: add an `expect` section"]
    env_steps = run.result.env_steps if run.result else 0
    return Outcome(_name(config), seed, env_steps, seconds, *reached.values(), "; ".join(misses))


def _name(config: Path) -> str:
    return f"{config.resolve().parent.name}/{config.stem}"


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """A Markdown table: one line per config, mean ± deviation (of the population) over its seeds."""
    lines = [
        "| config | seeds | passed | evaluation | return | env steps | wall s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(outcome.config for outcome in outcomes):
        group = [outcome for outcome in outcomes if outcome.config == name]
        lines.append(
            f"| {name} | {len(group)} | {sum(not each.failure for each in group)} | "
            f"{_spread([each.evaluation_return_mean for each in group])} | "
            f"{_spread([each.episode_return_mean for each in group])} | "
            f"{fmean(each.env_steps for each in group):,.0f} | {fmean(each.seconds for each in group):.1f} |"
        )
    return lines


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = fmean(known)
    return f"{mean:.1f} ± {math.sqrt(fmean((value - mean) ** 2 for value in known)):.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _row(outcome: Outcome) -> str:
    return (
        f"{outcome.config:<24}{outcome.seed:>6}{outcome.env_steps:>12,}{outcome.seconds:>10.1f}"
        f"{_number(outcome.episode_return_mean):>10}{_number(outcome.evaluation_return_mean):>10}"
        f"  {'FAIL: ' + outcome.failure if outcome.failure else 'pass'}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="learning-tests", description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="*", type=Path, help="config files (default: all in configs/)")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="default: the config's own seed")
    parser.add_argument("--out", type=Path, help="keep the run directories here (default: a temporary one)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings for all of them")
    options = parser.parse_args(argv)
    configs = options.configs or [config for config in run_configs() if has_its_data(config)]
    outcomes: list[Outcome] = []
    print(
        f"{'config':<24}{'seed':>6}{'env steps':>12}{'wall s':>10}{'return':>10}{'eval':>10}  result",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="rlplat-learning-") as temporary:
        out = options.out or Path(temporary)
        for config in configs:
            for seed in options.seeds or [own_seed(config)]:
                try:
                    directory = out / f"{config.parent.name}-{config.stem}-seed{seed}"
                    outcome = learn(config, seed, directory, options.set)
                except RlplatError as error:
                    outcome = Outcome(_name(config), seed, 0, 0.0, None, None, str(error))
                outcomes.append(outcome)
                print(_row(outcome), flush=True)
    passed = sum(not outcome.failure for outcome in outcomes)
    if len(outcomes) > len(configs):
        print("\n".join(["", *summary(outcomes), ""]))
    print(f"{passed} of {len(outcomes)} passed")
    return 0 if outcomes and passed == len(outcomes) else 1


def has_its_data(config: Path) -> bool:
    """Whether a config that learns from recorded episodes finds them; how to make them stands at its head."""
    data = load_yaml(config).values.get("data")
    if data is None or Path(str(data)).exists():
        return True
    print(f"{_name(config)} is left out: there is no data set in {data} (its first lines say how to make it)")
    return False


def own_seed(config: Path) -> int:
    from rlplat.rl.run.training_plan import plan_from_file

    return int(plan_from_file(config, []).config.seed)


if __name__ == "__main__":
    sys.exit(main())
