"""Tests Trainer.fit: it gives the parameters of a hand-written loop, metrics follow their definitions, and callbacks can end training."""

import math

import numpy as np
import pytest
from onnx import numpy_helper

import treadle
from treadle.train import Callback, DataLoader, EarlyStopping, Trainer

import small_models as small

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3)).astype(np.float32)
LABELS = (X @ np.float32([1, -2, 0.5]) > 0).astype(np.int64)
BATCHES = [(X[i : i + 12], LABELS[i : i + 12]) for i in range(0, 40, 12)]  # the last batch is smaller


def classifier():
    w = np.random.default_rng(1).standard_normal((3, 2)).astype(np.float32)
    return small.model(
        [small.node("MatMul", ["x", "w"], ["scores"])], [small.tensor("x", ["N", 3])], [small.tensor("scores", ["N", 2])], [numpy_helper.from_array(w, "w")]
    )


def trainer(**options):
    return Trainer(classifier(), learning_rate=0.2, **options)


def test_the_bits_are_those_of_a_loop_of_ones_own_for_any_iterable():
    expected, losses = trainer(), []
    for _ in range(3):
        of_epoch = [expected.step({"x": x}, labels) for x, labels in BATCHES]
        losses.append(np.average(of_epoch, weights=[len(labels) for _, labels in BATCHES]))
    arrays = DataLoader({"x": X, "labels": LABELS}, batch_size=12, shuffle=False)
    as_dicts = [{"x": x, "kind": labels} for x, labels in BATCHES]
    for data, options in (
        (BATCHES, {}),
        ([({"x": x}, labels) for x, labels in BATCHES], {}),
        (lambda: (batch for batch in BATCHES), {}),  # the function makes a new generator for each epoch
        (arrays, {}),
        (as_dicts, {"labels": "kind"}),
        (iter(BATCHES * 3), {"steps_per_epoch": len(BATCHES)}),  # the iterator is read once, over all epochs
        (BATCHES, {"steps_per_epoch": len(BATCHES)}),
    ):
        own = trainer()
        history = own.fit(data, epochs=3, **options)
        np.testing.assert_array_equal(own.parameters["w"], expected.parameters["w"])
        np.testing.assert_allclose([numbers["loss"] for numbers in history], losses, rtol=1e-6)


def test_batches_of_pytorch():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(LABELS)), batch_size=12)
    own, expected = trainer(), trainer()
    own.fit(data, epochs=2)
    expected.fit(BATCHES, epochs=2)
    np.testing.assert_array_equal(own.parameters["w"], expected.parameters["w"])


class Confusion:
    """A metric: the precision of class 1, which is not a mean over batches."""

    def reset(self):
        self.told = self.right = 0

    def update(self, outputs, labels):
        positive = outputs[0].argmax(1) == 1
        self.told += positive.sum()
        self.right += (positive & (np.asarray(labels) == 1)).sum()

    def result(self):
        return self.right / max(self.told, 1)


def test_validation_has_metrics_over_all_samples():
    own = trainer()
    metrics = {"accuracy": "accuracy", "precision": Confusion(), "margin": lambda outputs, labels: np.mean(outputs[0][:, 1] - outputs[0][:, 0])}
    history = own.fit(BATCHES[:2], epochs=2, validation=BATCHES, metrics=metrics)
    scores = X @ own.parameters["w"]
    told = scores.argmax(1) == 1
    last = history[-1]
    assert last["validation_accuracy"] == pytest.approx(np.mean(scores.argmax(1) == LABELS))
    assert last["validation_precision"] == pytest.approx((told & (LABELS == 1)).sum() / told.sum())
    assert last["validation_margin"] == pytest.approx(np.mean(scores[:, 1] - scores[:, 0]), rel=1e-5)
    log_sum = np.log(np.exp(scores).sum(1))
    assert last["validation_loss"] == pytest.approx(np.mean(log_sum - scores[np.arange(40), LABELS]), rel=1e-5)
    assert list(own.fit(BATCHES, validation=BATCHES, metrics=["accuracy"])[0]) == ["loss", "validation_loss", "validation_accuracy"]


def test_accuracy_is_of_classes():
    values = [(x, np.stack([labels, labels], 1).astype(np.float32)) for x, labels in BATCHES]
    with pytest.raises(ValueError, match=r"accuracy needs a class for each of \[12\]; the labels are \[12, 2\]"):
        trainer(loss="mean_squared_error").fit(values, validation=values, metrics=["accuracy"])


