"""The distribution over one action array that a network's heads describe; the numbers of
rl/torch/action_distributions.py."""

from __future__ import annotations

import math

from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.tf import tf

LOG_2PI = math.log(2.0 * math.pi)
MASKED_LOGIT = -1e8
"""Of an illegal action: its probability is exactly 0 in float32, and 0 * log 0 stays 0 instead of NaN."""
MAX_SQUASHED = 1.0 - 1e-6
"""Actions at the very bound have no finite pre-image under tanh."""


class ActionDistribution:
    """Independent parts, one per `Head`: categorical, Bernoulli, Gaussian (also rescaled) or tanh-squashed Gaussian.

        distribution = ActionDistribution(spec, params, log_std, mask)
        actions = distribution.sample(generator)
        log_probs, entropies = distribution.log_prob(actions), distribution.entropy()

    params: float32[N, P], the heads' logits and means side by side; log_std: float32[G] (or [N, G]) for all Gaussian
    dimensions; mask: bool[N, L] (True: legal) over the logits of the categorical heads, or None. Actions are arrays as
    in `spec.action`: int64[N] for one categorical head, int64[N, K] for several or for bits, float32[N, A] otherwise.
    """

    def __init__(
        self,
        spec: PolicySpec,
        params: tf.Tensor,
        log_std: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> None:
        self._spec = spec
        heads = spec.heads
        self._params = tf.split(params, [head.size for head in heads], axis=-1)
        self._log_stds: dict[int, tf.Tensor] = {}
        gaussian = [i for i, head in enumerate(heads) if head.is_gaussian]
        if gaussian:
            assert log_std is not None, "Gaussian heads need log_std"
            parts = tf.split(log_std, [heads[i].size for i in gaussian], axis=-1)
            self._log_stds = dict(zip(gaussian, parts, strict=True))
        if mask is not None:
            categorical = [i for i, head in enumerate(heads) if head.kind == "categorical"]
            parts = tf.split(mask, [heads[i].size for i in categorical], axis=-1)
            for i, part in zip(categorical, parts, strict=True):
                self._params[i] = tf.where(part, self._params[i], MASKED_LOGIT)

    def sample(self, generator: tf.random.Generator) -> tf.Tensor:
        """One draw per row."""
        return self._join([self._sample_head(i, generator) for i in range(len(self._params))])

    def mode(self) -> tf.Tensor:
        """The most likely action of every row (squashed: the squashed mean)."""
        return self._join([self._mode_head(i) for i in range(len(self._params))])

    def log_prob(self, actions: tf.Tensor) -> tf.Tensor:
        """float32[N]: log pi(actions)."""
        return tf.add_n([self._log_prob_head(i, part) for i, part in enumerate(self._split(actions))])

    def entropy(self) -> tf.Tensor:
        """float32[N]; exact but for squashed heads (see `_entropy_head`)."""
        return tf.add_n([self._entropy_head(i) for i in range(len(self._params))])

    def _sample_head(self, i: int, generator: tf.random.Generator) -> tf.Tensor:
        kind, params = self._spec.heads[i].kind, self._params[i]
        if kind == "categorical":
            # Gumbel-max: argmax(logits + G) is a draw from softmax(logits), and -log(Exponential) is such a G;
            # -log(1 - uniform) is such an exponential. The tiny number: a uniform of 0 must not give infinity.
            exponentials = -tf.math.log1p(-generator.uniform(tf.shape(params)))
            return tf.argmax(params - tf.math.log(exponentials + 1e-38), axis=-1)
        if kind == "bernoulli":
            return tf.cast(generator.uniform(tf.shape(params)) < tf.sigmoid(params), tf.int64)
        noise = generator.normal(tf.shape(params))
        return self._squash(i, params + noise * tf.exp(self._log_stds[i]))

    def _mode_head(self, i: int) -> tf.Tensor:
        kind, params = self._spec.heads[i].kind, self._params[i]
        if kind == "categorical":
            return tf.argmax(params, axis=-1)
        if kind == "bernoulli":
            return tf.cast(params > 0, tf.int64)
        return self._squash(i, params)

    def _log_prob_head(self, i: int, actions: tf.Tensor) -> tf.Tensor:
        """actions: [N] (categorical) or [N, size] -> float32[N]."""
        kind, params = self._spec.heads[i].kind, self._params[i]
        if kind == "categorical":
            chosen = tf.one_hot(tf.cast(actions, tf.int32), params.shape[-1])
            return tf.reduce_sum(tf.nn.log_softmax(params) * chosen, axis=-1)
        if kind == "bernoulli":
            # log sigma(l) where the bit is 1, log sigma(-l) where it is 0.
            is_one = tf.cast(actions, tf.float32) > 0.5
            return tf.reduce_sum(tf.math.log_sigmoid(tf.where(is_one, params, -params)), axis=-1)
        log_std, correction = self._log_stds[i], 0.0
        if self._spec.heads[i].low:
            actions, correction = self._unsquash(i, actions)
        # sum_i -((a_i - mu_i) / sigma_i)^2 / 2 - log sigma_i - log(2 pi) / 2
        normalized = (actions - params) * tf.exp(-log_std)
        constant = tf.reduce_sum(log_std, axis=-1) + 0.5 * LOG_2PI * params.shape[-1]
        return -0.5 * tf.reduce_sum(tf.square(normalized), axis=-1) - constant - correction

    def _entropy_head(self, i: int) -> tf.Tensor:
        kind, params = self._spec.heads[i].kind, self._params[i]
        if kind == "categorical":
            log_probs = tf.nn.log_softmax(params)
            return -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)
        if kind == "bernoulli":
            ones = tf.sigmoid(params)
            bits = ones * tf.nn.softplus(-params) + (1.0 - ones) * tf.nn.softplus(params)
            return tf.reduce_sum(bits, axis=-1)
        entropy = tf.reduce_sum(self._log_stds[i], axis=-1) + 0.5 * (1.0 + LOG_2PI) * params.shape[-1]
        if self._spec.heads[i].low:
            # H(squash(u)) = H(u) + E[log |d squash / du|]; the expectation is taken at the mean: no closed form exists
            # (of a rescaled head, the slope is the same everywhere).
            return entropy + self._log_slope(i, params)
        return tf.broadcast_to(entropy, tf.shape(params)[:1])

    def _bounds(self, i: int) -> tuple[tf.Tensor, tf.Tensor]:
        head = self._spec.heads[i]
        return tf.constant(head.low, tf.float32), tf.constant(head.high, tf.float32)

    def _squash(self, i: int, u: tf.Tensor) -> tf.Tensor:
        """low + (high - low) (tanh u + 1) / 2 for squashed heads, without the tanh for rescaled ones, u for others."""
        if not self._spec.heads[i].low:
            return u
        low, high = self._bounds(i)
        if self._spec.heads[i].kind == "gaussian":
            return low + (high - low) * (u + 1.0) / 2.0
        return low + (high - low) * (tf.tanh(u) + 1.0) / 2.0

    def _unsquash(self, i: int, actions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(the u that is squashed to the actions, log of the slope there: float32[N])."""
        low, high = self._bounds(i)
        u = (actions - low) / (high - low) * 2.0 - 1.0
        if self._spec.heads[i].kind == "squashed_gaussian":
            u = tf.atanh(tf.clip_by_value(u, -MAX_SQUASHED, MAX_SQUASHED))
        return u, self._log_slope(i, u)

    def _log_slope(self, i: int, u: tf.Tensor) -> tf.Tensor:
        """float32[N]: sum of log d squash / du = log((high - low) / 2) + log(1 - tanh(u)^2), the latter in the form
        2 (log 2 - u - softplus(-2u)), which does not cancel (Haarnoja et al. 2018, appendix C)."""
        low, high = self._bounds(i)
        if self._spec.heads[i].kind == "gaussian":
            return tf.broadcast_to(tf.reduce_sum(tf.math.log((high - low) / 2.0)), tf.shape(u)[:1])
        log_slopes = tf.math.log((high - low) / 2.0) + 2.0 * (math.log(2.0) - u - tf.nn.softplus(-2.0 * u))
        return tf.reduce_sum(log_slopes, axis=-1)

    def _split(self, actions: tf.Tensor) -> list[tf.Tensor]:
        """The columns of every head: [N] for categorical ones, [N, size] for others."""
        heads = self._spec.heads
        if actions.shape.rank == 1:
            return [actions]
        parts = tf.split(actions, [head.num_columns for head in heads], axis=-1)
        return [
            tf.squeeze(part, -1) if head.kind == "categorical" else part
            for part, head in zip(parts, heads, strict=True)
        ]

    def _join(self, parts: list[tf.Tensor]) -> tf.Tensor:
        """The heads' actions as the one array of `spec.action`."""
        if self._spec.action.kind == "discrete":
            return parts[0]
        columns = [part[:, None] if part.shape.rank == 1 else part for part in parts]
        if self._spec.action.kind == "composite":
            columns = [tf.cast(column, tf.float32) for column in columns]
        return tf.concat(columns, axis=-1)
