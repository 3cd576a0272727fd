"""LSTM and GRU against torch's own, attention against a loop over steps; the state is all that is carried."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from rlplat.rl.torch.cores import GRU, LSTM, Attention, make_core  # noqa: E402
from tests.rl.specimens import make_spec  # noqa: E402

T, B, F, C, WINDOW = 11, 3, 5, 8, 4
CORES = ("lstm", "gru", "attention")


def build(kind: str) -> Any:
    """In float64, so that agreement means agreement; away from the initialisation's zeros."""
    torch.manual_seed(1)
    core = make_core(make_spec(core=kind, core_size=C, attention_window=WINDOW, attention_heads=2), F)
    assert core is not None
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return core.double()


def features(seed: int = 0) -> torch.Tensor:
    """[T, B, F]"""
    return torch.randn(T, B, F, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def starts() -> torch.Tensor:
    """bool[T, B]: none; two within; one at the very first step and two in succession."""
    begins = torch.zeros(T, B, dtype=torch.bool)
    begins[[3, 8], 1] = True
    begins[[0, 5, 6], 2] = True
    return begins


def zero_state(core: Any) -> torch.Tensor:
    return torch.zeros(B, core.state_size, dtype=torch.float64)


def run(core: Any, inputs: torch.Tensor, state: torch.Tensor, begins: Any = None) -> tuple[Any, Any]:
    """-> out [T, B, C], state"""
    out, state = core(inputs.reshape(-1, F), state, begins)
    return out.view(len(inputs), B, C), state


def step_by_step(core: Any, inputs: torch.Tensor, state: torch.Tensor, begins: torch.Tensor) -> Any:
    """As a policy acts: one step at a time, the state set to zero where an episode begins."""
    outputs = []
    for t in range(len(inputs)):
        state = state * (~begins[t]).unsqueeze(-1)
        out, state = core(inputs[t], state, None)
        outputs.append(out)
    return torch.stack(outputs), state


def test_lstm_is_torchs() -> None:
    core = build("lstm")
    assert isinstance(core, LSTM)
    theirs = nn.LSTM(F, C).double()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(core.weight_ih)
        theirs.weight_hh_l0.copy_(core.weight_hh)
        theirs.bias_ih_l0.copy_(core.bias)
        theirs.bias_hh_l0.zero_()
    hidden, cell = torch.randn(2, B, C, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    out, state = run(core, features(), torch.cat([hidden, cell], dim=-1))
    expected, (last_hidden, last_cell) = theirs(features(), (hidden[None], cell[None]))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(state, torch.cat([last_hidden[0], last_cell[0]], dim=-1))


def test_gru_is_torchs() -> None:
    core = build("gru")
    assert isinstance(core, GRU)
    theirs = nn.GRU(F, C).double()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(core.weight_ih)
        theirs.weight_hh_l0.copy_(core.weight_hh)
        theirs.bias_ih_l0.copy_(core.bias_ih)
        theirs.bias_hh_l0.copy_(core.bias_hh)
    hidden = torch.randn(B, C, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    out, state = run(core, features(), hidden)
    expected, last = theirs(features(), hidden[None])
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(state, last[0])


def test_the_lstm_remembers_at_first() -> None:
    core = make_core(make_spec(core="lstm", core_size=C), F)
    assert isinstance(core, LSTM)
    assert core.bias.tolist() == [0.0] * C + [1.0] * C + [0.0] * 2 * C
    recurrent = core.weight_hh[:C].detach()
    torch.testing.assert_close(recurrent @ recurrent.T, torch.eye(C), atol=1e-5, rtol=0)


def attend(core: Attention, history: list[torch.Tensor]) -> torch.Tensor:
    """The block's output at the last of an episode's inputs [D], from the formulas, one head and distance at a time."""
    seen = history[-(core.window + 1) :]
    query_from = core.norm_attention(seen[-1])
    size = C // core.num_heads
    merged = []
    for head in range(core.num_heads):
        rows = slice(head * size, (head + 1) * size)
        query = core.query.weight[rows] @ query_from
        scores, values = [], []
        for place, vector in enumerate(seen):
            normed = core.norm_attention(vector)
            distance = len(seen) - 1 - place
            score = query @ (core.key.weight[rows] @ normed) / math.sqrt(size)
            scores.append(score + core.distance_bias[head, distance])
            values.append(core.value.weight[rows] @ normed)
        shares = torch.stack(scores).softmax(dim=0)
        merged.append(sum(share * value for share, value in zip(shares, values, strict=True)))
    out = seen[-1] + core.merge(torch.cat(merged))
    return out + core.mlp_out(torch.relu(core.mlp_in(core.norm_mlp(out))))


def test_attention_is_what_its_formulas_say() -> None:
    core = build("attention")
    out, _ = run(core, features(), zero_state(core), starts())
    embedded = torch.relu(core.embed(features()))
    for b in range(B):
        history: list[torch.Tensor] = []
        for t in range(T):
            history = [] if starts()[t, b] else history
            history.append(embedded[t, b])
            torch.testing.assert_close(out[t, b], attend(core, history), msg=lambda m, t=t, b=b: f"{t}, {b}: {m}")


@pytest.mark.parametrize("kind", CORES)
def test_an_episode_within_a_fragment_is_an_episode_alone(kind: str) -> None:
    core = build(kind)
    state = run(core, features(5), zero_state(core))[1]  # something is remembered when the fragment begins
    out, last_state = run(core, features(), state, starts())
    for b in range(B):
        begins = [0, *(t for t in range(1, T) if starts()[t, b]), T]
        for first, end in pairwise(begins):
            before = zero_state(core) if first > 0 or starts()[0, b] else state
            alone, alone_state = run(core, features()[first:end], before)
            torch.testing.assert_close(out[first:end, b], alone[:, b])
        torch.testing.assert_close(last_state[b], alone_state[b])


@pytest.mark.parametrize("kind", CORES)
def test_acting_step_by_step_is_training_on_the_whole_fragment(kind: str) -> None:
    core = build(kind)
    state = run(core, features(5), zero_state(core))[1]
    whole, whole_state = run(core, features(), state, starts())
    steps, steps_state = step_by_step(core, features(), state, starts())
    torch.testing.assert_close(whole, steps)
    torch.testing.assert_close(whole_state, steps_state)


@pytest.mark.parametrize("kind", CORES)
@pytest.mark.parametrize("cut", [1, 2, 7])
def test_two_fragments_with_the_stored_state_between_them_are_one(kind: str, cut: int) -> None:
    core = build(kind)
    whole, last_state = run(core, features(), zero_state(core), starts())
    first, state = run(core, features()[:cut], zero_state(core), starts()[:cut])
    second, state = run(core, features()[cut:], state, starts()[cut:])
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(state, last_state)


def changed_outputs(kind: str, at: int) -> set[tuple[int, int]]:
    """(t, b) of the outputs that feel the inputs of step `at`, in every environment."""
    core = build(kind)
    inputs = features()
    inputs[at] += 1.0
    before, after = (run(core, each, zero_state(core), starts())[0] for each in (features(), inputs))
    return {(t, b) for t in range(T) for b in range(B) if not torch.equal(before[t, b], after[t, b])}


@pytest.mark.parametrize("kind", CORES)
def test_an_input_is_felt_by_its_own_episode_from_then_on_and_by_nothing_else(kind: str) -> None:
    for at in range(T):
        expected = set()
        for b in range(B):
            later = next((t for t in range(at + 1, T) if starts()[t, b]), T)
            last = min(later, at + WINDOW + 1) if kind == "attention" else later
            expected |= {(t, b) for t in range(at, last)}
        assert changed_outputs(kind, at) == expected, f"inputs of step {at}"


@pytest.mark.parametrize("kind", CORES)
def test_gradients_reach_the_parameters_and_are_right(kind: str) -> None:
    core = build(kind)

    def output(inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = core(inputs.reshape(-1, F), zero_state(core), starts()[:6])[0]
        return out

    assert torch.autograd.gradcheck(output, (features()[:6].clone().requires_grad_(True),))
    output(features()[:6]).square().sum().backward()
    assert [n for n, p in core.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_none_is_no_core() -> None:
    assert make_core(make_spec(core="none"), F) is None


@pytest.mark.parametrize("kind, size", [("lstm", 2 * C), ("gru", C), ("attention", WINDOW * (C + 1))])
def test_sizes(kind: str, size: int) -> None:
    core = build(kind)
    assert (core.num_features, core.state_size) == (C, size)
    out, state = core(features()[0], zero_state(core), None)
    assert out.shape == (B, C) and state.shape == (B, size)
