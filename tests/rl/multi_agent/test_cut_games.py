"""Games without an end are cut off in an evaluation."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("pettingzoo")

from rlplat.algorithms.ppo import PPO, PPOConfig
from rlplat.rl.interfaces import CutEpisode

RENDEZVOUS = "rlplat.rl.envs.diagnostic_multi_agent:Rendezvous"


def test_a_game_that_does_not_end_is_cut_off_and_its_copy_plays_no_more() -> None:
    config = PPOConfig(
        env=RENDEZVOUS,
        env_kwargs={"num_cells": 50, "max_steps": 1_000_000},
        num_rollout_workers=0,
        evaluation={"num_envs": 2, "max_episode_steps": 5},
    )
    with PPO(config) as ppo:
        played = ppo.evaluate(5)
    assert [type(game) for game in played] == [CutEpisode] * 2
    assert [game.length for game in played] == [5, 5] and math.isnan(played[0].episode_return)
