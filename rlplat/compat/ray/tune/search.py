"""`ray.tune.search`: Ray's searchers by the name of rlplat's."""

from __future__ import annotations

from typing import Any, ClassVar

from rlplat.compat.ray.refusals import check

_SPACE = "the space is tune.run's config"


class Searcher:
    name: ClassVar[str]

    def __init__(self, metric: str | None = None, mode: str | None = None, **others: Any) -> None:
        """metric, mode: as those of tune.run."""
        self.metric, self.mode = metric, mode
        self.points = others.pop("points_to_evaluate", None) or []
        self.max_concurrent = others.pop("max_concurrent", None)
        check(
            type(self).__name__,
            others,
            {"space": _SPACE, "sampler": f"searcher={self.name!r} of rlplat.tune.run"},
        )


class BasicVariantGenerator(Searcher):
    name = "random"


class OptunaSearch(Searcher):
    name = "tpe"


class HyperOptSearch(Searcher):
    name = "tpe"


class BayesOptSearch(Searcher):
    name = "gp"


def ConcurrencyLimiter(searcher: Searcher, max_concurrent: int) -> Searcher:
    searcher.max_concurrent = max_concurrent
    return searcher
