"""`rlplat new`: a commented file to begin with, which runs as it is."""

from __future__ import annotations

import argparse
import re
from importlib.resources import files
from pathlib import Path

from rlplat.cli.parser import command
from rlplat.errors import UsageError

_KINDS = ("algorithm", "env", "policy", "callback")

_HELP = """\
Write a commented file to begin with: an algorithm (REINFORCE; --off-policy: Q-learning from a replay), an
environment, a policy network, a callback. It runs as it is; its first lines say how.

kind@{algorithm,env,policy,callback}  what the file holds
NAME  the name of the class, such as MyEnv; the file is my_env.py
--off-policy  an algorithm that learns from a replay
"""


@command("new", _HELP)
def run(options: argparse.Namespace) -> int:
    name: str = options.name
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise UsageError(f"'{name}' is not a name of a class: write it like MyEnv, letters and digits, a capital first")
    if options.off_policy and options.kind != "algorithm":
        raise UsageError(f"--off-policy is of an algorithm, not of {options.kind}: omit it")
    kind = "off_policy_algorithm" if options.off_policy else options.kind
    label = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    path = Path(f"{label}.py")
    template = (files("rlplat.cli") / "templates" / f"{kind}.py.txt").read_text()
    text = template.replace("NAME", name).replace("FILE", path.name).replace("LABEL", label.replace("_", "-"))
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} is there already: give another name, or move it") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    commands = [line.strip() for line in text.splitlines()[:20] if line.startswith("    rlplat ")]
    print("\n  ".join([f"wrote {path}; to run it:", *commands]))
    return 0
