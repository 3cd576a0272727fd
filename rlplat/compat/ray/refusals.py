"""What a Ray program may name and rlplat does not have: refused in one line that names what is here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib.abc import MetaPathFinder
from typing import Any

from rlplat.config import closest
from rlplat.errors import OptionError

HOME = "rlplat.compat.ray"
NOT_HERE = {
    "rllib": "rlplat.train('ppo', env=...), docs/from-rllib.md",
    "data": "a torch DataLoader; rlplat.data_parallel divides it",
    "workflow": "tasks, and rlplat.checkpoints for what is to survive",
    "dag": "refs as arguments of .remote",
    "global_state": "rlplat.state",
    "errors": "rlplat.errors",
    "register_custom_serializer": "__reduce__ of the class",
    "get_resource_ids": "get_runtime_context().get_assigned_resources()",
    "autoscaler": "rlplat up CLUSTER.yaml",
    "tune.stopper": "stop={...}, or stop=function(trial_id, result)",
    "tune.logger": "results.csv, results.jsonl and tensorboard/ are written",
    "tune.integration": "tune.report in the trial",
    "tune.registry.register_env": "the environment's class, or its name",
    "tune.Callback": "print in the trial, or read analysis.dataframe()",
    "tune.PlacementGroupFactory": "resources_per_trial={'cpu': 2}: of the trial and all that it starts",
    "tune.SyncConfig": "local_dir, on a shared disk",
    "tune.function": "the value itself",
    "util.inspect_serializability": "the error of a value that cannot be pickled names the culprit",
    "util.collective": "torch.distributed among actors",
    "util.iter": "rlplat.map",
    "util.joblib": "rlplat.map",
    "util.metrics": "return them from tasks",
    "util.tracing": "ray.timeline",
    "train.get_dataset_shard": "a torch DataLoader, train.torch.prepare_data_loader(loader)",
    "train.Trainer": "TorchTrainer(train_loop_per_worker=...)",
    "train.tensorflow": "rlplat.data_parallel.TFTrainer",
    "train.lightning": "rlplat.data_parallel.TorchTrainer",
    "experimental.tf_utils": "model.get_weights() and set_weights(), of Keras",
    "serve.ingress": "a method asgi(self) that returns the FastAPI application",
    **{
        f"serve.{name}": "decorate with @serve.deployment, then serve.run(Name.bind())"
        for name in "init create_endpoint create_backend link set_traffic split get_handle get_deployment".split()
    },
}
"""What else there is, by its name below `ray`."""


def refusal(module: str, name: str) -> str:
    """module: `__name__`."""
    path = f"{module}.{name}".removeprefix(f"{HOME}.")
    said = f"; here: {NOT_HERE[path]}" if path in NOT_HERE else ""
    return f"{HOME} has no {path!r}{said} (docs/from-ray.md)"


def refusing(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module."""

    def refuse(name: str) -> Any:
        raise AttributeError(refusal(module, name))

    return refuse


class _Refusing(MetaPathFinder):
    """The last to be asked for a module: `import rlplat.compat.ray.rllib`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.startswith(f"{HOME}.") and path is not None:
            # Without its `name`: `from package import name` drops an error that has it, and what it says.
            raise ModuleNotFoundError(refusal(*name.rsplit(".", 1)))


sys.meta_path.append(_Refusing())


_said: set[str] = set()


def check(
    verb: str, given: Mapping[str, Any], instead: Mapping[str, str], without_effect: Collection[str] = ()
) -> None:
    """OptionError for an argument that is unknown, or set and would be ignored.

    without_effect: those that change no result of a program; a line says once that they do nothing."""
    for name, value in given.items():
        if name not in instead and name not in without_effect:
            raise OptionError(f"{verb} has no argument {name!r}{closest(name, [*instead, *without_effect])}")
        if value is None or value is False or (isinstance(value, str | int | dict | list) and not value):
            continue
        if name in instead:
            raise OptionError(f"{verb}({name}=...) is not here: {instead[name]}")
        if f"{verb} {name}" not in _said:
            _said.add(f"{verb} {name}")
            print(f"rlplat: {verb}({name}=...) changes nothing here", file=sys.stderr)
