"""Does a network of the user's own keep to action masks? Framework-free: arrays in, a sentence out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlplat.rl.interfaces import Array
from rlplat.rl.policies.spec import PolicySpec

SMALL = 1e-6
"""A probability, relative to that of the legal choice, that counts as 0."""


def masks_with_one_choice(spec: PolicySpec) -> tuple[Array, Array]:
    """(mask bool[N, L], choices int64[N, K]): one legal choice in each of K groups, another one in every row."""
    sizes = _group_sizes(spec)
    rows = np.arange(max(sizes))
    choices = np.stack([rows % size for size in sizes], axis=1)
    mask = np.concatenate([np.eye(size, dtype=np.bool_)[rows % size] for size in sizes], axis=1)
    return mask, choices


def forbidden_choice(
    spec: PolicySpec, choices: Array, actions: Array, log_prob: Callable[[Array], Array]
) -> str:
    """What to say where an action that the mask forbids has a probability, or the empty string.

    choices: of `masks_with_one_choice`; actions: any, as the network draws them under these masks; log_prob: of
    actions, float[N].
    """
    heads = [head.kind for head in spec.heads]
    starts = np.cumsum([0, *(head.num_columns for head in spec.heads)])
    columns = [int(starts[i]) for i, kind in enumerate(heads) if kind == "categorical"]
    legal = actions.reshape(len(actions), -1).copy()
    legal[:, columns] = choices
    of_legal = log_prob(legal.reshape(actions.shape))
    for column, choice, size in zip(columns, choices.T, _group_sizes(spec), strict=True):
        if size == 1:
            continue
        other = legal.copy()
        other[:, column] = (choice + 1) % size
        shares = np.exp(np.minimum(log_prob(other.reshape(actions.shape)) - of_legal, 0.0))
        if shares.max() > SMALL:
            return (
                f"an action that the action mask forbids is {shares.max():.2g} times as likely as the only legal one "
                f"(column {column} of the actions), expected 0: give the mask to the distribution, "
                'ActionDistribution(spec, params, mask=obs["action_mask"].bool()) (docs/custom-policy.md)'
            )
    return ""


def _group_sizes(spec: PolicySpec) -> list[int]:
    return [head.size for head in spec.heads if head.kind == "categorical"]
