"""Encoders against plain torch written once more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402, N812

from rlplat.errors import ConfigError  # noqa: E402
from rlplat.rl.policies.spec import PolicySpec  # noqa: E402
from rlplat.rl.spaces import ObsSpec  # noqa: E402
from rlplat.rl.torch import device  # noqa: E402
from rlplat.rl.torch.encoders import channels_last, make_encoder  # noqa: E402
from rlplat.rl.torch.networks import ActorCritic, make_network  # noqa: E402
from rlplat.rl.torch.weights import load_weights, weights_of  # noqa: E402
from tests.rl.specimens import DISCRETE, TREE, VECTOR, make_spec, masked, random_obs  # noqa: E402

PONG = ObsSpec("image", (4, 84, 84), "uint8", "CHW")


def tensors(spec: PolicySpec, num: int, seed: int = 0) -> Any:
    obs = random_obs(spec, (num,), np.random.default_rng(seed))
    if isinstance(obs, dict):
        return {path: torch.from_numpy(leaf) for path, leaf in obs.items()}
    return torch.from_numpy(obs)


def test_the_critic_has_hidden_sizes_of_its_own() -> None:
    network = ActorCritic(make_spec(hidden_sizes=[6], critic_hidden_sizes=[9, 7], layer_norm=True))
    assert network.actor_head.in_features == 6 and network.critic_head.in_features == 7
    assert [tuple(norm.weight.shape) for norm in network.critic_encoder.norms] == [(9,), (7,)]


def test_layers_are_normalised_before_they_are_activated() -> None:
    """Ba et al. 2016, equation 4: a = f((x - mean) / deviation * gain + bias)."""
    spec = make_spec(VECTOR, hidden_sizes=[5], activation="silu", layer_norm=True)
    encoder, obs = make_encoder(spec), torch.randn(3, 4)
    with torch.no_grad():
        encoder.norms[0].weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
        encoder.norms[0].bias.fill_(0.5)
    x = obs @ encoder.layers[0].weight.T + encoder.layers[0].bias
    deviation = (x.var(dim=1, correction=0, keepdim=True) + 1e-5).sqrt()
    x = (x - x.mean(dim=1, keepdim=True)) / deviation * encoder.norms[0].weight + 0.5
    torch.testing.assert_close(encoder(obs), x * x.sigmoid())


def test_convolutions_are_normalised_over_the_channels_of_each_pixel() -> None:
    spec = make_spec(PONG, encoder="small_cnn", layer_norm=True)
    encoder, obs = make_encoder(spec), tensors(spec, 3)
    with torch.no_grad():
        for norm in encoder.norms:
            norm.weight.uniform_(0.5, 2.0)
            norm.bias.uniform_(-1.0, 1.0)

    def activated(x: Any, norm: Any) -> Any:
        shape = (1, -1, 1, 1)[: x.dim()]
        deviation = (x.var(dim=1, correction=0, keepdim=True) + 1e-5).sqrt()
        return F.relu((x - x.mean(dim=1, keepdim=True)) / deviation * norm.weight.view(shape) + norm.bias.view(shape))

    first, second, third = encoder.norms
    x = activated(F.conv2d(obs / 255.0, encoder.conv1.weight, encoder.conv1.bias, stride=4), first)
    x = activated(F.conv2d(x, encoder.conv2.weight, encoder.conv2.bias, stride=2), second)
    x = activated(F.linear(x.flatten(1), encoder.linear.weight, encoder.linear.bias), third)
    torch.testing.assert_close(encoder(obs), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "setting, match",
    [
        ({"activation": "elu"}, "policy.activation=elu is for MLPs, but .* nature_cnn: omit it"),
        ({"layer_norm": True, "encoder": "impala_cnn"}, "policy.layer_norm=true is for .* not for impala_cnn"),
    ],
)
def test_settings_that_an_image_encoder_does_not_have_are_refused(setting: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_network(make_spec(PONG, **setting))


def one_hot(choice: int, n: int) -> list[float]:
    return [float(i == choice) for i in range(n)]


@pytest.mark.parametrize(
    "leaf, value, expected",
    [
        (ObsSpec("discrete", (), "int64", nvec=(3,)), 1, [0, 1, 0]),
        (ObsSpec("multi_discrete", (2,), "int64", nvec=(2, 3)), [1, 2], [0, 1, 0, 0, 1]),
        (ObsSpec("multi_binary", (3,), "int8"), [1, 0, 1], [1, 0, 1]),
        (ObsSpec("vector", (2, 2), "float32"), [[1.0, 2.0], [3.0, 4.0]], [1, 2, 3, 4]),
        (ObsSpec("vector", (2,), "int32"), [7, -1], [7, -1]),
        (ObsSpec("image", (1, 1, 2), "uint8", "HWC"), [[[255, 51]]], [1.0, 0.2]),
    ],
    ids=lambda value: str(value) if isinstance(value, ObsSpec) else "",
)
def test_what_an_mlp_sees_of_each_kind(leaf: ObsSpec, value: Any, expected: list[float]) -> None:
    spec = make_spec(leaf, hidden_sizes=[6], activation="relu")
    encoder = make_encoder(spec)
    assert leaf.num_features == len(expected)
    seen = torch.tensor([expected], dtype=torch.float32)
    by_hand = torch.relu(seen @ encoder.layers[0].weight.T + encoder.layers[0].bias)
    obs = torch.from_numpy(np.array([value], leaf.dtype))
    torch.testing.assert_close(encoder(obs), by_hand)


def test_an_mlp_has_its_layers_and_activation() -> None:
    encoder = make_encoder(make_spec(hidden_sizes=[16, 8], activation="tanh"))
    obs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    first, second = encoder.layers
    torch.testing.assert_close(encoder(obs), torch.tanh(second(torch.tanh(first(obs)))))
    assert encoder.num_features == 8


def test_nature_cnn_is_the_plain_network_on_fractions_of_255() -> None:
    spec = make_spec(PONG, replace(DISCRETE, n=6))
    assert spec.encoder == "nature_cnn" and spec.share_encoder and spec.has_images
    network = ActorCritic(spec)
    obs, encoder = tensors(spec, 3), network.actor_encoder
    features = obs.float() / 255.0
    for conv in (encoder.conv1, encoder.conv2, encoder.conv3):
        features = torch.relu(conv(features))
    features = torch.relu(encoder.linear(features.contiguous().flatten(1)))
    torch.testing.assert_close(encoder(obs), features, atol=1e-5, rtol=1e-4)
    assert encoder.num_features == 512
    assert sum(p.numel() for p in network.parameters()) == 1_687_719  # 1.69 M, as published


def test_small_cnn_is_the_network_of_2013_on_fractions_of_255() -> None:
    """Mnih et al. 2013, section 4.1: 16 filters 8x8 stride 4, 32 filters 4x4 stride 2, 256 units."""
    spec = make_spec(PONG, replace(DISCRETE, n=6), encoder="small_cnn")
    assert spec.share_encoder and spec.has_images
    network = ActorCritic(spec)
    obs, encoder = tensors(spec, 3), network.actor_encoder
    features = obs.float() / 255.0
    for conv in (encoder.conv1, encoder.conv2):
        features = torch.relu(conv(features))
    assert features.shape[1:] == (32, 9, 9)
    features = torch.relu(encoder.linear(features.contiguous().flatten(1)))
    torch.testing.assert_close(encoder(obs), features, atol=1e-5, rtol=1e-4)
    assert encoder.num_features == 256
    # 4 * 8 * 8 * 16 + 16, 16 * 4 * 4 * 32 + 32, 9 * 9 * 32 * 256 + 256, and the heads' 257 * (6 + 1)
    assert sum(p.numel() for p in network.parameters()) == 4_112 + 8_224 + 663_808 + 1_799


@pytest.mark.parametrize("name", ["nature_cnn", "small_cnn", "impala_cnn", "mlp"])
def test_normalised_images_are_taken_as_they_are(name: str) -> None:
    spec = make_spec(ObsSpec("image", (1, 36, 36), "uint8", "CHW"), encoder=name)
    encoder, obs = make_encoder(spec), tensors(spec, 2)
    torch.testing.assert_close(encoder(obs.float() / 255.0), encoder(obs), atol=1e-5, rtol=1e-4)


def test_impala_cnn_is_the_plain_network_on_fractions_of_255() -> None:
    """Espeholt et al. 2018, figure 3, right: written down section by section."""
    spec = make_spec(PONG, encoder="impala_cnn")
    encoder = make_encoder(spec)
    obs = tensors(spec, 2)
    x = obs.float() / 255.0
    for entry, (a, b, c, d) in zip(encoder.entries, encoder.blocks, strict=True):
        x = F.max_pool2d(entry(x), kernel_size=3, stride=2, padding=1)
        x = x + b(torch.relu(a(torch.relu(x))))
        x = x + d(torch.relu(c(torch.relu(x))))
    assert x.shape[1:] == (32, 11, 11)
    expected = torch.relu(encoder.linear(torch.relu(x).flatten(1)))
    torch.testing.assert_close(encoder(obs), expected, atol=1e-5, rtol=1e-4)
    assert encoder.num_features == 256
    convolutions = [m for m in encoder.modules() if isinstance(m, torch.nn.Conv2d)]
    assert [conv.out_channels for conv in convolutions[:3]] == [16, 32, 32] and len(convolutions) == 15


@pytest.mark.parametrize("name, side", [("nature_cnn", 36), ("small_cnn", 20), ("impala_cnn", 8), ("grid_cnn", 5)])
def test_the_smallest_images(name: str, side: int) -> None:
    leaf = ObsSpec("image", (3, side, side + 1), "uint8", "CHW")
    spec = make_spec(leaf, encoder=name)
    assert make_encoder(spec)(tensors(spec, 2)).isfinite().all()
    with pytest.raises(ConfigError, match=rf"at least {side} x {side} .*Box\(3, {side - 1}, 90\)"):
        make_spec(replace(leaf, shape=(3, side - 1, 90)), encoder=name)


@pytest.mark.parametrize("name", ["nature_cnn", "small_cnn", "impala_cnn"])
def test_channels_last_are_the_same_pictures(name: str) -> None:
    first_spec = make_spec(PONG, encoder=name)
    last_spec = make_spec(replace(PONG, shape=(84, 84, 4), layout="HWC"), encoder=name)
    first, last = make_encoder(first_spec), make_encoder(last_spec)
    load_weights(last, weights_of(first))
    obs = tensors(first_spec, 2)
    torch.testing.assert_close(first(obs), last(obs.permute(0, 2, 3, 1).contiguous()))


@pytest.mark.parametrize("name", ["nature_cnn", "small_cnn", "impala_cnn"])
def test_bfloat16_is_close_to_float32_and_keeps_float32_parameters(name: str) -> None:
    torch.manual_seed(0)
    spec = make_spec(PONG, encoder=name)
    exact, fast = ActorCritic(spec), ActorCritic(spec, torch.bfloat16)
    load_weights(fast, weights_of(exact))
    obs = tensors(spec, 4)
    values, fast_values = exact(obs)[1], fast(obs)[1]
    assert fast_values.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in fast.parameters())
    torch.testing.assert_close(fast_values, values, atol=0.02, rtol=0.05)
    fast_values.sum().backward()
    values.sum().backward()
    for (parameter_name, p), q in zip(exact.named_parameters(), fast.parameters(), strict=True):
        if parameter_name.startswith("actor_head"):
            continue
        cosine = torch.nn.functional.cosine_similarity(p.grad.flatten(), q.grad.flatten(), dim=0)
        assert cosine > 0.98, f"{parameter_name}: gradients point {float(cosine):.3f} the same way"


def test_a_tree_is_its_images_through_cnns_beside_its_numbers() -> None:
    spec = make_spec(TREE, hidden_sizes=[7], activation="relu")
    assert spec.encoder == "nature_cnn"
    encoder = make_encoder(spec)
    obs = tensors(spec, 3)
    rows = []
    for i in range(3):
        dials = obs["arm/dials"][i]
        rows.append(
            one_hot(int(obs["gear"][i]), 5)
            + obs["arm/joints"][i].flatten().tolist()
            + obs["arm/lamps"][i].tolist()
            + one_hot(int(dials[0]), 3)
            + one_hot(int(dials[1]), 2)
        )
    (cnn,) = encoder.images
    inputs = torch.cat([cnn(obs["camera"]), torch.tensor(rows)], dim=1)
    layer = encoder.mlp.layers[0]
    assert layer.weight.shape == (7, 512 + 5 + 6 + 3 + 5) and encoder.num_features == 7
    torch.testing.assert_close(encoder(obs), torch.relu(inputs @ layer.weight.T + layer.bias))


def test_a_tree_has_the_cnn_that_is_named() -> None:
    encoder = make_encoder(make_spec(TREE, encoder="small_cnn"))
    (cnn,) = encoder.images
    assert cnn.num_features == 256 and encoder.mlp.layers[0].in_features == 256 + 5 + 6 + 3 + 5


def test_a_tree_with_an_mlp_sees_its_pictures_as_numbers() -> None:
    spec = make_spec(TREE, encoder="mlp")
    encoder = make_encoder(spec)
    assert len(encoder.images) == 0 and not spec.has_images
    assert encoder.mlp.layers[0].in_features == 2 * 36 * 36 + 5 + 6 + 3 + 5
    assert encoder(tensors(spec, 2)).isfinite().all()


def test_the_mask_is_no_feature() -> None:
    spec = make_spec(masked(DISCRETE), DISCRETE)
    encoder = make_encoder(spec)
    obs = tensors(spec, 4)
    assert encoder.mlp.layers[0].in_features == VECTOR.shape[0]
    torch.testing.assert_close(encoder(obs), encoder(obs | {"action_mask": ~obs["action_mask"]}))


ENCODER = """
import torch

