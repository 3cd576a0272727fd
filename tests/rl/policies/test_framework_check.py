"""What is asked of a framework before any process starts."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from rlplat.errors import ConfigError, MissingExtra
from rlplat.rl.policies.framework_check import require_framework


@pytest.mark.parametrize("framework, package, extra", [("tf", "tensorflow", "tf"), ("torch", "torch", "torch")])
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, framework: str, package: str, extra: str
) -> None:
    there: Any = object()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else there)
    with pytest.raises(MissingExtra) as caught:
        require_framework(framework)
    assert str(caught.value) == str(MissingExtra(package, extra, f"framework={framework}"))


def test_groups_of_learners_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    there: Any = object()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: there)
    require_framework("torch", 2)
    require_framework("tf", 1)
    with pytest.raises(ConfigError, match=r"num_learners=2 needs framework=torch.*framework=tf set it to 1"):
        require_framework("tf", 2)
