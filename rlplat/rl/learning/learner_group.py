"""`LearnerGroup`: one learner, or several that share every minibatch and average their gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import rlplat
from rlplat.errors import ActorDied, ConfigError, InfeasibleResources, TaskError, UsageError
from rlplat.rl.interfaces import UpdateReport
from rlplat.rl.policies.spec import PolicySpec
from rlplat.rl.spread import spread

if TYPE_CHECKING:
    from rlplat import ActorHandle, ObjectRef


class LearnerGroup:
    """Learners 0..n-1; learner 0 publishes the weights, and its reports and its state are the group's.

    learners = LearnerGroup(parameter_server, make_learner, num_learners=2)
    report = learners.update(batches)                   # refs; raises what a learner raised

    Every learner is given all batches: each prepares the whole round alike and takes its share of every minibatch, so
    that the group computes what one learner would, up to the order of floating-point sums.
    """

    def __init__(
        self, parameter_server: ActorHandle, make_learner: Callable[[int], ActorHandle], num_learners: int = 1
    ) -> None:
        """parameter_server: where learner 0 publishes; make_learner(rank) starts a learner actor."""
        self._parameter_server = parameter_server
        if num_learners > 1 and rlplat.get_runtime_context().is_one_process:
            raise ConfigError(
                f"learner.num_learners={num_learners} needs a process for each, but with num_rollout_workers=0 "
                "everything is in one: --num-rollout-workers 1, or learner.num_learners=1"
            )
        self.handles = [make_learner(rank) for rank in range(num_learners)]

    def wait_until_ready(self) -> None:
        """Returns when the constructors are through, the first weights published and the learners joined. Raises
        the UsageError of a constructor as it is."""
        with usage_errors_as_they_are():
            rlplat.get([handle.ready.remote() for handle in self.handles])
        if len(self.handles) > 1:
            address = rlplat.get(self.handles[0].group_address.remote())
            _get_all(
                [handle.join_group.remote(address, rank, len(self.handles)) for rank, handle in enumerate(self.handles)]
            )

    def update(self, batches: Sequence[ObjectRef]) -> UpdateReport:
        """One learning step on the batches of one round."""
        return self.finish_update(self.start_update(batches))

    def start_update(self, batches: Sequence[ObjectRef]) -> list[ObjectRef]:
        """Does not wait for the learning: what `finish_update` takes."""
        if len(self.handles) == 1:
            return [self.handles[0].update.remote(*batches)]
        # First the batches: a learner that lacks one must not leave the others waiting for its gradients.
        rlplat.get([handle.stage.remote(*batches) for handle in self.handles])
        return [handle.update_staged.remote() for handle in self.handles]

    def finish_update(self, started: Sequence[ObjectRef]) -> UpdateReport:
        reports: list[UpdateReport] = _get_all(started)
        return reports[0]

    def latest(self) -> list[ObjectRef]:
        """What rollout workers are to sample with: `weights`."""
        return [self.weights()]

    def weights(self) -> ObjectRef:
        """A ref to (version, weights) as they are now."""
        return self._parameter_server.latest.remote()

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = rlplat.get(self.handles[0].get_state.remote())
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        rlplat.get([handle.set_state.remote(state) for handle in self.handles])

    def close(self) -> None:
        for handle in self.handles:
            rlplat.kill(handle)


@contextlib.contextmanager
def usage_errors_as_they_are() -> Iterator[None]:
    """Those of the constructors of actors: what only their own machine could tell."""
    try:
        yield
    except ActorDied as death:
        if isinstance(death.__cause__, UsageError):
            raise death.__cause__ from None
        raise


def _get_all(refs: Sequence[ObjectRef]) -> list[Any]:
    """What all learners return. One that fails leaves the others waiting for its gradients: the first failure is raised
    at once, and where several fail, a death before the broken connections that it caused."""
    waiting = list(refs)
    while waiting:
        done, waiting = rlplat.wait(waiting)
        try:
            rlplat.get(done)
        except TaskError as error:
            done, _ = rlplat.wait(waiting, num_returns=len(waiting), timeout=1.0) if waiting else ([], [])
            for ref in done:
                with contextlib.suppress(TaskError):
                    rlplat.get(ref)
            raise error
    return rlplat.get(list(refs))


def learner_actor(actor_class: type, settings: dict[str, Any], spec: PolicySpec) -> spread:
    """The actor class with the GPUs and CPUs that a learner with these settings asks for."""
    section = settings["learner"]
    return spread(actor_class, settings, num_gpus=learner_gpus(section["num_gpus"], section["device"], spec))


def learner_gpus(num_gpus: float | str, device: str, spec: PolicySpec) -> float:
    """What `learner.num_gpus` comes to: `auto` is one GPU for an image encoder, or for learner.device=cuda, where the
    cluster has one."""
    available = rlplat.cluster_resources().get("GPU", 0)
    if not available and (device == "cuda" or num_gpus not in ("auto", 0)):
        wanted = "device=cuda" if device == "cuda" else f"num_gpus={float(num_gpus):g}"
        raise InfeasibleResources(
            f"learner.{wanted}, but there is no GPU here: leave learner.device and learner.num_gpus at auto, which "
            "takes a GPU where there is one"
        )
    if num_gpus == "auto":
        return 1 if available >= 1 and (device == "cuda" or (spec.has_images and device != "cpu")) else 0
    if float(num_gpus) > available:
        raise InfeasibleResources(
            f"learner.num_gpus is {float(num_gpus):g}, but there are {available:g} GPUs here: "
            "--set learner.num_gpus=auto"
        )
    return float(num_gpus)
