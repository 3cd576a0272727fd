"""Atari games: every choice that changes the task is made here, in the open, and passed to ale-py by name.

ale-py's own defaults clip rewards, `gymnasium.make` of the same id has sticky actions and raw frames, and other
libraries differ again; curves are comparable only when all of these are stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlplat.config import closest
from rlplat.errors import UsageError
from rlplat.rl.envs.image_settings import ImageSettings
from rlplat.rl.envs.names import EnvSource

PREPROCESSING: dict[str, Any] = {
    "frameskip": 4,  # an env step is 4 frames
    "maxpool": True,  # over the last two of them: sprites flicker
    "grayscale": True,
    "img_height": 84,
    "img_width": 84,
    "stack_num": 4,  # observations are uint8[4, 84, 84], newest frame last
    "noop_max": 30,  # up to this many no-ops after a reset
    "use_fire_reset": True,  # games that wait for FIRE are started
    "reward_clipping": False,  # raw rewards; clipping is the algorithm's business (clip_rewards)
    "episodic_life": False,  # True: a lost life is `terminated` while the game goes on; returns are still whole games'
    # True: after a lost life FIRE is pressed for the agent, in a step that is not valid; in evaluations too. Together
    # with episodic_life, what Stable-Baselines3 and CleanRL train and evaluate on.
    "fire_after_lost_life": False,
    "repeat_action_probability": 0.0,  # no sticky actions, as in the -v4 ids; 0.25 for Machado et al. 2018
    "full_action_space": False,
    "max_num_frames_per_episode": 108_000,  # 30 minutes of play, then truncated
}
"""What `Pong` means. Mnih et al. 2015, with the whole game as the episode and raw rewards."""


def atari_settings(source: EnvSource, env_kwargs: dict[str, Any]) -> dict[str, Any]:
    """PREPROCESSING with the caller's changes; UsageError on a name that is not in it. The key `image` says some of
    them as for any environment."""
    if isinstance(env_kwargs.get("image"), Mapping):
        env_kwargs = {**_of_images(source, env_kwargs["image"]), **env_kwargs}
        del env_kwargs["image"]
    for key in env_kwargs:
        if key == "wrappers":
            raise UsageError(
                f"{source.name} steps in C++, many games at once, where no wrapper of gymnasium's fits; its own keys "
                f"are {', '.join(PREPROCESSING)}. For wrappers name a function that makes the environment: "
                "./file.py:make"
            )
        if key not in PREPROCESSING:
            raise UsageError(
                f"unknown key '{key}' in env_kwargs of {source.name}{closest(key, PREPROCESSING) or ';'} "
                f"the keys are {', '.join(PREPROCESSING)}"
            )
    return {**PREPROCESSING, **env_kwargs}


def _of_images(source: EnvSource, given: Mapping[str, Any]) -> dict[str, Any]:
    image = ImageSettings.of(given)
    if image.range is not None:
        raise UsageError(f"{source.name} has pixels from 0 to 255: leave out env_kwargs.image.range")
    settings: dict[str, Any] = {}
    if image.size is not None:
        settings = {"img_height": image.size[0], "img_width": image.size[1]}
    if "grey" in given:
        settings["grayscale"] = image.grey
    if "stack" in given:
        settings["stack_num"] = image.stack
    return settings


def ale_arguments(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings in ale-py's names.

    ale-py's `episodic_life` starts the game anew at every lost life, so that no second life is ever played; what Mnih
    et al. 2015 and everybody after them mean by the term is its `life_loss_info`.
    """
    arguments = {**settings, "episodic_life": False}
    arguments["life_loss_info"] = settings["episodic_life"]
    del arguments["fire_after_lost_life"]  # `VectorEnv` does that
    return arguments
