"""serve.yaml: which applications are served, and where. Pure: reading it starts nothing.

wanted = read_applications("serve.yaml")                    # ConfigError with file, line and key
for name, change in changes(running, wanted).items(): ...   # only what differs
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rlplat.config import load_yaml, resolve
from rlplat.errors import ConfigError
from rlplat.paths import expanded, user_path
from rlplat.section import Count, Section
from rlplat.serve.deployments import DeploymentOptions


class CanarySettings(Section):
    """Another version, to which a share of the connections goes."""

    share: Annotated[float, Field(gt=0, lt=1)]
    app: str | None = None
    """Of an app: FILE.py:NAME or package.module:NAME."""
    run: str | None = None
    """Of a run: another one, or (omitted) the same with another checkpoint."""
    checkpoint: str | None = None
    policy: str = ""


class ApplicationSettings(Section):
    app: str | None = None
    """FILE.py:NAME or package.module:NAME, what bind() returned; this or `run`."""
    run: str | None = None
    """A run directory, one of its checkpoints, or a file that `rlplat export` wrote."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    token_file: str | None = None
    """Its content is what callers must show; needed beyond this machine."""
    deployments: dict[str, DeploymentOptions] = {}
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
    canary: CanarySettings | None = None
    """Taken out again: it ends. Where the app, or the run and its checkpoint, become what it was: it is promoted."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.app is None) == (self.run is None):
            raise ValueError("must have either app: FILE.py:NAME or run: DIRECTORY")
        foreign = ("deployments",) if self.run else ("checkpoint", "policy", "follow", "replicas", "max_rows")
        for name in foreign:
            if name in self.model_fields_set:
                raise ValueError(f"{name} is for {'app' if self.run else 'run'}")
        if self.canary is not None:
            expected, others = ("app", ("run", "checkpoint", "policy")) if self.app else ("run or checkpoint", ("app",))
            found = self.canary.model_fields_set
            if found & set(others) or not found & set(expected.split(" or ")):
                raise ValueError(f"canary needs {expected}, and has {', '.join(sorted(found))}")
        for name, options in self.deployments.items():
            if "name" in options.model_fields_set:
                raise ValueError(f"deployments.{name}: name is set in the program")
        return self

    @property
    def options(self) -> dict[str, dict[str, Any]]:
        """Of an app: those that are said, by the deployment's name."""
        return {name: options.model_dump(exclude_unset=True) for name, options in self.deployments.items()}


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
    """Without a canary; paths in it are absolute."""
    code: str = ""
    """A digest of the app's file."""
    canary: Wanted | None = None
    """The application that it is, by itself."""
    share: float = 0.0

    def without_canary(self) -> Wanted:
        return Wanted(self.settings, self.code)


def read_applications(path: str | os.PathLike[str]) -> dict[str, Wanted]:
    """By name; paths in the file are from its folder."""
    folder = user_path(path).parent
    wanted = {}
    for name, each in resolve(ServeSettings, [load_yaml(path)]).applications.items():
        wanted[name] = _located(each, folder, f"{path}: {name}")
        if (canary := each.canary) is not None:
            changes: dict[str, Any] = {"app": canary.app}
            if canary.app is None:
                run = canary.run or each.run
                changes = {"run": run, "checkpoint": canary.checkpoint, "policy": canary.policy}
            other = _located(each.model_copy(update=changes), folder, f"{path}: {name}.canary")
            wanted[name] = replace(wanted[name], canary=other, share=canary.share)
    return wanted


def _located(settings: ApplicationSettings, folder: Path, where: str) -> Wanted:
    code = ""
    found: dict[str, Any] = {"canary": None}
    for key in ("run", "token_file"):
        if (value := getattr(settings, key)) is not None:
            found[key] = str(folder / expanded(value))
    if settings.app is not None:
        home, _, attribute = settings.app.rpartition(":")
        if not home:
            raise ConfigError(f"{where}: app is '{settings.app}'; expected FILE.py:NAME")
        if home.endswith(".py"):
            file = folder / expanded(home)
            found["app"] = f"{file}:{attribute}"
            code = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    return Wanted(settings.model_copy(update=found), code)


class Change(StrEnum):
    """What is done with an application, in the words that say so."""

    START = "started"
    STOP = "stopped"
    RESTART = "restarted"
    """It has another address, or another run."""
    UPDATE = "updated"
    """Rolling: new replicas are ready before old ones are drained."""
    CHANGE_CANARY = "canary changed"
    """It starts, is another one, or ends; the version beside it stays as it is."""


@dataclass(frozen=True)
class Adjust:
    """No process is replaced."""

    num_replicas: dict[str, int]
    """By deployment; "" for that of a run."""
    user_configs: dict[str, Any]

    def __str__(self) -> str:
        return "adjusted"


def changes(now: dict[str, Wanted], wanted: dict[str, Wanted]) -> dict[str, Change | Adjust]:
    """What leads from one to the other, by application; those that stay as they are, are not in it."""
    found: dict[str, Change | Adjust] = {name: Change.STOP for name in now if name not in wanted}
    for name, new in wanted.items():
        old = now.get(name)
        if old is None:
            found[name] = Change.START
        elif old != new:
            found[name] = _change(old, new)
    return found


def _change(old: Wanted, new: Wanted) -> Change | Adjust:
    had_canary = old.canary is not None
    old, new = old.without_canary(), new.without_canary()
    if old == new:
        return Change.CHANGE_CANARY
    was, to = old.settings.model_dump(), new.settings.model_dump()
    differs = {name for name in to if was[name] != to[name]}
    if had_canary and not new.settings.follow and differs <= {"run", "checkpoint", "policy"}:
        return Change.UPDATE  # its canary has shown that they fit each other
    if differs == {"replicas"}:
        return Adjust({"": new.settings.replicas}, {})
    if differs - {"app", "deployments"} or new.settings.app is None:
        return Change.RESTART
    if old.code != new.code or "app" in differs:
        return Change.UPDATE
    num_replicas: dict[str, int] = {}
    user_configs: dict[str, Any] = {}
    was, to = old.settings.options, new.settings.options
    for name in {*was, *to}:
        before, after = was.get(name, {}), to.get(name, {})
        for option in {*before, *after}:
            if before.get(option) == after.get(option):
                continue
            if option == "num_replicas" and option in after and "autoscale" not in {*before, *after}:
                num_replicas[name] = after[option]
            elif option == "user_config" and option in before and option in after:
                user_configs[name] = after[option]
            else:
                return Change.UPDATE
    return Adjust(num_replicas, user_configs)
