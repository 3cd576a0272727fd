"""Environments that Python gives as they are, in place of a name: a class, a function that makes one, or one to copy.

    name = env_name(MyEnv)                              # "my_module:MyEnv" where that finds it again
    name = env_name(lambda: MyEnv(size=5))              # "<lambda of train.py:12>", which carries the function
    name = env_name(gymnasium.spec("CartPole-v1"))      # "CartPole-v1"; "<CartPole-v1 of an EnvSpec>" of a changed one
    make_vector_env(name, 8)                            # here, or in any process that `name` was sent to

An `EnvObject` is its own name: a text wherever one is wanted (messages, `config.yaml`), and what it stands for where
the environment is made. As text alone, out of a `config.yaml`, such a name finds nothing: `env=` must give it again.
"""

from __future__ import annotations

import ast
import copy
import functools
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle

from rlplat.errors import ConfigError


class EnvObject(str):
    """A name with what it stands for; travels by value, so that workers need not import the user's script.

    `target`: called with `env_kwargs`, it makes an environment; or gymnasium's EnvSpec of one.
    """

    target: Any

    def __new__(cls, name: str, target: Any) -> EnvObject:
        self = super().__new__(cls, name)
        self.target = target
        return self

    @property
    def is_registered(self) -> bool:
        """Whether it is an id of gymnasium's registry, and `target` its spec."""
        return not self.startswith("<")

    def __reduce__(self) -> Any:
        return _restored, (str(self), cloudpickle.dumps(self.target))

    def __deepcopy__(self, memo: Any) -> EnvObject:
        return self


def _restored(name: str, pickled: bytes) -> EnvObject:
    return EnvObject(name, cloudpickle.loads(pickled))


class Copies:
    """Makes copies of one environment object: several side by side cannot share it."""

    def __init__(self, env: Any) -> None:
        kind = type(env).__name__
        try:
            self._pickled = cloudpickle.dumps(env)
            cloudpickle.loads(self._pickled)
        except Exception as error:
            raise ConfigError(
                f"env is a {kind} object, of which every worker needs copies, and it cannot be copied "
                f"({type(error).__name__}: {error}); give what makes one: env={kind}, or env=lambda: ..."
            ) from None
        self._kind = kind

    def __call__(self, **env_kwargs: Any) -> Any:
        if env_kwargs:
            raise ConfigError(
                f"env is a {self._kind} object that is made already, so env_kwargs {env_kwargs} come too late; give "
                f"the class: env={self._kind}"
            )
        return cloudpickle.loads(self._pickled)


def env_name(env: Any) -> str:
    """A name for whatever `env=` may be. A text is returned as it is; but an id that a script has registered or changed
    in this process carries its spec, without which other processes would not know it.

    ConfigError for what is no environment, and for an object that cannot be copied.
    """
    if isinstance(env, str):
        return env if isinstance(env, EnvObject) else _with_spec(env)
    if is_spec(env):
        is_known = sys.modules["gymnasium"].registry.get(env.id) == env
        return _with_spec(env.id) if is_known else EnvObject(f"<{env.id} of an EnvSpec>", _checked(_portable(env)))
    if isinstance(env, type) or (callable(env) and not hasattr(env, "step")):
        return _importable(env) or EnvObject(_described(env), _checked(env))
    if hasattr(env, "reset") and hasattr(env, "step"):
        return EnvObject(f"<a {type(env).__name__} object>", Copies(env))
    raise ConfigError(
        f"env is {env!r} ({type(env).__name__}); it is the name of an environment, a class, a function that makes one "
        "(env=lambda: MyEnv()), an EnvSpec, or an environment"
    )


def is_spec(env: Any) -> bool:
    """Whether it is an EnvSpec, as `gymnasium.spec(id)` and `env.spec` are."""
    registration = sys.modules.get("gymnasium.envs.registration")
    return registration is not None and isinstance(env, registration.EnvSpec)


def what_it_takes(name: str) -> str:
    """What resuming and loading a run of this environment will need, or the empty string."""
    if not isinstance(name, EnvObject):
        return ""
    if name.is_registered:
        return (
            f"note: '{name}' is registered by this program: another one that resumes or loads this run registers it "
            f"too, or names the module that does: env='my_module:{name}'"
        )
    return f"note: the environment {name} has no name to be found by: resuming and loading this run need env= again"


