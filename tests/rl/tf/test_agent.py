"""`rlplat.load` of runs that were trained with TensorFlow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlplat

pytest.importorskip("tensorflow")

from tests.rl.run.test_trained_agent import LSTM, module_input, played, rows, same, trained

pytestmark = pytest.mark.slow


def test_acts_as_the_evaluation_does_and_its_torch_module_too(tmp_path: Path) -> None:
    run = trained("ppo", "info", tmp_path / "run", **LSTM)
    config = run / "config.yaml"  # weights fit either framework
    config.write_text(config.read_text().replace("framework: torch", "framework: tf"))
    agent = rlplat.load(run)
    state = agent.initial_state()
    for obs, mask, action, begins in played(agent):
        if begins:
            agent.reset()
            state = agent.initial_state()
        assert same(agent.act(obs, mask=mask), action)
        passed, state = agent.act(obs, mask=mask, state=state)
        assert same(passed, action)
    many, masks = rows("info", 16)
    drawn = [agent.act(many, mask=masks, state=agent.initial_state(16), greedy=False, rng=4)[0] for _ in range(2)]
    assert same(*drawn)
    assert type(agent.policy).__module__ == "rlplat.rl.tf.policy"
    logits, _ = agent.torch_module()(module_input(agent, many, masks))
    assert np.array_equal(
        logits.argmax(dim=1).numpy() + 1, agent.act(many, mask=masks, state=agent.initial_state(16))[0]
    )
