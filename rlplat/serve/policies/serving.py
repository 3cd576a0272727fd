"""`serve_policy`: what `rlplat serve RUN` does."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlplat.errors import CheckpointError, ConfigError, RlplatError
from rlplat.given.say import say as line_on_stderr
from rlplat.given.say import say_traceback
from rlplat.paths import run_path
from rlplat.rl.run.trained_agent import load
from rlplat.serve.deployments import Application, deployment
from rlplat.serve.policies.exported_agent import ExportedAgent
from rlplat.serve.policies.server import PolicyServer
from rlplat.serve.running import Running, run

FOLLOW_PERIOD_S = 0.25


def serve_policy(
    path: Path | str,
    checkpoint: str | None = None,
    *,
    policy: str = "",
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str = "",
    follow: bool = False,
    say: Callable[[str], None] = line_on_stderr,
    **more: Any,
) -> Running:
    """Serve the agent of a run, of one of its checkpoints, or of a file that `rlplat export` wrote.

    follow: newer weights of the run are taken as they appear; the others, and `more`: see `policy_application`.
    """
    app = policy_application(path, checkpoint, policy=policy, follow=follow, say=say, **more)
    running = run(app, host=host, port=port, token=token, say=say)
    if follow:
        agent = app.deployment.options_.user_config
        Follower(running, app.deployment.name, agent, checkpoint or "latest", policy, say).start()
    return running


def policy_application(
    path: Path | str,
    checkpoint: str | None = None,
    *,
    policy: str = "",
    name: str = "",
    num_replicas: int = 1,
    follow: bool = False,
    max_rows: int = 256,
    say: Callable[[str], None] = line_on_stderr,
) -> Application:
    """What `serve.run` takes; the agent is the deployment's user_config.

    checkpoint: latest, best or step_N; policy: which one, where the run has several; name: of the model (that of the
    run's directory); max_rows: of a forward pass.
    """
    path = run_path(path)
    agent: Any
    if path.suffix == ".onnx":
        for option, value in (("checkpoint", checkpoint), ("policy", policy), ("follow", follow)):
            if value:
                raise ConfigError(f"{option} is for a run, and {path} is one exported policy: omit it")
        agent = ExportedAgent(path)
        name = name or path.stem
    else:
        agent = load(path, checkpoint, policy=policy)
        name = name or agent.directory.absolute().name
    for line in agent.warnings:
        say(f"warning: {line}")
    _ = agent.spaces  # the environment is made here, once, and in no replica
    target = deployment(
        num_replicas=num_replicas,
        max_concurrency=100_000,  # the policy's queue is the bound: it counts rows
        name=deployment_of(name),
        user_config=agent,
    )(PolicyServer)
    return target.bind(name, max_rows=max_rows)


def deployment_of(model: str) -> str:
    """The name of its deployment, which begins the ids of sessions: letters, digits, - and _."""
    return re.sub(r"[^\w-]", "-", model)


class Follower:
    """Looks for newer weights of a run, in a daemon thread, and gives them to the replicas."""

    def __init__(
        self,
        running: Running,
        deployment_name: str,
        agent: Any,
        checkpoint: str,
        policy: str,
        say: Callable[[str], None],
    ) -> None:
        self._deployment_name = deployment_name
        self._running, self._agent, self._which, self._say = running, agent, checkpoint, say
        self._policy = policy
        self._seen = _signs(agent.directory, checkpoint)
        self._warned = ""

    def start(self) -> None:
        threading.Thread(target=self._run, name="rlplat-serve-follow", daemon=True).start()

    def _run(self) -> None:
        while not self._running.is_stopped.wait(FOLLOW_PERIOD_S):
            try:
                self.look()
            except Exception:  # of `say`, too; the next look may be luckier
                say_traceback()

    def look(self) -> None:
        """Once; what cannot be used is said once, and the weights that are served stay."""
        directory = self._agent.directory
        signs = _signs(directory, self._which)
        if signs == self._seen:
            return
        try:
            agent = load(directory, self._which, policy=self._policy)
            if agent.checkpoint.manifest == self._agent.checkpoint.manifest:
                self._seen = signs
                return
            if agent.checkpoint.info.spaces != self._agent.checkpoint.info.spaces:
                raise CheckpointError(
                    f"{agent.checkpoint.path} has the spaces {agent.checkpoint.info.spaces}, but served are "
                    f"{self._agent.checkpoint.info.spaces}"
                )
            agent.spaces = self._agent.spaces
            self._running.reconfigure(self._deployment_name, agent)
        except (RlplatError, OSError) as error:
            if str(error) != self._warned:
                self._warned = str(error)
                self._say(f"warning: the weights stay as they are: {error}")
            return
        self._seen, self._agent, self._warned = signs, agent, ""
        self._say(f"now serving {agent.checkpoint.path.name} ({agent.checkpoint.info.env_steps:,} env steps)")


def _signs(directory: Path, checkpoint: str) -> Any:
    """What changes when there are newer weights: cheap to look at."""
    folder = directory / "checkpoints"
    try:
        if checkpoint == "best":
            return (folder / "best" / "manifest.json").stat().st_mtime_ns
        return sorted(each.name for each in folder.iterdir() if each.name.startswith("step_"))
    except OSError:
        return None
