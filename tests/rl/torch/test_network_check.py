"""What the user reads whose network does not keep its promises: one message that names both sides and the fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from rlplat.algorithms.ppo import PPOConfig  # noqa: E402
from rlplat.errors import UsageError  # noqa: E402
from rlplat.rl.policies.spec import PolicySpec  # noqa: E402
from rlplat.rl.spaces import ActionSpec  # noqa: E402
from rlplat.rl.torch.action_distributions import ActionDistribution  # noqa: E402
from rlplat.rl.torch.network_check import check_network  # noqa: E402
from rlplat.rl.torch.networks import ActorCritic, make_network  # noqa: E402
from rlplat.rl.torch.trainee import actor_critic_trainee  # noqa: E402
from tests.rl.specimens import (  # noqa: E402
    ACTIONS,
    BOX,
    DISCRETE,
    MULTI_DISCRETE,
    TREE,
    make_spec,
    masked,
    spec_of_actions,
)

CPU = torch.device("cpu")


class WrongHead(ActorCritic):
    def __init__(self, spec: PolicySpec, compute_dtype: torch.dtype) -> None:
        super().__init__(spec, compute_dtype)
        self.actor_head = nn.Linear(8, 7)


class ColumnOfValues(ActorCritic):
    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        distribution, values, state = super().forward(obs, state, starts)
        return distribution, values.unsqueeze(-1), state


class Forgotten(ActorCritic):
    def __init__(self, spec: PolicySpec, compute_dtype: torch.dtype) -> None:
        super().__init__(spec, compute_dtype)
        self.gate = nn.Linear(3, 3)


class Raises(ActorCritic):
    def distribution(self, features: Any, obs: Any) -> Any:
        return self.actor_head(features[:, :5])


class Two(ActorCritic):
    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        return super().forward(obs, state, starts)[:2]


class NoState(ActorCritic):
    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        return (*super().forward(obs, state, starts)[:2], None)


class NeedsStarts(ActorCritic):
    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        return super().forward(obs, state * (~starts).float().T, starts)


class Detached(ActorCritic):
    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        with torch.no_grad():
            return super().forward(obs, state, starts)


class Infinite(ActorCritic):
    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        distribution, values, state = super().forward(obs, state, starts)
        return distribution, values / 0.0, state


class FromOne(ActionDistribution):
    def sample(self, generator: Any) -> Any:
        return super().sample(generator) * 0 + 3


class OneTooFar(ActorCritic):
    def distribution(self, features: Any, obs: Any) -> Any:
        return FromOne(self.spec, self.actor_head(features))


class IgnoresTheMask(ActorCritic):
    """As a network of one's own that does not hand the mask on."""

    def distribution(self, features: Any, obs: Any) -> Any:
        return ActionDistribution(self.spec, self.actor_head(features), getattr(self, "log_std", None))


class Plain(nn.Module):
    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        return None


class NoMode:
    def sample(self, generator: Any) -> Any:
        return torch.zeros(3, dtype=torch.int64)


class Bare(ActorCritic):
    def distribution(self, features: Any, obs: Any) -> Any:
        return NoMode()


def message(network_class: Callable[..., Any], **settings: Any) -> str:
    spec = make_spec(custom=f"my_policy:{network_class.__name__}", **settings)
    with pytest.raises(UsageError) as caught:
        check_network(network_class(spec, torch.float32) if network_class is not Plain else Plain(), spec, CPU)
    return str(caught.value)


def test_a_head_of_the_wrong_size() -> None:
    assert message(WrongHead) == (
        "my_policy:WrongHead: the policy head gives 7 numbers for each action, but actions Discrete(3) need 3: make it "
        "nn.Linear(..., spec.num_params)"
    )


def test_values_with_one_axis_too_many() -> None:
    assert message(ColumnOfValues) == (
        "my_policy:ColumnOfValues: values for 1 step of 3 environments: shape (3, 1), expected (3,); drop the last "
        "axis: values.squeeze(-1)"
    )


def test_a_parameter_that_takes_no_part() -> None:
    assert message(Forgotten) == (
        "my_policy:Forgotten: parameters gate.weight, gate.bias take no part in log-probabilities, entropies "
        "or values: use them in forward, leave them out, or register constants as buffers"
    )


def test_an_exception_inside_says_where() -> None:
    said = message(Raises)
    assert said.startswith(
        "my_policy:Raises: forward(obs of 3 rows: Box(4) float32, state of shape (3, 0), starts None) raised "
        "RuntimeError: "
    )
    assert "cannot be multiplied (3x5 and 8x3)" in said
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "features[:, :5]" in text)
    assert said.endswith(f"({__file__}:{line})")


def test_what_forward_returns() -> None:
    assert "forward returned a tuple of 2, expected (distribution, values, state)" in message(Two)
    assert "state for 1 step of 3 environments: NoneType, expected a tensor of shape (3, 0)" in message(NoState)


def test_starts_are_none_while_acting() -> None:
    assert "starts None) raised TypeError" in message(NeedsStarts, core="lstm")


def test_no_gradient() -> None:
    assert "my_policy:Detached: no gradient comes back" in message(Detached)


