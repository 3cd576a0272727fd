"""`SimulatorRollouts`: rollouts of simulators that act by themselves with the policy that they are sent.

simulators = SimulatorRollouts(config, env_seed, ahead=0)
simulators.offer(version, weights, policy)              # an ONNX file of the policy, which has these weights
obs, timing = simulators.play(recorder, policy)         # whole fragments, into a rollout worker's recorder
episodes = simulators.pop_episodes()

In a rollout worker it replaces the environments; what comes out of the recorder is the same batch.
"""

from __future__ import annotations

import logging
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from rlplat.errors import EnvError
from rlplat.rl.class_path import load_class
from rlplat.rl.envs.external.frames import EnvFragment
from rlplat.rl.envs.external.server import FragmentServer
from rlplat.rl.envs.external.spaces_file import make_space, read_spaces, require_inference
from rlplat.rl.envs.external.vector_env import DEFAULT_LISTEN, obs_leaves_of
from rlplat.rl.envs.gym_spaces import nested
from rlplat.rl.envs.obs_reader import ObsMismatch, ObsReader
from rlplat.rl.interfaces import Array, Episode, Obs, Policy, PolicyOutput, Weights
from rlplat.rl.obs_tree import map_obs, take_obs
from rlplat.rl.sampling.recorders import Recorder

log = logging.getLogger("rlplat.start")

LIVE_POLICY = "rlplat.export.live_policy:LivePolicy"
"""By name: what exports policies stands above what trains them."""


def act_by_themselves(config: dict[str, Any]) -> bool:
    """Whether a config (as a dict) has simulators that do."""
    return str(config["env"]) == "external" and config["env_kwargs"].get("inference") == "local"


