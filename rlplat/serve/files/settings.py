"""serve.yaml: which applications are served, and where. Pure: reading it starts nothing.

wanted = read_applications("serve.yaml")                    # ConfigError with file, line and key
for name, change in changes(running, wanted).items(): ...   # only what differs: Start, Stop, Restart, Update, Adjust
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rlplat.config import load_yaml, resolve
from rlplat.errors import ConfigError
from rlplat.section import Count, Section
from rlplat.serve.deployments import DeploymentOptions, changed_options


class ApplicationSettings(Section):
    app: str | None = None
    """FILE.py:NAME or package.module:NAME, what bind() returned; this or `run`."""
    run: str | None = None
    """A run directory, one of its checkpoints, or a file that `rlplat export` wrote."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    token_file: str | None = None
    """Its content is what callers must show; needed beyond this machine."""
    deployments: dict[str, dict[str, Any]] = {}
    """Of an app: options by the deployment's name, in place of those in the program."""
    checkpoint: str | None = None
    """Of a run: latest, best or step_N."""
    policy: str = ""
    """Of a run with several."""
    follow: bool = False
    """Of a run: take newer weights as they appear."""
    replicas: Count = 1
    """Of a run."""
    max_rows: Count = 256
    """Of a run: rows of a forward pass."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.app is None) == (self.run is None):
            raise ValueError("must have either app: FILE.py:NAME or run: DIRECTORY")
        foreign = ("deployments",) if self.run else ("checkpoint", "policy", "follow", "replicas", "max_rows")
        for name in foreign:
            if name in self.model_fields_set:
                raise ValueError(f"{name} is for {'app' if self.run else 'run'}")
        for name, options in self.deployments.items():
            if "name" in options:
                raise ValueError(f"deployments.{name}: name is set in the program")
            try:
                changed_options(DeploymentOptions(), options)
            except (ConfigError, TypeError) as error:
                raise ValueError(f"deployments.{name}: {error}") from None
        return self


class ServeSettings(Section):
    applications: dict[str, ApplicationSettings]

    @model_validator(mode="after")
    def _own_ports(self) -> Self:
        taken: dict[tuple[str, int], str] = {}
        for name, each in self.applications.items():
            other = taken.setdefault((each.host, each.port), name)
            if other != name:
                raise ValueError(f"{other} and {name} have the same port {each.port}: each has its own")
        return self


@dataclass(frozen=True)
class Wanted:
    settings: ApplicationSettings
    """Paths in it are absolute."""
    code: str = ""
    """A digest of the app's file."""


def read_applications(path: str | os.PathLike[str]) -> dict[str, Wanted]:
    """By name; paths in the file are from its folder."""
    folder = Path(path).absolute().parent
    wanted = {}
    for name, each in resolve(ServeSettings, [load_yaml(path)]).applications.items():
        found: dict[str, Any] = {}
        code = ""
        if each.run is not None:
            found["run"] = str(folder / each.run)
        if each.token_file is not None:
            found["token_file"] = str(folder / each.token_file)
        if each.app is not None:
            home, _, attribute = each.app.rpartition(":")
            if not home:
                raise ConfigError(f"{path}: {name}: app is '{each.app}'; expected FILE.py:NAME")
            if home.endswith(".py"):
                file = folder / home
                found["app"] = f"{file}:{attribute}"
                code = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
        wanted[name] = Wanted(each.model_copy(update=found), code)
    return wanted


@dataclass(frozen=True)
class Start:
    """It is new."""


@dataclass(frozen=True)
class Stop:
    """It is wanted no more."""


@dataclass(frozen=True)
class Restart:
    """It has another address, or another run."""


@dataclass(frozen=True)
class Update:
    """Rolling: new replicas are ready before old ones are drained."""


@dataclass(frozen=True)
class Adjust:
    """No process is replaced."""

    num_replicas: dict[str, int]
    """By deployment; "" for that of a run."""
    user_configs: dict[str, Any]


Change = Start | Stop | Restart | Update | Adjust


def changes(now: dict[str, Wanted], wanted: dict[str, Wanted]) -> dict[str, Change]:
    """What leads from one to the other, by application; those that stay as they are, are not in it."""
    found: dict[str, Change] = {name: Stop() for name in now if name not in wanted}
    for name, new in wanted.items():
        old = now.get(name)
        if old is None:
            found[name] = Start()
        elif old != new:
            found[name] = _change(old, new)
    return found


def _change(old: Wanted, new: Wanted) -> Change:
    was, to = old.settings.model_dump(), new.settings.model_dump()
    differs = {name for name in to if was[name] != to[name]}
    if differs == {"replicas"}:
        return Adjust({"": new.settings.replicas}, {})
    if differs - {"app", "deployments"} or new.settings.app is None:
        return Restart()
    if old.code != new.code or "app" in differs:
        return Update()
    num_replicas: dict[str, int] = {}
    user_configs: dict[str, Any] = {}
    for name in {*was["deployments"], *to["deployments"]}:
        before, after = was["deployments"].get(name, {}), to["deployments"].get(name, {})
        for option in {*before, *after}:
            if before.get(option) == after.get(option):
                continue
            if option == "num_replicas" and option in after and "autoscale" not in {*before, *after}:
                num_replicas[name] = after[option]
            elif option == "user_config" and option in before and option in after:
                user_configs[name] = after[option]
            else:
                return Update()
    return Adjust(num_replicas, user_configs)
