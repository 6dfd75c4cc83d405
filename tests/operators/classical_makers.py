"""Draws nodes with operands for the operators of ai.onnx.ml."""

from __future__ import annotations

import numpy as np
import onnx

from draft import Draft

_TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]


def _rows(d: Draft, columns: int, edges: bool | None = False) -> None:
    d.add(d.array(d.dtype(0), (d.pick([1, 2, 5, 17]), columns), edges=edges))


def _floats(d: Draft, count: int, low: float = -2, high: float = 2) -> list[float]:
    return d.array(np.float32, (count,), low, high, edges=False).tolist()


def array_feature_extractor(d: Draft) -> None:
    shape = d.shape(1, 3, empty=False)
    d.add(d.array(d.dtype(0), shape))
    d.add(d.indices(np.int64, (d.number(1, 4),), shape[-1]))


def binarizer(d: Draft) -> None:
    d.add(d.array(d.dtype(0), d.shape(1, 3)))
    d.maybe("threshold", lambda: d.fraction(-1, 1))


def scaler(d: Draft) -> None:
    columns = d.number(1, 6)
    _rows(d, columns, None)
    for name in ("offset", "scale"):
        d.attributes[name] = _floats(d, columns if d.flip() else 1)


def normalizer(d: Draft) -> None:
    _rows(d, d.number(1, 6))
    d.attributes["norm"] = d.pick(["MAX", "L1", "L2"])


def imputer(d: Draft) -> None:
    columns = d.number(1, 5)
    dtype = d.dtype(0)
    rows = d.pick([1, 2, 5])
    if dtype.kind == "f":
        values = d.array(dtype, (rows, columns), edges=False)
        missing = d.pick([float("nan"), 0.0])
        values[np.random.default_rng(d.below(99)).random(values.shape) < 0.3] = missing
        d.add(values)
        d.attributes["imputed_value_floats"] = _floats(d, columns if d.flip() else 1)
        d.attributes["replaced_value_float"] = missing
    else:
        d.add(d.array(dtype, (rows, columns), 0, 2, edges=False))
        d.attributes["imputed_value_int64s"] = [d.number(1, 9) for _ in range(columns if d.flip() else 1)]
        d.attributes["replaced_value_int64"] = 0


def label_encoder(d: Draft) -> None:
    words = ["a", "bc", "", "the", "0"]
    kinds = {"strings": words, "int64s": [0, 1, 2, 3, -3], "floats": [0.0, 1.0, -0.5, 2.5, 3.0]}
    source, target = d.pick(sorted(kinds)), d.pick(sorted(kinds))
    d.reject_if(source == target == "floats" and d.since < 2)
    if d.since == 1:
        d.attributes["classes_strings"] = words
        d.add(d.array(object, d.shape(0, 2)) if d.flip() else d.array(np.int64, d.shape(0, 2), -2, 6))
        return
    d.attributes["keys_" + source] = kinds[source]
    d.attributes["values_" + target] = kinds[target][::-1]
    default = {"strings": ("default_string", "?"), "int64s": ("default_int64", 77), "floats": ("default_float", 7.5)}[target]
    if d.flip():
        d.attributes[default[0]] = default[1]
    shape = d.shape(0, 2)
    d.add(d.array({"strings": object, "int64s": np.int64, "floats": np.float32}[source], shape, edges=False))


def one_hot_encoder(d: Draft) -> None:
    dtype = d.dtype(0)
    shape = d.shape(1, 2, empty=False)
    if dtype == np.object_:
        d.add(d.array(object, shape))
        d.attributes["cats_strings"] = ["a", "bc", "the", "0"]
    else:
        d.add(d.array(dtype, shape, 0, 4, edges=False).round().astype(dtype))
        d.attributes["cats_int64s"] = [0, 1, 2, 4]
    d.attributes["zeros"] = 1


def linear_regressor(d: Draft) -> None:
    d.tolerance = 8
    columns, targets = d.number(1, 6), d.number(1, 3)
    _rows(d, columns)
    d.attributes.update(coefficients=_floats(d, columns * targets), targets=targets)
    if d.flip():
        d.attributes["intercepts"] = _floats(d, targets)