def test_numbers_that_are_not_finite() -> None:
    assert "values for 1 step of 3 environments: NaN or infinity before any training" in message(Infinite)


def test_choices_that_do_not_exist() -> None:
    assert message(OneTooFar).endswith(
        "sample() gave [3, 3, 3] in column 0 of its actions, expected whole numbers from 0 to 2 (actions Discrete(3))"
    )


def test_a_distribution_that_lacks_a_method() -> None:
    assert "NoMode.mode() raised AttributeError: 'NoMode' object has no attribute 'mode'" in message(Bare)


@pytest.mark.parametrize("core", ["none", "lstm", "gru", "attention"])
@pytest.mark.parametrize("name", ACTIONS)
def test_our_own_networks_pass(name: str, core: str) -> None:
    for obs in (make_spec().obs, masked(ACTIONS[name]) if ACTIONS[name].mask_size else TREE):
        spec = spec_of_actions(name, obs, core=core)
        network = ActorCritic(spec)
        check_network(network, spec, CPU)
        assert all(p.grad is None for p in network.parameters())


def test_it_draws_nothing_from_torchs_own_generator() -> None:
    spec = make_spec(action=MULTI_DISCRETE, core="lstm")
    network = ActorCritic(spec)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    check_network(network, spec, CPU)
    torch.testing.assert_close(torch.rand(3), expected, atol=0, rtol=0)
    assert DISCRETE.n == 3


class Unmade(ActorCritic):
    def __init__(self, spec: PolicySpec, compute_dtype: torch.dtype) -> None:
        super().__init__(spec, compute_dtype)
        raise ValueError("no such size")


def test_a_constructor_that_raises() -> None:
    with pytest.raises(UsageError) as caught:
        make_network(make_spec(custom=f"{__name__}:Unmade"))
    said = str(caught.value)
    assert "Unmade: making the network raised ValueError: no such size" in said
    assert f"({__file__}:" in said


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("class Mine(:\n")
    with pytest.raises(UsageError, match=r"broken\.py:Mine': it is not Python: invalid syntax in line 1"):
        make_network(make_spec(custom=f"{tmp_path}/broken.py:Mine"))


@pytest.mark.parametrize(
    ("action", "column"),
    [
        (DISCRETE, 0),
        (MULTI_DISCRETE, 0),
        (ActionSpec("composite", parts=(("a", BOX), ("b", DISCRETE))), BOX.flat_size),
    ],
)
@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_network_that_ignores_the_mask_is_refused(action: ActionSpec, column: int, core: str) -> None:
    text = message(IgnoresTheMask, obs=masked(action), action=action, core=core)
    assert (
        "my_policy:IgnoresTheMask: an action that the action mask forbids is 1 times as likely as the only legal one"
        in text
    )
    assert f"(column {column} of the actions), expected 0: give the mask to the distribution" in text
    spec = make_spec(obs=masked(action), action=action, core=core)
    check_network(ActorCritic(spec), spec, CPU)


class Normalizing(ActorCritic):
    """Has what training changes, and the learner alone would know."""

    def __init__(self, spec: PolicySpec, compute_dtype: torch.dtype) -> None:
        super().__init__(spec, compute_dtype)
        self.norm: nn.Module = nn.BatchNorm1d(4)

    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        return super().forward(self.norm(obs), state, starts)


class Averaging(Normalizing):
    """Its mean stays 0 where observations are."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, obs: Any) -> Any:
            self.mean = 0.9 * self.mean + 0.1 * obs.detach().mean(dim=0)
            return obs - self.mean

    def __init__(self, spec: PolicySpec, compute_dtype: torch.dtype) -> None:
        super().__init__(spec, compute_dtype)
        self.norm = self.Norm()


class Waves(ActorCritic):
    """Constants: of nothing, of a generator's own seed, and a cache."""

    def __init__(self, spec: PolicySpec, compute_dtype: torch.dtype) -> None:
        super().__init__(spec, compute_dtype)
        self.register_buffer("waves", self.draw())
        self.register_buffer("missing", torch.full((2,), torch.nan))
        self.register_buffer("cache", torch.empty(0), persistent=False)

    def draw(self) -> Any:
        return torch.randn(4, 4, generator=torch.Generator().manual_seed(0))

    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        self.cache = obs @ self.waves
        return super().forward(self.cache, state, starts)


class DrawnWaves(Waves):
    def draw(self) -> Any:
        return torch.randn(4, 4)


@pytest.mark.parametrize("network, buffer", [(Normalizing, "norm.num_batches_tracked"), (Averaging, "norm.mean")])
def test_a_buffer_that_training_changes(network: Any, buffer: str) -> None:
    assert message(network).startswith(
        f"my_policy:{network.__name__}: a training forward pass changes the buffer {buffer}, but buffers are constants"
    )


def test_a_buffer_is_the_same_in_every_process() -> None:
    def trainee(name: str) -> Any:
        spec = make_spec(custom=f"{__name__}:{name}")
        return actor_critic_trainee(PPOConfig(env="CartPole-v1"), spec, np.random.SeedSequence(1))

    assert "waves" not in trainee("Waves").weights()
    with pytest.raises(UsageError, match="DrawnWaves: the buffer waves is another one each time the network is made"):
        trainee("DrawnWaves")
