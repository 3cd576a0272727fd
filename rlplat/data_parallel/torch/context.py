"""`Context`: what a training function is given in each rank (docs/data-parallel.md has one)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from rlplat.data_parallel.loop_context import LoopContext
from rlplat.data_parallel.rank import RankSettings, Reporting
from rlplat.data_parallel.settings import TorchOptions
from rlplat.data_parallel.shards import ShardedBatch
from rlplat.data_parallel.torch.loader import ShardedLoader
from rlplat.data_parallel.torch.models import PreparedModel
from rlplat.data_parallel.torch.optimizer_options import Options, options_of, restore_schedule, take_changed
from rlplat.data_parallel.torch.states import decode, encode, random_state, restore_random_state
from rlplat.errors import ConfigError, NonFiniteError
from rlplat.given.global_random import seed_everything

LEAST_SCALE = 2.0**-8
"""Of float16's scaler, which begins at 2**16, and halves it for each step with an overflow."""


class Context(LoopContext):
    def __init__(
        self, settings: RankSettings, device: torch.device, report: Reporting, checkpoint: dict[str, Any] | None = None
    ) -> None:
        super().__init__(settings, report, checkpoint)
        if checkpoint:
            self.checkpoint = decode(checkpoint["user"])
        self.device = device
        self._settings = settings
        self._options = TorchOptions(**settings.options)
        self.num_steps = 0
        """Backward passes so far, in this process."""
        self.max_gradient_norm = self._options.max_gradient_norm
        self.scaler = torch.amp.GradScaler(device.type) if self._options.precision == "float16" else None
        self._scaler_stepped = False
        if self.scaler is not None and checkpoint:
            self.scaler.load_state_dict(decode(checkpoint["scaler"]))
        self._batch: ShardedBatch | None = None
        self._is_divided = self._has_gradients = False
        """Whether this step has several batches; whether earlier ones of it have left their gradients."""
        self._models: list[PreparedModel] = []
        self._optimizers: list[tuple[PreparedModel, Optimizer]] = []
        self._options_made_with: list[Options] = []
        """Of each optimizer, as the function made it."""
        self._options_restored: list[Options] = []
        """Those that the optimizer then had of the checkpoint; none without one."""
        self._factors: list[list[float]] = []
        """Of each optimizer: by what its learning rates differ from the checkpoint's."""
        self._schedulers: list[Any] = []
        self._loaders: list[ShardedLoader] = []
        self._random_state = checkpoint["random"].get(self.rank) if checkpoint else None
        self._finite = torch.ones((), dtype=torch.bool, device=device)

    # ---------------------------------------------------------------- what the function calls

    def prepare(self, *things: Any) -> Any:
        """Models, optimizers, learning-rate schedulers and data loaders, made fit for the group, in the same order; one
        of them alone comes back alone. What a checkpoint knows of them is restored here.

        An optimizer belongs in the same call as its model, or in a later one.
        """
        for thing in things:
            if thing is None:
                raise ConfigError(f"rank {self.rank}: ctx.prepare was given None: what made it returned nothing")
        prepared = {id(thing): self._prepare_model(thing, things) for thing in things if isinstance(thing, nn.Module)}
        others = [thing for thing in things if id(thing) not in prepared]
        others.sort(key=lambda thing: not isinstance(thing, Optimizer))  # before their schedulers
        prepared |= {id(thing): self._prepare_other(thing) for thing in others}
        done = tuple(prepared[id(thing)] for thing in things)
        return done[0] if len(done) == 1 else done

    def backward(self, loss: Tensor) -> None:
        """Instead of `loss.backward()`. loss: the mean over the samples of this rank's batch."""
        weight = self.batch_weight
        self._end_scaled_step()
        if self.scaler is None:
            self._check_finite(loss)
        weighted = loss if weight == 1.0 else loss * weight
        (weighted if self.scaler is None else self.scaler.scale(weighted)).backward()
        self.num_steps += 1
        self._has_gradients = True
        if self.sync_gradients:
            for model in self._models:
                model.check_used(self.rank)

    @property
    def sync_gradients(self) -> bool:
        """Whether this batch is the last of its step: the one on which optimizers step."""
        return self._batch is None or self._batch.is_last_of_step

    @property
    def batch_weight(self) -> float:
        """The share of this batch in its step, times ranks: 1 unless a step divides unevenly, or in several batches."""
        return 1.0 if self._batch is None else self._batch.weight

    # ---------------------------------------------------------------- state

    def state(self, user: dict[str, Any]) -> dict[str, Any]:
        models = optimizers = None
        if self.rank == 0 or any(model.is_sharded for model in self._models):
            models = [model.state() for model in self._models]
            optimizers = [model.optimizer_state(one) for model, one in self._optimizers]
        self._end_scaled_step()
        own = {"random": {self.rank: random_state()}}
        if self.rank:
            return own
        return own | {
            "models": models,
            "optimizers": optimizers,
            "options_made_with": encode(self._options_made_with),
            "schedulers": encode([scheduler.state_dict() for scheduler in self._schedulers]),
            "scaler": encode(self.scaler.state_dict() if self.scaler is not None else None),
            "loaders": [loader.get_state() for loader in self._loaders],
            "epoch": self._epoch,
            "is_within_pass": self._batch is not None,
            "user": encode(user),
        }

    def _end_scaled_step(self) -> None:
        if self.scaler is not None and self._scaler_stepped:
            self.scaler.update()
            self._scaler_stepped = False

    def begin_drawing(self) -> None:
        """Once: what made the function's parts has drawn numbers before."""
        if self._random_state is not None:
            restore_random_state(self._random_state)
            self._random_state = None

    # ---------------------------------------------------------------- preparing

    def _prepare_model(self, module: nn.Module, things: tuple[Any, ...]) -> Any:
        if self._options.sharding == "full" and self._models:
            raise ConfigError(f"rank {self.rank}: sharding='full' is for one model; two were given to ctx.prepare")
        optimizers = [thing for thing in things if isinstance(thing, Optimizer)]
        saved = self._saved("models", len(self._models))
        model = PreparedModel(module, self._options, self.device, self.world_size, optimizers, saved)
        self._models.append(model)
        if len(self._models) == 1:
            seed_everything(self._settings.seed + self.rank)  # so far all ranks drew the same numbers
        return model.wrapped

    def _prepare_other(self, thing: Any) -> Any:
        if isinstance(thing, Optimizer):
            if not self._models:
                raise ConfigError(f"rank {self.rank}: ctx.prepare(model) comes before its optimizer, or with it")
            model, fresh = self._models[-1], options_of(thing)
            factors, restored = [1.0] * len(fresh), []
            if (saved := self._saved("optimizers", len(self._optimizers))) is not None:
                model.load_optimizer(thing, saved)
                made_with = decode(self._saved("options_made_with", len(self._optimizers)))
                factors = take_changed(thing, made_with, fresh)
                restored = options_of(thing)
                if any(factor != 1.0 for factor in factors):  # what a scheduler adds to them is the config's
                    pairs = zip(restored, fresh, strict=True)
                    restored = [{name: has[name] for name in made if name in has} for has, made in pairs]
            self._optimizers.append((model, thing))
            self._options_made_with.append(fresh)
            self._options_restored.append(restored)
            self._factors.append(factors)
            return PreparedOptimizer(thing, self)
        if isinstance(thing, DataLoader):
            loader = ShardedLoader(
                thing,
                rank=self.rank,
                world_size=self.world_size,
                step_size=self._settings.full_size * self._options.accumulate,
                seed=self._settings.seed + len(self._loaders),
                device=self.device,
                begin_batch=self._begin_batch,
            )
            if (saved := self._saved("loaders", len(self._loaders))) is not None:
                loader.set_state(saved)
            self._loaders.append(loader)
            return loader
        if hasattr(thing, "state_dict") and hasattr(thing, "step"):
            if (saved := self._saved("schedulers", len(self._schedulers))) is not None:
                groups, restored, factors = self._restored(thing)
                for group, options in zip(groups, restored, strict=False):
                    group.update(options)  # a scheduler begins with its first step when it is made
                restore_schedule(thing, decode(saved), factors)
            self._schedulers.append(thing)
            return thing
        raise ConfigError(
            f"rank {self.rank}: ctx.prepare takes models, optimizers, schedulers and DataLoaders, not "
            f"{type(thing).__name__}"
        )

    def _restored(self, scheduler: Any) -> tuple[list[Any], Options, list[float]]:
        """Of its optimizer: the groups, their options when it was prepared, its factors."""
        groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", [])
        of_all = zip(self._optimizers, self._options_restored, self._factors, strict=True)
        for (_, optimizer), restored, factors in of_all:
            if optimizer.param_groups is groups:
                return groups, restored, factors
        return groups, [], [1.0] * len(groups)

    def _begin_batch(self, batch: ShardedBatch | None) -> None:
        self.begin_drawing()
        begins_step = self.sync_gradients
        self._batch = batch
        self._is_divided = not (begins_step and self.sync_gradients)
        self._has_gradients &= not begins_step
        for model in self._models:
            model.set_sync(self.sync_gradients)

    @property
    def may_clear_gradients(self) -> bool:
        """Not between the batches of a step, whether `zero_grad` comes first or last in the loop."""
        return not (self._is_divided and self._has_gradients)

    def stepped(self) -> None:
        self._has_gradients = False
        self._scaler_stepped = self.scaler is not None

    def plain_models(self) -> list[nn.Module]:
        """Without what the group has put around them; of rank 0 they are what was trained."""
        return [model.plain() for model in self._models]

    def set_training(self, training: bool) -> None:
        for model in self._models:
            model.wrapped.train(training)

    def _check_finite(self, loss: Tensor) -> None:
        """On a CPU at once; on a GPU looking would wait for it, so that is done with the next report."""
        if loss.device.type == "cpu":
            if not math.isfinite(loss.item()):
                raise self._non_finite(f"the loss of step {self.num_steps + 1} is {loss.item()}")
        else:
            self._finite &= loss.detach().isfinite().all()

    def _check_all_finite(self) -> None:
        if self.device.type != "cpu" and not bool(self._finite):
            raise self._non_finite(f"a loss within the last {self.num_steps} steps was NaN or infinite")
        if self.scaler is not None and (scale := self.scaler.get_scale()) < LEAST_SCALE:
            raise self._non_finite(
                f"the gradients of one step after the other are NaN or infinite: the loss scale fell to {scale:g}"
            )

    def _non_finite(self, what: str) -> NonFiniteError:
        return NonFiniteError(
            f"rank {self.rank}: {what}: a lower learning rate, max_gradient_norm=1.0, or look for NaN in the data"
        )


class PreparedOptimizer(Optimizer):
    """Delegates to the given one; `step` waits for the last batch of a step, and `zero_grad` for that."""

    def __init__(self, inner: Optimizer, steps: Context) -> None:
        self.inner, self._steps = inner, steps

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.inner.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.inner.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._steps.may_clear_gradients:
            self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("a prepared optimizer takes no closure: loss, ctx.backward(loss), optimizer.step()")
        if not self._steps.sync_gradients:
            return
        scaler = self._steps.scaler
        if scaler is not None:
            scaler.unscale_(self.inner)
        if self._steps.max_gradient_norm is not None:
            parameters = [parameter for group in self.param_groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self._steps.max_gradient_norm)
        if scaler is None:
            self.inner.step()
        else:
            scaler.step(self.inner)
        self._steps.stepped()

    def __repr__(self) -> str:
        return f"PreparedOptimizer({self.inner!r})"

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a prepared optimizer belongs to its rank: send its state_dict()")
