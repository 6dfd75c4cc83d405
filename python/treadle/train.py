"""Training of ONNX models, alone (`Trainer`) or with a loss of another framework (`JointModule`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _clients, _treadle, counters, fitting
from ._models import ModelLike, load_model
from ._session_options import with_keywords
from ._trainer_options import TABLE, trainer_options
from ._training_arguments import as_array, as_feeds, as_metadata, given
from ._treadle import Job, RunOptions, SessionOptions, UnfinishedRun
from .counters import NodeCounter
from .fitting import Callback, EarlyStopping, Fit
from .joint_module import JointModule, JointRun
from .memory import MemoryReport, report_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keywords import TrainerKeywords

__all__ = [
    "Callback",
    "CheckpointFolder",
    "DataLoader",
    "EarlyStopping",
    "EventFile",
    "Fit",
    "JointModule",
    "JointRun",
    "Trainer",
    "generate_artifacts",
    "untied",
]


def untied(model: ModelLike, patterns: Iterable[str]) -> _treadle.Model:
    """Returns the model with a separate float32 initializer for each node that reads one of these, for `Trainer`, `JointModule` and executors.

    Exporters write equal weights once, such as all biases that are 0 and all scales that are 1. These would be trained as one parameter. The first
    node keeps the initializer; that of another node is named "NAME/NODE", or like the output of an Identity between initializer and node.

    :param model: a path, bytes, a `treadle.Model` or an `onnx.ModelProto`.
    :param patterns: names of initializers, or patterns with * and ?.
    :raises Error: no shared initializer matches a pattern; the message names the most similar ones.
    """
    return _treadle.untied(load_model(model), list(patterns))


class Trainer:
    """Trains a model by gradient descent, with PyTorch's losses and optimizers.

    The model is one for inference: its float32 initializers of rank 1 or more are the parameters, and BatchNormalization's running statistics
    are states. Only one thread at a time may use a trainer. Keywords are the options of the table "Trainers" in docs/options.md; None stands for
    the default. `schedule`, `loss_scaling` and `lora` set several options by a dict, `betas` sets two.

    :param model: a path, bytes, a `treadle.Model` or an `onnx.ModelProto`.
    :param loss: "softmax_cross_entropy" (scores [N, C, ...] and int64 labels [N, ...]), "negative_log_likelihood" (the same of logarithms of
        probabilities), "mean_squared_error", "l1", "huber" (labels like the output), "binary_cross_entropy_with_logits" (scores, and labels from
        0 to 1 like them), "kl_divergence" (logarithms of probabilities, and labels that are probabilities; a mean over the first extent),
        "ctc" (scores [N, C, steps], or with the classes at `class_axis`, and labels [N, length], which end at the first negative one), "output"
        (the output is the loss, one number; `labels` of steps are then None), or an ONNX model whose output is the loss: a path (with a dot or a
        slash in it), bytes, a `treadle.Model` or an `onnx.ModelProto`. Its first input gets `output`. Each further input gets the model's value of
        the same name; the first one without such a value gets the labels, and inputs after the labels are fed by name.
    :param betas: decay rates of adam, adamw and lamb, (0.9, 0.999) by default, and of lion, (0.9, 0.99) by default.
    :param schedule: how the learning rate changes: a kind, or {"kind": "constant", "step", "cosine", "linear" or "one_cycle", "warmup_steps": 0,
        "total_steps": 0, "step_size": 0, "gamma": 0.1, "final_factor": 0.0}, of which each kind uses some. Steps are counted in updates. See
        docs/training.md.
    :param loss_scaling: how the loss is scaled if `sess_options.precision` contains float16: {"init_scale": 65536.0, "growth_factor": 2.0,
        "backoff_factor": 0.5, "growth_interval": 2000}, as for PyTorch's GradScaler. A step with an infinite or NaN gradient is skipped.
    :param ema_decay: from 0 to 1: keep an exponential average of each parameter, which begins as the parameter, and with each update moves towards
        it by 1 - ema_decay of the distance (`averages`, `averaged()`). 0: keep none.
    :param groups: settings for some of the parameters: {"parameters": [names or patterns], "rate_factor": 1.0, "weight_decay": None}. The first
        group that matches a parameter applies.
    :param initialize: initial values instead of the model's: {name or pattern: initializer} or {name or pattern: (initializer, scale)}. The first
        one that matches a parameter applies. Initializers are "zeros", "ones", "normal" (scale is the standard deviation), "uniform" (from
        -scale to scale), "xavier_normal", "xavier_uniform", "kaiming_normal" and "kaiming_uniform" (scale is a factor), with PyTorch's formulas.
    :param lora: low-rank adapters beside weights that do not change: {"rank": 8, "alpha": 16, "dropout": 0.0, "targets": [names or patterns of
        weights, or of nodes that read them], "seed": 0}. Then only the adapters are trained, and the parameters named by `parameters`. Without
        targets every matrix of a MatMul or Gemm gets an adapter; without alpha the factor is 1. See docs/training.md.
    :param lazy_updates: names or patterns of tables of which an update reads and writes only the rows that the batch has read. Tables are parameters
        that only Gather along the first axis reads. Other rows and their state do not change. True: all such tables.
    :param early_updates: update each parameter as soon as its gradient is computed and no node reads the parameter any more, so that gradients are
        not kept until the end of the step. The results are the same bits. After its first update, a step is neither cancelled nor ended by its
        deadline. If it fails then, the trainer returns no parameters and makes no step until a checkpoint is loaded.
    :param communicator: makes this trainer one rank of several, which make each step together on a joint batch: "auto" (torch.distributed if it is
        initialised, otherwise MPI under `mpirun`, otherwise a single rank), "mpi", a `treadle.Communicator`, or an object with `rank`, `size`,
        `all_reduce(data, dtype)` and `broadcast(data, root)`. All ranks must then call methods for steps, gradients and checkpoints together.
        See docs/data-parallel.md.
    :param memory_limit_bytes: limit of parameters, the optimizer's state, and the activations of a step. To keep to it, steps compute values twice
        or write them to a file (in `spill_folder`), with the same bits as results. 0: no limit.
    :param job: the `Job` to which steps belong; None: the environment's, if it names one.
    :param keywords:
    :param sess_options: threads, devices, memory, profiling and passes, as for an `InferenceSession`; the arguments above override them.

    Methods that run graphs accept `run_options`, a `RunOptions`, for cancellation, deadlines, checks of values, dumps and metadata. A step that
    ends early has changed nothing, except as described for `early_updates`.
    """

    def __init__(
        self,
        model: ModelLike,
        *,
        betas: tuple[float, float] | None = None,
        loss_scaling: Mapping[str, Any] | None = None,
        lora: Mapping[str, Any] | None = None,
        num_threads: int = 0,
        memory_limit_bytes: int = 0,
        spill_folder: str = "",
        job: Job | None = None,
        sess_options: SessionOptions | None = None,
        **options: Unpack[TrainerKeywords],
    ) -> None:
        together = {"betas": betas, "loss_scaling": loss_scaling, "lora": lora}
        made = trainer_options({**together, **options}, Trainer.__init__.__kwdefaults__ or ())
        model = load_model(model)
        self._inputs = model.inputs
        self._trainer = _treadle.Trainer(model, made, num_threads, memory_limit_bytes, spill_folder, job, sess_options)
        _clients.add(self)

    @classmethod
    def open_artifacts(cls, folder: str | os.PathLike[str], sess_options: SessionOptions | None = None) -> Trainer:
        """Makes a trainer that continues where `write_artifacts` was called, with the same bits. It has no `gradients`.

        :param sess_options: threads, devices, memory, job and profiling. Options that change graphs (optimisations, precision) are refused, because
            artifacts contain the graphs.
        :raises treadle.Error: a file is missing, damaged, or belongs to other artifacts; or another version of the library wrote the artifacts.
        """
        self = cls.__new__(cls)
        self._trainer = _treadle.Trainer.open_artifacts(os.fspath(folder), sess_options)
        self._inputs = self._trainer.model.inputs
        _clients.add(self)
        return self

    def write_artifacts(self, folder: str | os.PathLike[str]) -> None:
        """Writes the files for training with a library that lacks the code that makes graphs: training_model.onnx (forward, backward and update),
        eval_model.onnx, with `accumulation_steps` also optimizer_model.onnx, inference_model.onnx and checkpoint.safetensors. The models use
        operators of the domain treadle; they need this version of the library, and work on any processor. See docs/training.md.
        """
        self._trainer.write_artifacts(os.fspath(folder))

    def close(self, timeout: float | None = None) -> list[UnfinishedRun]:
        """Cancels the steps and other runs in flight and waits for them; later ones are refused. A step that has begun its updates ends.

        :param timeout: how long to wait, in seconds; None: until all have ended.
        :return: the runs that have not ended.
        """
        return self._trainer.close(-1 if timeout is None else int(timeout * 1000))

    @property
    def closed(self) -> bool:
        """True once close() was called."""
        return self._trainer.closed

    def memory(self) -> MemoryReport:
        """Returns the bytes that the trainer holds now, and their peaks, by class."""
        return report_of(self._trainer.memory_statistics())

    def set_memory_limit(self, limit_bytes: int) -> None:
        """Changes `memory_limit_bytes` for later steps; the trainer must have been made with a limit."""
        self._trainer.set_memory_limit(limit_bytes)

    def set_monitor(self, callback: Callable[[_treadle.MonitorEvent], None] | None, pattern: str = "*", inputs: bool = False) -> None:
        """Like `InferenceSession.set_monitor()`, for all graphs that the trainer runs, with gradients and updates among the values. Setting another
        monitor compiles the graphs again, in a form that computes every value of the model.
        """
        _treadle.monitor_trainer(self._trainer, callback, pattern, inputs)

    def end_profiling(self) -> str:
        """Ends the profile that `sess_options.enable_profiling` began and writes the trace. Returns the file's path."""
        return self._trainer.end_profiling()

    def node_counters(self) -> list[NodeCounter]:
        """Like `InferenceSession.node_counters()`, if the option of `sess_options` is set."""
        return counters.read(self._trainer)

    def reset_node_counters(self) -> None:
        """Sets all counts to zero."""
        _treadle.reset_node_counters(self._trainer)

    def step(self, feeds: Any, labels: Any, run_options: RunOptions | None = None) -> float:
        """Makes one training step: forward pass, backward pass, and update of the parameters in place.

        :param feeds: values of the model's inputs: one array for the only input, a tuple in their order, or a dict by name. PyTorch's tensors are
            read in place.
        :param labels: the labels in the form that the loss requires; None if it has none.
        :return: the loss before the update.
        :raises ValueError: an input is missing.
        :raises InvalidArgument: there is no such input, or a value has another dtype or shape than the model and the loss take.
        :raises Fail: the step was cancelled or passed its deadline; nothing has changed.
        :raises OutOfMemory: the step does not fit in `memory_limit_bytes`; nothing has changed.
        """
        with given(feeds, self._inputs) as taken:
            return self._trainer.step(taken, as_array(labels), run_options)

    def evaluate(self, feeds: Any, labels: Any, run_options: RunOptions | None = None) -> float:
        """Returns the loss, computed with the running statistics and without dropout. Changes nothing."""
        with given(feeds, self._inputs) as taken:
            return self._trainer.evaluate(taken, as_array(labels), run_options)

    def evaluate_with_outputs(self, feeds: Any, labels: Any, run_options: RunOptions | None = None) -> tuple[float, list[Any]]:
        """Returns the results of `evaluate` and `predict`, from one forward pass."""
        with given(feeds, self._inputs) as taken:
            return self._trainer.evaluate_with_outputs(taken, as_array(labels), run_options)

    def fit(
        self,
        data: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        epochs: int = 1,
        validation: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
        metrics: Iterable[str] | Mapping[str, Any] = (),
        callbacks: Iterable[fitting.Callback | Callable[[fitting.Fit], None]] = (),
        labels: str = "labels",
        steps_per_epoch: int | None = None,
    ) -> list[dict[str, float]]:
        """Steps through the data, epoch by epoch. Returns the numbers of each epoch: "loss", "validation_loss", "validation_METRIC".

        :param data: batches: an iterable that can be read again in each epoch (a list, a `DataLoader`, PyTorch's), or a function that makes one. A
            batch is a dict of arrays, with the labels under the name `labels`, or a pair of feeds and labels; feeds are a dict, or the one
            input's array.
        :param validation: batches that are evaluated at the end of each epoch. With `ema_decay`, the averages are evaluated.
        :param metrics: "accuracy" (of the first output, over axis 1), or a dict by name of functions of a batch's outputs and labels, whose results
            are averaged over the samples, or of objects with `reset()`, `update(outputs, labels)` and `result()`.
        :param callbacks: `Callback`s such as `EarlyStopping`, or functions that are called with the `Fit` after each epoch.
        :param steps_per_epoch: the number of steps in an epoch; the next epoch continues in the data. By default an epoch is all of the data.
        :raises FloatingPointError: the loss is NaN or infinite.
        """
        return fitting.run(
            self,
            data,
            epochs=epochs,
            validation=validation,
            metrics=metrics,
            callbacks=callbacks,
            labels=labels,
            steps_per_epoch=steps_per_epoch,
            inputs=[info.name for info in self._inputs],
        )

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Replaces the parameters by their averages within `with trainer.averaged():`, for `evaluate`, `predict` and `save`.

        Steps and checkpoints are refused within the block. Raises for a trainer without `ema_decay`.
        """
        self._trainer.use_averages(True)
        try:
            yield
        finally:
            self._trainer.use_averages(False)

    def predict(self, feeds: Any, run_options: RunOptions | None = None) -> list[Any]:
        """Returns the model's outputs, in order."""
        with given(feeds, self._inputs) as taken:
            return self._trainer.predict(taken, run_options)

    def gradients(self, feeds: Any, labels: Any, run_options: RunOptions | None = None) -> dict[str, np.ndarray]:
        """Returns the gradient of the loss by each parameter. Changes nothing."""
        with given(feeds, self._inputs) as taken:
            return self._trainer.gradients(taken, as_array(labels), run_options)

    def __repr__(self) -> str:
        return f"Trainer(outputs={self.output_names}, learning_rate={self.learning_rate:g}, num_steps={self.num_steps})"

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Arrays that use the parameters' memory: they change with every step, and may be written between steps."""
        return self._trainer.parameters

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Running means and variances, as arrays like those of `parameters`."""
        return self._trainer.states

    @property
    def momentum(self) -> dict[str, np.ndarray]:
        """The optimizer's velocity of each parameter, as arrays like those of `parameters`; empty for optimizers without velocities."""
        return self._trainer.momentum

    @property
    def optimizer_state(self) -> dict[str, np.ndarray]:
        """The whole state of the optimizer, as arrays like those of `parameters`, by "PARAMETER/KIND". Kinds are momentum, mean, squares, average and
        gradient (of accumulation).
        """
        return self._trainer.optimizer_state

    @property
    def averages(self) -> dict[str, np.ndarray]:
        """The exponential average of each parameter, as arrays like those of `parameters`. Empty without `ema_decay`."""
        return self._trainer.averages

    @property
    def rank(self) -> int:
        """This trainer's number among `num_ranks`, from 0; 0 without a communicator."""
        return self._trainer.rank

    @property
    def num_ranks(self) -> int:
        """The number of trainers that make steps together; 1 without a communicator."""
        return self._trainer.num_ranks

    @property
    def num_updates(self) -> int:
        """The number of updates of the parameters so far: steps divided by `accumulation_steps`."""
        return self._trainer.num_updates

    @property
    def num_steps(self) -> int:
        """The number of steps so far, including those that only accumulate gradients. The random numbers of Dropout depend on it."""
        return self._trainer.num_steps

    @property
    def loss_scale(self) -> float | None:
        """The factor by which the loss is scaled in the next step's backward pass; None if `sess_options.precision` has no float16."""
        return self._trainer.loss_scale

    @property
    def num_skipped(self) -> int:
        """The number of steps that changed nothing because a gradient of the scaled loss was infinite or NaN. `num_steps` does not count them."""
        return self._trainer.num_skipped

    @property
    def scheduled_rate(self) -> float:
        """The learning rate of the next update, as the schedule sets it, before the factors of groups."""
        return self._trainer.scheduled_rate

    @property
    def output_names(self) -> list[str]:
        """Names of the model's outputs, in its order."""
        return self._trainer.output_names

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next steps, before the schedule's factor."""
        return self._trainer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._trainer.learning_rate = rate

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Writes the model as it was read, with the trained values of its initializers; adapters are merged into their weights."""
        self._trainer.save(os.fspath(path), as_metadata(metadata))

    def to_bytes(self, metadata: Mapping[str, str] | None = None) -> bytes:
        """Returns the bytes of an ONNX file: the model with the current parameters."""
        return self._trainer.to_bytes(as_metadata(metadata))

    def save_checkpoint(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Writes all that is needed to continue with the same bits: parameters, states, the optimizer's state, counters, learning rate, settings.

        The file is a safetensors file with a checksum, which appears under its name only when it is complete. `metadata` are the caller's, such
        as the position in the data.
        """
        self._trainer.save_checkpoint(os.fspath(path), as_metadata(metadata))

    def load_checkpoint(self, path: str | os.PathLike[str], *, own_settings: bool = False) -> dict[str, str]:
        """Loads a checkpoint and returns its metadata. If it is damaged or has another model or other settings, raises and changes nothing.

        :param own_settings: keep this trainer's loss, schedule, learning rate and hyperparameters; only the optimizer must be the same.
        """
        return dict(self._trainer.load_checkpoint(os.fspath(path), own_settings))

    def save_adapters(self, path: str | os.PathLike[str]) -> None:
        """Writes the adapters of `lora` alone, as a safetensors file with PEFT's names and shapes; rank and alpha are its metadata."""
        self._trainer.save_adapters(os.fspath(path))

    def load_adapters(self, path: str | os.PathLike[str]) -> None:
        """Loads adapters that `save_adapters` or PEFT wrote. If they do not match this trainer's, raises and changes nothing."""
        self._trainer.load_adapters(os.fspath(path))

    def to_text(self) -> str:
        """Returns the forward, backward and update graph as text, with a line for each node."""
        return self._trainer.to_text()


