"""Data sets of Minari as ours: what `rlplat record minari:ID` does.

manifest = copy_minari("D4RL/pen/human-v2", "data/pen")

The package `minari` reads them from its local store (MINARI_DATASETS_PATH, else ~/.minari/datasets), and downloads what
is not there. They are copied once, so that a learner needs neither Minari nor its store where it runs.

Data sets of ours as Minari's: what `rlplat record ... --out minari:ID` does.

write_minari("data/demo", "own/demo-v0")            # then minari.load_dataset("own/demo-v0")

They go to Minari's local store (MINARI_DATASETS_PATH, else ~/.minari/datasets), in the environment's own spaces.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import rlplat
from rlplat.errors import MissingExtra, UsageError
from rlplat.rl.envs.gym_spaces import (
    action_converter,
    flat_space,
    nested,
    obs_parts,
    policy_actions,
    space_spec,
)
from rlplat.rl.envs.make import make_single_env, make_vector_env
from rlplat.rl.envs.names import resolve_env
from rlplat.rl.envs.obs_reader import ObsMismatch, ObsReader
from rlplat.rl.interfaces import Array
from rlplat.rl.offline.dataset import MINARI, DataWriter, Manifest, read_episodes, read_manifest
from rlplat.rl.offline.episodes import Episodes
from rlplat.rl.offline.recording import within_bounds
from rlplat.rl.spaces import obs_leaves


def copy_minari(name: str, out: str | os.PathLike[str], *, episodes: int | None = None) -> Manifest:
    """name: as in `minari download NAME`; episodes: the first so many, None for all.

    Actions beyond the bounds of their space are clipped to them, and counted in `source["clipped_actions"]`. UsageError
    where the data set cannot be had, read, or learnt from.
    """
    dataset = _load(name)
    num_episodes = int(dataset.total_episodes)
    if episodes is not None and episodes > num_episodes:
        raise UsageError(f"{MINARI}{name} has {num_episodes:,} episodes, not {episodes:,}")
    try:
        reader = ObsReader(dataset.observation_space, dataset.action_space)
    except UsageError as error:
        raise UsageError(f"{MINARI}{name} cannot be learnt from: {error}") from None
    metadata = dataset.storage.metadata
    env, env_kwargs = environment_of(metadata)
    source: dict[str, Any] = {
        "minari": name,
        "algorithm": metadata.get("algorithm_name"),
        "author": sorted(metadata.get("author", ())),
        "clipped_actions": 0,
    }
    steps = 0
    with DataWriter(out, env=env, spaces=reader.spec, env_kwargs=env_kwargs, source=source) as writer:
        for episode in _read(dataset, range(num_episodes if episodes is None else episodes)):
            steps += len(episode.rewards)
            try:
                own, clipped = _episode(episode, reader, dataset.action_space)
                writer.add(own)
            except (UsageError, ValueError, LookupError, TypeError) as error:
                raise UsageError(
                    f"{MINARI}{name}: episode {episode.id} of {len(episode.rewards)} steps: {error}"
                ) from error
            writer.source["clipped_actions"] += clipped
        if episodes is None and steps != dataset.total_steps:
            raise _damaged(name, f"its metadata counts {dataset.total_steps:,} steps, its episodes have {steps:,}")
        return writer.close()


def environment_of(metadata: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(name, env_kwargs) of the environment in which the data set says that policies are to be evaluated, else of the
    one that it was recorded in. Without a name where it says neither, and for Atari: rlplat's own frames differ.
    """
    text = metadata.get("eval_env_spec") or metadata.get("env_spec")
    spec: dict[str, Any] = json.loads(text) if text else {"entry_point": "ale_py"}
    package = str(spec["entry_point"]).partition(":")[0].partition(".")[0]
    if package == "ale_py":
        return "", {}
    kwargs = {key: value for key, value in spec["kwargs"].items() if key != "render_mode"}
    if spec.get("max_episode_steps") is not None:
        kwargs["max_episode_steps"] = spec["max_episode_steps"]
    wrappers = [
        {wrapper["entry_point"]: wrapper["kwargs"]} if wrapper["kwargs"] else wrapper["entry_point"]
        for wrapper in spec.get("additional_wrappers", ())
    ]
    # Ids that gymnasium does not register itself are found once their package is imported.
    name = spec["id"] if package == "gymnasium" else f"{package}:{spec['id']}"
    return name, kwargs | ({"wrappers": wrappers} if wrappers else {})


