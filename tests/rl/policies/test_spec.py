"""From settings and spaces to a spec; no framework is imported here."""

from __future__ import annotations

import math
import shlex
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from rlplat.errors import ConfigError, UsageError
from rlplat.rl.algorithm_config import PolicyConfig
from rlplat.rl.policies.bounded_actor import require_bounded
from rlplat.rl.policies.spec import (
    Head,
    action_heads,
    bounds_advice,
    require_discrete,
    said_of_observations,
    unsuited_bounds,
)
from rlplat.rl.spaces import ActionSpec, ObsSpec, SpaceSpec
from tests.rl.specimens import (
    BOX,
    COMPOSITE,
    DISCRETE,
    IMAGE,
    MULTI_BINARY,
    MULTI_DISCRETE,
    TREE,
    VECTOR,
    make_spec,
    masked,
)

ENV = "./my envs/e.py:Env"
PONG = ObsSpec("image", (4, 84, 84), "uint8", "CHW")
TINY = ObsSpec("image", (3, 16, 16), "uint8", "CHW")


def test_spec_follows_the_spaces() -> None:
    vector = make_spec()
    assert (vector.encoder, vector.share_encoder, vector.heads) == ("mlp", False, (Head("categorical", 3),))
    image = make_spec(PONG)
    assert (image.encoder, image.share_encoder, image.has_images) == ("nature_cnn", True, True)
    box = make_spec(action=BOX, share_encoder=True)
    assert (box.heads, box.share_encoder, box.num_gaussian) == ((Head("gaussian", 2),), True, 2)
    assert make_spec(TREE).encoder == "nature_cnn" and make_spec({"0": VECTOR}).encoder == "mlp"


def test_sizes_of_a_critic_need_a_network_of_its_own() -> None:
    assert make_spec(critic_hidden_sizes=[9]).critic.hidden_sizes == (9,)
    assert make_spec(hidden_sizes=[9]).critic.hidden_sizes == (9,)
    for policy in ({"share_encoder": True}, {"core": "lstm"}):
        with pytest.raises(ConfigError, match=r"critic_hidden_sizes=.*needs a network of the critic's own"):
            make_spec(critic_hidden_sizes=[9], **policy)


def test_state_dependent_exploration_is_of_box_actions() -> None:
    assert not make_spec(action=BOX, use_sde=True).is_plain_mlp
    with pytest.raises(ConfigError, match=r"policy.use_sde is for Box actions and .*, but actions are .*: omit it"):
        make_spec(use_sde=True)


def test_groups_of_observations() -> None:
    spec = make_spec(TREE, obs_groups={"actor": ["gear", "arm"], "critic": ["camera", "gear"]})
    assert spec.actor.obs.keys() == {"gear", "arm/joints", "arm/lamps", "arm/dials"} and not spec.actor.encoders
    assert list(spec.critic.obs) == ["camera", "gear"] and spec.critic.encoders == spec.encoders
    assert spec.is_privileged and not spec.share_encoder
    assert not make_spec(TREE, obs_groups={"critic": ["gear"]}).is_privileged  # the actor sees all
    masked_spec = make_spec(masked(DISCRETE), obs_groups={"actor": ["obs"]})
    assert masked_spec.actor_obs == ("obs", "action_mask")