class Sums(torch.nn.Module):
    def __init__(self, spec, compute_dtype):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.num_features = 1

    def forward(self, obs):
        return obs.sum(dim=1, keepdim=True) * self.scale
"""


def test_an_encoder_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_encoder.py").write_text(ENCODER)
    network = ActorCritic(make_spec(encoder="./my_encoder.py:Sums", share_encoder=True))
    torch.testing.assert_close(network.actor_encoder(torch.ones(2, 4)), torch.tensor([[8.0], [8.0]]))
    assert network.actor_head.in_features == 1
    with pytest.raises(ConfigError, match="has no 'Sum'; did you mean 'Sums'"):
        make_network(make_spec(encoder="./my_encoder.py:Sum"))


@pytest.mark.parametrize("number", [0, 1, 31, 32, 33, 65])
@pytest.mark.parametrize("shape", [(4, 1, 1), (4, 5, 3), (4, 84, 84), (3, 5, 4), (1, 5, 4), (5, 3, 3)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_channels_last_changes_the_order_only(number: int, shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(number)
    images = torch.from_numpy(rng.integers(0, 256, (number, *shape)).astype(dtype))
    apart = torch.from_numpy(rng.integers(0, 256, (number, 2, *shape)).astype(dtype))[:, 1]
    for given in (images, apart, images.to(memory_format=torch.channels_last)):
        ordered = channels_last(given)
        assert torch.equal(ordered, given) and ordered.dtype == given.dtype
        assert ordered.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "spec",
    [make_spec(PONG, encoder="nature_cnn"), make_spec(VECTOR, hidden_sizes=[256, 256])],
    ids=["cnn", "mlp"],
)
def test_an_exported_encoder_takes_any_number_of_rows(spec: PolicySpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "is_mkl_slow", lambda: True)
    encoder = make_encoder(spec)
    rows = {0: torch.export.Dim("rows")}
    program = torch.export.export(encoder, (tensors(spec, 3),), dynamic_shapes=(rows,), strict=False)
    for number in (2, 40):
        obs = tensors(spec, number, seed=number)
        torch.testing.assert_close(program.module()(obs), encoder(obs), rtol=1e-4, atol=1e-4)
    assert "mkldnn" not in str(program.graph)