def is_same_env(now: str, before: str) -> bool:
    """Whether a run of `before` may be resumed with `now`: equal names, `my_module:My-v0` for `My-v0`, and whatever
    takes the place of a Python object (the spaces are compared later)."""
    return now == before or is_marker(before) or now.rpartition(":")[2] == before


def is_marker(name: str) -> bool:
    """Whether this text stands for an environment that was given as a Python object and is not there any more."""
    return name.startswith("<") and name.endswith(">") and not isinstance(name, EnvObject)


def _importable(env: Any) -> str:
    """`module:qualname` or `/path/file.py:qualname`, where that leads to this very object in other processes too; else
    the empty string."""
    module, qualname = getattr(env, "__module__", None), getattr(env, "__qualname__", None)
    if not module or not qualname or module == "__main__" or "<" in qualname:
        return ""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if found is not env:
        return ""
    root = module.partition(".")[0]
    if any(finder.find_spec(root, None) for finder in sys.meta_path):
        return f"{module}:{qualname}"
    file = getattr(sys.modules[module], "__file__", None) or ""
    return f"{file}:{qualname}" if file.endswith(".py") else ""


def _described(env: Any) -> str:
    """`<MyEnv of train.py>`, `<lambda of train.py:12>`, `<partial of MyEnv of train.py>`."""
    if isinstance(env, functools.partial):
        return f"<partial of {_described(env.func)[1:]}"
    name = getattr(env, "__qualname__", type(env).__qualname__).rpartition(".")[2].strip("<>")
    code = getattr(env, "__code__", None)
    if code is not None:
        return f"<{name} of {Path(code.co_filename).name}:{code.co_firstlineno}>"
    module = sys.modules.get(getattr(env, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    return f"<{name} of {Path(file).name if file else 'this program'}>"


def _checked(env: Any) -> Any:
    try:
        cloudpickle.dumps(env)
    except Exception as error:
        raise ConfigError(
            f"env {_described(env)} cannot be sent to the workers ({type(error).__name__}: {error}); make what it "
            "holds inside the function, or put it into a module and give its name: env='my_module:make_env'"
        ) from None
    return env


def _with_spec(name: str) -> str:
    gymnasium = sys.modules.get("gymnasium")
    registry = getattr(gymnasium, "registry", None)
    spec = registry.get(name.strip()) if registry else None
    if spec is None or str(spec.entry_point).startswith("ale_py."):
        return name
    if (shipped := _shipped_specs().get(spec.id)) is not None:
        if all(getattr(spec, key) == value for key, value in shipped.items()):
            return name
        # Elsewhere the id by itself is another task.
        return EnvObject(f"<{spec.id} as this program changed it>", _checked(_portable(spec)))
    try:
        return EnvObject(name.strip(), _checked(_portable(spec)))
    except ConfigError:
        return name  # other processes will say that they do not know it


def _portable(spec: Any) -> Any:
    """A copy that means the same in other processes, where `__main__` is another module; later changes are not its."""
    spec = copy.copy(spec)
    module, _, attribute = spec.entry_point.partition(":") if isinstance(spec.entry_point, str) else ("", "", "")
    if module == "__main__":
        spec.entry_point = getattr(sys.modules[module], attribute, spec.entry_point)
    return spec


@functools.cache
def _shipped_specs() -> dict[str, dict[str, Any]]:
    """What gymnasium registers by itself, id -> fields, read out of its source: the registry has what became of it."""
    specs: dict[str, dict[str, Any]] = {}
    no_fields: dict[str, Any] = {
        "max_episode_steps": None, "reward_threshold": None, "nondeterministic": False, "order_enforce": True,
        "kwargs": {}, "additional_wrappers": (), "vector_entry_point": None,
    }  # fmt: skip
    for statement in ast.parse(Path(sys.modules["gymnasium.envs"].__file__ or "").read_bytes()).body:
        call = getattr(statement, "value", None)
        with suppress(ValueError):  # of those that are no literals
            words = call.keywords if isinstance(call, ast.Call) else ()
            fields = {word.arg: ast.literal_eval(word.value) for word in words if word.arg}
            specs[fields.get("id", "")] = no_fields | fields
    return specs
