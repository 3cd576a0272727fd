"""`rlplat export RUN --out policy.onnx`: a trained policy as one file; `rlplat export --check policy.onnx`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from rlplat.cli.parser import command
from rlplat.errors import UsageError
from rlplat.given.spelling import spelled
from rlplat.paths import shown

_HELP = """\
Write the policy of a run as one ONNX file: raw observations in, actions as the environment takes them out. It is
compared to the run in onnxruntime before it gets its name.

run@RUN?  a run directory, or one of its checkpoints
--out FILE  the file to write, such as policy.onnx
--checkpoint NAME  latest (the newest valid one; default), best, or step_N
--policy NAME:  which one, of a run with several policies
--check FILE  look at a file that was exported before

examples:
  rlplat export runs/demo --out policy.onnx
  rlplat export runs/demo --out policy.onnx --checkpoint best
  rlplat export runs/nim --out nim.onnx            of several policies each gets a file: nim.NAME.onnx
  rlplat export --check policy.onnx                is it whole, and does it compute what it did when it was written?
"""
_SHOWN = ("algorithm", "env", "checkpoint", "env_steps", "evaluation_return", "version", "opset")


@command("export", _HELP)
def run(options: argparse.Namespace) -> int:
    if options.check is not None:
        if options.run or options.out:
            raise UsageError("--check looks at a file and writes none: omit RUN and --out")
        return _check(options.check)
    if options.run is None or options.out is None:
        raise UsageError("say which run and where to: rlplat export RUN --out policy.onnx, or --check FILE")
    from rlplat.rl.run.trained_agent import load

    policies = [options.policy] if options.policy else load(options.run, options.checkpoint).policies
    for name in policies:
        out = options.out
        if len(policies) > 1:
            out = out.with_name(f"{out.stem}.{name}{out.suffix}")
        _export(options, name, out)
    return 0


def _export(options: argparse.Namespace, policy: str, out: Path) -> None:
    from rlplat.export.policy_export import to_onnx

    path = to_onnx(options.run, out, checkpoint=options.checkpoint, policy=policy)
    where = shown(path)
    print(
        spelled(
            f"{where}: {path.stat().st_size:,} bytes, compared to {options.run}; look at it: rlplat export --check "
            f"{shlex.quote(str(where))}"
        )
    )


def _check(path: Path) -> int:
    from rlplat.export.exported_policy import load

    policy = load(path)
    largest = policy.check()
    for name in _SHOWN:
        if text := policy.metadata.get(f"rlplat.{name}"):
            print(f"{name.replace('_', ' '):<18}{text}")
    for name, (shape, dtype) in policy.inputs.items():
        print(f"{'input':<18}{name}: {dtype}[{', '.join(['N', *map(str, shape)])}]")
    print(f"{'outputs':<18}{', '.join(policy.output_names)}")
    print(f"{path}: golden rows within {largest:.1g}", file=sys.stdout)
    return 0
