"""What a file says and how it is kept whole: without torch, without onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplat.acting import Leaf
from rlplat.errors import CheckpointError
from rlplat.export import golden, sealing
from rlplat.export.contract import Contract, nested

CONTRACT = Contract(
    obs=(
        Leaf("a/0", ("a", 0), "discrete", (), "int64", (3,), (-1,)),
        Leaf("b", ("b",), "image", (8, 8, 3), "uint8"),
    ),
    action=(Leaf("", (), "box", (2, 2), "float64"),),
    outputs=("params", "log_std", "log_prob", "value", "state_out"),
    mask_groups=(2, 3),
    mask_is_observed=True,
    state_size=4,
    noise_size=5,
)


def test_a_contract_is_read_as_it_was_written() -> None:
    assert Contract.from_json(CONTRACT.to_json(), "p.onnx") == CONTRACT
    assert CONTRACT.input_names == ["obs/a/0", "obs/b", "action_mask", "state_in", "starts", "noise"]
    assert CONTRACT.output_names[:3] == ["action", "greedy_action", "params"]


def test_a_later_contract_is_refused() -> None:
    later = CONTRACT.to_json().replace('"version": 1', '"version": 2')
    with pytest.raises(CheckpointError, match=r"p\.onnx has contract version 2, and this rlplat reads version 1"):
        Contract.from_json(later, "p.onnx")


def test_values_are_nested_by_their_keys() -> None:
    assert nested([((), 5)]) == 5
    assert nested([(("arm", 0), 1), (("arm", 1), 2), (("gear",), 3)]) == {"arm": (1, 2), "gear": 3}


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300), st.data())
def test_every_flipped_bit_and_every_cut_is_seen(model: bytes, data: st.DataObject) -> None:
    sealed = sealing.seal(model)
    sealing.require_whole(sealed, "p.onnx")
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    flipped = bytearray(sealed)
    flipped[bit // 8] ^= 1 << bit % 8
    for damaged in (bytes(flipped), sealed[: data.draw(st.integers(0, len(sealed) - 1))]):
        with pytest.raises(CheckpointError, match=r"p\.onnx is damaged"):
            sealing.require_whole(damaged, "p.onnx")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
def test_golden_rows_are_read_as_they_were_written(dtype: str) -> None:
    arrays = {"x": np.arange(24).reshape(2, 3, 4).astype(dtype), "none": np.zeros((2, 0), dtype)}
    inputs, outputs = golden.parse(golden.dump(arrays, {}))
    assert outputs == {} and inputs.keys() == arrays.keys()
    for name, array in arrays.items():
        assert inputs[name].dtype == array.dtype and np.array_equal(inputs[name], array)


def test_a_difference_is_a_share_of_the_rows_largest_number() -> None:
    assert golden.difference(np.array([[1000.0], [0.1]]), np.array([[1000.5], [0.1]])) == pytest.approx(5e-4)
    assert golden.difference(np.array([0.1]), np.array([0.2])) == pytest.approx(0.1)
    assert golden.difference(np.zeros((2, 1)), np.zeros((2, 2))) == np.inf
    assert golden.difference(np.array([1.0]), np.array([np.nan])) == np.inf
    assert golden.difference(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0
