"""DQN's networks, losses and optimizer on TensorFlow: the numbers of `td_losses`, `TorchDQN` (algorithms/dqn.py) and
`TorchR2D2` (r2d2.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlplat.rl.interfaces import Array, Obs
from rlplat.rl.obs_tree import map_obs
from rlplat.rl.policies.spec import PolicySpec, QSpec
from rlplat.rl.replay.buffer import Minibatch, SequenceMinibatch
from rlplat.rl.spaces import MASK
from rlplat.rl.tf import tf
from rlplat.rl.tf.device import resolve_precision
from rlplat.rl.tf.q_network import check_q_network, make_q_network
from rlplat.rl.tf.tensors import (
    FLOAT,
    graph,
    load_weights,
    named_variables,
    obs_signature,
    obs_tensors,
    rows,
    weights_of,
)
from rlplat.rl.tf.trainee import Trainee


def tf_td_losses(
    outputs: tf.Tensor,
    actions: tf.Tensor,
    next_outputs: tf.Tensor,
    next_actions: tf.Tensor,
    returns: tf.Tensor,
    discounts: tf.Tensor,
    *,
    distributional: str = "none",
    loss: str = "huber",
    support: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """(losses float32[N] with gradients, errors float32[N] for the priorities); see `td_losses`."""
    chosen = tf.gather(outputs, actions, axis=1, batch_dims=1)  # [N, Z]
    next_chosen = tf.stop_gradient(tf.gather(next_outputs, next_actions, axis=1, batch_dims=1))
    if distributional == "c51":
        assert support is not None
        targets = tf_c51_projection(returns, discounts, tf.nn.softmax(next_chosen), support)
        cross = targets * tf.nn.log_softmax(chosen)
        losses = tf.reduce_sum(tf.math.xlogy(targets, targets) - cross, axis=-1)
        return losses, tf.stop_gradient(losses)
    targets = returns[:, None] + discounts[:, None] * next_chosen
    if distributional == "qr":
        losses = tf_quantile_huber_losses(chosen, targets)
        return losses, tf.stop_gradient(tf.reduce_mean(targets, axis=-1) - tf.reduce_mean(chosen, axis=-1))
    errors = tf.squeeze(targets - chosen, -1)
    losses = _huber(errors) if loss == "huber" else 0.5 * tf.square(errors)
    return losses, tf.stop_gradient(errors)


def tf_c51_projection(returns: tf.Tensor, discounts: tf.Tensor, next_probs: tf.Tensor, support: tf.Tensor) -> tf.Tensor:
    """float32[N, Z]: the distribution of R + discount * Z' on the atoms of `support` (Bellemare et al. 2017, alg. 1).

    Atom j gets from atom i the share max(0, 1 - |clip(R + discount * z_i) - z_j| / spacing). next_probs: float32[N, Z].
    """
    Z = support.shape[0]
    moved = tf.clip_by_value(returns[:, None] + discounts[:, None] * support, support[0], support[-1])
    place = tf.clip_by_value((moved - support[0]) / (support[1] - support[0]), 0.0, Z - 1.0)
    shares = tf.nn.relu(1.0 - tf.abs(place[:, :, None] - tf.range(Z, dtype=tf.float32)))  # [N, i, j]
    return tf.linalg.matvec(shares, next_probs, transpose_a=True)


def tf_quantile_huber_losses(quantiles: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """float32[N]: sum_i mean_j |tau_i - 1{u_ij < 0}| huber(u_ij), u_ij = target_j - quantile_i, tau_i the middle of the
    i-th of Z equal parts of [0, 1] (Dabney et al. 2018, eq. 10, kappa = 1). quantiles, targets: float32[N, Z]."""
    Z = quantiles.shape[1]
    taus = (tf.range(Z, dtype=tf.float32) + 0.5) / Z
    errors = targets[:, None, :] - quantiles[:, :, None]  # [N, i, j]
    weights = tf.abs(taus[None, :, None] - tf.cast(errors < 0, tf.float32))
    return tf.reduce_sum(tf.reduce_mean(weights * _huber(errors), axis=2), axis=1)


def _huber(errors: tf.Tensor) -> tf.Tensor:
    sizes = tf.abs(errors)
    return tf.where(sizes <= 1.0, 0.5 * tf.square(errors), sizes - 0.5)


class TfDQN:
    """Networks, optimizer and loss on TensorFlow; what its methods mean is said by `TorchDQN`.

    A gradient step is one call of one graph, whatever the minibatch's size.
    """

    def __init__(self, config: Any, spec: PolicySpec, q: QSpec, seed: np.random.SeedSequence) -> None:
        self.trainee = Trainee(
            config, spec, seed, lambda precision: make_q_network(spec, q, precision), check_q_network
        )
        self.config, self._spec, self.device = config, spec, self.trainee.device
        self.network = self.trainee.network
        with tf.device(self.device):
            self.target = make_q_network(spec, q, resolve_precision(config.learner.precision, spec, self.device))
            check_q_network(self.target)
        self._target_variables = named_variables(self.target)
        self._noise = np.random.Generator(np.random.PCG64(seed))
        self._target_outputs = graph(self._target_rows, obs_signature(spec.obs))
        self._step = graph(self._train_rows, self._signature(), FLOAT)
        self._move_target = graph(self._move_target_variables, FLOAT)
        self.update_target(tau=1.0)

    def train(
        self, batch: Minibatch | SequenceMinibatch, learning_rate: float, next_outputs: Array | None = None
    ) -> tuple[tf.Tensor, ...]:
        """One gradient step -> what `read` takes; next_outputs: what `target_outputs` gave for the batch's `next_obs`,
        if it was asked."""
        if self.config.noisy:
            self.network.draw_noise(self._noise)
            self.target.draw_noise(self._noise)
        tensors = self._tensors(batch, next_outputs)
        trained: tuple[tf.Tensor, ...] = self._step(tensors, np.float32(learning_rate))
        return trained

    def read(self, trained: Sequence[tuple[tf.Tensor, ...]]) -> tuple[Array, Array, Array]:
        columns = (np.stack([each.numpy() for each in column]) for column in zip(*trained, strict=True))
        figures, norms, priorities = columns
        return figures, self.trainee.norms_of(norms), priorities

    def _train_rows(self, batch: dict[str, Any], learning_rate: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """(loss and mean Q, the norms of `Adam.apply`, priorities float32[M])"""
        with tf.device(self.device):
            loss, q_mean, priorities, gradients = self.gradients(batch)
            return tf.stack([loss, q_mean]), self.trainee.descend(gradients, learning_rate), priorities

    def gradients(self, batch: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """(loss, mean Q, priorities float32[M], gradients in the order of the variables)"""
        with tf.GradientTape() as tape:
            outputs, next_outputs, next_q, next_mask = self._forward(batch)
            legal = next_q if next_mask is None else tf.where(next_mask, next_q, -math.inf)
            actions = tf.reshape(batch["actions"], [-1])
            losses, errors = tf_td_losses(
                outputs,
                actions,
                next_outputs,
                tf.argmax(legal, axis=1),
                tf.reshape(batch["returns"], [-1]),
                tf.reshape(batch["discounts"], [-1]),
                distributional=self.config.distributional,
                loss=self.config.loss,
                support=getattr(self.network, "support", None),
            )
            loss, priorities = self._reduced(losses, errors, batch)
        q_taken = tf.gather(self.network.q_values(outputs), actions, axis=1, batch_dims=1)
        return loss, tf.reduce_mean(q_taken), priorities, self.trainee.gradients(tape, loss)

    def target_outputs(self, next_obs: Obs) -> Array:
        """The target network's outputs for many minibatches at once: half the work, as long as it stays the same."""
        outputs: Array = self._target_outputs(obs_tensors(next_obs, self._spec)).numpy()
        return outputs

    def _target_rows(self, next_obs: Any) -> tf.Tensor:
        with tf.device(self.device):
            return self.target(next_obs)[0]

    def _forward(self, batch: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Outputs [N, A, Z] for s; the target network's for s', Q(s', .) [N, A] that chooses a', legal a' [N, A]."""
        outputs, _ = self.network(batch["obs"])
        next_obs, next_outputs = batch["next_obs"], batch["next_outputs"]
        choosing = self.network(next_obs)[0] if self.config.double else next_outputs
        next_q = tf.stop_gradient(self.network.q_values(choosing))
        return outputs, next_outputs, next_q, next_obs[MASK] if self._spec.has_mask else None

    def _reduced(self, losses: tf.Tensor, errors: tf.Tensor, batch: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """(the loss of the minibatch, the priorities of what it was drawn of)"""
        if self.config.prioritized:
            losses *= batch["weights"]
        return tf.reduce_mean(losses), tf.abs(errors)

    def update_target(self, tau: float) -> None:
        """target = tau * online + (1 - tau) * target"""
        self._move_target(np.float32(tau))

    def _move_target_variables(self, tau: tf.Tensor) -> None:
        for name, target in self._target_variables.items():
            online = self.trainee.variables[name]
            target.assign(tf.where(tau == 1.0, online, target + tau * (online - target)))

    def get_state(self) -> dict[str, Any]:
        return self.trainee.get_state() | {
            "target": weights_of(self.target),
            "tf_noise": self._noise.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Also that of a `TorchDQN`: noise then goes on from this object's own generator."""
        self.trainee.set_state(state)
        load_weights(self.target, state["target"])
        if "tf_noise" in state:
            self._noise.bit_generator.state = state["tf_noise"]

    def _signature(self) -> dict[str, Any]:
        obs = obs_signature(self._spec.obs)
        floats = {name: rows() for name in ("returns", "discounts", "weights")}
        outputs = rows(self._spec.action.n, self.network.q.num_outputs)
        actions = rows(dtype=tf.int64)
        return {"obs": obs, "next_obs": obs, "next_outputs": outputs, "actions": actions} | floats

    def _tensors(self, batch: Any, next_outputs: Array | None = None) -> dict[str, Any]:
        """What the signature names."""
        if next_outputs is None:
            next_outputs = self.target_outputs(batch.next_obs)
        obs = {name: obs_tensors(getattr(batch, name), self._spec) for name in ("obs", "next_obs")}
        columns = _columns(batch, "actions", "returns", "discounts", "weights")
        return obs | {"next_outputs": next_outputs} | columns


class TfR2D2(TfDQN):
    """The same on sequences; what its methods mean is said by `TorchR2D2`."""

    def _forward(self, batch: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """As there, N = U * M rows of the sequences after the burn-in, which only brings the core's state up."""
        if self._spec.core == "none":
            return super()._forward(batch)
        obs, starts, burn_in = batch["obs"], batch["starts"], self.config.burn_in
        state = target_state = batch["core_states"]
        M = tf.shape(state)[0]
        if burn_in:
            warm_up = tf.nest.map_structure(lambda leaf: leaf[: burn_in * M], obs)
            _, state = self.network(warm_up, state, starts[:burn_in])
            _, target_state = self.target(warm_up, target_state, starts[:burn_in])
            state = tf.stop_gradient(state)
            obs = tf.nest.map_structure(lambda leaf: leaf[burn_in * M :], obs)
        next_outputs, _ = self.target(obs, target_state, starts[burn_in:])
        all_outputs, _ = self.network(obs, state, starts[burn_in:])
        M = tf.cast(M, tf.int64)
        ends = tf.reshape((batch["bootstraps"] - burn_in) * M + tf.range(M), [-1])
        next_outputs = tf.gather(next_outputs, ends)
        choosing = tf.gather(all_outputs, ends) if self.config.double else next_outputs
        next_q = tf.stop_gradient(self.network.q_values(choosing))
        next_mask = tf.gather(obs[MASK], ends) if self._spec.has_mask else None
        return all_outputs[: tf.size(batch["actions"])], next_outputs, next_q, next_mask

    def _reduced(self, losses: tf.Tensor, errors: tf.Tensor, batch: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        if self._spec.core == "none":
            return super()._reduced(losses, errors, batch)
        mask = batch["mask"]  # [U, M]
        losses = tf.reshape(losses, tf.shape(mask)) * mask
        if self.config.prioritized:
            losses *= batch["weights"]
        sizes = tf.reshape(tf.abs(errors), tf.shape(mask)) * mask
        mean = tf.reduce_sum(sizes, axis=0) / tf.reduce_sum(mask, axis=0)
        return (
            tf.reduce_sum(losses) / tf.reduce_sum(mask),
            0.9 * tf.reduce_max(sizes, axis=0) + 0.1 * mean,
        )

    def _signature(self) -> dict[str, Any]:
        if self._spec.core == "none":
            return super()._signature()
        by_time = [None, None]  # [L or U, M]
        floats = {name: tf.TensorSpec(by_time) for name in ("returns", "discounts", "mask")}
        integers = {name: tf.TensorSpec(by_time, tf.int64) for name in ("actions", "bootstraps")}
        return (
            {
                "obs": obs_signature(self._spec.obs),
                "starts": tf.TensorSpec(by_time, tf.bool),
                "core_states": rows(self.network.state_size),
                "weights": rows(),
            }
            | floats
            | integers
        )

    def _tensors(self, batch: Any, next_outputs: Array | None = None) -> dict[str, Any]:
        """Observations of sequences as [L*M, ...]."""
        if self._spec.core == "none":
            return super()._tensors(batch, next_outputs)
        obs = map_obs(lambda leaf: leaf.reshape(batch.starts.size, *leaf.shape[2:]), batch.obs)
        names = ("actions", "returns", "discounts", "weights", "bootstraps", "mask", "starts", "core_states")
        return {"obs": obs_tensors(obs, self._spec)} | _columns(batch, *names)


def _columns(batch: Any, *names: str) -> dict[str, Array]:
    arrays = {name: getattr(batch, name) for name in names}
    return {name: array.astype(np.float32) if array.dtype == np.float64 else array for name, array in arrays.items()}