def linear_classifier(d: Draft) -> None:
    d.tolerance = 8
    columns, classes = d.number(1, 6), d.number(2, 4)
    _rows(d, columns)
    d.attributes.update(coefficients=_floats(d, columns * classes), intercepts=_floats(d, classes))
    d.attributes["classlabels_ints"] = list(range(classes))
    d.attributes["multi_class"] = d.below(2)
    d.attributes["post_transform"] = d.pick(_TRANSFORMS[:4])


def feature_vectorizer(d: Draft) -> None:
    rows, dtype = d.number(1, 4), d.dtype(0)
    widths = [d.number(1, 4) for _ in range(d.number(1, 3))]
    for width in widths:
        d.add(d.array(dtype, (rows, width)))
    d.attributes["inputdimensions"] = widths


def _trees(d: Draft, features: int) -> tuple[dict, list[tuple[int, int]]]:
    """Returns the attributes nodes_… of one to three random trees, and the trees' leaves as (tree, node)."""
    random_values = np.random.default_rng(d.below(1 << 16))
    nodes: dict[str, list] = {k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")}
    modes = d.pick([["BRANCH_LEQ"], ["BRANCH_LT"], ["BRANCH_GT"], ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]])
    leaves = []
    for tree in range(d.number(1, 4)):
        pending, made = [0], 1
        while pending:
            node = pending.pop(0)
            leaf = made > 12 or (random_values.random() < 0.35 and node)
            if leaf:
                leaves.append((tree, node))
                children = (0, 0)
            else:
                children = (made, made + 1)
                pending += children
                made += 2
            row = (tree, node, int(random_values.integers(features)), float(np.round(random_values.uniform(-3, 3) * 2) / 2))
            mode = "LEAF" if leaf else str(random_values.choice(modes))
            for key, value in zip(nodes, (*row, mode, *children)):
                nodes[key].append(value)
    return {"nodes_" + k: v for k, v in nodes.items()}, leaves


def tree_regressor(d: Draft) -> None:
    d.tolerance = 8
    features, targets = d.number(1, 4), d.number(1, 3)
    _rows(d, features)
    attributes, leaves = _trees(d, features)
    d.attributes.update(attributes)
    aggregate = d.pick(["SUM", "AVERAGE", "MIN", "MAX"])
    # For MIN, MAX and AVERAGE, the score of a target without votes is not defined. A SUM without votes but with a base value is not defined
    # either. In these cases each leaf votes for all targets.
    base = _floats(d, targets) if d.flip(0.3) else []
    votes = [(t, n, k) for t, n in leaves for k in ([d.below(targets)] if aggregate == "SUM" and not base else range(targets))]
    d.attributes.update(
        n_targets=targets, target_treeids=[v[0] for v in votes], target_nodeids=[v[1] for v in votes],
        target_ids=[v[2] for v in votes], target_weights=_floats(d, len(votes)), aggregate_function=aggregate,
    )  # fmt: skip
    d.attributes["post_transform"] = d.pick(["NONE", "NONE", "LOGISTIC", "SOFTMAX"])
    if base:
        d.attributes["base_values"] = base
    if d.flip(0.3):
        d.attributes["nodes_missing_value_tracks_true"] = [d.below(2) for _ in attributes["nodes_modes"]]


def tree_classifier(d: Draft) -> None:
    d.tolerance = 8
    features, classes = d.number(1, 4), d.number(3, 4)
    _rows(d, features)
    attributes, leaves = _trees(d, features)
    d.attributes.update(attributes)
    votes = [(t, n, c) for t, n in leaves for c in range(classes)]
    d.attributes.update(
        class_treeids=[v[0] for v in votes], class_nodeids=[v[1] for v in votes], class_ids=[v[2] for v in votes],
        class_weights=_floats(d, len(votes), 0, 1), classlabels_int64s=list(range(classes)),
    )  # fmt: skip
    d.attributes["post_transform"] = d.pick(_TRANSFORMS[:4])
    d.num_outputs = 2