def _episode(episode: Any, reader: ObsReader, action_space: Any) -> tuple[Episodes, int]:
    """(the episode, how many of its actions were clipped). ValueError and what indexing raises where it is not one."""
    num_steps = len(episode.rewards)
    terminated = np.asarray(episode.terminations, np.bool_)
    truncated = np.asarray(episode.truncations, np.bool_)
    for name, column in (("terminations", terminated), ("truncations", truncated)):
        if column.shape != (num_steps,):
            raise ValueError(f"{name} are {list(column.shape)}, not one for each step")
    ends = np.flatnonzero(terminated | truncated)
    if len(ends) and ends[0] < num_steps - 1:
        raise ValueError(f"it ends with step {ends[0] + 1} and goes on; write what follows as another episode")
    try:
        obs = reader.read_batch(episode.observations, num_steps + 1)
    except ObsMismatch as error:
        found = str(error).partition(";")[0]
        raise ValueError(f"{found}; it has an observation for every step, and its last one") from None
    actions = policy_actions(action_space, episode.actions)
    clipped = within_bounds(reader.spec.action, actions)
    outside = ~np.isclose(actions, clipped, equal_nan=True).reshape(len(actions), -1).all(axis=1)
    own = Episodes(
        obs=obs,
        actions=clipped,
        rewards=np.asarray(episode.rewards, np.float32),
        lengths=np.array([num_steps], np.int64),
        terminated=terminated[-1:],
    )
    return own, int(outside.sum())


def require_minari(name: str) -> None:
    """MissingExtra without the package; UsageError where this is no name of a data set."""
    try:
        import minari  # noqa: F401
    except ImportError:
        raise MissingExtra("minari", "minari", f"{MINARI}{name}") from None
    if not re.fullmatch(r"[-\w/]+-v\d+", name):
        raise UsageError(f"'{name}' is not the name of a Minari data set, like D4RL/pen/human-v2: `minari list remote`")


def _load(name: str) -> Any:
    """A `minari.MinariDataset`."""
    require_minari(name)
    import minari

    try:
        try:
            return minari.load_dataset(name)
        except FileNotFoundError:
            pass
        _download(name)
        return minari.load_dataset(name)
    except UsageError:
        raise
    except Exception as error:  # whatever h5py, pyarrow, gymnasium and Minari raise
        raise _damaged(name, str(error)) from error


def _download(name: str) -> None:
    import minari

    try:
        minari.download_dataset(name)
    except Exception as error:  # the errors of any HTTP client
        raise UsageError(
            f"{MINARI}{name} is not in the local store (MINARI_DATASETS_PATH, else ~/.minari/datasets) and cannot be "
            f"downloaded ({type(error).__name__}: {error}); where there is a network: minari download {name}, then "
            "copy its directory into the store here"
        ) from error


def _read(dataset: Any, numbers: range) -> Iterator[Any]:
    """`minari.EpisodeData`, one at a time."""
    try:
        yield from dataset.iterate_episodes(numbers)
    except Exception as error:  # whatever h5py and pyarrow raise
        raise _damaged(dataset.id, str(error)) from error


def _damaged(name: str, what: str) -> UsageError:
    return UsageError(
        f"{MINARI}{name} cannot be read: {what}; if it is damaged, download it again: minari download --force {name}"
    )


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
        raise UsageError(f"{MINARI}{name} exists already ({place}): choose another name or version, or remove it first")


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
    observed = {}
    for part in obs_parts(space):
        rows = leaves[part.path]
        if np.any(part.start):
            rows = rows + part.start
        observed[part.path] = rows.reshape(len(rows), *part.space.shape).astype(part.space.dtype)
    return nested(space, observed)
