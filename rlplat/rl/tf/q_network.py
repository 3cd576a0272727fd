"""`QNetwork`: encoder, core, and heads that give Q-values or distributions of returns, as in rl/torch/q_network.py."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rlplat.errors import UsageError
from rlplat.rl.class_path import load_class
from rlplat.rl.policies.framework_check import require_known_state, require_q_shapes
from rlplat.rl.policies.spec import PolicySpec, QSpec
from rlplat.rl.tf import tf
from rlplat.rl.tf.cores import make_core
from rlplat.rl.tf.encoders import TensorObs, make_encoder
from rlplat.rl.tf.layers import Linear, initialize_orthogonally
from rlplat.rl.tf.tensors import sample_obs


class QNetwork(tf.Module):
    """The class to extend for a network of one's own (policy.custom): its constructor takes the same arguments.

        outputs, state = network(obs, state, starts)

    obs: [N, ...] (or a dict of such), N = T*B rows, time first; state: float32[B, S] before the first step, None for
    the state in which episodes begin; starts: bool[T, B]. outputs: float32[N, A, Z], Z = 1: Q-values; C51: logits of Z
    atoms; QR: Z quantiles. `q_values(outputs)`: float32[N, A].
    """

    def __init__(self, spec: PolicySpec, q: QSpec, compute_dtype: tf.DType = tf.float32) -> None:
        super().__init__()
        self.spec, self.q = spec, q
        self.encoder = make_encoder(spec, compute_dtype)
        num_features = int(self.encoder.num_features)
        self.core = make_core(spec, num_features)
        self.state_size = 0
        if self.core is not None:
            num_features, self.state_size = self.core.num_features, self.core.state_size
        self.advantage_head = _Head(num_features, spec.action.n * q.num_outputs, q)
        self.value_head = _Head(num_features, q.num_outputs, q) if q.dueling else None
        self.support = tf.constant(q.support()) if q.distributional == "c51" else None
        if spec.orthogonal_init:
            initialize_orthogonally(self.submodules)

    def __call__(
        self, obs: TensorObs, state: tf.Tensor | None = None, starts: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        features = self.encoder(obs)
        if state is None:
            num_envs = tf.shape(features)[0] if starts is None else tf.shape(starts)[1]
            state = tf.zeros((num_envs, self.state_size))
        if self.core is not None:
            features, state = self.core(features, state, starts)
        if self.value_head is not None:
            features = _with_rescaled_gradient(features)
        outputs = tf.reshape(self.advantage_head(features), (-1, self.spec.action.n, self.q.num_outputs))
        if self.value_head is not None:
            outputs += self.value_head(features)[:, None] - tf.reduce_mean(outputs, axis=1, keepdims=True)
        return outputs, state

    def q_values(self, outputs: tf.Tensor) -> tf.Tensor:
        """float32[N, A, Z] -> float32[N, A]: expected returns."""
        if self.support is not None:
            return tf.reduce_sum(tf.nn.softmax(outputs) * self.support, axis=-1)
        return tf.reduce_mean(outputs, axis=-1)

    def draw_noise(self, rng: np.random.Generator) -> None:
        """New noise in the noisy layers, for all rows until the next call; there is none before the first."""
        for module in self.submodules:
            if isinstance(module, NoisyLinear):
                module.draw_noise(rng)

    def clear_noise(self) -> None:
        """Mean weights from now on."""
        for module in self.submodules:
            if isinstance(module, NoisyLinear):
                module.clear_noise()


class NoisyLinear(tf.Module):
    """y = (W + sigma_W * f(e_out) f(e_in)^T) x + b + sigma_b * f(e_out), f(e) = sgn(e) sqrt|e| (Fortunato et al. 2018,
    section 3b, initialised as there: uniform in +-1/sqrt(inputs), sigma = sigma_0 / sqrt(inputs))."""

    def __init__(self, num_inputs: int, num_outputs: int, sigma: float) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(num_inputs)
        self.weight = tf.Variable(tf.random.uniform((num_outputs, num_inputs), -bound, bound))
        self.bias = tf.Variable(tf.random.uniform((num_outputs,), -bound, bound))
        self.weight_sigma = tf.Variable(tf.fill((num_outputs, num_inputs), sigma * bound))
        self.bias_sigma = tf.Variable(tf.fill((num_outputs,), sigma * bound))
        # Variables, because a graph reads them anew at each call; no weights.
        self.noise_out = tf.Variable(tf.zeros(num_outputs), trainable=False)
        self.noise_in = tf.Variable(tf.zeros(num_inputs), trainable=False)

    def draw_noise(self, rng: np.random.Generator) -> None:
        for noise in (self.noise_out, self.noise_in):
            drawn = rng.standard_normal(noise.shape[0], np.float32)
            noise.assign(np.sign(drawn) * np.sqrt(np.abs(drawn)))

    def clear_noise(self) -> None:
        for noise in (self.noise_out, self.noise_in):
            noise.assign(tf.zeros_like(noise))

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        weight = self.weight + self.weight_sigma * (self.noise_out[:, None] * self.noise_in[None, :])
        return tf.matmul(features, weight, transpose_b=True) + self.bias + self.bias_sigma * self.noise_out


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _with_rescaled_gradient(features: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """The features; of their gradient 1/sqrt(2), since both streams of a dueling network send one into the encoder
    (Wang et al. 2016, section 4.2)."""
    return tf.identity(features), lambda gradient: gradient / math.sqrt(2.0)


class _Head(tf.Module):
    """A linear layer, or two with a ReLU between them."""

    def __init__(self, num_inputs: int, num_outputs: int, q: QSpec) -> None:
        super().__init__()
        self.hidden = None
        if q.head_hidden_size:
            self.hidden = _linear(num_inputs, q.head_hidden_size, q)
            num_inputs = q.head_hidden_size
        self.out = _linear(num_inputs, num_outputs, q)

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        return self.out(features if self.hidden is None else tf.nn.relu(self.hidden(features)))


def _linear(num_inputs: int, num_outputs: int, q: QSpec) -> Linear | NoisyLinear:
    return NoisyLinear(num_inputs, num_outputs, q.noisy_sigma) if q.noisy else Linear(num_inputs, num_outputs)


def make_q_network(spec: PolicySpec, q: QSpec, compute_dtype: tf.DType = tf.float32) -> QNetwork:
    """The network of a spec: `QNetwork`, or the class that `spec.custom` names ("pkg.mod:Class")."""
    network_class = load_class(spec.custom) if spec.custom else QNetwork
    if not (isinstance(network_class, type) and issubclass(network_class, QNetwork)):
        raise UsageError(
            f"policy.custom={spec.custom} is not a network for DQN on TensorFlow: extend "
            "rlplat.rl.tf.q_network.QNetwork (an ActorCritic is for PPO and A3C)"
        )
    network: QNetwork = network_class(spec, q, compute_dtype)
    return network


def check_q_network(network: QNetwork) -> None:
    """Raises UsageError where a network of the user's own does not keep the promises of `QNetwork.__call__`; also
    builds Keras layers, which have no variables before."""
    own = network.spec.custom
    require_known_state(own, network)
    num_rows = 3
    outputs, state = network(sample_obs(network.spec, num_rows))
    require_q_shapes(own, network, num_rows, outputs, state)
