"""`--algo rainbow`: what the field calls an algorithm that is one of ours with its switches set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlplat.config import layer_from_arguments
from rlplat.errors import ConfigError
from rlplat.rl.names_elsewhere import ALGORITHMS_ELSEWHERE
from rlplat.rl.run.registry import load_algorithm
from rlplat.rl.run.training_plan import plan_training
from tests.house.names_tables import PAGES, with_table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "which-algorithm.md"


@pytest.mark.parametrize("name", ALGORITHMS_ELSEWHERE)
def test_every_name_is_a_config_of_one_of_ours(name: str) -> None:
    known = ALGORITHMS_ELSEWHERE[name]
    needed = {"data": "data"} if "data" in load_algorithm(known.algo).config_class.model_fields else {}
    plan = plan_training(name, None, [layer_from_arguments({"env": "CartPole-v1"} | needed)])
    assert plan.algo == known.algo and plan.notes[0] == f"{name} is {known}"
    for key, value in known.settings.items():
        config = plan.config
        for part in key.split("."):
            config = getattr(config, part)
        assert config == value


def test_the_users_own_settings_win_and_spellings_do_not_matter() -> None:
    plan = plan_training("QR-DQN", None, [layer_from_arguments({"env": "CartPole-v1", "distributional": "c51"})])
    assert plan.config.distributional == "c51"
    assert plan.notes[0] == "QR-DQN is --algo dqn --set distributional=qr"


def test_elsewhere_the_way_to_write_it_is_said() -> None:
    with pytest.raises(ConfigError, match=r"'recurrent_ppo' is --algo ppo --set policy.core=lstm \(only"):
        load_algorithm("recurrent_ppo")


def test_the_page_has_all_of_them() -> None:
    written = set(re.findall(r"`([a-z0-9_+]+)`", PAGE.read_text()))
    assert {name.replace("_", "") for name in written} >= set(ALGORITHMS_ELSEWHERE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_names_are_written(page: Path) -> None:
    """`python -m tests.house.names_tables` writes them."""
    assert page.read_text() == with_table(page)
