"""What computes an algorithm's updates: the classes and functions that its own class names, wherever it is written.

    class PPO(Algorithm[PPOConfig]):
        nets = {"torch": TorchPPO, "numpy": "rlplat.algorithms.other_frameworks.ppo_numpy:NumpyPPO"}
        losses = ("loss",)                              # methods of TorchPPO that a subclass of PPO may replace

    class Mine(PPO):
        @staticmethod
        def loss(network, minibatch, config): ...

    computation = computation_of(Mine)                  # in the driver, which sends it to the learners
    backend = computation.backend(config, spec)         # "torch", "tf" or "numpy"
    net = computation.net(backend, config, spec, seed)  # a TorchPPO whose `loss` is Mine's

What is written is what runs: no class is found by the name of the module that it was copied from. The classes for
TensorFlow and numpy are twins, the numbers of torch's class written a second time. Where that class or its losses are
not those that a twin was written for (a subclass, a copy, an edit), the twin is not used.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import CodeType, FunctionType
from typing import Any

import rlplat
from rlplat.errors import ConfigError
from rlplat.rl.algorithm_config import AlgorithmConfig
from rlplat.rl.class_path import load_class
from rlplat.rl.envs.names import env_family
from rlplat.rl.policies.framework_check import require_framework
from rlplat.rl.policies.spec import PolicySpec

HOME = "rlplat.algorithms."
TORCH_ONLY = ("critic_learning_rate", "dual_clip", "exploration_bonus")
"""Settings of a config that the learners on numpy and TensorFlow do not know."""
NUMPY_LEARNS = {"activation": ("tanh", "relu"), "layer_norm": (False,), "critic_hidden_sizes": ((),)}
"""Of plain MLPs, the values of a spec that `NumpyNetwork` has gradients for."""


@dataclass(frozen=True)
class Computation:
    """What the class of an algorithm says about its updates, for the processes that make them."""

    algorithm: str
    """The name of the class."""
    config_class: type[Any]
    nets: Mapping[str, Any]
    """By framework: a class, or "pkg.mod:Class" of one that is imported where it computes."""
    losses: Mapping[str, Callable[..., Any]]
    """What a subclass writes in the place of methods of the torch class (or of the learner, where there is none)."""
    changed: Mapping[str, str]
    """By framework: why its twin does not compute what is written. Without an entry it does."""

    def net(self, framework: str, *arguments: Any) -> Any:
        """The object that computes in a framework, made with these arguments."""
        named = self.nets[framework]
        net = (load_class(named) if isinstance(named, str) else named)(*arguments)
        if framework == "torch":
            self.replace_losses(net)
            if hasattr(net, "try_loss"):
                net.try_loss()
        return net

    def replace_losses(self, owner: Any) -> None:
        """owner: what has the losses as methods."""
        for name, loss in self.losses.items():
            setattr(owner, name, loss)

    def backend(self, config: Any, spec: PolicySpec) -> str:
        """torch, tf or numpy: what is to compute the updates of a policy; ConfigError where the one that is asked for
        cannot."""
        wanted, framework = config.learner.backend, self.framework(config)
        if wanted == "torch" and framework != "torch":
            raise ConfigError(f"learner.backend=torch, but framework={framework}: leave learner.backend at auto")
        reason = self._why_not_numpy(config, spec)
        if wanted == "numpy" and reason:
            raise ConfigError(
                "learner.backend=numpy learns plain MLPs on the CPU (one vector in, one categorical or Gaussian head "
                f"out, no core, no class or loss of your own), but {reason}: leave learner.backend at auto"
            )
        return framework if wanted == "torch" or reason else "numpy"

    def framework(self, config: Any) -> str:
        """The config's; ConfigError where there is no class for it that computes what is written."""
        framework = str(config.framework)
        if framework not in self.nets:
            raise ConfigError(f"{self.algorithm} computes with {' or '.join(self.nets)}: omit framework={framework}")
        if why := self.changed.get(framework):
            raise ConfigError(
                f"framework={framework} would compute rlplat's own loss, but {why}: omit framework={framework} (torch "
                f"computes what you wrote), or name a class of your own for it, {self.algorithm}.nets['{framework}']"
            )
        return framework

    def require(self, config: Any, spec: PolicySpec) -> None:
        """In the driver, before any actor starts: ConfigError or MissingExtra where the updates of this policy cannot
        be computed as the config asks."""
        spec.require_used()
        if (framework := self.backend(config, spec)) != "numpy":
            require_framework(framework, config.learner.num_learners)
            for key, value in (("obs_groups", spec.actor_obs), ("use_sde", spec.use_sde)):
                if framework != "torch" and value:
                    raise ConfigError(f"policy.{key} is for framework=torch: omit it, or framework={framework}")
            for key in TORCH_ONLY if framework != "torch" else ():
                if getattr(config, key, None) is not None:
                    raise ConfigError(f"{key} is for framework=torch: omit it, or framework={framework}")

    def notes(self, config: Any, specs: Sequence[PolicySpec]) -> tuple[str, ...]:
        """For a run's log, where there is a choice: what computes its updates, and where it was free to, why not numpy;
        specs: its policies'."""
        if len(self.nets) == 1:
            return ()
        backends = sorted({self.backend(config, spec) for spec in specs})
        reasons = sorted({reason for spec in specs if (reason := self._why_not_numpy(config, spec))})
        why = f": {'; '.join(reasons)}" if reasons and config.learner.backend == "auto" else ""
        return (f"the learner computes with {' and '.join(backends)}{why}",)

    def preload(self, config: Any, specs: Callable[[], Sequence[PolicySpec]]) -> tuple[str, ...]:
        """What processes import at their start: torch where it is computed with. specs: of the policies, as the
        environment wants them; called where that decides."""
        if config.framework != "torch":
            return ()
        if config.learner.backend == "torch" or env_family(config.env) == "atari":
            return ("torch",)
        return () if all(self.backend(config, spec) == "numpy" for spec in specs()) else ("torch",)

    def _why_not_numpy(self, config: Any, spec: PolicySpec) -> str:
        """What the numpy learner cannot do, or the empty string."""
        learner = config.learner
        if config.framework != "torch":
            return f"framework is {config.framework}"
        if "numpy" not in self.nets:
            return f"{self.algorithm} has no numpy learner"
        if why := self.changed.get("numpy"):
            return why
        for key in TORCH_ONLY:
            if getattr(config, key, None) is not None:
                return f"{key} is set"
        if not spec.is_plain_mlp:
            return "the policy is not a plain MLP"
        for key, values in NUMPY_LEARNS.items():
            if getattr(spec, key) not in values:
                return f"policy.{key} is {getattr(spec, key)}"
        if learner.device == "cuda":
            return "learner.device is cuda"
        if learner.precision == "bfloat16":
            return "learner.precision is bfloat16"
        if learner.num_learners > 1:
            return f"learner.num_learners is {learner.num_learners}"
        if learner.num_threads > 1:
            return f"learner.num_threads is {learner.num_threads}"
        return ""


