"""TD3+BC (Fujimoto & Gu 2021, arXiv:2106.06860) on TD3's learner: bounded continuous actions from recorded episodes.

    data set ──transitions──▶ learner ──weights──▶ parameter server ──▶ evaluation

Off-policy learning from a fixed data set fails because the critic is asked about actions that nobody ever took, answers
too high, and the actor goes there. Here the actor is also drawn to the recorded actions:

    actor     -lambda mean Q_1(s, mu(s)) + mean (mu(s) - a)^2        lambda = alpha / mean |Q_1(s, mu(s))|

lambda, which has no gradient, makes both terms as large whatever the scale of the rewards (equation 5): alpha = 0 is
behaviour cloning, a large one TD3. Observations are normalised by the mean and the deviation of the data (equation 6).
All else is TD3's (algorithms/td3.py): critics, smoothed targets, delays.

Different from the paper: observations are clipped to +-10 deviations; an episode that was cut off (time limit)
bootstraps from its last observation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from rlplat.algorithms.td3 import TD3, TD3Config, TD3Learner
from rlplat.rl.offline.ring import RecordedConfig, RecordedControl, RecordedLearner
from rlplat.section import Coefficient

if TYPE_CHECKING:
    from torch import Tensor

    from rlplat.rl.run.typed_settings import TD3BCSettings
    from rlplat.rl.torch.continuous_control import Transitions


class TD3BCConfig(RecordedConfig, TD3Config):
    """TD3+BC's settings: those of TD3 that have to do with learning, and these. The defaults are those of the paper."""

    alpha: Coefficient = 2.5
    """What the critic's values count beside the squared distance from the recorded actions; 0: nothing."""
    normalize_observations: bool = True
    """Subtract the mean of the data, divide by its deviation, clip to +-10."""

    if TYPE_CHECKING:

        def __init__(self, *, data: str, env: Any = ..., **settings: Unpack[TD3BCSettings]) -> None: ...


def actor_loss(q: Tensor, actions: Tensor, recorded: Tensor, alpha: float) -> Tensor:
    """-lambda mean Q_1(s, mu(s)) + mean (mu(s) - a)^2. q: float32[N]; actions: float32[N, A], mu(s), both with
    gradients; recorded: float32[N, A], in the same units, half the width of the bounds."""
    scale = alpha / q.detach().abs().mean().clamp(min=1e-8)
    return (actions - recorded).square().mean() - scale * q.mean()


class TD3BCLearner(RecordedLearner, TD3Learner):
    """TD3's on recorded transitions, with an actor that is drawn to the recorded actions."""

    config: TD3BCConfig

    def actor_objective(self, batch: Transitions, actions: Tensor, q: Tensor) -> Tensor:
        return self.actor_loss(q, actions, batch.actions, self.config.alpha)

    def actor_loss(self, *columns: Any) -> Tensor:
        """The function above; a subclass may write another."""
        return actor_loss(*columns)


class TD3BC(RecordedControl[TD3BCConfig]):
    """with TD3BC(TD3BCConfig(data="data/pendulum", seed=1)) as td3_bc:
    while (result := td3_bc.step()).env_steps < 1_000_000:
        print(result.metrics["learner/q_mean"])
    """

    name, config_class, learner_class = "td3_bc", TD3BCConfig, TD3BCLearner
    losses, weights_keys = TD3.losses, TD3.weights_keys
    make_policy = staticmethod(TD3.make_policy)