Trainer.__doc__ = with_keywords(Trainer.__doc__, _treadle.TrainerOptions, TABLE)


def generate_artifacts(model: ModelLike, folder: str | os.PathLike[str], **options: Any) -> None:
    """Calls `Trainer(model, **options).write_artifacts(folder)`, before training on another machine."""
    Trainer(model, **options).write_artifacts(folder)


class CheckpointFolder:
    """Checkpoints of one trainer in one folder, named by its steps; only one process may write there.

    ::

        checkpoints = CheckpointFolder("runs/7", keep_last=3)
        if resumed := checkpoints.resume(trainer):
            first_epoch = int(resumed[1]["epoch"])
        ...
        checkpoints.save(trainer, {"epoch": str(epoch)})

    :param keep_last: how many checkpoints to keep; older ones are deleted when a newer one is complete. 0: keep all.
    :param asynchronous: `save` only copies the tensors, and a thread writes them. The next `save` or `wait` raises the thread's errors.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep_last: int = 3, asynchronous: bool = False) -> None:
        self._folder = _treadle.CheckpointFolder(os.fspath(folder), keep_last, asynchronous)

    def __repr__(self) -> str:
        return f"CheckpointFolder({self.files()})"

    def save(self, trainer: Trainer, metadata: Mapping[str, str] | None = None) -> str:
        """Writes a checkpoint with `metadata`. Returns its path."""
        return self._folder.save(trainer._trainer, as_metadata(metadata))

    def wait(self) -> None:
        """Waits until the last checkpoint is on disk."""
        self._folder.wait()

    def files(self) -> list[str]:
        """The complete checkpoints, oldest first."""
        return self._folder.files()

    def resume(self, trainer: Trainer, *, own_settings: bool = False) -> tuple[str, dict[str, str]] | None:
        """Loads the newest checkpoint that is not damaged, by `Trainer.load_checkpoint`. Returns its path and metadata, or None if there is none."""
        resumed = self._folder.resume(trainer._trainer, own_settings)
        return (resumed[0], dict(resumed[1])) if resumed else None


class EventFile:
    """A file of numbers over steps that TensorBoard reads, as `treadle train --tensorboard` writes them.

    ::

        events = EventFile("runs/7")
        for batch in loader:
            loss = trainer.step({"image": batch["image"]}, batch["label"])
            events.write(trainer.num_steps, {"step/loss": loss, "step/learning_rate": trainer.scheduled_rate})

    :param folder: the folder in which a new file is made. If there is no such folder, it is made too.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._file = _treadle.EventFile(os.fspath(folder))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes numbers by name for this step. They may reach the disk after the call has returned."""
        self._file.write(step, [(str(name), float(value)) for name, value in scalars.items()])

    @property
    def path(self) -> str:
        """The file's path."""
        return self._file.path

    def __repr__(self) -> str:
        return f"EventFile({self.path!r})"


