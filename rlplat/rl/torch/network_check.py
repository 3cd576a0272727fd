"""One forward and one backward pass before anything is trained: what a network of the user's own gets wrong, it gets
wrong here, with both sides named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

import rlplat
from rlplat.errors import ConfigError, RlplatError, UsageError
from rlplat.rl.policies.spec import PolicySpec, forbidden_choice, masks_with_one_choice
from rlplat.rl.spaces import MASK, ObsSpec
from rlplat.rl.torch.encoders import TensorObs

NUM_STEPS, NUM_ENVS = 2, 3
_NOT_THE_USERS = tuple(os.path.dirname(module.__file__ or "-") + os.sep for module in (torch, rlplat))


def check_network(network: Any, spec: PolicySpec, device: torch.device) -> None:
    """Raises UsageError where the network does not keep the promises of `ActorCritic` for this spec."""
    name = spec.custom or type(network).__name__
    state_size = int(getattr(network, "state_size", 0))
    with constant_buffers(name, network):
        # As in acting: one step of several environments, state given, no starts.
        _check_call(name, network, spec, device, 1, torch.zeros(NUM_ENVS, state_size, device=device), None)
        # As in training: with a core whole fragments from their state, without one any rows and neither.
        starts = torch.zeros(NUM_STEPS, NUM_ENVS, dtype=torch.bool, device=device)
        state = torch.zeros(NUM_ENVS, state_size, device=device)
        with_core = (state, starts) if state_size else (None, None)
        total = _check_call(name, network, spec, device, NUM_STEPS, *with_core)
    try:
        total.backward()
    except RuntimeError as error:
        raise UsageError(
            f"{name}: no gradient comes back from log-probabilities, entropies and values ({error}); is something "
            "detached, in no_grad, or changed in place?"
        ) from error
    unused = [n for n, p in network.named_parameters() if p.grad is None and p.requires_grad]
    if unused:
        raise UsageError(
            f"{name}: {_listed(unused)} take no part in log-probabilities, entropies or values: use them in forward, "
            "leave them out, or register constants as buffers"
        )
    network.zero_grad(set_to_none=True)
    if spec.has_mask:
        _check_mask(name, network, spec, device, state_size)


def own_class(spec: PolicySpec) -> str:
    """That of the user's own, a network or an encoder, or the empty string."""
    return spec.custom or (spec.encoder if ":" in spec.encoder else "")


def size_lazy_layers(network: Any, spec: PolicySpec) -> None:
    """nn.LazyLinear and the like learn their sizes from what they see first."""
    if any(nn.parameter.is_lazy(parameter) for parameter in network.parameters()):
        with torch.no_grad():
            network(sample_obs(spec, 1, torch.device("cpu")))


def persistent_buffers(network: nn.Module) -> dict[str, Tensor]:
    """By name; the others are caches."""
    parameters = dict(network.named_parameters(remove_duplicate=False))
    kept = network.state_dict(keep_vars=True)
    return {n: each for n, each in kept.items() if n not in parameters and isinstance(each, Tensor)}


@contextmanager
def constant_buffers(name: str, network: nn.Module) -> Iterator[None]:
    """Raises UsageError where what is done within changes a buffer. Weights are the parameters alone: the change would
    stay in the learner."""
    before = {n: (buffer, buffer._version) for n, buffer in persistent_buffers(network).items()}
    yield
    for n, buffer in persistent_buffers(network).items():
        was, version = before.get(n, (None, 0))
        if buffer is not was or buffer._version != version:
            raise UsageError(
                f"{name}: a training forward pass changes the buffer {n}, but buffers are constants, which acting, "
                "evaluation and checkpoints do not get from the learner: use what keeps no statistics (nn.LayerNorm "
                "for BatchNorm), or --normalize-observations"
            )


def require_made_alike(spec: PolicySpec, network: nn.Module, other: nn.Module) -> None:
    """Raises UsageError where two networks of one class have different buffers: those that act make their own."""
    others = persistent_buffers(other)
    for n, buffer in persistent_buffers(network).items():
        both = others.get(n)
        is_nan = buffer != buffer
        if both is None or both.shape != buffer.shape or not bool(((both == buffer) | is_nan).all()):
            raise UsageError(
                f"{spec.custom or spec.encoder}: the buffer {n} is another one each time the network is made, but "
                "acting, evaluation and checkpoints do not get it from the learner: draw it from a generator with a "
                "seed of its own (torch.Generator().manual_seed(0))"
            )


def _check_mask(name: str, network: Any, spec: PolicySpec, device: torch.device, state_size: int) -> None:
    """An action that the mask forbids has probability 0."""
    mask, choices = masks_with_one_choice(spec)
    obs = sample_obs(spec, len(mask), device)
    assert isinstance(obs, dict)
    obs[MASK] = torch.from_numpy(mask).to(obs[MASK].dtype).to(device)
    with torch.no_grad():
        distribution, _, _ = network(obs, torch.zeros(len(mask), state_size, device=device), None)
        actions = distribution.mode()

        def log_prob(array: np.ndarray) -> np.ndarray:
            given = torch.from_numpy(array).to(actions.dtype).to(device)
            return cast(np.ndarray, distribution.log_prob(given).double().cpu().numpy())

        if text := forbidden_choice(spec, choices, actions.cpu().numpy(), log_prob):
            raise UsageError(f"{name}: {text}")


