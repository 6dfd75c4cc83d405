#!/usr/bin/env python3
"""Compares classical models on Treadle with the libraries that trained them: scikit-learn, LightGBM, XGBoost, CatBoost.

    tests/python/classical_models.py [NAME ...] [--rows 1,10000] [--verbose]

Each model is trained on random data, converted by skl2onnx, onnxmltools or its own library, and run on other data. The output says whether a model
agrees; if not, also whether onnxruntime disagrees too, which means that the converter rounds and not the runtime. Left out are estimators without a
converter, and HistGradientBoosting and GaussianProcessClassifier: skl2onnx converts these to files that the onnx package refuses to write, or that
need an operator which only skl2onnx has.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np

FEATURES, TRAINING_ROWS, MOST_ROWS = 6, 300, 10_000
OPSETS = {"": 21, "ai.onnx.ml": 3}


@dataclass(frozen=True)
class Data:
    """Rows to train on with their targets, and rows to predict."""

    x: np.ndarray
    y: np.ndarray
    new: np.ndarray


def _data(kind: str) -> Data:
    rng = np.random.default_rng(0)
    rows = TRAINING_ROWS + MOST_ROWS
    x = rng.normal(size=(rows, FEATURES))
    target = x[:, 0] - 2 * x[:, 1] + x[:, 2] * x[:, 3] + 0.2 * rng.normal(size=rows)
    if kind == "positive":
        x = np.round(np.abs(x) * 4)
    elif kind == "categories":
        x = np.minimum(np.round(np.abs(x) * 1.2), 2)
    elif kind == "missing":
        x = np.where(rng.random(x.shape) < 0.1, np.nan, x)
    x = x.astype(np.int64 if kind == "categories" else np.float32)
    if kind == "regression":
        y = target
    elif kind == "counts":
        y = np.abs(np.round(target)) + 0.5
    elif kind == "several targets":
        y = np.stack([target, x[:, 4] - target], 1)
    elif kind == "several labels":
        y = np.stack([target > 0, x[:, 4] > 0], 1).astype(np.int64)
    elif kind == "two classes":
        y = (target > 0).astype(np.int64)
    else:
        y = np.digitize(target, [-1, 1])
    return Data(x[:TRAINING_ROWS], y[:TRAINING_ROWS], x[TRAINING_ROWS:])


@dataclass(frozen=True)
class Model:
    """Says how to make a model, and on which kind of data to train it. `expected` names the estimator's methods that give the model's
    outputs; an output with an empty name is not compared."""

    make: Callable[[], Any]
    kind: str = "classes"
    expected: tuple[str, ...] = ("predict",)
    tolerance: float = 1e-4
    options: dict[str, Any] | None = None
    convert: Callable[[Any, np.ndarray], Any] | None = None
    strays: float = 0.002  # share of rows that may be on the other side of a threshold because of float32


def _sklearn_models() -> dict[str, Model]:
    import sklearn.calibration as calibration
    import sklearn.cluster as cluster
    import sklearn.compose as compose
    import sklearn.cross_decomposition as cross
    import sklearn.decomposition as decomposition
    import sklearn.discriminant_analysis as discriminant
    import sklearn.ensemble as ensemble
    import sklearn.feature_selection as selection
    import sklearn.gaussian_process as gaussian
    import sklearn.impute as impute
    import sklearn.linear_model as linear
    import sklearn.mixture as mixture
    import sklearn.model_selection as search
    import sklearn.multiclass as multiclass
    import sklearn.multioutput as multioutput
    import sklearn.naive_bayes as bayes
    import sklearn.neighbors as neighbors
    import sklearn.neural_network as neural
    import sklearn.pipeline as pipeline
    import sklearn.preprocessing as pre
    import sklearn.random_projection as projection
    import sklearn.svm as svm
    import sklearn.tree as tree

    both = ("predict", "predict_proba")
    scores = ("predict", "decision_function")
    raw = {"raw_scores": True}
    found: dict[str, Model] = {}

    def add(kind: str, expected: tuple[str, ...], *makers: Callable[[], Any], **fields: Any) -> None:
        for make in makers:
            instance = make()
            name = type(instance).__name__
            while name in found:
                name += "'"
            found[name] = Model(make, kind, expected, **fields)

    few = {"n_estimators": 8, "random_state": 0}
    add(
        "classes", both, linear.LogisticRegression, lambda: linear.LogisticRegressionCV(Cs=2, cv=2, use_legacy_attributes=False, scoring="accuracy", l1_ratios=(0,)),
        lambda: tree.DecisionTreeClassifier(max_depth=6), lambda: tree.ExtraTreeClassifier(max_depth=6, random_state=0),
        lambda: ensemble.RandomForestClassifier(**few), lambda: ensemble.ExtraTreesClassifier(**few), lambda: ensemble.GradientBoostingClassifier(**few),
        lambda: ensemble.AdaBoostClassifier(**few), lambda: ensemble.BaggingClassifier(**few),
        bayes.GaussianNB, bayes.BernoulliNB, lambda: neural.MLPClassifier((8,), max_iter=60), discriminant.LinearDiscriminantAnalysis,
        discriminant.QuadraticDiscriminantAnalysis, neighbors.KNeighborsClassifier, lambda: svm.SVC(probability=True), lambda: svm.NuSVC(probability=True, nu=0.2),
        lambda: calibration.CalibratedClassifierCV(linear.LogisticRegression(), cv=2), lambda: multiclass.OneVsRestClassifier(linear.LogisticRegression()),
        lambda: ensemble.VotingClassifier([("a", linear.LogisticRegression()), ("b", bayes.GaussianNB())], voting="soft", flatten_transform=False),
        lambda: ensemble.StackingClassifier([("a", linear.LogisticRegression()), ("b", bayes.GaussianNB())], cv=2),
        lambda: search.GridSearchCV(linear.LogisticRegression(), {"C": [0.1, 1]}, cv=2),
        lambda: linear.SGDClassifier(loss="log_loss", random_state=0),
    )  # fmt: skip
    # The converter ignores the tuned threshold, so labels are not compared.
    add("two classes", ("", "predict_proba"), lambda: search.TunedThresholdClassifierCV(linear.LogisticRegression(), cv=2))
    add("positive", both, bayes.MultinomialNB, bayes.ComplementNB)
    add("categories", both, bayes.CategoricalNB)
    add("classes", both, lambda: neighbors.RadiusNeighborsClassifier(radius=8.0))
    add("classes", scores, svm.LinearSVC, linear.RidgeClassifier, linear.RidgeClassifierCV, linear.Perceptron, linear.SGDClassifier, options=raw)
    add("classes", scores, lambda: linear.PassiveAggressiveClassifier(random_state=0), options=raw)
    add("classes", ("predict",), lambda: multiclass.OneVsOneClassifier(linear.LogisticRegression()))
    add("several labels", ("predict",), lambda: multioutput.MultiOutputClassifier(linear.LogisticRegression()))

    add(
        "regression", ("predict",), linear.LinearRegression, linear.Ridge, linear.RidgeCV, linear.Lasso, linear.LassoCV, linear.ElasticNet, linear.ElasticNetCV,
        linear.Lars, linear.LarsCV, linear.LassoLars, linear.LassoLarsCV, linear.LassoLarsIC, linear.BayesianRidge, linear.ARDRegression, linear.HuberRegressor,
        linear.OrthogonalMatchingPursuit, linear.OrthogonalMatchingPursuitCV, linear.PassiveAggressiveRegressor, linear.QuantileRegressor,
        lambda: linear.RANSACRegressor(random_state=0), linear.SGDRegressor, lambda: linear.TheilSenRegressor(max_iter=20, max_subpopulation=100, random_state=0),
        lambda: tree.DecisionTreeRegressor(max_depth=6), lambda: tree.ExtraTreeRegressor(max_depth=6, random_state=0),
        lambda: ensemble.RandomForestRegressor(**few), lambda: ensemble.ExtraTreesRegressor(**few), lambda: ensemble.GradientBoostingRegressor(**few),
        lambda: ensemble.AdaBoostRegressor(**few), lambda: ensemble.BaggingRegressor(**few),
        lambda: neural.MLPRegressor(hidden_layer_sizes=(8,), max_iter=60), neighbors.KNeighborsRegressor, lambda: neighbors.RadiusNeighborsRegressor(radius=8.0), svm.SVR, svm.NuSVR, svm.LinearSVR,
        lambda: ensemble.VotingRegressor([("a", linear.LinearRegression()), ("b", linear.Ridge())]),
        lambda: ensemble.StackingRegressor([("a", linear.LinearRegression()), ("b", linear.Ridge())], cv=2),
    )  # fmt: skip
    add("regression", ("predict",), lambda: gaussian.GaussianProcessRegressor(gaussian.kernels.RBF(3.0), alpha=0.1), tolerance=1e-2)
    add("counts", ("predict",), linear.PoissonRegressor, linear.GammaRegressor, lambda: linear.TweedieRegressor(power=1.5), tolerance=1e-3)
    add("several targets", ("predict",), cross.PLSRegression, linear.MultiTaskLasso, linear.MultiTaskLassoCV, linear.MultiTaskElasticNet, linear.MultiTaskElasticNetCV)
    add("several targets", ("predict",), lambda: multioutput.MultiOutputRegressor(linear.Ridge()))

    add(
        "classes", ("transform",), pre.StandardScaler, pre.MinMaxScaler, pre.MaxAbsScaler, pre.RobustScaler, pre.Normalizer, pre.Binarizer, pre.PowerTransformer,
        lambda: pre.PolynomialFeatures(2), lambda: pre.KBinsDiscretizer(4, encode="ordinal", quantile_method="averaged_inverted_cdf"), lambda: pre.FunctionTransformer(),
        lambda: decomposition.PCA(3), lambda: decomposition.IncrementalPCA(3), lambda: decomposition.TruncatedSVD(3),
        lambda: decomposition.KernelPCA(3, kernel="rbf", gamma=0.1), neighbors.NeighborhoodComponentsAnalysis, lambda: projection.GaussianRandomProjection(3, random_state=0),
        lambda: selection.SelectKBest(k=3), lambda: selection.SelectPercentile(percentile=50), lambda: selection.SelectFpr(alpha=0.5), lambda: selection.SelectFdr(alpha=0.5),
        lambda: selection.SelectFwe(alpha=0.5), lambda: selection.GenericUnivariateSelect(mode="k_best", param=3), lambda: selection.VarianceThreshold(0.1),
        lambda: selection.SelectFromModel(linear.LogisticRegression()), lambda: selection.RFE(linear.LogisticRegression(), n_features_to_select=3),
        lambda: selection.RFECV(linear.LogisticRegression(), cv=2), tolerance=1e-3,
    )  # fmt: skip
    add("classes", ("transform",), lambda: pre.QuantileTransformer(n_quantiles=20), tolerance=1e-3)
    add("missing", ("transform",), impute.SimpleImputer, lambda: impute.KNNImputer(n_neighbors=3), tolerance=1e-3)
    add("categories", ("transform",), lambda: pre.OneHotEncoder(sparse_output=False), pre.OrdinalEncoder, lambda: pre.TargetEncoder(cv=2, target_type="continuous"))
    add("classes", ("predict", "decision_function"), lambda: ensemble.IsolationForest(n_estimators=8, random_state=0), tolerance=1e-3, strays=0.01)
    add("classes", ("predict", "decision_function"), lambda: svm.OneClassSVM(nu=0.2), lambda: neighbors.LocalOutlierFactor(novelty=True), linear.SGDOneClassSVM, tolerance=1e-3)
    add("classes", ("predict", "transform"), lambda: cluster.KMeans(4, n_init=1, random_state=0), lambda: cluster.MiniBatchKMeans(4, n_init=1, random_state=0), tolerance=1e-3)
    add("classes", ("predict", "predict_proba"), lambda: mixture.GaussianMixture(3, random_state=0), lambda: mixture.BayesianGaussianMixture(n_components=3, random_state=0), tolerance=1e-3)

    found["Pipeline of scaler and classifier"] = Model(lambda: pipeline.make_pipeline(pre.StandardScaler(), linear.LogisticRegression()), "classes", both)
    found["Pipeline of union, selection and trees"] = Model(
        lambda: pipeline.make_pipeline(pipeline.make_union(pre.MinMaxScaler(), decomposition.PCA(2)), selection.SelectKBest(k=5), ensemble.RandomForestRegressor(**few)),
        "regression", strays=0.01,
    )  # fmt: skip
    found["Pipeline of columns"] = Model(
        lambda: pipeline.make_pipeline(
            compose.ColumnTransformer([("a", pre.StandardScaler(), [0, 1]), ("b", pre.KBinsDiscretizer(3, encode="onehot-dense", quantile_method="averaged_inverted_cdf"), [2, 3])], remainder="passthrough"),
            svm.SVR(),
        ),
        "regression", strays=0.01, tolerance=1e-3,
    )  # fmt: skip
    found["Pipeline of imputer, polynomial and ridge"] = Model(
        lambda: pipeline.make_pipeline(impute.SimpleImputer(), pre.PolynomialFeatures(2), pre.StandardScaler(), linear.RidgeClassifier()), "missing", ("predict",)
    )
    return found


def _boosted_models() -> dict[str, Model]:
    both = ("predict", "predict_proba")
    found: dict[str, Model] = {}

    def lightgbm(name: str, kind: str, expected: tuple[str, ...] = ("predict",), **parameters: Any) -> None:
        def make() -> Any:
            import lightgbm

            return getattr(lightgbm, name)(n_estimators=20, verbose=-1, n_jobs=1, **parameters)

        def convert(model: Any, x: np.ndarray) -> Any:
            from onnxmltools import convert_lightgbm
            from onnxmltools.convert.common.data_types import FloatTensorType

            extra = {"zipmap": False} if name == "LGBMClassifier" else {}
            return convert_lightgbm(model, initial_types=[("X", FloatTensorType([None, x.shape[1]]))], target_opset=15, **extra)

        found[f"lightgbm.{name} {kind} {' '.join(map(str, parameters.values()))}".strip()] = Model(make, kind, expected, convert=convert, strays=0.01)

    def xgboost(name: str, kind: str, expected: tuple[str, ...] = ("predict",), **parameters: Any) -> None:
        def make() -> Any:
            import xgboost

            return getattr(xgboost, name)(n_estimators=20, max_depth=4, n_jobs=1, **parameters)

        def convert(model: Any, x: np.ndarray) -> Any:
            from onnxmltools import convert_xgboost
            from onnxmltools.convert.common.data_types import FloatTensorType

            return convert_xgboost(model, initial_types=[("X", FloatTensorType([None, x.shape[1]]))], target_opset=15)

        found[f"xgboost.{name} {kind} {' '.join(map(str, parameters.values()))}".strip()] = Model(make, kind, expected, convert=convert, strays=0.01)

    def catboost(name: str, kind: str, expected: tuple[str, ...] = ("predict",)) -> None:
        def make() -> Any:
            import catboost

            return getattr(catboost, name)(iterations=20, depth=4, verbose=False, allow_writing_files=False, thread_count=1)

        def convert(model: Any, x: np.ndarray) -> Any:
            import tempfile

            import onnx

            with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
                model.save_model(file.name, format="onnx")
                return onnx.load(file.name)

        found[f"catboost.{name} {kind}"] = Model(make, kind, expected, convert=convert, strays=0.01)

    lightgbm("LGBMClassifier", "classes", both)
    lightgbm("LGBMClassifier", "two classes", both)
    lightgbm("LGBMRegressor", "regression")
    lightgbm("LGBMRegressor", "missing")
    lightgbm("LGBMRegressor", "counts", objective="poisson")
    lightgbm("LGBMRegressor", "regression", boosting_type="dart")
    xgboost("XGBClassifier", "classes", both)
    xgboost("XGBClassifier", "two classes", both)
    xgboost("XGBRegressor", "regression")
    xgboost("XGBRegressor", "missing")
    xgboost("XGBRFRegressor", "regression")
    xgboost("XGBRegressor", "counts", objective="count:poisson")
    catboost("CatBoostClassifier", "classes", both)
    catboost("CatBoostClassifier", "two classes", both)
    catboost("CatBoostRegressor", "regression")
    return found


def models() -> dict[str, Model]:
    return {**_sklearn_models(), **_boosted_models()}


def _as_array(value: Any) -> np.ndarray:
    """Converts an output to an array; probabilities may be a list of maps."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return np.array([[row[key] for key in sorted(row)] for row in value])
    if isinstance(value, list):
        return np.stack([np.asarray(v) for v in value])
    return value.toarray() if hasattr(value, "toarray") else np.asarray(value)