def svm_regressor(d: Draft) -> None:
    d.tolerance = 60
    features, vectors = d.number(1, 4), d.number(1, 5)
    _rows(d, features)
    kernel = d.pick(["LINEAR", "POLY", "RBF", "SIGMOID"])
    d.attributes.update(
        kernel_type=kernel, kernel_params=[d.fraction(0.1, 1), d.fraction(0, 1), 2.0], support_vectors=_floats(d, features * vectors),
        coefficients=_floats(d, vectors), rho=_floats(d, 1), n_supports=vectors,
    )  # fmt: skip
    if d.flip(0.2):
        d.attributes["one_class"] = 1


def tree_ensemble(d: Draft) -> None:
    d.tolerance = 8
    features, targets, dtype = d.number(1, 4), d.number(1, 3), d.dtype(0)
    d.add(d.array(dtype, (d.pick([1, 2, 5, 17]), features), edges=False))
    random_values = np.random.default_rng(d.below(1 << 16))
    inner, trees = d.number(1, 5), d.number(1, 3)
    # Each tree is a chain: node i leads to a leaf and to node i + 1; the last node leads to two leaves.
    nodes = {k: [] for k in ("featureids", "truenodeids", "trueleafs", "falsenodeids", "falseleafs")}
    leaves, roots, targets_of = 0, [], []
    for _ in range(trees):
        roots.append(len(nodes["featureids"]))
        for i in range(inner):
            last = i == inner - 1
            row = (int(random_values.integers(features)), leaves, 1, leaves + 1 if last else len(nodes["featureids"]) + 1, int(last))
            leaves += 2 if last else 1
            for key, value in zip(nodes, row):
                nodes[key].append(value)
    targets_of = [d.below(targets) for _ in range(leaves)]
    count = trees * inner
    d.attributes.update({"nodes_" + k: v for k, v in nodes.items()})
    tensor = onnx.numpy_helper.from_array
    d.attributes.update(
        tree_roots=roots, n_targets=targets, leaf_targetids=targets_of, leaf_weights=tensor(d.array(dtype, (leaves,), edges=False)),
        nodes_modes=tensor(random_values.integers(0, 6, count).astype(np.uint8)), nodes_splits=tensor(d.array(dtype, (count,), edges=False)),
    )  # fmt: skip


def svm_classifier(d: Draft) -> None:
    d.tolerance = 60
    features, per_class, classes = d.number(1, 4), d.number(1, 3), d.number(2, 3)
    vectors = per_class * classes
    _rows(d, features)
    d.attributes.update(
        kernel_type=d.pick(["LINEAR", "POLY", "RBF", "SIGMOID"]), kernel_params=[d.fraction(0.1, 1), d.fraction(0, 1), 2.0],
        support_vectors=_floats(d, features * vectors), coefficients=_floats(d, vectors * (classes - 1)), rho=_floats(d, classes * (classes - 1) // 2),
        vectors_per_class=[per_class] * classes, classlabels_ints=list(range(classes)),
    )  # fmt: skip
    d.num_outputs = 2


def category_mapper(d: Draft) -> None:
    d.attributes.update(cats_strings=["a", "bc", "the"], cats_int64s=[0, 2, 5])
    d.add(d.array(object, d.shape(0, 2)) if d.flip() else d.array(np.int64, d.shape(0, 2), -1, 6, edges=False))


MAKERS = {
    "ArrayFeatureExtractor": array_feature_extractor, "Binarizer": binarizer, "Scaler": scaler, "Normalizer": normalizer, "Imputer": imputer,
    "LabelEncoder": label_encoder, "OneHotEncoder": one_hot_encoder, "LinearRegressor": linear_regressor,
    "LinearClassifier": linear_classifier, "FeatureVectorizer": feature_vectorizer, "TreeEnsembleRegressor": tree_regressor,
    "TreeEnsemble": tree_ensemble, "CategoryMapper": category_mapper, "SVMClassifier": svm_classifier, "TreeEnsembleClassifier": tree_classifier, "SVMRegressor": svm_regressor,
}  # fmt: skip
