"""What no shape tells of a network of the user's own: that its weights and what it is given decide, and nothing else.

    registered    what gets a gradient is a parameter: no layer in a plain list, no bare tensor
    alike         another network of its class with the same weights says the same: policies act with another one
    rows          each row is on its own: it has the same answer alone and beside those of other environments
    steps         with a memory: several steps at once are the same as one after another, and `starts` forgets
    draws         in eval mode there are no random numbers: a warning, as somebody may want them

All of it is looked for by a few forward passes over made-up observations, before anything is trained.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlplat.errors import UsageError
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.spaces import ObsSpec
from rlplat.rl.torch.encoders import TensorObs
from rlplat.rl.torch.network_check import own_class
from rlplat.rl.torch.weights import load_weights, weights_of

NUM_STEPS, NUM_ENVS = 3, 4
SHARE = 0.05
"""Of the spread over the rows: a larger difference is no rounding, bfloat16's included."""


def probe(spec: PolicySpec, network: Any, other: Any) -> None:
    """Raises UsageError where one of the above does not hold, of two networks of a class, on the CPU. One that cannot
    answer at all is left to `check_network`, which says why."""
    was_training = network.training
    network.eval(), other.eval()
    try:
        problem, warning = _found(spec, network, other)
    except Exception:
        problem, warning = "", ""
    finally:
        network.train(was_training)
    if problem:
        raise UsageError(f"{own_class(spec)}: {problem}")
    if warning:
        print(f"warning: {own_class(spec)}: {warning}", file=sys.stderr)


def _found(spec: PolicySpec, network: Any, other: Any) -> tuple[str, str]:
    """(an error, a warning), or empty strings."""
    asked = _Asked(spec)
    if stray := _stray(network, asked.obs):
        return (
            f"{stray} gets a gradient but is no parameter, so it is neither trained nor sent to the policies that act: "
            "make tensors nn.Parameter(...), and lists of layers nn.ModuleList(...)"
        ), ""
    said = asked.answers(network)
    if _differ(said, asked.answers(network)):  # by a generator that is not torch's
        return "", DRAWS
    load_weights(other, weights_of(network))
    if _differ(said, asked.answers(other)):
        return (
            "two networks of this class with the same weights give different outputs, and policies act with another "
            "one than the learner trains: something is drawn each time it is made and is no parameter. Draw "
            "constants from a generator with a seed of its own (torch.Generator().manual_seed(0)); layers belong "
            "into attributes, nn.ModuleList or nn.ModuleDict"
        ), ""
    if _differ(said, asked.answers(network, seed=1)):
        return "", DRAWS
    try:
        alone = torch.cat([asked.answers(network, [row]) for row in range(NUM_ENVS)])
    except Exception as error:
        return f"it cannot take one observation alone, as `rlplat.load(RUN).act` gives it: {error}", ""
    if _differ(said[:NUM_ENVS], alone):
        return (
            "what it says of an observation depends on the others beside it, which are of other environments: rows "
            "are to be on their own. Layers for sequences (nn.LSTM, nn.MultiheadAttention, nn.TransformerEncoderLayer) "
            "take rows for time unless batch_first=True; for nn.BatchNorm use nn.LayerNorm"
        ), ""
    if not asked.state_size(network):
        return "", ""
    for starts in (False, True):
        if _differ(asked.at_once(network, starts), asked.one_by_one(network, starts)):
            what = " with an episode that begins between them" if starts else ""
            return (
                f"{NUM_STEPS} steps at once{what} give other outputs than one after another: rows are time first (row "
                "t * B + b is step t of environment b), the state is that before the first step, and where "
                "starts[t, b] is True what was before t is forgotten"
            ), ""
    return "", ""


DRAWS = (
    "forward draws random numbers in eval mode too, so that actions and values of one observation differ from call to "
    "call, in evaluations as well: torch.nn.functional.dropout needs training=self.training"
)