def computation_of(algorithm: type[Any]) -> Computation:
    """algorithm: a subclass of `Algorithm`. ConfigError for a loss that could not be called in the learner, or that
    nothing calls."""
    _require_called(algorithm)
    losses = {name: loss for name in algorithm.losses if (loss := _own_loss(algorithm, name)) is not None}
    changed = {
        framework: why
        for framework in algorithm.nets
        if framework != "torch" and (why := _why_changed(algorithm, framework, losses))
    }
    return Computation(algorithm.__name__, algorithm.config_class, algorithm.nets, losses, changed)


def _require_called(algorithm: type[Any]) -> None:
    """ConfigError for a loss, or settings, under a name that nothing reads: what it was to replace would train."""
    owner = algorithm.nets.get("torch") or getattr(algorithm, "learner_class", None)
    names = algorithm.losses
    if isinstance(names, str) or not all(isinstance(name, str) for name in names) or isinstance(names, Mapping):
        raise ConfigError(
            f"{algorithm.__name__}.losses is {names!r}; it is a tuple of names: write each loss as a static method"
        )
    missing = [name for name in names if isinstance(owner, type) and not hasattr(owner, name)]
    if missing:
        raise ConfigError(f"{algorithm.__name__}.losses names '{missing[0]}', but {owner} calls no loss of that name")
    own = list(takewhile(lambda base: "losses" not in vars(base), algorithm.__mro__))
    written = {name: value for base in own for name, value in vars(base).items()}
    for name, value in written.items() if "config_class" not in written else ():
        if isinstance(value, type) and issubclass(value, AlgorithmConfig):
            raise ConfigError(
                f"{algorithm.__name__}.{name} is read by nothing: its settings are `config_class = {value.__name__}`"
            )
    if {"nets", "learner_class", *names} & written.keys():
        return  # which may call whatever they like
    bare = {name: getattr(value, "__func__", value) for name, value in written.items()}
    functions = {name: each for name, each in bare.items() if isinstance(each, FunctionType)}
    called = {name for each in functions.values() for name in _names_in(each.__code__)}
    for name in functions.keys() - called if names else ():
        takes = len(inspect.signature(functions[name]).parameters) > (not isinstance(written[name], staticmethod))
        is_new = not any(hasattr(base, name) for base in algorithm.__mro__[len(own) :])
        if "loss" in name.lower() and takes and is_new:  # plot_losses(self) is for who calls it
            raise ConfigError(
                f"{algorithm.__name__}.{name} is called by nothing; the losses that a static method replaces are here: "
                f"{', '.join(names)}"
            )


