"""Compares operators of ai.onnx.ml on a GPU with NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_gpu import on_gpu

import treadle

DTYPES = [np.float32, np.float64, np.int32, np.int64]
ML = "ai.onnx.ml"


def session_of(op_type: str, x: np.ndarray, outputs: list[int], ml_version: int = 3, **attributes: Any) -> Any:
    names = [f"y{i}" for i in range(len(outputs))]
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], names, name="node", domain=ML, **attributes)],
        "one",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), ["n", *x.shape[1:]])],
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in zip(names, outputs, strict=True)],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, ml_version)]
    session = on_gpu(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    plan = session.to_text("planned")
    assert f"{op_type} [gpu]" in plan, plan
    return session


def run(op_type: str, x: np.ndarray, outputs: list[int], **attributes: Any) -> Any:
    results = session_of(op_type, x, outputs, **attributes).run(None, {"x": x})
    return results[0] if len(outputs) == 1 else results


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 1) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 10).astype(dtype)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_scaling(dtype: Any) -> None:
    x, offset, scale = numbers(7, 5, dtype=dtype), numbers(5, seed=2), numbers(5, seed=3)
    got = run("Scaler", x, [TensorProto.FLOAT], offset=offset.tolist(), scale=scale.tolist())
    np.testing.assert_allclose(got, (x.astype(np.float64) - offset) * scale, rtol=1e-6, atol=1e-4)
    got = run("Scaler", x, [TensorProto.FLOAT], offset=[1.5], scale=[-2.0])
    np.testing.assert_allclose(got, (x.astype(np.float64) - 1.5) * -2, rtol=1e-6)


def test_parameters_of_another_number_than_columns_are_an_error() -> None:
    x = numbers(4, 5)
    session = session_of("Scaler", np.zeros((4, 5), np.float32), [TensorProto.FLOAT], offset=[1.0, 2.0, 3.0], scale=[1.0])
    with pytest.raises(treadle.Error, match="offset has 3 elements; expected 1 or 5, the last extent of X"):
        session.run(None, {"x": x})


@pytest.mark.parametrize("dtype", DTYPES)
def test_thresholds(dtype: Any) -> None:
    x = np.array([[-3, -2, 0, 1, 2, 3]]).astype(dtype)
    output = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for threshold in (-2.5, -2.0, 0.0, 1.5, 2.0):
        np.testing.assert_array_equal(run("Binarizer", x, [output], threshold=threshold), (x > threshold).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_missing_values_are_replaced(dtype: Any) -> None:
    x = numbers(6, 3, dtype=dtype)
    x[1, 2] = x[4, 0] = 7
    output = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    kind, one, values = ("float", 7.0, [1.5, 2.5, 3.5]) if np.dtype(dtype).kind == "f" else ("int64", 7, [1, 2, 3])
    got = run("Imputer", x, [output], **{f"imputed_value_{kind}s": values, f"replaced_value_{kind}": one})
    np.testing.assert_array_equal(got, np.where(x == 7, np.array(values, dtype), x))
    if np.dtype(dtype).kind != "f":
        return
    x[0, 1] = np.nan
    got = run("Imputer", x, [output], imputed_value_floats=[4.0], replaced_value_float=float("nan"))
    np.testing.assert_array_equal(got, np.where(np.isnan(x), 4, x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_rows_are_normalized(norm: str, dtype: Any) -> None:
    x = numbers(5, 700, dtype=dtype)
    x[3] = 0
    wide = x.astype(np.float64)
    divisor = {"MAX": wide.max(1), "L1": np.abs(wide).sum(1), "L2": np.sqrt((wide * wide).sum(1))}[norm]
    divisor[divisor == 0] = 1
    np.testing.assert_allclose(run("Normalizer", x, [TensorProto.FLOAT], norm=norm), wide / divisor[:, None], rtol=1e-6, atol=1e-7)


def test_long_rows_of_large_numbers_do_not_overflow() -> None:
    x = np.full((1, 1000), 1e30, np.float32)
    np.testing.assert_allclose(run("Normalizer", x, [TensorProto.FLOAT], norm="L2"), np.full((1, 1000), 1 / np.sqrt(1000)), rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("classes", [2, 4])
def test_linear_classifiers(classes: int, transform: str, dtype: Any) -> None:
    x, weights, bias = numbers(300, 6, dtype=dtype), numbers(classes, 6, seed=2) / 30, numbers(classes, seed=3) / 10
    labels = [10 * i - 7 for i in range(classes)]
    label, scores = run(
        "LinearClassifier",
        x,
        [TensorProto.INT64, TensorProto.FLOAT],
        coefficients=weights.ravel().tolist(),
        intercepts=bias.tolist(),
        classlabels_ints=labels,
        post_transform=transform,
    )
    expected = x.astype(np.float64) @ weights.astype(np.float64).T + bias
    np.testing.assert_array_equal(label, np.array(labels)[expected.argmax(1)])
    expected = {"NONE": expected, "SOFTMAX": softmax(expected), "LOGISTIC": logistic(expected), "SOFTMAX_ZERO": softmax(expected)}[transform]
    np.testing.assert_allclose(scores, expected, rtol=2e-5, atol=2e-6)


def test_one_score_decides_between_two_labels() -> None:
    x, weights = numbers(50, 3), numbers(3, seed=2) / 100
    score = x.astype(np.float64) @ weights
    for transform, pair in (("NONE", (1 - score, score)), ("LOGISTIC", (logistic(-score), logistic(score)))):
        attributes = {"coefficients": weights.tolist(), "intercepts": [0.0], "classlabels_ints": [5, 9], "post_transform": transform}
        label, scores = run("LinearClassifier", x, [TensorProto.INT64, TensorProto.FLOAT], **attributes)
        np.testing.assert_array_equal(label, np.where(score > 0, 9, 5))
        np.testing.assert_allclose(scores, np.stack(pair, 1), rtol=1e-5, atol=1e-6)


def test_linear_regressors() -> None:
    x, weights, bias = numbers(30, 2000), numbers(3, 2000, seed=2), numbers(3, seed=3)
    attributes = {"coefficients": weights.ravel().tolist(), "intercepts": bias.tolist(), "targets": 3}
    got = run("LinearRegressor", x, [TensorProto.FLOAT], **attributes)
    np.testing.assert_allclose(got, x.astype(np.float64) @ weights.astype(np.float64).T + bias, rtol=1e-5, atol=0.05)
    with pytest.raises(treadle.Error, match="X has 2001 columns, the model has 2000 coefficients a score"):
        run("LinearRegressor", numbers(2, 2001), [TensorProto.FLOAT], **attributes)


class Forest:
    """Makes random trees: `attributes` describes them for an operator, and `scores` computes rows with them in float64."""

    MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")

    def __init__(self, trees: int, depth: int, features: int, targets: int, votes: str, single: bool = False) -> None:
        self.random, self.features, self.targets, self.single = np.random.default_rng(5), features, targets, single
        self.nodes: list[dict[str, Any]] = []
        self.votes: list[tuple[int, int, int, float]] = []
        self.prefix, self.trees = votes, trees
        for tree in range(trees):
            self._grow(tree, depth)

    def _grow(self, tree: int, depth: int) -> int:
        own = sum(node["tree"] == tree for node in self.nodes)
        node: dict[str, Any] = {"tree": tree, "id": own, "mode": "LEAF", "feature": 0, "value": 0.0, "true": 0, "false": 0, "missing": 0}
        self.nodes.append(node)
        if depth == 0:
            for target in [int(self.random.integers(self.targets))] if self.single else range(self.targets):
                self.votes.append((tree, own, target, float(np.float32(self.random.uniform(-1, 1)))))
            return own
        node |= {"mode": self.MODES[self.random.integers(len(self.MODES))], "feature": int(self.random.integers(self.features))}
        node |= {"value": float(self.random.integers(-6, 7)), "missing": int(self.random.integers(2))}
        node["true"] = self._grow(tree, depth - 1)
        node["false"] = self._grow(tree, depth - 1)
        return own

    def attributes(self) -> dict[str, Any]:
        columns = {"treeids": "tree", "nodeids": "id", "modes": "mode", "featureids": "feature", "values": "value"}
        columns |= {"truenodeids": "true", "falsenodeids": "false", "missing_value_tracks_true": "missing"}
        made: dict[str, Any] = {f"nodes_{name}": [node[key] for node in self.nodes] for name, key in columns.items()}
        for i, name in enumerate(("treeids", "nodeids", "ids", "weights")):
            made[f"{self.prefix}_{name}"] = [vote[i] for vote in self.votes]
        return made

    def votes_of(self, row: np.ndarray) -> list[list[tuple[int, float]]]:
        holds = {
            "BRANCH_LEQ": np.less_equal, "BRANCH_LT": np.less, "BRANCH_GTE": np.greater_equal,
            "BRANCH_GT": np.greater, "BRANCH_EQ": np.equal, "BRANCH_NEQ": np.not_equal,
        }  # fmt: skip
        found = []
        for tree in range(self.trees):
            nodes = {node["id"]: node for node in self.nodes if node["tree"] == tree}
            node = nodes[0]
            while node["mode"] != "LEAF":
                x = float(row[node["feature"]])
                node = nodes[node["true" if holds[node["mode"]](x, node["value"]) or (np.isnan(x) and node["missing"]) else "false"]]
            found.append([(target, weight) for t, n, target, weight in self.votes if t == tree and n == node["id"]])
        return found

    def scores(self, rows: np.ndarray, aggregate: str = "SUM") -> np.ndarray:
        made = np.zeros((len(rows), self.targets))
        for i, row in enumerate(rows):
            for target in range(self.targets):
                weights = [weight for votes in self.votes_of(row) for t, weight in votes if t == target]
                function = {"SUM": sum, "AVERAGE": lambda w: sum(w) / self.trees, "MIN": min, "MAX": max}[aggregate]
                made[i, target] = function(weights) if weights else 0
        return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("single", [False, True])
def test_regression_trees(single: bool, aggregate: str, dtype: Any) -> None:
    forest = Forest(trees=9, depth=4, features=5, targets=3, votes="target", single=single)
    x = np.random.default_rng(6).integers(-8, 9, (40, 5)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        x[::7, 2] = np.nan
    base = [0.5, -1.0, 2.0]
    got = run("TreeEnsembleRegressor", x, [TensorProto.FLOAT], n_targets=3, aggregate_function=aggregate, base_values=base, **forest.attributes())
    np.testing.assert_allclose(got, forest.scores(x, aggregate) + base, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("classes", [2, 5])
def test_classifying_trees(classes: int, transform: str, dtype: Any) -> None:
    forest = Forest(trees=12, depth=5, features=4, targets=classes, votes="class")
    x = np.random.default_rng(7).integers(-8, 9, (300, 4)).astype(dtype)
    labels = [3 * i + 1 for i in range(classes)]
    session = session_of(
        "TreeEnsembleClassifier", x, [TensorProto.INT64, TensorProto.FLOAT], classlabels_int64s=labels, post_transform=transform, **forest.attributes()
    )
    expected = forest.scores(x)
    transformed = {"NONE": expected, "SOFTMAX": softmax(expected), "LOGISTIC": logistic(expected)}[transform]
    for rows in (300, 1, 0):  # the first run copies trees to the device, and later runs find them there
        label, scores = session.run(None, {"x": x[:rows]})
        np.testing.assert_array_equal(label, np.array(labels)[expected[:rows].argmax(1)])
        np.testing.assert_allclose(scores, transformed[:rows], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [True, False])
def test_trees_that_vote_for_one_of_two_classes(first: bool) -> None:
    forest = Forest(trees=5, depth=3, features=3, targets=1, votes="class")
    forest.votes = [(tree, node, 0 if first else 1, weight) for tree, node, _, weight in forest.votes]
    x = np.random.default_rng(8).integers(-8, 9, (60, 3)).astype(np.float32)
    attributes = forest.attributes() | {"classlabels_int64s": [-5, 5], "post_transform": "LOGISTIC"}
    label, scores = run("TreeEnsembleClassifier", x, [TensorProto.INT64, TensorProto.FLOAT], **attributes)
    forest.votes = [(tree, node, 0, weight) for tree, node, _, weight in forest.votes]
    margin = forest.scores(x)[:, 0]  # some weights are negative, so scores are margins rather than probabilities
    np.testing.assert_array_equal(label, np.where(margin > 0, 5, -5))
    expected = np.stack([logistic(-margin), logistic(margin)], 1) if first else np.stack([np.full(60, 0.5), logistic(margin)], 1)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)


def test_rows_with_too_few_columns_are_an_error() -> None:
    forest = Forest(trees=2, depth=4, features=9, targets=1, votes="target")
    with pytest.raises(treadle.Error, match=r"the input has 2 columns, the trees test feature \d"):
        run("TreeEnsembleRegressor", numbers(3, 2), [TensorProto.FLOAT], **forest.attributes())


KERNELS = {
    "LINEAR": lambda a, b: a @ b.T,
    "POLY": lambda a, b: (0.05 * (a @ b.T) + 0.5) ** 3,
    "RBF": lambda a, b: np.exp(-0.05 * ((a[:, None] - b) ** 2).sum(-1)),
    "SIGMOID": lambda a, b: np.tanh(0.05 * (a @ b.T) + 0.5),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_support_vector_regression(kernel: str, dtype: Any) -> None:
    random = np.random.default_rng(9)
    x, vectors = random.integers(-3, 4, (20, 6)).astype(dtype), random.standard_normal((40, 6)).astype(np.float32)
    weights, rho = random.uniform(-1, 1, 40).astype(np.float32), np.float32(0.25)
    got = run(
        "SVMRegressor",
        x,
        [TensorProto.FLOAT],
        kernel_type=kernel,
        kernel_params=[0.05, 0.5, 3.0],
        support_vectors=vectors.ravel().tolist(),
        coefficients=weights.tolist(),
        rho=[float(rho)],
        n_supports=40,
    )
    expected = KERNELS[kernel](x.astype(np.float64), vectors.astype(np.float64)) @ weights.astype(np.float64) + rho
    np.testing.assert_allclose(got[:, 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 4])
def test_support_vector_classification(classes: int, dtype: Any) -> None:
    random = np.random.default_rng(10)
    sizes = [7, 5, 9, 6][:classes]
    starts = np.cumsum([0, *sizes])
    x, vectors = (random.standard_normal((50, 3)) * 2).astype(dtype), (random.standard_normal((starts[-1], 3)) * 2).astype(np.float32)
    weights, rho = random.uniform(-1, 1, (classes - 1, starts[-1])).astype(np.float32), random.uniform(-0.2, 0.2, classes * (classes - 1) // 2)
    label, scores = run(
        "SVMClassifier",
        x,
        [TensorProto.INT64, TensorProto.FLOAT],
        kernel_type="RBF",
        kernel_params=[0.05, 0.0, 0.0],
        support_vectors=vectors.ravel().tolist(),
        vectors_per_class=sizes,
        coefficients=weights.ravel().tolist(),
        rho=rho.tolist(),
        classlabels_ints=[i * i for i in range(classes)],
    )
    similar = KERNELS["RBF"](x.astype(np.float64), vectors.astype(np.float64))
    margins, votes, pair = [], np.zeros((50, classes)), 0
    for i in range(classes):
        for j in range(i + 1, classes):
            of_i, of_j = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
            margin = similar[:, of_i] @ weights[j - 1, of_i] + similar[:, of_j] @ weights[i, of_j] + np.float32(rho[pair])
            votes[np.arange(50), np.where(margin > 0, i, j)] += 1
            margins.append(margin)
            pair += 1
    np.testing.assert_array_equal(label, votes.argmax(1) ** 2)
    expected = np.stack([-margins[0], margins[0]], 1) if classes == 2 else np.stack(margins, 1)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_probabilities_of_support_vectors_satisfy_their_equations() -> None:
    """By Wu, Lin and Weng, probabilities p minimise the sum over pairs of (r_ji p_i - r_ij p_j)^2, so no p near them gives a smaller sum."""
    random = np.random.default_rng(11)
    sizes, classes = [6, 6, 6], 3
    x, vectors = random.standard_normal((30, 2)).astype(np.float32), random.standard_normal((18, 2)).astype(np.float32)
    weights = random.uniform(-1, 1, (2, 18)).astype(np.float32)
    a, b = [-1.5, -1.0, -2.0], [0.1, -0.1, 0.2]
    attributes: dict[str, Any] = {"kernel_type": "RBF", "kernel_params": [0.3, 0.0, 0.0], "support_vectors": vectors.ravel().tolist()}
    attributes |= {"vectors_per_class": sizes, "coefficients": weights.ravel().tolist(), "rho": [0.1, -0.1, 0.0], "classlabels_ints": [0, 1, 2]}
    _, margins = run("SVMClassifier", x, [TensorProto.INT64, TensorProto.FLOAT], **attributes)
    _, probabilities = run("SVMClassifier", x, [TensorProto.INT64, TensorProto.FLOAT], prob_a=a, prob_b=b, **attributes)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    for row, margin in zip(probabilities.astype(np.float64), margins.astype(np.float64), strict=True):
        wins, pair = np.zeros((classes, classes)), 0
        for i in range(classes):
            for j in range(i + 1, classes):
                wins[i, j] = np.clip(1 / (1 + np.exp(a[pair] * margin[pair] + b[pair])), 1e-7, 1 - 1e-7)
                wins[j, i] = 1 - wins[i, j]
                pair += 1

        def objective(p: np.ndarray, r: np.ndarray = wins) -> float:
            return sum((r[j, i] * p[i] - r[i, j] * p[j]) ** 2 for i in range(classes) for j in range(classes) if i != j)

        best = objective(row)
        for i in range(classes):
            for j in range(classes):
                step = np.zeros(classes)
                step[i] += 0.02
                step[j] -= 0.02
                assert objective(row + step) >= best - 1e-4


KEYS = {"float": np.float32, "int64": np.int64}


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("values", KEYS)
def test_labels_of_numbers(values: str, keys: str) -> None:
    random = np.random.default_rng(12)
    known = random.permutation(np.arange(-20, 20) * (0.25 if keys == "float" else 2**33)).astype(KEYS[keys])
    given = random.integers(-1000, 1000, 40).astype(KEYS[values])
    x = np.concatenate([known, known + 1, np.zeros(1)]).astype(KEYS[keys]).reshape(9, 9)
    otherwise = {"default_float": -3.5} if values == "float" else {"default_int64": -77}
    output = TensorProto.FLOAT if values == "float" else TensorProto.INT64
    got = run("LabelEncoder", x, [output], **{f"keys_{keys}s": known.tolist(), f"values_{values}s": given.tolist()}, **otherwise)
    table = dict(zip(known.tolist(), given.tolist(), strict=True))
    np.testing.assert_array_equal(got, np.vectorize(lambda key: table.get(key, next(iter(otherwise.values()))))(x).astype(KEYS[values]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_nans_are_one_key_and_zeros_have_no_sign(dtype: Any) -> None:
    x = np.array([np.nan, -np.nan, 0.0, -0.0, 1.5, np.inf], dtype)
    keys = numpy_helper.from_array(np.array([np.nan, 0.0, np.inf], dtype))
    values = numpy_helper.from_array(np.array([1, 2, 3], np.int64))
    otherwise = numpy_helper.from_array(np.array([9], np.int64))
    got = run("LabelEncoder", x, [TensorProto.INT64], ml_version=4, keys_tensor=keys, values_tensor=values, default_tensor=otherwise)
    assert got.tolist() == [1, 1, 2, 2, 9, 3]


def test_categories_become_columns() -> None:
    x = np.array([[3, 1], [7, 2]])
    got = run("OneHotEncoder", x, [TensorProto.FLOAT], cats_int64s=[1, 2, 3])
    np.testing.assert_array_equal(got, (x[..., None] == [1, 2, 3]).astype(np.float32))
    with pytest.raises(treadle.Error, match='OneHotEncoder node "node" .*: an element of X is none of the 3 categories'):
        run("OneHotEncoder", x, [TensorProto.FLOAT], cats_int64s=[1, 2, 3], zeros=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_features_are_extracted(dtype: Any) -> None:
    x, columns = numbers(6, 9, dtype=dtype), np.array([[8, 0, -2]])
    output = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("ArrayFeatureExtractor", ["x", "c"], ["y"], domain=ML)],
        "one",
        [helper.make_tensor_value_info("x", output, x.shape), helper.make_tensor_value_info("c", TensorProto.INT64, columns.shape)],
        [helper.make_tensor_value_info("y", output, None)],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 3)]
    session = on_gpu(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    assert "ArrayFeatureExtractor [gpu]" in session.to_text("planned")
    np.testing.assert_array_equal(session.run(None, {"x": x, "c": columns})[0], x[:, columns[0]])
    with pytest.raises(treadle.Error, match="an index is outside of the axis, which has 9 elements"):
        session.run(None, {"x": x, "c": np.array([[0, 9, 1]])})