def strays(ours: Any, expected: Any, tolerance: float) -> float:
    """Returns the share of rows whose results differ."""
    a, b = _as_array(ours), _as_array(expected)
    if b.ndim == 1 and a.ndim == 2 and a.shape[1] == 2 and a.dtype.kind == "f":
        a = a[:, 1]  # for two classes, this is the margin of the second class
    a = a.reshape(b.shape)
    if b.dtype.kind in "OU":
        return float(np.mean(a.astype(str) != b.astype(str)))
    x, y = a.astype(np.float64), b.astype(np.float64)
    allowed = tolerance * (np.abs(y) + np.sqrt(np.mean(np.square(y[np.isfinite(y)]))) + 1e-3)
    bad = ~((np.abs(x - y) <= allowed) | (x == y) | (np.isnan(x) & np.isnan(y)))
    return float(np.mean(bad.reshape(len(bad), -1).any(axis=1)))


def converted(model: Model) -> tuple[Any, Any, Data]:
    """Returns the trained estimator, its ONNX model, and the data."""
    data = _data(model.kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = model.make()
        estimator.fit(data.x, data.y)
        if model.convert:
            return estimator, model.convert(estimator, data.x), data
        from skl2onnx import to_onnx

        options: dict[str, Any] = {}
        if hasattr(estimator, "predict_proba") or hasattr(estimator, "decision_function") and hasattr(estimator, "classes_"):
            options = {"zipmap": False, **(model.options or {})}
        if type(estimator).__name__ == "LinearSVC":
            del options["zipmap"]
        if "predict_proba" in model.expected and type(estimator).__name__.endswith("Mixture") or "predict" not in model.expected:
            options = {}
        if type(estimator).__name__ in ("OutputCodeClassifier", "OneVsOneClassifier", "MultiOutputClassifier"):
            options = {"zipmap": False}
        return estimator, to_onnx(estimator, data.x[:1], target_opset=OPSETS, options={id(estimator): options} if options else None), data


def check(name: str, model: Model, rows: tuple[int, ...]) -> list[str]:
    """Compares the model on Treadle with its estimator. Returns the differences; empty if it agrees."""
    import treadle

    estimator, onnx_model, data = converted(model)
    session = treadle.InferenceSession(onnx_model.SerializeToString())
    problems = []
    for count in rows:
        x = data.new[:count]
        outputs = session.run(None, {session.get_inputs()[0].name: x})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = [getattr(estimator, method)(x) if method else None for method in model.expected]
        peer = None
        for i, (method, wanted) in enumerate(zip(model.expected, expected)):
            if not method:
                continue
            part = strays(outputs[i], wanted, model.tolerance)
            if part <= (model.strays if count > 1 else 0):
                continue
            if peer is None:
                import onnxruntime

                peer_session = onnxruntime.InferenceSession(onnx_model.SerializeToString(), providers=["CPUExecutionProvider"])
                peer = peer_session.run(None, {peer_session.get_inputs()[0].name: x})
            same = strays(outputs[i], peer[i], model.tolerance)
            problems.append(f"{method} of {count} rows: {part:.2%} differ from {name}; {same:.2%} from onnxruntime")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rows", default="1,10000")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    rows = tuple(map(int, options.rows.split(",")))
    failed = 0
    chosen = {name: model for name, model in models().items() if not options.names or name in options.names}
    for name, model in chosen.items():
        started = time.time()
        try:
            problems = check(name, model, rows)
        except Exception as error:  # any library may raise this error
            if options.verbose:
                raise
            problems = [f"{type(error).__name__}: {str(error)[:300]}"]
        failed += bool(problems)
        print(f"{name}: {'; '.join(problems) or 'the same'} ({time.time() - started:.1f} s)", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
