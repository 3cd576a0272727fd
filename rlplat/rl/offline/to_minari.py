"""Data sets of ours as Minari's: what `rlplat record ... --out minari:ID` does.

write_minari("data/demo", "own/demo-v0")            # then minari.load_dataset("own/demo-v0")

They go to Minari's local store (MINARI_DATASETS_PATH, else ~/.minari/datasets), in the environment's own spaces.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

import rlplat
from rlplat.errors import UsageError
from rlplat.rl.envs.gym_spaces import action_converter, flat_space, obs_parts, space_spec
from rlplat.rl.envs.make import make_single_env, make_vector_env
from rlplat.rl.envs.names import resolve_env
from rlplat.rl.interfaces import Array
from rlplat.rl.offline.dataset import MINARI, Manifest, read_episodes, read_manifest
from rlplat.rl.offline.from_minari import require_minari
from rlplat.rl.spaces import obs_leaves


def write_minari(data: str | os.PathLike[str], name: str) -> Manifest:
    """data: a data set of ours; name: as in `minari.load_dataset(name)`. UsageError where it is taken, or where the
    environment, whose spaces are needed, cannot be made or has others now."""
    require_free(name)
    manifest, episodes = read_manifest(data), read_episodes(data)
    observation_space, action_space, spec = _spaces(manifest)
    import minari
    from minari.data_collector import EpisodeBuffer

    leaves = episodes.obs if isinstance(episodes.obs, dict) else {"": episodes.obs}
    convert = action_converter(action_space)
    buffers, step, row = [], 0, 0
    for i, length in enumerate(episodes.lengths.tolist()):
        ends = np.arange(length) == length - 1
        terminated = bool(episodes.terminated[i])
        parts = {path: leaf[row : row + length + 1] for path, leaf in leaves.items()}
        buffers.append(
            EpisodeBuffer(
                id=i,
                observations=_as_observed(observation_space, parts),
                actions=convert(episodes.actions[step : step + length]),
                rewards=episodes.rewards[step : step + length].astype(np.float64),
                terminations=ends & terminated,
                truncations=ends & (not terminated),
            )
        )
        step, row = step + length, row + length + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it asks for an author, a link to the code, ...
        minari.create_dataset_from_buffers(
            name,
            buffers,
            env=spec,
            observation_space=observation_space,
            action_space=action_space,
            algorithm_name=str(manifest.source.get("algorithm") or "unknown"),
            description=f"Recorded with rlplat {rlplat.__version__} in {manifest.env or 'an unnamed environment'}.",
            jpeg_encoding=False,
        )
    return manifest


def require_free(name: str) -> None:
    """MissingExtra without Minari, UsageError where a data set cannot have this name."""
    require_minari(name)
    from minari.storage import get_dataset_path

    place = get_dataset_path(name)
    if os.path.lexists(place):
        raise UsageError(
            f"{MINARI}{name} exists already ({place}): choose another name or version, or remove it first"
        )


def _spaces(manifest: Manifest) -> tuple[Any, Any, Any]:
    """(observation space, action space, gymnasium's spec or None) of the environment that was recorded."""
    if not manifest.env:
        raise UsageError("the data set names no environment, whose spaces Minari's data sets need")
    source = resolve_env(manifest.env)
    if source.kind == "atari":
        with make_vector_env(manifest.env, 1, env_kwargs=manifest.env_kwargs) as games:
            return games.observation_space, games.action_space, None
    env = make_single_env(source, manifest.env_kwargs)
    try:
        found = space_spec(env.observation_space, env.action_space)
        space = env.observation_space
        if found.obs != manifest.spec.obs:  # a mask beside the observation, in the info or by a method
            mine, theirs = obs_leaves(found.obs), obs_leaves(manifest.spec.obs)
            if {path or "obs": leaf for path, leaf in mine.items()}.items() - theirs.items():
                found.require_same(manifest.spec, manifest.env, "the data set")
            space = flat_space(manifest.spec.obs, env.observation_space)
        return space, env.action_space, getattr(env, "spec", None)
    finally:
        env.close()


def _as_observed(space: Any, leaves: Mapping[str, Array]) -> Any:
    """Our leaves by path, [n, ...], as the space's structure of arrays, counted from where it starts."""
    by_keys = {}
    for part in obs_parts(space):
        rows = leaves[part.path]
        if np.any(part.start):
            rows = rows + part.start
        by_keys[part.keys] = rows.reshape(len(rows), *part.space.shape).astype(part.space.dtype)
    return _nested(space, by_keys, ())


def _nested(space: Any, by_keys: Mapping[tuple[Any, ...], Array], keys: tuple[Any, ...]) -> Any:
    if keys in by_keys:
        return by_keys[keys]
    if hasattr(space.spaces, "items"):
        return {key: _nested(part, by_keys, (*keys, key)) for key, part in space.spaces.items()}
    return tuple(_nested(part, by_keys, (*keys, i)) for i, part in enumerate(space.spaces))
