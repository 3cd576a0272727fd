"""Cores: what carries information from one time step to the next, between encoder and heads.

One signature for all, for acting (T = 1) and for training on whole fragments:

    out, state = core(features, state, starts)

    features  float32[T*B, F], time first (row t*B + b)
    state     float32[B, S] before the first step; zeros are the state in which an episode begins
    starts    bool[T, B] or None (T = 1, nothing starts): an episode begins with this step, what was before is forgotten
    out       float32[T*B, C], C = core.num_features; state: float32[B, S], S = core.state_size, after the last step
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from rlplat.rl.policies.spec import PolicySpec


class LSTM(nn.Module):
    """Hochreiter & Schmidhuber 1997 with forget gate (Gers et al. 2000); state = (h, c), gates in the order i, f, g, o.

    i, f, o = sigmoid(W x + U h + b); g = tanh(W x + U h + b); c' = f c + i g; h' = o tanh(c').
    """

    def __init__(self, num_inputs: int, size: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * size, num_inputs))
        self.weight_hh = nn.Parameter(torch.empty(4 * size, size))
        self.bias = nn.Parameter(torch.zeros(4 * size))
        self.num_features, self.state_size = size, 2 * size
        _initialize_gates(self.weight_ih, self.weight_hh, 4)
        with torch.no_grad():
            self.bias[size : 2 * size] = 1.0  # remembers at first (Jozefowicz et al. 2015)

    def forward(self, features: Tensor, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden, cell = state.chunk(2, dim=-1)
        inputs = F.linear(features, self.weight_ih, self.bias).view(-1, state.shape[0], len(self.bias))
        keep = None if starts is None else (~starts).float().unsqueeze(-1)
        outputs = []
        for t in range(len(inputs)):
            if keep is not None:
                hidden, cell = hidden * keep[t], cell * keep[t]
            gates = inputs[t] + hidden @ self.weight_hh.T
            i, f, g, o = gates.chunk(4, dim=-1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.cat(outputs), torch.cat([hidden, cell], dim=-1)


class GRU(nn.Module):
    """Cho et al. 2014 in the form that cuDNN computes; state = h, gates in the order r, z, n.

    r, z = sigmoid(W x + U h + b); n = tanh(W x + b + r (U h + b')); h' = (1 - z) n + z h.
    """

    def __init__(self, num_inputs: int, size: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(3 * size, num_inputs))
        self.weight_hh = nn.Parameter(torch.empty(3 * size, size))
        self.bias_ih = nn.Parameter(torch.zeros(3 * size))
        self.bias_hh = nn.Parameter(torch.zeros(3 * size))
        self.num_features = self.state_size = size
        _initialize_gates(self.weight_ih, self.weight_hh, 3)

    def forward(self, features: Tensor, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden = state
        inputs = F.linear(features, self.weight_ih, self.bias_ih).view(-1, state.shape[0], len(self.bias_ih))
        keep = None if starts is None else (~starts).float().unsqueeze(-1)
        outputs = []
        for t in range(len(inputs)):
            if keep is not None:
                hidden = hidden * keep[t]
            r_x, z_x, n_x = inputs[t].chunk(3, dim=-1)
            r_h, z_h, n_h = F.linear(hidden, self.weight_hh, self.bias_hh).chunk(3, dim=-1)
            r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
            hidden = (1.0 - z) * torch.tanh(n_x + r * n_h) + z * hidden
            outputs.append(hidden)
        return torch.cat(outputs), hidden


class Attention(nn.Module):
    """One transformer block over the last `window` steps of the episode and the present one.

    Pre-norm (Parisotto et al. 2020, GTrXL-I) with a learnt bias per head and distance; like Transformer-XL (Dai et al.
    2019) it keeps the window's inputs as they were computed, so gradients end at the fragment's start. No step sees
    across the beginning of its episode. state = the window's inputs, oldest first, and a flag for each that is filled.
    """

    def __init__(self, num_inputs: int, size: int, window: int, num_heads: int) -> None:
        super().__init__()
        self.window, self.num_heads = window, num_heads
        self.num_features, self.state_size = size, window * (size + 1)
        self.embed = nn.Linear(num_inputs, size)
        self.norm_attention = nn.LayerNorm(size)
        self.query = nn.Linear(size, size, bias=False)
        self.key = nn.Linear(size, size, bias=False)
        self.value = nn.Linear(size, size, bias=False)
        self.merge = nn.Linear(size, size)
        self.distance_bias = nn.Parameter(torch.zeros(num_heads, window + 1))
        self.norm_mlp = nn.LayerNorm(size)
        self.mlp_in = nn.Linear(size, 2 * size)
        self.mlp_out = nn.Linear(2 * size, size)

    def forward(self, features: Tensor, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        num_envs, window, size = state.shape[0], self.window, self.num_features
        present = torch.relu(self.embed(features)).view(-1, num_envs, size).transpose(0, 1)  # [B, T, D]
        num_steps = present.shape[1]
        past, filled = state[:, : window * size].view(num_envs, window, size), state[:, window * size :]
        inputs = torch.cat([past, present], dim=1)  # [B, K+T, D]

        # Episodes are counted within the fragment; empty places of the window belong to none.
        begun = torch.zeros(num_envs, num_steps, dtype=torch.long, device=state.device)
        if starts is not None:
            begun = starts.T.long().cumsum(dim=1)
        episode = torch.cat([torch.where(filled > 0.5, 0, -1), begun], dim=1)  # [B, K+T]
        steps = torch.arange(num_steps, device=state.device)
        places = torch.arange(window + num_steps, device=state.device)
        distance = steps[:, None] + window - places[None, :]  # [T, K+T]; 0: the step itself
        near = (distance >= 0) & (distance <= window)
        visible = near & (episode[:, None, :] == begun[:, :, None])  # [B, T, K+T]

        normed = self.norm_attention(inputs)
        q = self._by_head(self.query(normed[:, window:]))
        k, v = self._by_head(self.key(normed)), self._by_head(self.value(normed))
        scores = q @ k.transpose(-1, -2) / math.sqrt(size // self.num_heads)  # [B, H, T, K+T]
        scores = scores + self.distance_bias[:, distance.clamp(0, window)]
        scores = scores.masked_fill(~visible[:, None], -1e8)
        attended = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(num_envs, num_steps, size)
        out = present + self.merge(attended)
        out = out + self.mlp_out(torch.relu(self.mlp_in(self.norm_mlp(out))))

        last = (episode[:, -window:] == begun[:, -1:]).to(state.dtype)
        kept = inputs[:, -window:] * last.unsqueeze(-1)
        return out.transpose(0, 1).reshape(-1, size), torch.cat([kept.flatten(1), last], dim=-1)

    def _by_head(self, x: Tensor) -> Tensor:
        """[B, N, D] -> [B, H, N, D/H]"""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


Core = LSTM | GRU | Attention


def make_core(spec: PolicySpec, num_inputs: int) -> Core | None:
    """The core of a spec behind an encoder of `num_inputs` features; None for `none`."""
    if spec.core == "lstm":
        return LSTM(num_inputs, spec.core_size)
    if spec.core == "gru":
        return GRU(num_inputs, spec.core_size)
    if spec.core == "attention":
        return Attention(num_inputs, spec.core_size, spec.attention_window, spec.attention_heads)
    return None


def _initialize_gates(weight_ih: Tensor, weight_hh: Tensor, num_gates: int) -> None:
    """Xavier for the inputs, orthogonal for what comes back, gate by gate."""
    with torch.no_grad():
        for part in weight_ih.chunk(num_gates):
            nn.init.xavier_uniform_(part)
        for part in weight_hh.chunk(num_gates):
            nn.init.orthogonal_(part)
