"""`FragmentServer`: simulators that act by themselves: each is sent a policy, and answers with a fragment of steps."""

from __future__ import annotations

from collections import deque
from typing import Any

from rlplat.rl.envs.external import frames
from rlplat.rl.envs.external.frames import BadFrame, Fragment, LaneFragment, Leaves
from rlplat.rl.envs.external.listener import Simulator, SimulatorListener


class FragmentServer(SimulatorListener):
    """server = FragmentServer("127.0.0.1:9900", spaces, obs_leaves, seeds, num_steps=128, ahead=0)
    server.offer(version, onnx, {"policy_action": ("int64", ()), ...})
    fragments = server.take()                           # waits until there is one of every environment

    A simulator begins a fragment, with the newest policy, when fewer than `ahead` of its own wait here, or one more
    during a `take`. So with ahead=0 it waits for the next `take`, and every step is by the newest policy; with
    ahead=1 it goes on while the training learns. A fragment that has come stays when its simulator is lost.
    """

    protocol = frames.LOCAL_PROTOCOL

    def __init__(
        self,
        listen: str,
        spaces: dict[str, Any],
        leaves: Leaves,
        seeds: list[int],
        *,
        num_steps: int,
        ahead: int,
    ) -> None:
        self._num_steps, self._ahead = num_steps, ahead
        self._waiting: list[deque[LaneFragment]] = [deque() for _ in seeds]
        """By environment."""
        self._is_taking = False
        self._version, self._policy, self._outputs = -1, b"", Leaves()
        super().__init__(listen, spaces, leaves, seeds)

    def offer(self, version: int, policy: bytes, outputs: Leaves) -> None:
        """The policy to act with from the next fragment on, and which of its outputs are to be recorded."""
        with self._changed:
            self._version, self._policy, self._outputs = version, policy, outputs

    def take(self) -> list[LaneFragment]:
        """The oldest fragment of every environment."""
        with self._changed:
            self._is_taking = True
            self._changed.notify_all()
            try:
                self.wait_for(lambda: sum(map(bool, self._waiting)))
            finally:
                self._is_taking = False
            taken = [lane.popleft() for lane in self._waiting]
            self._changed.notify_all()
            return taken

    def talk(self, connection: Any, simulator: Simulator) -> None:
        known = -1
        while True:
            with self._changed:
                simulator.waits = True
                self._changed.wait_for(lambda: self._is_closed or self._has_room(simulator))
                simulator.waits = False
                if self._is_closed:
                    return
                version, policy, outputs = self._version, self._policy, self._outputs
            onnx = policy if version != known else None
            connection.send(
                frames.encode(
                    "policy", version=version, num_steps=self._num_steps, record=[*outputs], onnx=onnx
                )
            )
            known = version
            frame = self._receive(connection)
            if not isinstance(frame, Fragment):
                raise BadFrame(
                    "a policy is answered with a fragment: this training lets simulators act by themselves"
                )
            if frame.version != version:
                raise BadFrame(
                    f"the fragment is by version {frame.version}; the policy that was sent is {version}"
                )
            read = frames.read_fragment(frame, self._leaves, outputs, self._num_steps, len(simulator.lanes))
            with self._changed:
                for lane, fragment in zip(simulator.lanes, read, strict=True):
                    self._waiting[lane].append(fragment)
                self._changed.notify_all()

    def _has_room(self, simulator: Simulator) -> bool:
        limit = self._ahead + self._is_taking
        return self._version >= 0 and all(len(self._waiting[lane]) < limit for lane in simulator.lanes)