class DataLoader:
    """Batches of arrays, shuffled by a seed, whose position checkpoints can store. Each loop over the loader is one epoch, or the rest of one.

    ::

        loader = DataLoader({"image": images, "label": labels}, batch_size=64)
        if resumed := checkpoints.resume(trainer):
            loader.resume(resumed[1])
        while loader.epoch < 20:
            for batch in loader:
                trainer.step({"image": batch["image"]}, batch["label"])
            checkpoints.save(trainer, loader.to_metadata())

    :param arrays: arrays by name, whose rows are the samples. They are not copied (`numpy.load(path, mmap_mode="r")` keeps them in the file) and must
        not change.
    :param shuffle: use a different order in each epoch, which depends on `seed` and epoch.
    :param drop_last: leave out samples at the end of an epoch that do not fill a batch.
    :param prefetch: number of batches that a thread reads ahead; 0: none.
    :param rank: return only this rank's part of each batch, of `num_ranks`; `batch_size` counts the samples of all ranks. A last batch with fewer
        samples than ranks is left out.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        *,
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        prefetch: int = 2,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        self._loader = _treadle.DataLoader(as_feeds(arrays), batch_size, shuffle, seed, drop_last, prefetch, rank, num_ranks)

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return self._loader.batches_per_epoch

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        while (batch := self._loader.next()) is not None:
            yield batch

    def __repr__(self) -> str:
        return f"DataLoader(batches={len(self)}, epoch={self.epoch}, batch={self.batch})"

    @property
    def epoch(self) -> int:
        """The number of the next batch's epoch, from 0."""
        return self._loader.position[0]

    @property
    def batch(self) -> int:
        """The number of the next batch within its epoch, from 0."""
        return self._loader.position[1]

    def to_metadata(self) -> dict[str, str]:
        """Returns the position, and all that the order depends on, for the metadata of a checkpoint."""
        return dict(self._loader.to_metadata())

    def resume(self, metadata: Mapping[str, str]) -> None:
        """Continues at the position of `to_metadata`. If data or options differ, raises an error that names the first difference."""
        self._loader.resume(as_metadata(metadata))
