"""What an exported policy takes and gives: names, shapes and dtypes of every input and output, as JSON in the file.

Inputs, in this order (N rows each):
    obs                 or obs/<path> for every leaf of a Dict or Tuple: as the environment observes, not normalised
    action_mask         bool[N, L], where the policy was trained with masks; True where an action is legal
    state_in, starts    float32[N, S] and bool[N], of a policy with a core; where `starts`, an episode begins and
                        `state_in` is not read
    noise               float32[N, K], standard normal numbers with which `action` is drawn; of zeros it is greedy
Outputs:
    action              or action/<path>: drawn with the noise, as the environment takes it (from `start`, clipped)
    greedy_action       the most likely one (DQN: of the largest Q)
    params, log_std     logits (illegal: -1e8) and means of the heads side by side; of Gaussian ones, log deviations
                        (SAC, TD3: params are what the actor's head gives, before tanh and scaling)
    q_values            float32[N, A], of a policy that acts by them
    log_prob, value     float32[N]: of `action` before it was clipped; V(obs), or the largest legal Q
    state_out           float32[N, S]
    policy_action       `action` as the policy counts and before it was clipped: only in what simulators are sent that
                        act for a running training (live_policy.py)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from rlplat.acting import MASK, ActingInputs, Keys, Leaf
from rlplat.errors import CheckpointError

VERSION = 1
"""Of the contract; a reader refuses files of a later one."""
STATE_IN, STARTS, NOISE, STATE_OUT = "state_in", "starts", "noise", "state_out"
POLICY_ACTION = "policy_action"


@dataclass(frozen=True)
class Contract:
    obs: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    outputs: tuple[str, ...]
    """Those beside the actions."""
    mask_groups: tuple[int, ...] = ()
    """Runs of mask entries in each of which something must be legal; empty without a mask."""
    mask_is_observed: bool = False
    """Whether observations bring it, under the key action_mask."""
    state_size: int = 0
    """S; episodes begin with zeros."""
    noise_size: int = 0
    """K; 0: `action` is the greedy one always."""
    version: int = field(default=VERSION)

    @cached_property
    def inputs(self) -> ActingInputs:
        return ActingInputs(self.obs, self.mask_groups, self.mask_is_observed, "policy")

    @property
    def input_names(self) -> list[str]:
        names = [leaf.name("obs") for leaf in self.obs]
        if self.mask_groups:
            names.append(MASK)
        if self.state_size:
            names += [STATE_IN, STARTS]
        return [*names, NOISE] if self.noise_size else names

    @property
    def output_names(self) -> list[str]:
        actions = [leaf.name(prefix) for prefix in ("action", "greedy_action") for leaf in self.action]
        return [*actions, *self.outputs]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, file: str) -> Contract:
        """CheckpointError where another rlplat wrote it."""
        found = json.loads(text)
        if found.get("version") != VERSION:
            raise CheckpointError(
                f"{file} has contract version {found.get('version')}, and this rlplat reads version {VERSION}: use the "
                "rlplat that wrote it (rlplat.version in its metadata), or export the run again"
            )
        if found.get("kind") == "module":
            raise CheckpointError(
                f"{file} holds a torch module, not a policy: run it with rlplat.export.ExportedModel({file!r}).run(...)"
            )
        plain = {name: _tuples(value) for name, value in found.items() if name not in ("obs", "action")}
        obs, action = (tuple(_leaf(each) for each in found[name]) for name in ("obs", "action"))
        return cls(obs=obs, action=action, **plain)


def nested(parts: Sequence[tuple[Keys, Any]]) -> Any:
    """The values by their keys, in dicts (keys that are text) and tuples (keys that are numbers)."""
    if len(parts) == 1 and not parts[0][0]:
        return parts[0][1]
    inner: dict[str | int, list[tuple[Keys, Any]]] = {}
    for keys, value in parts:
        inner.setdefault(keys[0], []).append((keys[1:], value))
    made = {key: nested(each) for key, each in inner.items()}
    return tuple(made.values()) if all(isinstance(key, int) for key in made) else made


def _leaf(found: dict[str, Any]) -> Leaf:
    return Leaf(**{name: _tuples(value) for name, value in found.items()})


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
