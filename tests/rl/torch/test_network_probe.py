"""Networks of the user's own whose answers depend on more than their weights and what they are given."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812 - torch's own name for it

from rlplat.algorithms.a3c import A3CConfig  # noqa: E402
from rlplat.algorithms.ppo import PPOConfig  # noqa: E402
from rlplat.errors import UsageError  # noqa: E402
from rlplat.rl.policies.spec import QSpec  # noqa: E402
from rlplat.rl.torch.action_distributions import ActionDistribution  # noqa: E402
from rlplat.rl.torch.network_probe import probe  # noqa: E402
from rlplat.rl.torch.networks import ActorCritic, make_network  # noqa: E402
from rlplat.rl.torch.optimizers import optimizer_of  # noqa: E402
from rlplat.rl.torch.q_network import make_q_network  # noqa: E402
from rlplat.rl.torch.trainee import actor_critic_trainee  # noqa: E402
from tests.rl.specimens import TREE, make_spec, spec_of_actions  # noqa: E402


class Plain(nn.Module):
    state_size = 0

    def __init__(self, spec: Any, compute_dtype: Any) -> None:
        super().__init__()
        self.spec = spec
        self.body: nn.Module = nn.Linear(4, 8)
        self.heads: nn.Module = nn.Linear(8, spec.num_params + 1)
        self.more()

    def more(self) -> None: ...

    def features(self, obs: Any) -> Any:
        return torch.tanh(self.body(obs.flatten(1)))

    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        params, values = self.heads(self.features(obs)).split([self.spec.num_params, 1], dim=-1)
        state = obs.new_zeros(len(obs), 0) if state is None else state
        return ActionDistribution(self.spec, params), values.squeeze(-1), state


class ListOfLayers(Plain):
    def more(self) -> None:
        self.layers = [nn.Linear(8, 8)]

    def features(self, obs: Any) -> Any:
        return self.layers[0](super().features(obs))


class BareTensor(Plain):
    def more(self) -> None:
        self.scale = torch.ones(8, requires_grad=True)

    def features(self, obs: Any) -> Any:
        return super().features(obs) * self.scale


class DrawnConstant(Plain):
    def more(self) -> None:
        self.projection = np.random.normal(size=(4, 4)).astype(np.float32)

    def features(self, obs: Any) -> Any:
        return super().features(obs.flatten(1) @ torch.from_numpy(self.projection))


class OverTheBatch(Plain):
    def features(self, obs: Any) -> Any:
        features = super().features(obs)
        return features - features.mean(dim=0)


class RowsAsTime(Plain):
    def more(self) -> None:
        self.body = nn.LSTM(1, 8)

    def features(self, obs: Any) -> Any:
        return self.body(obs.unsqueeze(-1))[0][:, -1]  # [N, 4, 1], of which nn.LSTM takes N for time


class NeedsMany(Plain):
    def more(self) -> None:
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False))


class AlwaysDrops(Plain):
    def features(self, obs: Any) -> Any:
        return F.dropout(super().features(obs), 0.5)


class DropsWhileTraining(Plain):
    def features(self, obs: Any) -> Any:
        return F.dropout(super().features(obs), 0.5, self.training)


class Memory(Plain):
    """What it saw so far, summed."""

    state_size = 8

    def forward(self, obs: Any, state: Any = None, starts: Any = None) -> Any:
        state = obs.new_zeros(len(obs), 8) if state is None else state
        said = []
        for t, rows in enumerate(self.by_step(self.features(obs), len(state))):
            state = self.kept(state, starts, t) + rows
            said.append(state)
        params, values = self.heads(self.in_order(said)).split([self.spec.num_params, 1], dim=-1)
        return ActionDistribution(self.spec, params), values.squeeze(-1), state

    def by_step(self, features: Any, num_envs: int) -> Any:
        return features.unflatten(0, (-1, num_envs))

    def in_order(self, said: Any) -> Any:
        return torch.cat(said)

    def kept(self, state: Any, starts: Any, t: int) -> Any:
        return state if starts is None else state * ~starts[t].unsqueeze(-1)


class EnvironmentsFirst(Memory):
    def by_step(self, features: Any, num_envs: int) -> Any:
        return features.unflatten(0, (num_envs, -1)).transpose(0, 1)

    def in_order(self, said: Any) -> Any:
        return torch.stack(said, dim=1).flatten(0, 1)


class NeverForgets(Memory):
    def kept(self, state: Any, starts: Any, t: int) -> Any:
        return state


class Lazy(Plain):
    def more(self) -> None:
        self.body, self.heads = nn.LazyLinear(8), nn.LazyLinear(self.spec.num_params + 1)


def trainee(network: Any, **settings: Any) -> Any:
    spec = make_spec(custom=f"{__name__}:{network.__name__}", **settings)
    return actor_critic_trainee(PPOConfig(env="CartPole-v1"), spec, np.random.SeedSequence(1))


@pytest.mark.parametrize(
    "network, said",
    [
        (ListOfLayers, "layers gets a gradient but is no parameter.*ModuleList"),
        (BareTensor, r"scale gets a gradient but is no parameter.*nn\.Parameter"),
        (DrawnConstant, "two networks of this class with the same weights give different outputs"),
        (OverTheBatch, "what it says of an observation depends on the others beside it"),
        (RowsAsTime, "what it says of an observation depends on the others beside it.*batch_first=True"),
        (NeedsMany, "it cannot take one observation alone.*more than 1 value per channel"),
        (EnvironmentsFirst, "3 steps at once give other outputs than one after another: rows are time first"),
        (NeverForgets, "3 steps at once with an episode that begins between them give other outputs"),
    ],
)
def test_what_else_decides_is_named(network: Any, said: str) -> None:
    """All of them trained and were evaluated, as something else than they were."""
    with pytest.raises(UsageError, match=f"{network.__name__}: {said}"):
        trainee(network)


@pytest.mark.parametrize("network", [Plain, Memory, DropsWhileTraining])
def test_sound_ones_pass(network: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert trainee(network).network.training
    assert not capfd.readouterr().err


def test_random_numbers_in_eval_mode_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    trainee(AlwaysDrops)
    assert "AlwaysDrops: forward draws random numbers in eval mode too" in capfd.readouterr().err


@pytest.mark.parametrize("core", ["none", "lstm", "gru", "attention"])
@pytest.mark.parametrize("name", ["discrete", "composite"])
def test_our_own_layers_pass(name: str, core: str) -> None:
    for obs in (make_spec().obs, TREE):
        spec = spec_of_actions(name, obs, core=core, custom="rlplat.rl.torch.networks:ActorCritic")
        probe(spec, make_network(spec), make_network(spec))


class Encoder(nn.Module):
    """Layers as torch makes them, loaded, frozen, and written through `.data`; the first one does not know its size."""

    num_features = 4

    def __init__(self, spec: Any, compute_dtype: Any) -> None:
        super().__init__()
        self.plain, self.loaded, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.first, self.written = nn.LazyLinear(4), nn.Linear(4, 4)
        self.written.weight.data.normal_(std=0.01)
        self.written.bias.data.fill_(3.0)
        nn.init.ones_(self.plain.bias)
        self.loaded.load_state_dict({"weight": torch.full((4, 4), 0.5), "bias": torch.ones(4)})
        nn.init.constant_(self.frozen.weight.requires_grad_(False), 0.25)

    def forward(self, obs: Any) -> Any:
        return self.written(self.frozen(self.loaded(self.plain(self.first(obs.flatten(1))))))


@pytest.mark.parametrize("make", [make_network, lambda spec: make_q_network(spec, QSpec())])
def test_an_encoder_keeps_what_it_has_loaded(make: Any) -> None:
    """Orthogonal initialisation took the weights that it had loaded, or frozen, away."""
    network = make(make_spec(encoder=f"{__name__}:Encoder", orthogonal_init=True))
    encoder = network.actor_encoder if isinstance(network, ActorCritic) else network.encoder
    assert (encoder.loaded.weight == 0.5).all() and (encoder.loaded.bias == 1.0).all()
    assert (encoder.frozen.weight == 0.25).all() and encoder.first.weight.shape == (4, 4)
    assert encoder.written.weight.abs().max() < 0.1 and (encoder.written.bias == 3.0).all()
    assert (encoder.plain.bias == 1.0).all()
    product = encoder.plain.weight @ encoder.plain.weight.T
    torch.testing.assert_close(product, 2.0 * torch.eye(4), atol=1e-5, rtol=0)


class Frozen(Plain):
    def more(self) -> None:
        self.body.requires_grad_(False)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("network", [Frozen, Lazy])
def test_frozen_parameters_are_weights_that_do_not_change(network: Any, optimizer: Any) -> None:
    """They were refused as parameters that take no part; lazy ones raised."""
    spec = make_spec(custom=f"{__name__}:{network.__name__}")
    config = A3CConfig(env="CartPole-v1", optimizer=optimizer)
    made = actor_critic_trainee(config, spec, np.random.SeedSequence(1), optimizer=partial(optimizer_of, config))
    before = made.weights()
    assert before["body.weight"].shape == (8, 4)
    loss = made.network(torch.ones(3, 4))[1].sum()
    assert made.gradients(loss)["body.weight"].any() == (network is Lazy)
    made.descend(made.network(torch.ones(3, 4))[1].sum(), 0.1)
    after = made.weights()
    assert np.array_equal(before["body.weight"], after["body.weight"]) == (network is Frozen)
    assert not np.array_equal(before["heads.weight"], after["heads.weight"])