def _names_in(code: CodeType) -> set[str]:
    """Of attributes and globals, in the functions within it too."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names_in, inner))


def _owner(algorithm: type[Any], name: str) -> type[Any] | None:
    return next((base for base in algorithm.__mro__ if name in vars(base)), None)


def _own_loss(algorithm: type[Any], name: str) -> Callable[..., Any] | None:
    owner = _owner(algorithm, name)
    if owner is None:
        return None
    written = vars(owner)[name]
    loss: Callable[..., Any] = getattr(algorithm, name)
    place = f"{owner.__name__}.{name}"
    if not callable(loss):
        raise ConfigError(f"{place} is to be a function, the loss that trains, not {loss!r}")
    if isinstance(written, FunctionType) and written.__qualname__ == f"{owner.__qualname__}.{name}":
        raise ConfigError(
            f"{place} has no @staticmethod above it: it is called in the learner, where there is no {owner.__name__}"
        )
    _require_arguments(algorithm, name, place, loss)
    return loss


def _require_arguments(algorithm: type[Any], name: str, place: str, loss: Callable[..., Any]) -> None:
    """ConfigError for a loss that cannot be called as the one that it replaces; nothing where that one takes any."""
    owner = algorithm.nets.get("torch") or algorithm.learner_class
    try:
        called = list(inspect.signature(getattr(owner, name)).parameters.values())[1:]
        signature = inspect.signature(loss)
    except (AttributeError, TypeError, ValueError):
        return
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in called):
        return
    keywords = {each.name: each for each in called if each.kind == each.KEYWORD_ONLY}
    try:
        signature.bind(*(each for each in called if each.name not in keywords), **keywords)
    except TypeError as error:
        given = ", ".join(str(each.replace(annotation=each.empty)) for each in signature.parameters.values())
        wanted = ", ".join(each.name for each in called)
        raise ConfigError(f"{place}({given}) is called as {name}({wanted}): {error}") from None


def _why_changed(algorithm: type[Any], framework: str, losses: Mapping[str, Any]) -> str:
    """Why the twin for a framework does not compute what this class says, or the empty string."""
    twin = algorithm.nets[framework]
    bases: Iterator[Any] = reversed(algorithm.__mro__)
    home = next(base for base in bases if vars(base).get("nets", {}).get(framework) == twin)
    for name in losses:
        owner = _owner(algorithm, name)
        if owner not in home.__mro__:
            return f"{owner.__name__ if owner else algorithm.__name__}.{name} is a loss of your own"
    net = algorithm.nets["torch"]
    if net is not home.nets["torch"]:
        return f"{algorithm.__name__}.nets has a class of your own for torch"
    known = _written_for(twin)
    if known is None:  # whoever named this twin wrote it for that class
        return ""
    if home.__module__ not in known:
        return f"{home.__name__} is a copy of rlplat's, whose loss may be another"
    if (found := fingerprint(net)) and found != known[home.__module__]:
        return f"{net.__name__}, or a function that it calls, is no longer as rlplat wrote it ({home.__module__})"
    return ""


def _written_for(twin: Any) -> Mapping[str, str] | None:
    """What the package of the twins says they were written for: module -> `fingerprint` of its torch class."""
    module = twin.rpartition(":")[0] if isinstance(twin, str) else twin.__module__
    package = module.rpartition(".")[0]
    if not package or module.endswith(".py"):
        return None
    try:
        return getattr(importlib.import_module(package), "WRITTEN_FOR", None)
    except ModuleNotFoundError:
        return None


def fingerprint(net: type[Any]) -> str:
    """Of the text of a class and of the functions of its module that it calls, themselves and through others, and of
    its bases among the algorithms; empty where there is no text."""
    module, names, done = vars(sys.modules[net.__module__]), [net.__name__], set[str]()
    text = "".join(fingerprint(base) for base in net.__bases__ if base.__module__.startswith(HOME))
    try:
        functions = _functions_of(net.__module__)
        if any(isinstance(each, FunctionType) and each.__globals__ is not module for each in vars(net).values()):
            text = "a method was replaced"
        while names:
            name = names.pop(0)
            done.add(name)
            source = inspect.getsource(net if name == net.__name__ else module[name])
            text += source
            names += sorted(functions.intersection(re.findall(r"\w+", source)) - done - set(names))
    except (OSError, TypeError):
        return ""
    return f"{zlib.crc32(text.encode()):08x}"


def _functions_of(module: str) -> set[str]:
    """Names of the functions that the file of a module defines."""
    try:
        return set(re.findall(r"^def (\w+)", inspect.getsource(sys.modules[module]), re.MULTILINE))
    except (OSError, TypeError):
        return set()


def require_as_written(algorithm: type[Any], num_rollout_workers: int) -> None:
    """ConfigError where this process has replaced a function in a module of ours (`ppo.ppo_loss = mine`) and others,
    which import that module themselves, are to call it."""
    if not num_rollout_workers and (not rlplat.is_initialized() or rlplat.get_runtime_context().is_one_process):
        return
    for home in (base.__module__ for base in algorithm.__mro__ if base.__module__.startswith(HOME)):
        module = vars(sys.modules[home])
        for name in _functions_of(home):
            if getattr(module.get(name), "__globals__", None) is not module:
                raise ConfigError(
                    f"{home}.{name} was replaced in this process, but rollout workers and learners are other "
                    "processes, which import rlplat's own: write a subclass with a loss of its own "
                    "(docs/custom-algorithm.md), or set num_rollout_workers=0"
                )
