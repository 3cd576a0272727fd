"""`SimulatorServer`: simulators that ask for every action: their frames become rows, and rows of actions frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlplat.rl.envs.external import frames
from rlplat.rl.envs.external.frames import Advance, BadFrame, Reset, Rows
from rlplat.rl.envs.external.listener import Simulator, SimulatorListener


class SimulatorServer(SimulatorListener):
    """server = SimulatorServer("127.0.0.1:9900", spaces, obs_leaves, seeds)
    obs = server.take()                                 # waits until every environment has one
    server.give({"": actions})
    step = server.take()
    """

    def take(self) -> list[tuple[np.ndarray, Rows]]:
        """(which environments, their rows) of every simulator, as soon as each environment has one."""
        with self._changed:
            self.wait_for(lambda: sum(len(each.lanes) for each in self._simulators if each.rows is not None))
            taken = []
            for each in self._simulators:
                assert each.rows is not None
                taken.append((each.lanes, each.rows))
                each.rows = None
            return taken

    def give(self, actions: dict[str, np.ndarray]) -> None:
        """actions: by path, a row for each environment."""
        with self._changed:
            for each in self._simulators:
                own = {path: frames.pack_array(array[each.lanes]) for path, array in actions.items()}
                each.actions = frames.encode("actions", actions=own)
            self._changed.notify_all()

    def talk(self, connection: Any, simulator: Simulator) -> None:
        expected: Any = Reset
        what = "reset is the first frame after join"
        while True:
            frame = self._receive(connection)
            if not isinstance(frame, expected):
                raise BadFrame(
                    f"{what}, and this is {type(frame).__name__.lower().replace('advance', 'step')}"
                )
            expected, what = Reset | Advance, "reset or step is expected"
            actions = self._exchange(simulator, frames.read_rows(frame, self._leaves, len(simulator.lanes)))
            if actions is None:
                return
            connection.send(actions)

    def _exchange(self, simulator: Simulator, rows: Rows) -> bytes | None:
        """The frame with the next actions; None where the training has ended."""
        with self._changed:
            simulator.rows, simulator.actions, simulator.waits = rows, None, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: simulator.actions is not None or self._is_closed)
            simulator.waits = False
            return simulator.actions
