"""What a run shows of itself while it trains."""

from __future__ import annotations

from rlplat.rl.interfaces import Result


class Progress:
    """Shows nothing, as for a run that is one of many: what it says is in its log.txt."""

    def show(self, result: Result, env_steps_per_s: float) -> None: ...

    def say(self, text: str) -> None:
        """A line of text that does not disturb the panel."""

    def finish(self, ended_by: str, env_steps_per_s: float) -> None:
        """The training has ended, for this reason; the rate is that of the whole run."""

    def close(self) -> None: ...
