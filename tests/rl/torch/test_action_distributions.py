"""`ActionDistribution` against torch.distributions, head by head; samples against the probabilities; masks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import distributions as reference  # noqa: E402

from rlplat.errors import UsageError  # noqa: E402
from rlplat.rl.policies.spec import Head, PolicySpec  # noqa: E402
from rlplat.rl.spaces import ActionSpec  # noqa: E402
from rlplat.rl.torch.action_distributions import ActionDistribution  # noqa: E402
from tests.rl.specimens import (  # noqa: E402
    ACTIONS,
    BOX,
    COMPOSITE,
    DISCRETE,
    MULTI_BINARY,
    MULTI_DISCRETE,
    make_spec,
    masked,
    random_obs,
    spec_of_actions,
)

NUM_ROWS = 64
ARRAYS = {
    "discrete": (torch.int64, ()),
    "multi_discrete": (torch.int64, (2,)),
    "multi_binary": (torch.int64, (3,)),
    "box": (torch.float32, (2,)),
    "squashed": (torch.float32, (2,)),
    "composite": (torch.float32, (8,)),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_params(spec: PolicySpec, num_rows: int = NUM_ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    params = torch.randn(num_rows, spec.num_params, generator=generator(1)) * 1.5
    return params, torch.linspace(-1.0, 0.5, spec.num_gaussian)


def references(spec: PolicySpec, params: torch.Tensor, log_std: torch.Tensor) -> list[tuple[Head, Any]]:
    """(head, torch's distribution of its columns) for every head."""
    found, first, first_std = [], 0, 0
    for head in spec.heads:
        part = params[:, first : first + head.size]
        first += head.size
        if head.kind == "categorical":
            found.append((head, reference.Categorical(logits=part)))
            continue
        if head.kind == "bernoulli":
            found.append((head, reference.Independent(reference.Bernoulli(logits=part), 1)))
            continue
        normal = reference.Normal(part, log_std[first_std : first_std + head.size].exp())
        first_std += head.size
        if head.kind == "squashed_gaussian":
            low, high = torch.tensor(head.low), torch.tensor(head.high)
            to_bounds = reference.AffineTransform((low + high) / 2, (high - low) / 2)
            normal = reference.TransformedDistribution(normal, [reference.TanhTransform(), to_bounds])
        found.append((head, reference.Independent(normal, 1)))
    return found


def columns_of(spec: PolicySpec, actions: torch.Tensor) -> list[torch.Tensor]:
    table, parts, first = actions.reshape(len(actions), -1), [], 0
    for head in spec.heads:
        part = table[:, first : first + head.num_columns]
        first += head.num_columns
        parts.append(part[:, 0].long() if head.kind == "categorical" else part.float())
    return parts


@pytest.mark.parametrize("name", ACTIONS)
def test_one_action_array_in_its_shape_and_dtype(name: str) -> None:
    spec = spec_of_actions(name)
    distribution = ActionDistribution(spec, *random_params(spec))
    dtype, shape = ARRAYS[name]
    for actions in (distribution.sample(generator()), distribution.mode()):
        assert actions.dtype == dtype and actions.shape == (NUM_ROWS, *shape)
    for numbers in (distribution.log_prob(distribution.mode()), distribution.entropy()):
        assert numbers.dtype == torch.float32 and numbers.shape == (NUM_ROWS,)


@pytest.mark.parametrize("part", [DISCRETE, MULTI_DISCRETE, MULTI_BINARY, BOX], ids=lambda part: part.kind)
def test_a_dict_of_one_part_is_a_table_of_floats(part: ActionSpec) -> None:
    spec = make_spec(action=ActionSpec("composite", parts=(("only", part),)))
    actions = ActionDistribution(spec, *random_params(spec)).sample(generator())
    assert actions.dtype == torch.float32 and actions.shape == (NUM_ROWS, spec.action.flat_size)


def test_a_multi_discrete_of_one_choice_keeps_its_axis() -> None:
    spec = make_spec(action=ActionSpec("multi_discrete", shape=(1,), nvec=(4,)))
    distribution = ActionDistribution(spec, *random_params(spec))
    actions = distribution.sample(generator())
    assert actions.shape == (NUM_ROWS, 1)
    assert distribution.log_prob(actions).shape == (NUM_ROWS,)


@pytest.mark.parametrize("name", ACTIONS)
def test_log_probabilities(name: str) -> None:
    spec = spec_of_actions(name)
    params, log_std = random_params(spec)
    distribution = ActionDistribution(spec, params, log_std)
    for actions in (distribution.sample(generator()), distribution.mode()):
        expected = sum(
            one.log_prob(part)
            for (_, one), part in zip(references(spec, params, log_std), columns_of(spec, actions), strict=True)
        )
        torch.testing.assert_close(distribution.log_prob(actions), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in ACTIONS if name != "squashed"])
def test_entropies(name: str) -> None:
    spec = spec_of_actions(name)
    params, log_std = random_params(spec)
    expected = sum(one.entropy() for _, one in references(spec, params, log_std))
    torch.testing.assert_close(ActionDistribution(spec, params, log_std).entropy(), expected)