class _Asked:
    """Random observations of NUM_STEPS * NUM_ENVS rows, and what a network says of them."""

    def __init__(self, spec: PolicySpec) -> None:
        rng = np.random.default_rng(0)
        self.num_rows = NUM_STEPS * NUM_ENVS
        self.obs: TensorObs
        if isinstance(spec.obs, dict):
            self.obs = {path: _random_leaf(leaf, self.num_rows, rng) for path, leaf in spec.obs.items()}
        else:
            self.obs = _random_leaf(spec.obs, self.num_rows, rng)
        self._actions: Tensor | None = None

    @staticmethod
    def state_size(network: Any) -> int:
        return int(getattr(network, "state_size", 0))

    def answers(self, network: Any, rows: Any = slice(None), seed: int = 0) -> Tensor:
        """float32[N, K] of these rows, each the first of an episode."""
        num_rows = len(range(self.num_rows)[rows]) if isinstance(rows, slice) else len(rows)
        state = torch.zeros(num_rows, self.state_size(network))
        return self._call(network, rows, state, None, seed)[0]

    def at_once(self, network: Any, starts: bool) -> Tensor:
        state = torch.zeros(NUM_ENVS, self.state_size(network))
        return self._call(network, slice(None), state, self._starts(starts))[0]

    def one_by_one(self, network: Any, starts: bool) -> Tensor:
        state, parts = torch.zeros(NUM_ENVS, self.state_size(network)), []
        for t, begins in enumerate(self._starts(starts)):
            rows = slice(t * NUM_ENVS, (t + 1) * NUM_ENVS)
            said, state = self._call(network, rows, state * ~begins.unsqueeze(-1), None)
            parts.append(said)
        return torch.cat(parts)

    @staticmethod
    def _starts(somewhere: bool) -> Tensor:
        starts = torch.zeros(NUM_STEPS, NUM_ENVS, dtype=torch.bool)
        starts[1, 0] = starts[2, 1] = somewhere
        return starts

    def _call(
        self, network: Any, rows: Any, state: Tensor, starts: Tensor | None, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        obs = {path: leaf[rows] for path, leaf in self.obs.items()} if isinstance(self.obs, dict) else self.obs[rows]
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            first, *others, state = network(obs, state, starts)
            if not others:  # of a Q-network
                return first.flatten(1).float(), state
            if self._actions is None:
                self._actions = first.mode()
            log_probs = first.log_prob(self._actions[rows])
        return torch.stack([log_probs.float(), others[0].float()], dim=1), state


def _random_leaf(leaf: ObsSpec, num_rows: int, rng: np.random.Generator) -> Tensor:
    """Between 0 and 1 where nothing says more: roots, logarithms and indices made of them exist."""
    shape = (num_rows, *leaf.shape)
    if leaf.kind == "mask":
        return torch.ones(shape, dtype=torch.bool)
    if leaf.kind == "image":
        low, high = leaf.bounds if leaf.bounds[0] else ((0.0,), (1.0,))
        pixels = min(low) + (max(high) - min(low)) * rng.random(shape)
        return torch.from_numpy(pixels.astype(leaf.dtype))
    if leaf.kind == "vector":
        return torch.from_numpy(rng.random(shape).astype(np.float32))
    most = np.array(leaf.nvec or 2).reshape(leaf.shape if leaf.nvec else ())
    return torch.from_numpy(rng.integers(0, most, shape).astype(leaf.dtype))


def _differ(one: Tensor, other: Tensor) -> bool:
    if not bool(one.isfinite().all() and other.isfinite().all()):
        return False
    spread = one.std(dim=0)
    return bool(((one - other).abs() > SHARE * spread + 1e-5 * (1.0 + one.abs())).any())


def _stray(network: nn.Module, obs: TensorObs) -> str:
    """What the outputs' gradient reaches beside the parameters, by name as far as it has one."""
    returned = network(obs)
    if isinstance(returned[0], Tensor):
        outputs = [returned[0]]
    else:
        outputs = [returned[0].log_prob(returned[0].mode()), returned[1]]
    known = {id(parameter) for parameter in network.parameters()}
    waiting, seen = [output.grad_fn for output in outputs], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            return _name_of(network, leaf)
        waiting += [following for following, _ in node.next_functions]
    return ""


def _name_of(network: nn.Module, tensor: Tensor) -> str:
    for path, module in network.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_"):
                continue
            several = value.values() if isinstance(value, dict) else value
            for each in several if isinstance(value, dict | list | tuple) else [value]:
                held = each.parameters() if isinstance(each, nn.Module) else [each]
                if any(one is tensor for one in held):
                    return f"{path}.{name}".lstrip(".")
    return f"a tensor of shape {tuple(tensor.shape)}"