def test_averages_are_what_is_validated():
    own = trainer(ema_decay=0.9)
    last = own.fit(BATCHES, epochs=2, validation=BATCHES, metrics=["accuracy"])[-1]
    scores = X @ own.averages["w"]
    assert last["validation_loss"] == pytest.approx(np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(40), LABELS]), rel=1e-5)
    assert not np.array_equal(own.averages["w"], own.parameters["w"])


def test_callbacks_see_steps_and_epochs_and_may_stop():
    class Seen(Callback):
        def __init__(self):
            self.calls = []

        def on_begin(self, fit):
            self.calls.append("begin")

        def on_step(self, fit):
            assert math.isfinite(fit.loss)
            self.calls.append(fit.num_steps)

        def on_epoch(self, fit):
            fit.history[-1]["rate"] = fit.trainer.learning_rate
            fit.trainer.learning_rate /= 2

        def on_end(self, fit):
            self.calls.append("end")

    seen, epochs = Seen(), []
    history = trainer().fit(BATCHES, epochs=5, callbacks=[seen, lambda fit: epochs.append(fit.epoch) or (fit.epoch == 2 and fit.stop())])
    assert seen.calls == ["begin", *range(1, 9), "end"]
    assert epochs == [1, 2] and [numbers["rate"] for numbers in history] == [0.2, 0.1]

    class Impatient(Callback):
        def on_step(self, fit):
            fit.stop()

    assert len(trainer().fit(BATCHES, epochs=5, callbacks=[Impatient()])) == 1

    class Broken(Seen):
        def on_step(self, fit):
            raise KeyError("broken")

    broken = Broken()
    with pytest.raises(KeyError, match="broken"):
        trainer().fit(BATCHES, callbacks=[broken])
    assert broken.calls == ["begin", "end"]


def test_early_stopping_brings_the_best_epoch_back():
    kept = []
    scripted = iter([3.0, 2.0, 2.5, math.nan, 2.4, 9.0])
    own = trainer()

    def loss_by_script(fit):
        fit.history[-1]["scripted"] = next(scripted)
        kept.append(fit.trainer.parameters["w"].copy())

    stopping = EarlyStopping(3, monitor="scripted")
    history = own.fit(BATCHES, epochs=6, callbacks=[loss_by_script, stopping])
    assert len(history) == 5 and stopping.best_epoch == 2 and stopping.best == 2.0
    assert repr(stopping) == "EarlyStopping(patience=3, monitor='scripted', best_epoch=2, best=2)"
    np.testing.assert_array_equal(own.parameters["w"], kept[1])
    # With restore_best off, the parameters of the last epoch stay. With maximize, a larger number is better. An improvement below min_delta
    # does not count.
    own, scripted, kept[:] = trainer(), iter([0.5, 0.6, 0.605, 0.5]), []
    stopping = EarlyStopping(1, monitor="scripted", maximize=True, min_delta=0.01, restore_best=False)
    assert len(own.fit(BATCHES, epochs=4, callbacks=[loss_by_script, stopping])) == 3
    np.testing.assert_array_equal(own.parameters["w"], kept[2])
    with pytest.raises(ValueError, match="watches 'validation_loss'; an epoch has loss"):
        trainer().fit(BATCHES, callbacks=[EarlyStopping(1)])
    with pytest.raises(ValueError, match="patience is 0"):
        EarlyStopping(0)


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (iter(BATCHES), {"epochs": 2}, ValueError, "epoch 2: the data have no batches"),
        ([], {}, ValueError, "epoch 1: the data have no batches"),
        ([X], {}, TypeError, "a batch is a dict of arrays, or a pair"),
        (BATCHES, {"epochs": -1}, ValueError, "epochs is -1"),
        (BATCHES, {"steps_per_epoch": 0}, ValueError, "steps_per_epoch 0"),
        (BATCHES, {"metrics": ["accuracy"]}, ValueError, "are of validation data"),
        (BATCHES, {"metrics": ["acuracy"], "validation": BATCHES}, ValueError, "no metric 'acuracy'"),
        (BATCHES, {"metrics": {"own": 3}, "validation": BATCHES}, TypeError, "'own' is no function"),
        (BATCHES, {"validation": []}, ValueError, "to validate with have no batches"),
        ([{"x": X}], {}, treadle.Error, "none are given"),
        ([(X * np.float32(np.nan), LABELS)], {}, FloatingPointError, "epoch 1, step 1: the loss is nan"),
    ],
)
def test_wrong_calls_say_what_is_wrong(data, options, error, message):
    with pytest.raises(error, match=message):
        trainer().fit(data, **options)
