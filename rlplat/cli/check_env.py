"""`rlplat check-env ENV`: random steps in one environment, and every promise that it breaks, with the fix."""

from __future__ import annotations

import math

from rlplat.cli.output import print_json
from rlplat.cli.parser import command
from rlplat.cli.train import split_setting_flags
from rlplat.config import layer_from_flags
from rlplat.errors import ConfigError

_HELP = """\
Look for mistakes in an environment before training on it.

ENV  CartPole-v1, Pong, pkg.module:Env, ./file.py:Env
--steps N:2000  random steps
step_timeout_s@--env-step-timeout-s --step-timeout-s S:60  limit of one step, as the setting of a run
reset_timeout_s@--env-reset-timeout-s --reset-timeout-s S  limit of one reset (default: that of a step)
--json  print one JSON object

examples:
  rlplat check-env CartPole-v1
  rlplat check-env ./my_env.py:MyEnv --env-kwargs.size 8 --steps 5000

Exit code 0: sound (there may be warnings), 1: it cannot be trained on as it is.
"""


@command("check-env", _HELP, takes_words=True)
def run(arguments: list[str]) -> int:
    parser = run.parser()
    known, flags = split_setting_flags(parser, arguments)
    options = parser.parse_args(known)
    settings = layer_from_flags([(key, "true" if text is None else text) for key, text in flags]).values
    env_kwargs = settings.pop("env_kwargs", {})
    if settings or not isinstance(env_kwargs, dict):
        unknown = next(iter(settings), "env_kwargs").replace("_", "-")
        raise ConfigError(f"unknown flag '--{unknown}'; arguments of the environment are --env-kwargs.NAME VALUE")
    limits = options.step_timeout_s, options.reset_timeout_s or options.step_timeout_s
    if options.steps < 1 or not all(0 < limit < math.inf for limit in limits):
        raise ConfigError("--steps, --env-step-timeout-s and --env-reset-timeout-s are positive numbers")
    from rlplat.rl.multi_agent.check import check_any_env

    report = check_any_env(
        options.env, env_kwargs, steps=options.steps, step_timeout_s=limits[0], reset_timeout_s=limits[1]
    )
    if options.json:
        findings = [{"severity": finding.severity, "text": finding.text} for finding in report.findings]
        counts = {"steps": report.steps, "episodes": report.episodes}
        said = {"observations": report.observations, "findings": findings}
        print_json({"env": report.name, "is_sound": report.is_sound, **counts, **said})
    else:
        print(report)
    return 0 if report.is_sound else 1