@pytest.mark.parametrize(
    ("obs", "policy", "said"),
    [
        (VECTOR, {}, "names parts of Dict observations, but they are .*: omit it"),
        (
            TREE,
            {"obs_groups": {"critic": ["gears"]}},
            "obs_groups.critic names 'gears', which .* have: camera, gear",
        ),
        (
            TREE,
            {"core": "lstm"},
            "gives actor and critic encoders of their own, and policy.core=lstm one for both",
        ),
        (
            TREE,
            {"share_encoder": True},
            "encoders of their own, and policy.share_encoder=true one for both: omit one",
        ),
    ],
)
def test_groups_that_cannot_be(obs: Any, policy: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_spec(obs, **({"obs_groups": {"actor": ["gear"]}} | policy))


def test_heads_in_the_order_of_the_columns() -> None:
    assert action_heads(MULTI_DISCRETE) == [Head("categorical", 2), Head("categorical", 3)]
    assert action_heads(MULTI_BINARY) == [Head("bernoulli", 3)]
    heads = action_heads(COMPOSITE, squash=True)
    assert [(head.kind, head.size, head.num_columns) for head in heads] == [
        ("categorical", 3, 1),
        ("bernoulli", 3, 3),
        ("squashed_gaussian", 2, 2),
        ("categorical", 2, 1),
        ("categorical", 3, 1),
    ]
    assert sum(head.num_columns for head in heads) == COMPOSITE.flat_size
    assert (heads[2].low, heads[2].high) == (BOX.low, BOX.high)


def test_every_image_gets_the_encoder_of_its_size() -> None:
    assert make_spec(TINY).encoder == "grid_cnn"
    for refused in (TINY, VECTOR, {"a": TINY, "b": VECTOR}):
        with pytest.raises(ConfigError, match=r"at least 36 x 36 .*policy\.encoder=mlp or auto"):
            make_spec(refused, encoder="nature_cnn")
    assert make_spec(TINY, encoder="impala_cnn").has_images
    tree = {"far": PONG, "near": TINY, "icon": replace(TINY, shape=(3, 4, 4)), "speed": VECTOR}
    spec = make_spec(tree)
    assert spec.encoders == {"far": "nature_cnn", "near": "grid_cnn"} and spec.encoder == "nature_cnn"
    assert make_spec(tree, encoder="impala_cnn").encoders == {"far": "impala_cnn", "near": "impala_cnn"}
    assert make_spec(tree, encoder="mlp").encoders == {} and not make_spec(tree, encoder="mlp").has_images


STACK = ObsSpec("image", (4, 96, 80, 3), "uint8", "THWC")


@pytest.mark.parametrize(
    "leaf, policy, line",
    [
        (STACK, {}, "obs: image 96x80x12 (4 stacked RGB) -> nature_cnn"),
        (STACK, {"encoder": "impala_cnn"}, "obs: image 96x80x12 (4 stacked RGB) -> impala_cnn"),
        (STACK, {"encoder": "m:Mine"}, "obs: image 96x80x12 (4 stacked RGB) -> m:Mine"),
        (PONG, {"custom": "m:Net"}, "obs: image 84x84x4 (channels first) -> m:Net"),
        (
            replace(TINY, high=(10.0,), low=(0.0,)),
            {},
            "obs: image 16x16x3 (channels first, 0..10 -> 0..1) -> grid_cnn",
        ),
        (ObsSpec("vector", (4, 17), "float32"), {}, "obs: vector 68 (4x17) -> mlp"),
        (ObsSpec("discrete", (), "int64", nvec=(5,)), {}, "obs: one of 5 -> mlp"),
        ({"x": VECTOR, "action_mask": ObsSpec("mask", (2,), "bool")}, {}, "obs 'x': vector 4 -> mlp"),
    ],
)
def test_it_is_said_what_observations_are_taken_for(leaf: Any, policy: dict[str, str], line: str) -> None:
    assert said_of_observations(leaf, **policy) == ([line], [])


@pytest.mark.parametrize(("height", "policy", "is_warned"), [(400, {}, 1), (84, {}, 0), (400, {"custom": "m:Net"}, 0)])
def test_what_a_cnn_should_not_be_given_is_warned_of(height: int, policy: dict[str, str], is_warned: int) -> None:
    image = ObsSpec("image", (height, 600 if height > 84 else 84, 3), "uint8", layout="HWC")
    warned = said_of_observations(image, **policy)[1]
    assert [line.partition("--")[2] for line in warned] == ["env-kwargs.image.size 84 scales them down"] * is_warned


def test_what_an_mlp_should_not_be_given_is_warned_of() -> None:
    wide = said_of_observations(ObsSpec("vector", (84, 84), "float32"))[1]
    assert len(wide) == 1 and wide[0].startswith("obs: 7,056 numbers go into an MLP; if it is an image, give its space")
    assert "policy.encoder auto" in said_of_observations(PONG, "mlp")[1][0]
    assert said_of_observations(ObsSpec("vector", (2000,), "float32"))[1] == []
    assert "no finite bounds" in said_of_observations(ObsSpec("image", (64, 64, 3), "float32", "HWC"))[1][0]


def test_what_a_policy_without_a_framework_can_do() -> None:
    assert make_spec().is_plain_mlp and make_spec(action=BOX).is_plain_mlp
    for other in (
        make_spec(IMAGE),
        make_spec(core="gru"),
        make_spec(custom="my_policy:Mine"),
        make_spec(encoder="my_policy:Encoder"),
        make_spec(action=MULTI_DISCRETE),
        make_spec(action=BOX, squash_actions=True),
        make_spec(masked(DISCRETE)),
        make_spec(ObsSpec("discrete", (), "int64", nvec=(5,))),
    ):
        assert not other.is_plain_mlp


def test_a_core_shares_the_encoder() -> None:
    assert make_spec(core="lstm").share_encoder
    with pytest.raises(ConfigError, match=r"policy\.core=lstm .* policy\.share_encoder=false"):
        make_spec(core="lstm", share_encoder=False)


def test_attention_heads_divide_the_core() -> None:
    assert make_spec(core="attention", core_size=12, attention_heads=3).core_size == 12
    with pytest.raises(ConfigError, match=r"core_size=12 does not divide into policy\.attention_heads=5 equal"):
        make_spec(core="attention", core_size=12, attention_heads=5)
    assert make_spec(core="lstm", core_size=12, attention_heads=5).core == "lstm"  # not its business


@pytest.mark.parametrize(
    "low, high, found",
    [
        ((-1.0, -2.0), (1.0, 2.0), ""),
        ((0.0,), (1.0,), ""),
        ((-math.inf,), (math.inf,), ""),
        ((-1.0, -0.4), (1.0, 0.4), "[-0.4, 0.4]"),
        ((0.0,), (1000.0,), "[0, 1000]"),
        ((9.0,), (11.0,), "[9, 11]"),
    ],
)
def test_bounds_that_a_policy_does_not_learn_well_in(
    low: tuple[float, ...], high: tuple[float, ...], found: str
) -> None:
    action = ActionSpec("box", shape=(len(low),), dtype="float32", low=low, high=high)
    assert unsuited_bounds(action) == found
    composite = ActionSpec("composite", parts=(("a", DISCRETE), ("b", action)))
    assert unsuited_bounds(composite) == found
    advice = bounds_advice(composite)
    assert advice.endswith("--policy.rescale-actions makes them -1 and 1 to it") if found else advice == ""


def test_rescaling_is_of_bounded_boxes_and_not_with_squashing() -> None:
    assert make_spec(rescale_actions=True).heads == (Head("categorical", 3),)
    (head,) = make_spec(action=BOX, rescale_actions=True).heads
    assert (head.kind, head.low, head.high) == ("gaussian", BOX.low, BOX.high)
    with pytest.raises(ConfigError, match="rescale_actions to false"):
        make_spec(action=BOX, rescale_actions=True, squash_actions=True)
    endless = replace(BOX, high=(math.inf, 1.0))
    with pytest.raises(ConfigError, match="rescale_actions needs bounded actions"):
        make_spec(action=endless, rescale_actions=True)


def test_squashing_needs_bounds() -> None:
    endless = replace(BOX, high=(1.0, float("inf")))
    with pytest.raises(ConfigError, match="squash_actions needs bounded actions"):
        make_spec(action=endless, squash_actions=True)
    mixed = ActionSpec("composite", parts=(("a", DISCRETE), ("b", endless)))
    with pytest.raises(ConfigError, match="squash_actions needs bounded actions"):
        make_spec(action=mixed, squash_actions=True)
    assert make_spec(squash_actions=True).heads == (Head("categorical", 3),)


def test_has_mask() -> None:
    assert make_spec(masked(DISCRETE)).has_mask and not make_spec().has_mask and not make_spec(TREE).has_mask


@pytest.mark.parametrize("path", ["./deep_cnn.py:Encoder", "mod:my_nature_cnn"])
def test_an_encoder_of_ones_own_may_have_any_name(path: str) -> None:
    spec = make_spec(encoder=path)
    assert spec.encoder.endswith(path.removeprefix("./")) and not spec.share_encoder


@pytest.mark.parametrize(
    "settings", [{"encoder": "natur_cnn"}, {"custom": "my_policy"}, {"core": "rnn"}, {"custom": ":Class"}]
)
def test_settings_that_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PolicyConfig(**settings)


@pytest.mark.process
def test_it_needs_no_framework() -> None:
    code = "import sys, rlplat.rl.policies.spec; sys.exit('torch' in sys.modules or 'tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("refuse", "obs", "action", "algo"),
    [
        (lambda spaces: require_discrete(spaces, ENV, "dqn"), VECTOR, BOX, "sac"),
        (lambda spaces: require_bounded(spaces, ENV, "sac"), VECTOR, DISCRETE, "dqn"),
        (
            lambda spaces: require_bounded(spaces, ENV, "sac"),
            VECTOR,
            replace(BOX, low=(-math.inf, 0.0)),
            "ppo",
        ),
    ],
)
def test_the_command_that_is_advised_works_as_it_is(refuse: Any, obs: Any, action: Any, algo: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse(SpaceSpec(obs, action))
    command = str(caught.value).partition("rlplat train ")[2]
    assert shlex.split(command) == ["--algo", algo, "--env", ENV]