class SimulatorRollouts:
    not_saved = "the episodes at simulators that act by themselves: after a resume new ones begin"

    def __init__(self, config: dict[str, Any], seed: np.random.SeedSequence, *, ahead: int) -> None:
        """ahead: how many fragments a simulator may be in front of what is learnt from."""
        settings = dict(config["env_kwargs"])
        require_inference(settings.pop("inference"))
        said = read_spaces(settings.get("spaces"))
        self.num_envs: int = config["num_envs_per_worker"]
        self.observation_space = make_space(said["observation"], "observation")
        self.action_space = make_space(said["action"], "action")
        self._reader = ObsReader(self.observation_space, self.action_space)
        self.spec = self._reader.spec
        self._num_steps: int = config["rollout_length"]
        self._framework: str = config["framework"]
        self._live: Any = None
        self.version = -1
        """Of the oldest policy that acted in the fragments played last."""
        self._returns = np.zeros(self.num_envs, np.float64)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._episodes: list[Episode] = []
        self._said, self._listen = said, settings.get("listen", DEFAULT_LISTEN)
        self._seeds = [int(each.generate_state(1, np.uint32)[0] >> 1) for each in seed.spawn(self.num_envs)]
        self._ahead = ahead

    @cached_property
    def server(self) -> FragmentServer:
        """Listens from the first time that it is asked for: a worker that is replaced before it sampled, as when a run
        is resumed, never had the port."""
        return FragmentServer(
            self._listen,
            self._said,
            obs_leaves_of(self.observation_space),
            self._seeds,
            num_steps=self._num_steps,
            ahead=self._ahead,
        )

    def reset(self) -> Obs:
        """Observations for their shapes; episodes begin at the simulators."""
        return self._reader.empty(self.num_envs)

    def offer(self, version: int, weights: Weights, policy: Policy) -> None:
        """policy: has these weights. UsageError where it has no form in ONNX."""
        server = self.server
        if self._live is None:
            log.info("making the policy that simulators are sent: some seconds, once")
            self._live = load_class(LIVE_POLICY)(policy, self.observation_space, self.action_space, self._framework)
        data = self._live.to_bytes(weights)
        server.offer(version, data, self._live.recorded)

    def play(self, recorder: Recorder, policy: Policy) -> tuple[Obs, dict[str, float]]:
        """(what is observed after the last step, seconds by activity); the recorder has one fragment of everyone.

        policy: says what last observations are worth; the core's state, where there is one, is set to the simulators'.
        """
        started = perf_counter()
        fragments = self.server.take()
        waited_s = perf_counter() - started
        self.version = min(fragment.version for fragment in fragments)
        recorder.continues = recorder.continues and all(fragment.continues for fragment in fragments)
        for b, fragment in enumerate(fragments):
            if not fragment.continues:  # the episode that was going on here is lost
                self._returns[b] = self._lengths[b] = 0
        raw_obs = {path: _columns([fragment.obs[path] for fragment in fragments]) for path in fragments[0].obs}
        outputs = {name: _columns([fragment.outputs[name] for fragment in fragments]) for name in fragments[0].outputs}
        rewards, terminated, truncated = (
            _columns([getattr(each, name) for each in fragments]) for name in ("rewards", "terminated", "truncated")
        )
        T, B = rewards.shape
        flat = self._read({path: each.reshape(T * B, *each.shape[2:]) for path, each in raw_obs.items()}, T * B)
        obs = map_obs(lambda leaf: leaf.reshape(T, B, *leaf.shape[1:]), flat)
        has_core, cuts = "state_out" in outputs, [0] * B
        for t in range(T):
            core_state = outputs["state_in"][t] if has_core and (t == 0 or recorder.needs_every_core) else None
            recorder.decided(t, take_obs(obs, t), _output(outputs, t), core_state)
            if has_core:
                policy.core_state = outputs["state_out"][t]
            final_obs = self._final_obs(raw_obs, fragments, cuts, t, truncated[t])
            recorder.answered(t, rewards[t], terminated[t], truncated[t], True, final_obs)
            ended = terminated[t] | truncated[t]
            if has_core:
                policy.reset_core(ended)
            self._count(rewards[t], ended)
        last = {path: np.stack([fragment.next_obs[path] for fragment in fragments]) for path in raw_obs}
        timing = {"act_s": 0.0, "env_s": waited_s, "play_s": perf_counter() - started - waited_s}
        return self._read(last, B), timing

    def pop_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes

    def close(self) -> None:
        if "server" in self.__dict__:
            self.server.close()

    def _final_obs(
        self, raw_obs: dict[str, Array], fragments: list[EnvFragment], cuts: list[int], t: int, truncated: Array
    ) -> Obs | None:
        """[B, ...] with the last observations where `truncated`; cuts: how many each environment had before step t."""
        if not truncated.any():
            return None
        final = {path: each[t].copy() for path, each in raw_obs.items()}
        for b in np.flatnonzero(truncated):
            for path, each in final.items():
                each[b] = fragments[b].final_obs[path][cuts[b]]
            cuts[b] += 1
        return self._read(final, len(truncated))

    def _read(self, leaves: dict[str, Array], num_rows: int) -> Obs:
        try:
            return self._reader.read_batch(nested(self.observation_space, leaves), num_rows)
        except ObsMismatch as mismatch:
            raise EnvError(f"a simulator's {mismatch}") from None

    def _count(self, rewards: Array, ended: Array) -> None:
        self._returns += rewards
        self._lengths += 1
        for b in np.flatnonzero(ended):
            self._episodes.append(Episode(float(self._returns[b]), int(self._lengths[b])))
            self._returns[b] = self._lengths[b] = 0


def _columns(parts: list[Array]) -> Array:
    """[T, ...] of every environment -> [T, B, ...]"""
    return np.stack(parts, axis=1)


def _output(outputs: dict[str, Array], t: int) -> PolicyOutput:
    """What a policy would have said in step t; zeros for what this one does not say."""
    actions = outputs["policy_action"][t]
    zeros = np.zeros(len(actions), np.float32)
    q_taken = None
    if "q_values" in outputs:
        q_taken = np.take_along_axis(outputs["q_values"][t], actions[:, None], axis=1)[:, 0]
    log_probs, values = (outputs[name][t] if name in outputs else zeros for name in ("log_prob", "value"))
    return PolicyOutput(actions, log_probs, values, q_taken)
