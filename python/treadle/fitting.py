"""The loop around a trainer's steps: epochs over any iterable, validation with metrics, callbacks, early stopping."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .train import Trainer

__all__ = ["Callback", "EarlyStopping", "Fit"]

Data = Iterable[Any] | Callable[[], Iterable[Any]]


def _accuracy(outputs: Sequence[Any], labels: Any) -> float:
    classes = np.argmax(outputs[0], axis=1)
    if np.shape(labels) != classes.shape:
        raise ValueError(f"accuracy needs a class for each of {list(classes.shape)}; the labels are {list(np.shape(labels))}")
    return float(np.mean(classes == labels))


_METRICS: dict[str, Callable[[Sequence[Any], Any], float]] = {"accuracy": _accuracy}


class Fit:
    """The state of a call of `Trainer.fit`, which callbacks get."""

    def __init__(self, trainer: Trainer, epochs: int) -> None:
        self.trainer = trainer
        self.epochs = epochs
        #: The number of the current epoch: 1 for the first epoch, and 0 before it begins.
        self.epoch = 0
        #: The number of steps that this call of `Trainer.fit` has made so far.
        self.num_steps = 0
        #: The loss of the last step, computed before the step updated the parameters.
        self.loss = math.nan
        #: A dict for each epoch that has ended: "loss" is the mean over the epoch's samples; validation adds "validation_loss" and
        #: "validation_METRIC"; callbacks may add numbers to the last dict.
        self.history: list[dict[str, float]] = []
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"Fit(epoch={self.epoch}, epochs={self.epochs}, num_steps={self.num_steps}, loss={self.loss:.6g})"

    def stop(self) -> None:
        """Ends the training after the current step or epoch."""
        self._is_stopped = True


class Callback:
    """Methods that `Trainer.fit` calls. Each does nothing until it is overridden."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def on_begin(self, fit: Fit) -> None:
        """Called before the first step."""

    def on_step(self, fit: Fit) -> None:
        """Called after each step."""

    def on_epoch(self, fit: Fit) -> None:
        """Called after each epoch and its validation; `fit.history[-1]` contains the epoch's numbers."""

    def on_end(self, fit: Fit) -> None:
        """Called at the end, even after an error."""


class _OfEpochs(Callback):
    def __init__(self, function: Callable[[Fit], None]) -> None:
        self._function = function

    def on_epoch(self, fit: Fit) -> None:
        self._function(fit)


class EarlyStopping(Callback):
    """Ends the training when a number of `Fit.history` has not improved for some epochs, and restores the parameters of the best epoch.

    :param patience: the number of epochs without improvement after which training ends, 1 or more.
    :param monitor: the name of the number.
    :param maximize: whether a higher number is better, such as an accuracy.
    :param min_delta: the least change that counts as an improvement.
    :param restore_best: restore parameters and running statistics of the best epoch at the end. The optimizer's state stays as it is.
    """

    def __init__(
        self, patience: int, *, monitor: str = "validation_loss", maximize: bool = False, min_delta: float = 0.0, restore_best: bool = True
    ) -> None:
        if patience < 1 or not min_delta >= 0:
            raise ValueError(f"patience is {patience}, and min_delta {min_delta}; at least 1, and 0, are expected")
        self.patience, self.monitor, self.maximize, self.min_delta, self.restore_best = patience, monitor, maximize, min_delta, restore_best
        #: The number of the best epoch, counted from 1; 0 before the first epoch has ended.
        self.best_epoch = 0
        self.best = math.nan
        self._kept: list[dict[str, np.ndarray]] = []

    def __repr__(self) -> str:
        return f"EarlyStopping(patience={self.patience}, monitor={self.monitor!r}, best_epoch={self.best_epoch}, best={self.best:.6g})"

    def on_begin(self, fit: Fit) -> None:
        self.best_epoch, self.best, self._kept = 0, math.nan, []

    def on_epoch(self, fit: Fit) -> None:
        numbers = fit.history[-1]
        if self.monitor not in numbers:
            raise ValueError(f"early stopping watches {self.monitor!r}; an epoch has {', '.join(numbers)}")
        number = numbers[self.monitor]
        better = self.best_epoch == 0 or (number - self.best if self.maximize else self.best - number) > self.min_delta
        if better and not math.isnan(number):
            self.best_epoch, self.best = fit.epoch, number
            if self.restore_best:
                self._kept = [{name: array.copy() for name, array in arrays.items()} for arrays in (fit.trainer.parameters, fit.trainer.states)]
        elif fit.epoch - self.best_epoch >= self.patience:
            fit.stop()

    def on_end(self, fit: Fit) -> None:
        if self._kept and self.best_epoch < fit.epoch:
            for arrays, kept in zip((fit.trainer.parameters, fit.trainer.states), self._kept, strict=True):
                for name, array in kept.items():
                    np.copyto(arrays[name], array)
        self._kept = []


def _batches(data: Data) -> Iterator[Any]:
    return iter(data() if callable(data) else data)