def _check_call(
    name: str,
    network: Any,
    spec: PolicySpec,
    device: torch.device,
    num_steps: int,
    state: Tensor | None,
    starts: Tensor | None,
) -> Tensor:
    """One forward pass and everything that is asked of its distribution; the sum of what is learnt from."""
    num_rows = num_steps * NUM_ENVS
    obs = sample_obs(spec, num_rows, device)
    generator = torch.Generator(device=device).manual_seed(0)
    rows = f"{num_steps} step{'s' if num_steps > 1 else ''} of {NUM_ENVS} environments"
    call = f"forward(obs of {num_rows} rows: {_shown(spec)}, state {_given(state)}, starts {_given(starts)})"
    with errors_named(name, call):
        returned = network(obs, state, starts)
    if not isinstance(returned, tuple) or len(returned) != 3:
        got = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        raise UsageError(f"{name}: forward returned {got}, expected (distribution, values, state)")
    distribution, values, new_state = returned
    _require(name, f"values for {rows}", values, (num_rows,), torch.float32)
    if state is not None:
        _require(name, f"state for {rows}", new_state, tuple(state.shape), torch.float32)

    columns = sum(head.num_columns for head in spec.heads)
    action_shape = (num_rows,) if spec.action.kind == "discrete" else (num_rows, columns)
    dtype = torch.float32 if spec.action.kind in ("box", "composite") else torch.int64
    draws: dict[str, Callable[[], Any]] = {
        "mode()": lambda: distribution.mode(),
        "sample()": lambda: distribution.sample(generator),
    }
    for what, draw in draws.items():
        with errors_named(name, f"{type(distribution).__name__}.{what}"):
            actions = draw()
        _require(name, f"{what} for {rows} and actions {spec.action}", actions, action_shape, dtype)
        _require_choices(name, what, spec, actions)
    with errors_named(name, f"{type(distribution).__name__}.log_prob(actions)"):
        log_probs = distribution.log_prob(actions)
    with errors_named(name, f"{type(distribution).__name__}.entropy()"):
        entropies = distribution.entropy()
    _require(name, f"log_prob(actions) for {rows}", log_probs, (num_rows,), torch.float32)
    _require(name, f"entropy() for {rows}", entropies, (num_rows,), torch.float32)
    return cast(Tensor, log_probs.sum() + values.sum() + entropies.sum())


@contextmanager
def errors_named(name: str, call: str) -> Iterator[None]:
    """What is raised within becomes a UsageError that names the network, the call and the user's line."""
    try:
        yield
    except ConfigError:
        raise  # it names the class already
    except RlplatError as error:
        raise UsageError(f"{name}: {error}") from error
    except Exception as error:
        raise UsageError(f"{name}: {call} raised {type(error).__name__}: {error}{_last_place(error)}") from error


def _require(name: str, what: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(tensor, Tensor):
        raise UsageError(f"{name}: {what}: {type(tensor).__name__}, expected a tensor of shape {shape}")
    if tuple(tensor.shape) != shape:
        hint = "; drop the last axis: values.squeeze(-1)" if tuple(tensor.shape) == (*shape, 1) else ""
        raise UsageError(f"{name}: {what}: shape {tuple(tensor.shape)}, expected {shape}{hint}")
    if tensor.dtype != dtype:
        raise UsageError(f"{name}: {what}: {tensor.dtype}, expected {dtype}")
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise UsageError(f"{name}: {what}: NaN or infinity before any training: check its initialisation")


def _require_choices(name: str, what: str, spec: PolicySpec, actions: Tensor) -> None:
    """Every column of a categorical head holds one of its choices, of a Bernoulli head 0 or 1."""
    columns, start = actions.reshape(len(actions), -1), 0
    for head in spec.heads:
        part = columns[:, start : start + head.num_columns]
        start += head.num_columns
        most = {"categorical": head.size - 1, "bernoulli": 1}.get(head.kind)
        if most is not None and not bool(((part >= 0) & (part <= most) & (part == part.round())).all()):
            raise UsageError(
                f"{name}: {what} gave {part.flatten().tolist()} in column {start - head.num_columns} of its actions, "
                f"expected whole numbers from 0 to {most} (actions {spec.action})"
            )


def sample_obs(spec: PolicySpec, num_rows: int, device: torch.device) -> TensorObs:
    """Made-up observations: ones in a mask (everything is legal), zeros elsewhere."""
    if isinstance(spec.obs, dict):
        return {path: _sample_leaf(leaf, num_rows, device) for path, leaf in spec.obs.items()}
    return _sample_leaf(spec.obs, num_rows, device)


def _sample_leaf(leaf: ObsSpec, num_rows: int, device: torch.device) -> Tensor:
    dtype = np.dtype(np.float32 if leaf.kind == "vector" else leaf.dtype)
    array = np.ones if leaf.kind == "mask" else np.zeros
    return torch.from_numpy(array((num_rows, *leaf.shape), dtype)).to(device)


def _shown(spec: PolicySpec) -> str:
    if isinstance(spec.obs, dict):
        return "{" + ", ".join(f"{path!r}: {leaf}" for path, leaf in spec.obs.items()) + "}"
    return str(spec.obs)


def _given(tensor: Tensor | None) -> str:
    return "None" if tensor is None else f"of shape {tuple(tensor.shape)}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"parameter{'s' if len(names) > 1 else ''} {', '.join(names[:5])}{more}"


def _last_place(error: Exception) -> str:
    """` (my_policy.py:12)`: the innermost line that is neither torch's nor ours."""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_NOT_THE_USERS):
            place = f" ({file}:{trace.tb_lineno})"
        trace = trace.tb_next
    return place
