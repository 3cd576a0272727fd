"""`RatioLimiter`: how far sampling and learning may run ahead of each other when they do not wait for each other."""

from __future__ import annotations


class RatioLimiter:
    """Keeps env steps and gradient steps of the asynchronous ring together, as Reverb's rate limiter does.

        ahead = env steps beyond learning_starts - updates * env_steps_per_update

    stays within +-slack: rollout workers pause above, the learner below. What is under way counts as done.
    """

    def __init__(self, env_steps_per_update: float, learning_starts: float, slack: float) -> None:
        self._ratio, self._starts, self._slack = env_steps_per_update, learning_starts, slack

    def ahead(self, env_steps: int, updates: int) -> float:
        return env_steps - self._starts - updates * self._ratio

    def may_sample(self, env_steps: int, updates: int) -> bool:
        """Whether one more fragment may be asked for."""
        return self.ahead(env_steps, updates) <= self._slack

    def may_update(self, env_steps: int, updates: int) -> bool:
        """Whether one more message may go to the learner."""
        return env_steps >= self._starts and self.ahead(env_steps, updates) >= -self._slack
