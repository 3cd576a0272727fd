"""Fractions of resources are whole ten-thousandths: they add up exactly, and come back exactly."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

import rlplat
from rlplat.errors import InfeasibleResources, OptionError, OptionTypeError


@pytest.mark.beside("resources")
def test_tenths_fill_a_cpu_exactly(backend: str) -> None:
    for share in (0.1, 0.2, 0.05, 0.0625, 0.001):
        group = rlplat.placement_group([{"CPU": share}] * round(2 / share))
        assert group.wait(60)
        assert rlplat.available_resources()["CPU"] == 0
        rlplat.remove_placement_group(group)
        assert rlplat.available_resources()["CPU"] == 2


@pytest.mark.beside("resources")
def test_whatever_comes_and_goes(backend: str) -> None:
    chance, groups = random.Random(1), []
    for _ in range(200):
        if groups and chance.random() < 0.5:
            rlplat.remove_placement_group(groups.pop(chance.randrange(len(groups))))
        elif len(groups) < 15:
            groups.append(rlplat.placement_group([{"CPU": chance.randrange(1, 1300) / 10_000}]))
            assert groups[-1].wait(60)
    taken = sum(round(group.bundle_specs[0]["CPU"] * 10_000) for group in groups)
    assert rlplat.available_resources()["CPU"] == (20_000 - taken) / 10_000


def test_one_ten_thousandth_too_much_is_too_much(backend: str) -> None:
    group = rlplat.placement_group([{"CPU": 0.3}] * 6 + [{"CPU": 0.2001}])
    with pytest.raises(InfeasibleResources):
        rlplat.get(group.ready())


@pytest.mark.beside("resources")
def test_actors_hold_fractions(backend: str) -> None:
    @rlplat.remote(num_cpus=0.7)
    class Actor:
        def held(self) -> dict[str, float]:
            return rlplat.get_runtime_context().get_assigned_resources()

    actors = [Actor.remote(), Actor.options(num_cpus=1.2, resources={}).remote()]
    assert rlplat.get([actor.held.remote() for actor in actors]) == [{"CPU": 0.7}, {"CPU": 1.2}]
    assert rlplat.available_resources()["CPU"] == 0.1


def test_what_cannot_be_an_amount_is_refused(backend: str) -> None:
    @rlplat.remote
    def task() -> None: ...

    with pytest.raises(OptionError, match="smallest amount"):
        task.options(num_cpus=0.00001).remote()
    with pytest.raises(OptionError, match="smallest amount"):
        rlplat.placement_group([{"CPU": 0.00001}])
    with pytest.raises(OptionError, match="at least 0"):
        task.options(resources={"x": -1})
    with pytest.raises(OptionTypeError, match="must be a number"):
        task.options(resources={"x": "many"})
    with pytest.raises(InfeasibleResources, match=r"needs 3\.5 CPU"):
        task.options(num_cpus=Fraction(7, 2)).remote()
    for amount in (math.inf, math.nan, 10**400):
        for name in ("num_cpus", "num_gpus"):
            with pytest.raises(OptionError, match=f"{name} must be at least 0 and at most"):
                task.options(**{name: amount})
        with pytest.raises(OptionError, match="'x' must be at least 0 and at most"):
            task.options(resources={"x": amount})
        with pytest.raises(OptionError, match="bundle 0: 'CPU' must be at least 0 and at most"):
            rlplat.placement_group([{"CPU": amount}])


GPUS = "must be a share of one GPU or a whole number of them, not 1.5"


def test_more_than_one_gpu_is_a_whole_number_of_them(backend: str) -> None:
    @rlplat.remote
    def task() -> None: ...

    with pytest.raises(OptionError, match=f"^num_gpus {GPUS}"):
        task.options(num_gpus=1.5)
    with pytest.raises(OptionError, match=f"^placement_group: bundle 1: GPU {GPUS}"):
        rlplat.placement_group([{"GPU": 0.5}, {"GPU": 1.5}])
    for fits in (0.25, 1, 1.0, 2, Fraction(2), 1.00001):  # (the last is 1, as near as amounts are told apart)
        task.options(num_gpus=fits)
