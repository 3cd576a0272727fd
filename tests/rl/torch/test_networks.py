from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rlplat.rl.policy_spec import PolicySpec  # noqa: E402
from rlplat.rl.torch.networks import ActorCritic  # noqa: E402
from rlplat.rl.torch.weights import (  # noqa: E402
    load_weights,
    weights_of,
)

VECTOR = PolicySpec((4,), "", "categorical", 2, "mlp", (16, 8), "tanh", False, True, 0.0)
IMAGE = PolicySpec((4, 84, 84), "CHW", "categorical", 6, "nature_cnn", (64,), "tanh", True, True, 0.0)


def images(num: int, shape: tuple[int, ...] = (4, 84, 84)) -> torch.Tensor:
    return torch.randint(0, 256, (num, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_orthogonal_initialisation_with_its_gains() -> None:
    network = ActorCritic(VECTOR)
    weights = weights_of(network)
    second = weights["actor_encoder.layers.1.weight"]  # [8, 16]: orthogonal rows of length sqrt(2)
    np.testing.assert_allclose(second @ second.T, 2.0 * np.eye(8), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(weights["actor_head.weight"], axis=1), 0.01, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(weights["critic_head.weight"], axis=1), 1.0, rtol=1e-5)
    assert not any(w.any() for name, w in weights.items() if name.endswith("bias"))


def test_separate_or_shared_encoders() -> None:
    separate, shared = (
        weights_of(ActorCritic(VECTOR)),
        weights_of(ActorCritic(replace(VECTOR, share_encoder=True))),
    )
    assert "critic_encoder.layers.0.weight" in separate
    assert not any(name.startswith("critic_encoder") for name in shared)


def test_nature_cnn_is_the_plain_network_on_fractions_of_255() -> None:
    network = ActorCritic(IMAGE)
    obs, encoder = images(3), network.actor_encoder
    features = obs.float() / 255.0
    for conv in (encoder.conv1, encoder.conv2, encoder.conv3):
        features = torch.relu(conv(features))
    features = torch.relu(encoder.linear(features.contiguous().flatten(1)))
    logits, values = network(obs)
    torch.testing.assert_close(logits, network.actor_head(features), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(values, network.critic_head(features).squeeze(-1), atol=1e-5, rtol=1e-4)
    assert sum(p.numel() for p in network.parameters()) == 1_687_719  # 1.69 M, as published


def test_images_may_have_their_channels_last() -> None:
    torch.manual_seed(0)
    first = ActorCritic(IMAGE)
    last = ActorCritic(replace(IMAGE, obs_shape=(84, 84, 4), obs_layout="HWC"))
    load_weights(last, weights_of(first))
    obs = images(2)
    torch.testing.assert_close(first(obs)[1], last(obs.permute(0, 2, 3, 1).contiguous())[1])


def test_bfloat16_is_close_to_float32_and_keeps_float32_parameters() -> None:
    torch.manual_seed(0)
    exact, fast = ActorCritic(IMAGE), ActorCritic(IMAGE, torch.bfloat16)
    load_weights(fast, weights_of(exact))
    obs = images(8)
    values, fast_values = exact(obs)[1], fast(obs)[1]
    assert fast_values.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in fast.parameters())
    torch.testing.assert_close(fast_values, values, atol=0.02, rtol=0.05)
    fast_values.sum().backward()
    values.sum().backward()
    for (name, p), q in zip(exact.named_parameters(), fast.parameters(), strict=True):
        if name.startswith("actor_head"):
            continue
        cosine = torch.nn.functional.cosine_similarity(p.grad.flatten(), q.grad.flatten(), dim=0)
        assert cosine > 0.98, f"{name}: gradients point {float(cosine):.3f} the same way"


def test_weights_are_copies_in_plain_order_and_load_again() -> None:
    torch.manual_seed(0)
    one, two = ActorCritic(IMAGE), ActorCritic(IMAGE)
    weights = weights_of(one)
    assert all(w.flags.c_contiguous and w.dtype == np.float32 for w in weights.values())
    load_weights(two, weights)
    for array in weights.values():
        array.fill(0.0)  # neither network may feel it
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        assert p.any() or p.ndim == 1
        torch.testing.assert_close(p, q, atol=0, rtol=0)
