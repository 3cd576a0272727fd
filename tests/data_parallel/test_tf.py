"""`TFTrainer`, by creators and by a function: two ranks train like one, a killed rank, messages that name the fix."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

import rlplat
from rlplat.data_parallel import TFTrainer
from rlplat.data_parallel.failures import CollectiveFailed, RanksLost
from rlplat.data_parallel.group import RankGroup
from rlplat.data_parallel.rank import Rank, RankSettings
from rlplat.data_parallel.settings import TrainerSettings
from rlplat.data_parallel.tf.context import LoopData, TFContext
from rlplat.data_parallel.tf.data import DividedData
from rlplat.data_parallel.tf.program import TFProgram, tf_config
from rlplat.data_parallel.tf.training import KerasTraining
from rlplat.errors import CheckpointError, ConfigError, NonFiniteError
from tests.data_parallel import keras_loops
from tests.data_parallel.keras_creators import NUM_SAMPLES, data_creator, model_creator

pytestmark = pytest.mark.slow

CONFIG = {"lr": 0.05}


def training(state: dict[str, Any] | None = None, **changes: Any) -> KerasTraining:
    """Of one rank, in this process."""
    tf.keras.utils.set_random_seed(0)
    creators = {"model": model_creator, "data": data_creator} | changes
    return KerasTraining(tf.distribute.get_strategy(), 0, 1, creators, CONFIG, state)


@dataclass(frozen=True)
class Course:
    stats: list[dict[str, Any]]
    """Of two epochs and a validation."""
    state: dict[str, Any]
    """After the first epoch."""
    weights: list[np.ndarray]


@pytest.fixture(scope="module")
def alone() -> Course:
    one = training()
    first, state = one.run_epoch(None), one.state()
    return Course([first, one.run_epoch(None), one.run_validation(None)], state, one.model.get_weights())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """TensorFlow writes the `tf.function`s of users into the temp folder: of processes that are killed they stay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("of-ranks")))
        rlplat.init(num_cpus=2, num_gpus=0, preload=[TFTrainer.program.partition(":")[0]], log_to_driver=False)
        yield
        rlplat.shutdown()


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
def test_two_ranks_of_which_one_is_killed_train_like_one(
    tmp_path: Path, alone: Course, capfd: pytest.CaptureFixture[str]
) -> None:
    """The kill comes within the second epoch, which begins again from its start."""
    config = CONFIG | {"marker": str(tmp_path / "marker")}
    with TFTrainer(model_creator, data_creator, config, num_workers=2, out=tmp_path / "run") as trainer:
        assert len(set(trainer.apply_all_workers(os.getpid))) == 2
        found = [trainer.train()]
        (tmp_path / "marker").touch()
        found += [trainer.train(), trainer.validate()]
        assert "training continues from the end of epoch 1" in capfd.readouterr().err
        weights = trainer.get_model().get_weights()
    for one, other in zip(found, alone.stats, strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    assert found[1]["num_samples"] == NUM_SAMPLES + 4
    for one, other in zip(weights, alone.weights, strict=True):
        assert np.allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
def test_a_port_that_another_process_has_taken_since_counts_as_a_lost_rank() -> None:
    program = "tests.data_parallel.keras_loops:PortTaken"
    text = r"^rank 1: TensorFlow's server did not start at 127\.0\.0\.1:\d+: another process may have taken"
    with pytest.raises(RanksLost, match=text):
        RankGroup(program, TrainerSettings(num_workers=2, hang_timeout_s=10), {})


def run_alone(loop: Any, checkpoint: dict[str, Any] | None = None, **config: Any) -> list[tuple[dict[str, Any], Any]]:
    """(metrics, state) of each report of a training function on one rank, in this process."""
    tf.keras.utils.set_random_seed(0)
    reports: list[tuple[dict[str, Any], Any]] = []
    settings, strategy = RankSettings(0, 1, 1, 1.0, False, 0, 10.0), tf.distribute.get_strategy()
    loop(TFContext(settings, strategy, lambda *report: reports.append(report), checkpoint), CONFIG | config)
    return reports


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
def test_a_training_function_on_two_ranks_of_which_one_is_killed_trains_like_on_one(tmp_path: Path) -> None:
    """The checkpoint that it continues from was made within an epoch."""
    (tmp_path / "marker").touch()
    config = CONFIG | {"marker": str(tmp_path / "marker")}
    result = TFTrainer(train_loop=keras_loops.classifier, config=config, num_workers=2).fit()
    expected = [metrics for metrics, _ in run_alone(keras_loops.classifier)]
    assert [one["place"] for one in result.history] == ["within", "end"] * 2
    norms = [[one["norm"] for one in history] for history in (result.history, expected)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert (result.num_restarts, result.metrics["note"]) == (1, 1)
    assert [array.shape for array in result.state["models"][0]] == [(4, 8), (8,), (8, 3), (3,)]


@pytest.mark.process
@pytest.mark.usefixtures("cluster")
def test_a_rank_with_fewer_steps_is_named_with_what_to_do_on_tensorflow() -> None:
    text = (
        "rank 1 returned from its function after 2 steps, and rank 0 waited in vain in step 3 for it: .* different "
        "ways. Each rank takes its part of every batch of a data set that is the same on all"
    )
    with pytest.raises(ConfigError, match=text):
        TFTrainer(train_loop=keras_loops.unequal, num_workers=2, hang_timeout_s=2).fit()


@pytest.mark.parametrize(
    ("loop", "error", "text"),
    [
        (lambda ctx, _: ctx.prepare(None), ConfigError, "was given None: what made it returned nothing"),
        (lambda ctx, _: ctx.prepare([1]), ConfigError, "takes Keras models, .* and was given a list"),
        (lambda ctx, _: ctx.prepare(tf.keras.Sequential()), ConfigError, "begin it with tf.keras.Input"),
        (lambda ctx, _: ctx.prepare(tf.keras.optimizers.SGD()), ConfigError, "comes before its optimizer"),
        (
            lambda ctx, _: ctx.report(norm=ctx.average_gradients([tf.constant([1.0, np.nan])])),
            NonFiniteError,
            "rank 0: the gradients of step 1 are NaN or infinite: a lower learning rate",
        ),
    ],
)
def test_what_a_training_function_does_wrong_is_named(loop: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run_alone(loop)


def test_a_batch_with_fewer_samples_than_ranks_is_refused() -> None:
    data = DividedData(data_of(np.zeros((4, 4))).batch(1), "training", rank=1, num_ranks=2)
    text = "rank 1: the first batch of the training data has 1 samples for 2 ranks, .* larger dataset.batch"
    with pytest.raises(ConfigError, match=text):
        next(data.batches())


def test_a_state_continues_with_the_order_of_its_epoch(alone: Course) -> None:
    assert training(alone.state).run_epoch(None) == alone.stats[1]
    for other, text in (
        (alone.state["model"][1:], r"it has 3 variables, and this one 4; .*/kernel has the shape \(4, 8\)"),
        (alone.state["model"][:3], "it has 3 variables, and this one 4: build the same model"),
    ):
        with pytest.raises(CheckpointError, match=f"of another model: {text}"):
            training(alone.state | {"model": other})


def test_a_copy_trains_with_its_own_learning_rate(alone: Course) -> None:
    """As under PBT, for both forms; where a callback has moved the rate, in proportion."""

    def loop(ctx: TFContext, config: dict[str, Any]) -> None:
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        model, optimizer = ctx.prepare(model, tf.keras.optimizers.Adam(config["lr"]))
        rates.append(float(optimizer.learning_rate))
        optimizer.learning_rate = config.get("moved", config["lr"])
        ctx.report(checkpoint=True)

    rates: list[float] = []
    [(_, state)] = run_alone(loop)
    [(_, moved)] = run_alone(loop, state, lr=0.02, moved=0.005)
    run_alone(loop, moved, lr=0.02)
    run_alone(loop, moved, lr=0.04)
    assert rates == pytest.approx([0.05, 0.02, 0.005, 0.01])
    copy = training(alone.state, model=lambda config: model_creator(config | {"lr": 0.02}))
    assert float(copy.model.optimizer.learning_rate) == pytest.approx(0.02)


def test_the_programs_of_the_page_learn() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/data-parallel-tensorflow.md"
    creators, loop = page.read_text().split("```python\n")[1:]
    program = creators.split("\nwith TFTrainer")[0] + loop.split("\nresult = ")[0]
    exec(program, names := {})
    losses = [metrics["loss"] for metrics, _ in run_alone(names["keras_loop"])]
    assert len(losses) == 3 and max(losses) < 1.0  # about 8 untrained
    one = training(model=names["keras_model"], data=names["keras_data"])
    assert one.run_epoch(None)["train_mae"] > 2 * one.run_epoch(None)["train_mae"] > 0
    assert sorted(one.run_validation(None)) == ["num_samples", "val_loss", "val_mae"]


def test_creators_that_are_given_by_position_are_a_trainable_too() -> None:
    class Trainer:
        train_loop = None

        def __init__(self, *creators: Any, **settings: Any) -> None:
            self.creators = creators

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def train(self) -> dict[str, Any]:
            return {"creators": self.creators}

        def has_validation(self) -> bool:
            return False

        def current_state(self) -> str:
            return "state"

    class Reporter:
        seed, step, checkpoint = 0, 0, None

    trial = TFTrainer.as_trainable.__func__(Trainer, model_creator, data_creator)
    assert next(trial({}, Reporter())) == ({"creators": (model_creator, data_creator)}, "state")


def data_of(x: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices((x, np.zeros(len(x), np.int64)))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model": lambda config: None}, "rank 0: model_creator .* returned None: end it with `return`"),
        ({"model": lambda config: tf.keras.Sequential()}, "must return a compiled Keras model"),
        ({"data": lambda config: [1, 2]}, "must return tf.data.Datasets, not int for training"),
        ({"data": lambda config: data_of(np.zeros((4, 4)))}, r"has single samples: dataset.batch\(64\)"),
        ({"data": lambda config: data_of(np.zeros((4, 4))).batch(2).repeat()}, "no end: omit .repeat"),
        ({"data": lambda config: data_of(np.zeros((0, 4))).batch(2)}, "the training data has no batch"),
    ],
)
def test_what_a_creator_lacks_is_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        training(**changes).run_epoch(None)


def test_a_loss_that_is_not_a_number_is_named() -> None:
    with pytest.raises(NonFiniteError, match="rank 0: the loss of step 1 is nan"):
        training(data=lambda config: data_of(np.full((4, 4), np.nan, np.float32)).batch(4)).run_epoch(None)


def test_each_rank_knows_the_addresses_of_all() -> None:
    config = json.loads(tf_config([("10.0.0.1", 4001), ("fd00::2", 4002)], rank=1))
    assert config == {
        "cluster": {"worker": ["10.0.0.1:4001", "[fd00::2]:4002"]},
        "task": {"type": "worker", "index": 1},
    }


def test_an_error_of_the_exchange_is_told_from_one_of_the_model() -> None:
    rank = Rank(TFTrainer.program, RankSettings(1, 2, 2, 1.0, False, 0, 10.0))

    def told(error: Exception) -> Exception:
        with pytest.raises(Exception) as raised:
            rank.call("apply", lambda: (_ for _ in ()).throw(error))
        return raised.value

    aborted = tf.errors.InternalError(None, None, "x\nCollective ops is aborted by: Socket closed")
    fix = TFProgram.equal_data
    assert told(aborted).args == ("Collective ops is aborted by: Socket closed", 0, fix)
    timed_out = told(tf.errors.DeadlineExceededError(None, None, "timed out"))
    assert isinstance(timed_out, CollectiveFailed) and timed_out.args == ("DeadlineExceededError", 0, fix)
    for own in (ValueError("mine"), tf.errors.InvalidArgumentError(None, None, "a shape")):
        assert told(own) is own
        assert own.__notes__ == ["(in rank 1 of 2, step 1)"]


def test_a_pass_that_is_left_early_has_ended() -> None:
    data = LoopData(DividedData(tf.data.Dataset.range(6).batch(2), "prepared", 0, 1), lambda share: None)
    passes: list[list[int]] = []
    for most in (2, 3, 1, 3):
        passes.append([])
        for batch in data:
            passes[-1].append(int(batch[0]))
            assert data.get_state() == {"epoch": len(passes) - 1, "position": len(passes[-1])}
            if len(passes[-1]) == most:
                break
        assert data.get_state() == {"epoch": len(passes), "position": 0}
    assert passes == [[0, 2], [0, 2, 4], [0], [0, 2, 4]]
