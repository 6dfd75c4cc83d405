"""Compares com.microsoft's SparseAttention with ONNX Runtime, for random shapes and block layouts."""

import numpy as np
import pytest

import contrib
from attention_cases import CASES, SEED, Source


def block_layouts(r, layouts, blocks):
    """Returns CSR rows and columns of lower triangles with the diagonal."""
    chosen = [[[j for j in range(i + 1) if j == i or r.coin()] for i in range(blocks)] for _ in range(layouts)]
    rows = [np.cumsum([0] + [len(row) for row in layout]) for layout in chosen]
    width = max(int(row[-1]) for row in rows)
    columns = [sum(layout, []) for layout in chosen]
    return np.array(rows, np.int32), np.array([c + [-1] * (width - len(c)) for c in columns], np.int32)


def sparse_case(r):
    shared, block, size, batch, blocks = r.between(1, 2), r.one_of(4, 8), 16, r.between(1, 3), r.between(2, 4)
    heads = shared * r.between(1, 3)
    most = block * blocks
    prompt = r.coin()
    length = r.between(2, most) if prompt else 1
    total = length if prompt else r.between(2, most)
    ends = [total] + [total if prompt else r.between(1, total) for _ in range(batch - 1)]
    rows, columns = block_layouts(r, r.one_of(*[n for n in range(1, heads + 1) if heads % n == 0]), blocks)
    rotary = r.coin()
    packed = r.coin(0.3)
    new = [r.floats(batch, length, (heads + 2 * shared) * size), None, None]
    if not packed:
        new = [r.floats(batch, length, n * size) for n in (heads, shared, shared)]
    angles = r.floats(most, 8) if rotary else None
    inputs = {
        **dict(zip(("query", "key", "value"), new)),
        "past_key": r.floats(batch, shared, most, size),
        "past_value": r.floats(batch, shared, most, size),
        "block_row_indices": rows,
        "block_col_indices": columns,
        "total_sequence_length": np.array([total], np.int32),
        "key_total_sequence_lengths": np.array(ends, np.int32),
        "cos_cache": np.cos(angles) if rotary else None,
        "sin_cache": np.sin(angles) if rotary else None,
    }
    attributes = {"num_heads": heads, "kv_num_heads": shared, "sparse_block_size": block, "do_rotary": int(rotary)}
    if rotary and r.coin():
        attributes["rotary_interleaved"] = 1
    return inputs, attributes, ends, prompt


SPARSE_OUTPUTS = ["output", "present_key", "present_value"]


def run_one_sample(ort, inputs, attributes, b, end):
    """Runs ONNX Runtime with one sample at a time: for samples of different lengths, it weighs the values wrongly."""
    batched = ("query", "key", "value", "past_key", "past_value")
    own = {name: array[b : b + 1].copy() if name in batched and array is not None else array for name, array in inputs.items()}
    own["total_sequence_length"] = own["key_total_sequence_lengths"] = np.array([end], np.int32)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    made = contrib.model("SparseAttention", own, SPARSE_OUTPUTS, attributes)
    session = ort.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    bound = {name: ort.OrtValue.ortvalue_from_numpy(array.copy()) for name, array in contrib.feeds_of(own, ()).items()}
    for name, value in bound.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("output")
    for name in ("key", "value"):  # past and present must share their memory
        binding.bind_ortvalue_output(f"present_{name}", bound[f"past_{name}"])
    session.run_with_iobinding(binding)
    outputs = binding.get_outputs()
    return [value.numpy()[0].copy() for value in outputs]


@pytest.mark.parametrize("seed", range(CASES))
def test_sparse_attention_is_onnxruntimes(ort, seed):
    inputs, attributes, ends, prompt = sparse_case(Source(seed + SEED))
    actual = contrib.run(contrib.model("SparseAttention", inputs, SPARSE_OUTPUTS, attributes), contrib.feeds_of(inputs, ()))
    for b, end in enumerate(ends):
        if not prompt and end == 1:
            continue  # ONNX Runtime treats a sample that ends after one token as a prompt
        expected = run_one_sample(ort, inputs, attributes, b, end)
        np.testing.assert_allclose(actual[0][b], expected[0], rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(actual[1:], expected[1:]):
            np.testing.assert_allclose(mine[b, :, :end], theirs[:, :end], rtol=1e-5, atol=1e-6)