def test_the_entropy_of_a_squashed_gaussian_is_exact_for_small_deviations() -> None:
    """It has no closed form; with sigma = 0.02, tanh is straight enough that the estimate at the mean is good to 1e-3.
    Against the mean of -log p over 50,000 draws of torch's own distribution."""
    spec = spec_of_actions("squashed")
    params, log_std = torch.tensor([[0.3, -1.2]]), torch.full((2,), math.log(0.02))
    ((_, one),) = references(spec, params, log_std)
    torch.manual_seed(0)
    expected = -one.log_prob(one.sample((50_000,))).mean(dim=0)
    torch.testing.assert_close(ActionDistribution(spec, params, log_std).entropy(), expected, atol=0.02, rtol=0)


def test_a_rescaled_gaussian_is_the_plain_one_in_other_units() -> None:
    """Its actions are the plain one's, mapped from [-1, 1] to the bounds; densities and entropy change by the units."""
    plain, rescaled = spec_of_actions("box"), make_spec(action=BOX, rescale_actions=True)
    params, log_std = random_params(plain)
    one, other = (ActionDistribution(spec, params, log_std) for spec in (plain, rescaled))
    low, high = torch.tensor(BOX.low), torch.tensor(BOX.high)
    half = (high - low) / 2
    for drawn, mapped in (
        (one.sample(generator()), other.sample(generator())),
        (one.mode(), other.mode()),
    ):
        torch.testing.assert_close(mapped, low + half * (drawn + 1))
        torch.testing.assert_close(other.log_prob(mapped), one.log_prob(drawn) - half.log().sum(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(other.entropy(), one.entropy() + half.log().sum())
    normal = reference.Normal(low + half * (params + 1), half * log_std.exp())
    torch.testing.assert_close(other.entropy(), normal.entropy().sum(-1))


def test_squashed_actions_stay_within_their_bounds_with_finite_gradients() -> None:
    spec = spec_of_actions("squashed")
    params = torch.tensor([[50.0, -50.0], [0.0, 0.0]], requires_grad=True)
    log_std = torch.tensor([2.0, 2.0], requires_grad=True)
    distribution = ActionDistribution(spec, params, log_std)
    low, high = torch.tensor(BOX.low), torch.tensor(BOX.high)
    actions = distribution.sample(generator()).detach()
    assert ((actions >= low) & (actions <= high)).all()
    (distribution.log_prob(actions).sum() + distribution.entropy().sum()).backward()
    assert params.grad is not None and params.grad.isfinite().all()
    assert log_std.grad is not None and log_std.grad.isfinite().all()


def test_standard_deviations_may_differ_from_row_to_row() -> None:
    spec = spec_of_actions("box")
    params, _ = random_params(spec)
    log_std = torch.randn(NUM_ROWS, 2, generator=generator(3)) * 0.5
    distribution = ActionDistribution(spec, params, log_std)
    expected = reference.Independent(reference.Normal(params, log_std.exp()), 1)
    actions = distribution.sample(generator())
    torch.testing.assert_close(distribution.log_prob(actions), expected.log_prob(actions))
    torch.testing.assert_close(distribution.entropy(), expected.entropy())


@pytest.mark.parametrize("name", ACTIONS)
def test_modes_are_the_most_likely_actions(name: str) -> None:
    spec = spec_of_actions(name)
    params, log_std = random_params(spec)
    modes = ActionDistribution(spec, params, log_std).mode()
    for (head, one), part in zip(references(spec, params, log_std), columns_of(spec, modes), strict=True):
        if head.kind == "categorical":
            torch.testing.assert_close(part, one.probs.argmax(dim=-1))
        elif head.kind == "bernoulli":
            torch.testing.assert_close(part, (one.base_dist.probs > 0.5).float())
        elif head.kind == "gaussian":
            torch.testing.assert_close(part, one.mean)
        else:
            mean = one.base_dist.base_dist.mean
            torch.testing.assert_close(part, one.base_dist.transforms[1](torch.tanh(mean)))


def test_samples_follow_the_probabilities() -> None:
    """20,000 draws; the tolerances are more than four standard errors."""
    spec = make_spec(action=COMPOSITE, squash_actions=False)
    params, log_std = random_params(spec, 1)
    distribution = ActionDistribution(spec, params.expand(20_000, -1), log_std)
    actions = distribution.sample(generator())
    for (head, one), part in zip(references(spec, params, log_std), columns_of(spec, actions), strict=True):
        if head.kind == "categorical":
            frequencies = torch.bincount(part, minlength=head.size) / len(part)
            torch.testing.assert_close(frequencies, one.probs[0], atol=0.015, rtol=0)
        else:
            mean, deviation = one.mean[0], one.variance[0].sqrt()
            torch.testing.assert_close(part.mean(dim=0), mean, atol=0.05, rtol=0)
            torch.testing.assert_close(part.std(dim=0), deviation, atol=0, rtol=0.03)
    # Parts are independent: no correlation between any two columns.
    correlations = torch.corrcoef(actions.T) - torch.eye(actions.shape[1])
    assert correlations.abs().max() < 0.03


def test_squashed_samples_follow_their_distribution_function() -> None:
    """P(a <= squash(u)) = Phi((u - mu) / sigma), at nine quantiles."""
    spec = spec_of_actions("squashed")
    means, log_std = torch.tensor([[0.4, -0.5]]), torch.tensor([-0.7, 0.3])
    actions = ActionDistribution(spec, means.expand(20_000, -1), log_std).sample(generator())
    low, high = torch.tensor(BOX.low), torch.tensor(BOX.high)
    for quantile in np.linspace(0.1, 0.9, 9):
        u = means[0] + log_std.exp() * math.sqrt(2.0) * torch.erfinv(torch.tensor(2.0 * quantile - 1.0))
        bound = low + (high - low) * (torch.tanh(u) + 1.0) / 2.0
        below = (actions <= bound).float().mean(dim=0)
        torch.testing.assert_close(below, torch.full((2,), float(quantile)), atol=0.015, rtol=0)


@pytest.mark.parametrize("name", ACTIONS)
def test_the_same_generator_gives_the_same_actions(name: str) -> None:
    spec = spec_of_actions(name)
    distribution = ActionDistribution(spec, *random_params(spec))
    first = distribution.sample(generator(7))
    torch.testing.assert_close(distribution.sample(generator(7)), first, atol=0, rtol=0)
    assert (distribution.sample(generator(8)) != first).any()


@pytest.mark.parametrize("action", [DISCRETE, MULTI_DISCRETE, COMPOSITE], ids=lambda action: action.kind)
def test_masks(action: ActionSpec) -> None:
    """Against a categorical over the legal choices alone."""
    spec = make_spec(masked(action), action)
    params, log_std = random_params(spec, 500)
    params.requires_grad_(True)
    obs = random_obs(spec, (500,), np.random.default_rng(0))
    assert isinstance(obs, dict)
    mask = torch.from_numpy(obs["action_mask"])
    distribution = ActionDistribution(spec, params, log_std, mask)
    actions = distribution.sample(generator())
    legal, first = [], 0
    for head in spec.heads:
        legal.append(mask[:, first : first + head.size] if head.kind == "categorical" else None)
        first += head.size if head.kind == "categorical" else 0
    expected_log_probs, expected_entropies = torch.zeros(500), torch.zeros(500)
    parts = columns_of(spec, actions)
    modes = columns_of(spec, distribution.mode())
    for (_, one), part, mode, allowed in zip(
        references(spec, params.detach(), log_std), parts, modes, legal, strict=True
    ):
        if allowed is None:
            expected_log_probs += one.log_prob(part)
            expected_entropies += one.entropy()
            continue
        for choice in (part, mode):
            assert allowed.gather(1, choice.unsqueeze(1)).all(), "an illegal choice"
        weights = one.probs * allowed
        over_legal = reference.Categorical(probs=weights)
        expected_log_probs += over_legal.log_prob(part)
        probabilities = weights / weights.sum(dim=1, keepdim=True)
        expected_entropies -= torch.special.xlogy(probabilities, probabilities).sum(dim=1)
    torch.testing.assert_close(distribution.log_prob(actions), expected_log_probs, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(distribution.entropy(), expected_entropies, atol=1e-4, rtol=1e-4)
    (distribution.log_prob(actions).sum() + distribution.entropy().sum()).backward()
    assert params.grad is not None and params.grad.isfinite().all()
    first = 0
    for head, allowed in zip(spec.heads, legal, strict=True):
        if allowed is not None:
            gradients = params.grad[:, first : first + head.size]
            assert (gradients[~allowed] == 0).all() and (gradients[allowed] != 0).any()
        first += head.size


def test_an_illegal_action_has_probability_zero_however_likely_it_would_be() -> None:
    spec = make_spec(masked(DISCRETE), DISCRETE)
    params = torch.tensor([[1e4, 0.0, -1e4]])
    mask = torch.tensor([[False, True, True]])
    distribution = ActionDistribution(spec, params.expand(1000, -1), None, mask.expand(1000, -1))
    log_probs = [float(distribution.log_prob(torch.full((1000,), action))[0]) for action in range(3)]
    assert [math.exp(log_prob) for log_prob in log_probs] == [0.0, 1.0, 0.0]
    assert (distribution.sample(generator()) == 1).all() and (distribution.entropy() == 0).all()


def test_a_head_of_the_wrong_size_is_named() -> None:
    spec = make_spec(action=DISCRETE)
    with pytest.raises(UsageError, match=r"gives 4 numbers .* actions Discrete\(3\) need 3: .*spec\.num_params"):
        ActionDistribution(spec, torch.zeros(2, 4))


def test_head_sizes() -> None:
    spec = make_spec(action=COMPOSITE, squash_actions=True)
    assert [head.kind for head in spec.heads] == [
        "categorical", "bernoulli", "squashed_gaussian", "categorical", "categorical",
    ]  # fmt: skip
    assert (spec.num_params, spec.num_gaussian) == (3 + 3 + 2 + 2 + 3, 2)
    assert replace(spec, heads=spec.heads[:1]).num_params == 3