def _taken_apart(batch: Any, labels: str, inputs: Sequence[str]) -> tuple[dict[str, Any], Any]:
    """Returns the feeds and labels of a batch, which is a dict of arrays including the labels, or a pair of feeds and labels."""
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if name != labels}, batch.get(labels)
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise TypeError(f"a batch is a dict of arrays, or a pair of feeds and labels, not {type(batch).__name__}")
    feeds, own = batch
    if isinstance(feeds, Mapping):
        return dict(feeds), own
    values = feeds if isinstance(feeds, tuple) else (feeds,)
    if len(values) != len(inputs):
        raise TypeError(f"the model has several inputs ({', '.join(inputs)}): the feeds of a batch are a dict, or a tuple in this order")
    return dict(zip(inputs, values, strict=True)), own


def _num_samples(feeds: Mapping[str, Any], labels: Any) -> int:
    shape = np.shape(labels if labels is not None else next(iter(feeds.values())))
    return shape[0] if shape else 1


def _metrics_of(metrics: Any) -> dict[str, Any]:
    if not isinstance(metrics, Mapping):
        metrics = {name: name for name in metrics}
    made = {}
    for name, metric in metrics.items():
        if isinstance(metric, str):
            if metric not in _METRICS:
                raise ValueError(f"there is no metric {metric!r}; there are {', '.join(_METRICS)}, functions of outputs and labels, and objects with update()")
            metric = _METRICS[metric]
        if not callable(metric) and not all(hasattr(metric, part) for part in ("reset", "update", "result")):
            raise TypeError(f"the metric {name!r} is no function, and has no reset(), update() and result()")
        made[name] = metric
    return made


def _validate(trainer: Trainer, data: Data, labels: str, inputs: Sequence[str], metrics: Mapping[str, Any]) -> dict[str, float]:
    sums = dict.fromkeys(["loss", *metrics], 0.0)
    collected = {name: metric for name, metric in metrics.items() if hasattr(metric, "update")}
    for metric in collected.values():
        metric.reset()
    samples = 0
    with trainer.averaged() if trainer.averages else contextlib.nullcontext():
        for batch in _batches(data):
            feeds, own = _taken_apart(batch, labels, inputs)
            count = _num_samples(feeds, own)
            loss, outputs = trainer.evaluate_with_outputs(feeds, own)
            samples += count
            sums["loss"] += loss * count
            for name, metric in metrics.items():
                if name in collected:
                    metric.update(outputs, own)
                else:
                    sums[name] += float(metric(outputs, own)) * count
    if samples == 0:
        raise ValueError("the data to validate with have no batches; what can be read only once is empty the second time")
    numbers = {name: total / samples for name, total in sums.items()}
    numbers.update({name: float(metric.result()) for name, metric in collected.items()})
    return {f"validation_{name}": number for name, number in numbers.items()}


def run(
    trainer: Trainer,
    data: Data,
    *,
    epochs: int,
    validation: Data | None,
    metrics: Any,
    callbacks: Iterable[Callback | Callable[[Fit], None]],
    labels: str,
    steps_per_epoch: int | None,
    inputs: Sequence[str],
) -> list[dict[str, float]]:
    """Trains as `Trainer.fit` describes."""
    if epochs < 0 or (steps_per_epoch is not None and steps_per_epoch < 1):
        raise ValueError(f"epochs is {epochs}, steps_per_epoch {steps_per_epoch}")
    chosen = _metrics_of(metrics)
    if chosen and validation is None:
        raise ValueError(f"the metrics {', '.join(chosen)} are of validation data, and none are given")
    called = [callback if isinstance(callback, Callback) else _OfEpochs(callback) for callback in callbacks]
    fit = Fit(trainer, epochs)
    going: Iterator[Any] | None = None  # with steps_per_epoch, the iterator continues from epoch to epoch
    try:
        for callback in called:
            callback.on_begin(fit)
        while fit.epoch < epochs and not fit._is_stopped:
            fit.epoch += 1
            if steps_per_epoch is None or going is None:
                going = _batches(data)
            total, samples, steps = 0.0, 0, 0
            while steps_per_epoch is None or steps < steps_per_epoch:
                batch = next(going, None)
                if batch is None and steps_per_epoch is not None:
                    going = _batches(data)  # restarts the data at the first batch
                    batch = next(going, None)
                if batch is None:
                    break
                feeds, own = _taken_apart(batch, labels, inputs)
                skipped = trainer.num_skipped
                fit.loss = trainer.step(feeds, own)
                if not math.isfinite(fit.loss) and trainer.num_skipped == skipped:
                    raise FloatingPointError(f"epoch {fit.epoch}, step {fit.num_steps + 1}: the loss is {fit.loss}, and the parameters are spoilt")
                count = _num_samples(feeds, own)
                fit.num_steps, steps = fit.num_steps + 1, steps + 1
                if trainer.num_skipped == skipped:
                    total, samples = total + fit.loss * count, samples + count
                for callback in called:
                    callback.on_step(fit)
                if fit._is_stopped:
                    break
            if steps == 0:
                raise ValueError(f"epoch {fit.epoch}: the data have no batches; what can be read only once needs a function that makes it anew")
            numbers = {"loss": total / samples if samples else math.nan}
            if validation is not None:
                numbers.update(_validate(trainer, validation, labels, inputs, chosen))
            fit.history.append(numbers)
            for callback in called:
                callback.on_epoch(fit)
    finally:
        for callback in called:
            callback.on_end(fit)
    return fit.history
