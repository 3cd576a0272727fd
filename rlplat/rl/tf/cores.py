"""Cores: what carries information from one time step to the next. Formulas, gate order, parameters and the layout of
the state are those of rl/torch/cores.py; so is the signature:

    out, state = core(features, state, starts)

    features  float32[T*B, F], time first (row t*B + b)
    state     float32[B, S] before the first step; zeros are the state in which an episode begins
    starts    bool[T, B] or None (T = 1, nothing starts): an episode begins with this step, what was before is forgotten
    out       float32[T*B, C], C = core.num_features; state: float32[B, S], S = core.state_size, after the last step

The steps of LSTM and GRU are a loop in the graph, one for every T.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.tf import tf
from rlplat.rl.tf.layers import LayerNorm, Linear, orthogonal


class LSTM(tf.Module):
    """Hochreiter & Schmidhuber 1997 with forget gate (Gers et al. 2000); state = (h, c), gates in the order i, f, g, o.

    i, f, o = sigmoid(W x + U h + b); g = tanh(W x + U h + b); c' = f c + i g; h' = o tanh(c').
    """

    def __init__(self, num_inputs: int, size: int) -> None:
        super().__init__()
        self.weight_ih, self.weight_hh = _gates(num_inputs, size, 4)
        bias = np.zeros(4 * size, np.float32)
        bias[size : 2 * size] = 1.0  # remembers at first (Jozefowicz et al. 2015)
        self.bias = tf.Variable(bias)
        self.num_features, self.state_size = size, 2 * size

    def __call__(
        self, features: tf.Tensor, state: tf.Tensor, starts: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        inputs = tf.matmul(features, self.weight_ih, transpose_b=True) + self.bias

        def step(state: tf.Tensor, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            hidden, cell = tf.split(state, 2, axis=-1)
            gates = inputs + tf.matmul(hidden, self.weight_hh, transpose_b=True)
            i, f, g, o = tf.split(gates, 4, axis=-1)
            cell = tf.sigmoid(f) * cell + tf.sigmoid(i) * tf.tanh(g)
            hidden = tf.sigmoid(o) * tf.tanh(cell)
            return hidden, tf.concat([hidden, cell], axis=-1)

        return _unroll(step, inputs, state, starts, self.num_features)


class GRU(tf.Module):
    """Cho et al. 2014 in the form that cuDNN computes; state = h, gates in the order r, z, n.

    r, z = sigmoid(W x + U h + b); n = tanh(W x + b + r (U h + b')); h' = (1 - z) n + z h.
    """

    def __init__(self, num_inputs: int, size: int) -> None:
        super().__init__()
        self.weight_ih, self.weight_hh = _gates(num_inputs, size, 3)
        self.bias_ih, self.bias_hh = tf.Variable(tf.zeros(3 * size)), tf.Variable(tf.zeros(3 * size))
        self.num_features = self.state_size = size

    def __call__(
        self, features: tf.Tensor, state: tf.Tensor, starts: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        inputs = tf.matmul(features, self.weight_ih, transpose_b=True) + self.bias_ih

        def step(hidden: tf.Tensor, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            r_x, z_x, n_x = tf.split(inputs, 3, axis=-1)
            of_hidden = tf.matmul(hidden, self.weight_hh, transpose_b=True) + self.bias_hh
            r_h, z_h, n_h = tf.split(of_hidden, 3, axis=-1)
            r, z = tf.sigmoid(r_x + r_h), tf.sigmoid(z_x + z_h)
            hidden = (1.0 - z) * tf.tanh(n_x + r * n_h) + z * hidden
            return hidden, hidden

        return _unroll(step, inputs, state, starts, self.num_features)


class Attention(tf.Module):
    """One transformer block over the last `window` steps of the episode and the present one.

    Pre-norm (Parisotto et al. 2020, GTrXL-I) with a learnt bias per head and distance; see rl/torch/cores.py.
    state = the window's inputs, oldest first, and a flag for each that is filled.
    """

    def __init__(self, num_inputs: int, size: int, window: int, num_heads: int) -> None:
        super().__init__()
        self.window, self.num_heads = window, num_heads
        self.num_features, self.state_size = size, window * (size + 1)
        self.embed = Linear(num_inputs, size)
        self.norm_attention = LayerNorm(size)
        self.query = Linear(size, size, bias=False)
        self.key = Linear(size, size, bias=False)
        self.value = Linear(size, size, bias=False)
        self.merge = Linear(size, size)
        self.distance_bias = tf.Variable(tf.zeros((num_heads, window + 1)))
        self.norm_mlp = LayerNorm(size)
        self.mlp_in = Linear(size, 2 * size)
        self.mlp_out = Linear(2 * size, size)

    def __call__(
        self, features: tf.Tensor, state: tf.Tensor, starts: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        num_envs, window, size = tf.shape(state)[0], self.window, self.num_features
        by_time = tf.reshape(tf.nn.relu(self.embed(features)), (-1, num_envs, size))
        present = tf.transpose(by_time, (1, 0, 2))  # [B, T, D]
        num_steps = tf.shape(present)[1]
        past = tf.reshape(state[:, : window * size], (num_envs, window, size))
        filled = state[:, window * size :]
        inputs = tf.concat([past, present], axis=1)  # [B, K+T, D]

        # Episodes are counted within the fragment; empty places of the window belong to none.
        begun = tf.zeros((num_envs, num_steps), tf.int32)
        if starts is not None:
            begun = tf.cumsum(tf.cast(tf.transpose(starts), tf.int32), axis=1)
        episode = tf.concat([tf.where(filled > 0.5, 0, -1), begun], axis=1)  # [B, K+T]
        steps, places = tf.range(num_steps), tf.range(window + num_steps)
        distance = steps[:, None] + window - places[None, :]  # [T, K+T]; 0: the step itself
        near = (distance >= 0) & (distance <= window)
        visible = near[None] & (episode[:, None, :] == begun[:, :, None])  # [B, T, K+T]

        normed = self.norm_attention(inputs)
        q = self._by_head(self.query(normed[:, window:]))
        k, v = self._by_head(self.key(normed)), self._by_head(self.value(normed))
        scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(size // self.num_heads)  # [B, H, T, K+T]
        scores += tf.gather(self.distance_bias, tf.clip_by_value(distance, 0, window), axis=1)
        scores = tf.where(visible[:, None], scores, -1e8)
        attended = tf.transpose(tf.matmul(tf.nn.softmax(scores), v), (0, 2, 1, 3))
        out = present + self.merge(tf.reshape(attended, (num_envs, num_steps, size)))
        out = out + self.mlp_out(tf.nn.relu(self.mlp_in(self.norm_mlp(out))))

        last = tf.cast(episode[:, -window:] == begun[:, -1:], tf.float32)
        kept = inputs[:, -window:] * last[..., None]
        out = tf.reshape(tf.transpose(out, (1, 0, 2)), (-1, size))
        return out, tf.concat([tf.reshape(kept, (num_envs, window * size)), last], axis=-1)

    def _by_head(self, x: tf.Tensor) -> tf.Tensor:
        """[B, N, D] -> [B, H, N, D/H]"""
        size = self.num_features // self.num_heads
        return tf.transpose(tf.reshape(x, (tf.shape(x)[0], -1, self.num_heads, size)), (0, 2, 1, 3))


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


def _unroll(
    step: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    inputs: tf.Tensor,
    state: tf.Tensor,
    starts: tf.Tensor | None,
    size: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """step(state [B, S], inputs [B, G]) -> (out [B, size], state); inputs: [T*B, G] -> (out [T*B, size], state)."""
    if starts is None:
        return step(state, inputs)
    num_steps = tf.shape(starts)[0]
    inputs = tf.reshape(inputs, (num_steps, -1, inputs.shape[-1]))
    keep = tf.cast(~starts, tf.float32)[:, :, None]

    def one(t: tf.Tensor, state: tf.Tensor, outs: tf.TensorArray) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        out, state = step(state * keep[t], inputs[t])
        return t + 1, state, outs.write(t, out)

    outs = tf.TensorArray(tf.float32, num_steps, element_shape=(None, size))
    _, state, outs = tf.while_loop(lambda t, *_: t < num_steps, one, (0, state, outs), maximum_iterations=num_steps)
    return tf.reshape(outs.stack(), (-1, size)), state


def _gates(num_inputs: int, size: int, num_gates: int) -> tuple[tf.Variable, tf.Variable]:
    """Xavier for the inputs, orthogonal for what comes back, gate by gate: float32[G*size, in], [G*size, size]."""
    bound = math.sqrt(6.0 / (num_inputs + size))
    weight_ih = tf.Variable(tf.random.uniform((num_gates * size, num_inputs), -bound, bound))
    return weight_ih, tf.Variable(np.concatenate([orthogonal((size, size), 1.0) for _ in range(num_gates)]))
