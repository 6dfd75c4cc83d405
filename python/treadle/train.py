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
from ._treadle import Job, RunOptions, SessionOptions
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
    """The model with a float32 initializer for each node that reads one of these, for `Trainer`, `JointModule` and executors.

    Exporters write equal weights once, such as all biases that are 0 and all scales that are 1, which would then train as one. The first node keeps
    the initializer; another's is named "NAME/NODE", or as the output of an Identity that stands for it.

    :param model: a path, bytes, a `treadle.Model` or an `onnx.ModelProto`.
    :param patterns: names or patterns (* and ?).
    :raises Error: for a pattern that no shared initializer fits, naming the nearest.
    """
    return _treadle.untied(load_model(model), list(patterns))


class Trainer:
    """Trains a model by gradient descent, with PyTorch's losses and optimizers.

    The model is one for inference: its float32 initializers of rank 1 or more are the parameters, BatchNormalization's running statistics
    are states. Not for use by several threads at once. Keywords are the options of the table "Trainers" in docs/options.md; None is the default.
    `schedule`, `loss_scaling` and `lora` take several of them as a dict, `betas` two.

    :param model: a path, bytes, a `treadle.Model` or an `onnx.ModelProto`.
    :param loss: "softmax_cross_entropy" (scores [N, C, ...] and int64 labels [N, ...]), "negative_log_likelihood" (the same of logarithms of
        probabilities), "mean_squared_error", "l1", "huber" (labels like the output), "binary_cross_entropy_with_logits" (scores, and labels from
        0 to 1 like them), "kl_divergence" (logarithms of probabilities, and labels that are probabilities; a mean over the first extent),
        "ctc" (scores [N, C, steps], or with the classes at `class_axis`, and labels [N, length], which end at the first negative one), "output"
        (the output is the loss, one number; `labels` of steps are then None), or an ONNX model whose output is the loss: a path (with a dot or a
        slash in it), bytes, a `treadle.Model` or an `onnx.ModelProto`. Its first input takes `output`; others take the value of the model that
        has their name, then the labels; those behind the labels are fed by their names.
    :param betas: of adam, adamw and lamb, (0.9, 0.999) by default, and of lion, (0.9, 0.99).
    :param schedule: of the learning rate: its kind, or {"kind": "constant", "step", "cosine", "linear" or "one_cycle", "warmup_steps": 0, "total_steps": 0,
        "step_size": 0, "gamma": 0.1, "final_factor": 0.0}, of which each kind takes its own; counted in updates. See docs/training.md.
    :param loss_scaling: where `sess_options.precision` has float16, how the loss is scaled: {"init_scale": 65536.0, "growth_factor": 2.0,
        "backoff_factor": 0.5, "growth_interval": 2000}, as of PyTorch's GradScaler. A step with an infinite or NaN gradient is skipped.
    :param ema_decay: from 0 to 1; an exponential average of each parameter is kept, which begins as the parameter and moves by 1 - ema_decay of the
        distance with each update (`averages`, `averaged()`). 0: none is.
    :param groups: parameters with settings of their own: {"parameters": [names or patterns], "rate_factor": 1.0, "weight_decay": None}, the first
        that fits.
    :param initialize: parameters that begin with other values than the model's: {name or pattern: initializer} or {name or pattern: (initializer,
        scale)}, of which the first that fits counts. Initializers are "zeros", "ones", "normal" (scale is the standard deviation), "uniform" (from
        -scale to scale), "xavier_normal", "xavier_uniform", "kaiming_normal" and "kaiming_uniform" (scale is a factor), with PyTorch's formulas.
    :param lora: low-rank adapters beside weights that stay as they are: {"rank": 8, "alpha": 16, "dropout": 0.0, "targets": [names or patterns of
        weights, or of nodes that read them], "seed": 0}. Only the adapters are trained then, and what `parameters` names. Without targets every
        matrix of a MatMul or Gemm gets one, without alpha the factor is 1. See docs/training.md.
    :param lazy_updates: names or patterns of tables of which an update touches only the rows that the batch has read, in time and memory of those
        rows: parameters that nothing but Gather along the first axis reads. Other rows, and their state, stay as they are. True: all such tables.
    :param early_updates: each parameter is updated as soon as its gradient is there and nobody reads the parameter any more, so that gradients are
        not kept until the end of the step; the same bits. From its first update on a step is neither cancelled nor ended by its deadline, and
        if it fails behind it, the trainer gives no parameters and takes no step until a checkpoint is loaded.
    :param communicator: this trainer is one rank among several, and takes the step of the joint batch with them: "auto" (torch.distributed where it
        is initialised, else MPI under `mpirun`, else alone), "mpi", a `treadle.Communicator`, or an object with `rank`, `size`,
        `all_reduce(data, dtype)` and `broadcast(data, root)`. Steps, gradients and checkpoints are then calls that all ranks make together.
        See docs/data-parallel.md.
    :param memory_limit_bytes: of parameters, the optimizer's state, and the activations of a step; steps compute values twice or write them to a
        file (in `spill_folder`) to keep to it, with the same bits. 0: none.
    :param job: the `Job` that steps belong to; None: the environment's, if it names one.
    :param keywords:
    :param sess_options: threads, devices, memory, profiling and passes, as of an `InferenceSession`; the arguments above win.

    Methods that run take `run_options`, a `RunOptions`: cancellation, deadline, checks of values, dumps, metadata. A step that ends early
    has changed nothing, but for what `early_updates` says.
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
        """A trainer that goes on where `write_artifacts` was called, with the same bits. It has no `gradients`.

        :param sess_options: threads, devices, memory, job and profiling. What shapes graphs (optimisations, precision) is refused: artifacts have
            their trainer's.
        :raises treadle.Error: a file is missing, damaged, or of other artifacts; or the artifacts are of another version of the library.
        """
        self = cls.__new__(cls)
        self._trainer = _treadle.Trainer.open_artifacts(os.fspath(folder), sess_options)
        self._inputs = self._trainer.model.inputs
        _clients.add(self)
        return self

    def write_artifacts(self, folder: str | os.PathLike[str]) -> None:
        """Writes what it takes to train without the parts of the library that make graphs: training_model.onnx (forward, backward and update),
        eval_model.onnx, with `accumulation_steps` optimizer_model.onnx, inference_model.onnx and checkpoint.safetensors. The models have
        operators of the domain treadle, for this version of the library, on any processor. See docs/training.md.
        """
        self._trainer.write_artifacts(os.fspath(folder))

    def memory(self) -> MemoryReport:
        """Bytes that the trainer holds, now and at most so far, by class."""
        return report_of(self._trainer.memory_statistics())

    def set_memory_limit(self, limit_bytes: int) -> None:
        """Changes `memory_limit_bytes` for later steps; the trainer must have been made with a limit."""
        self._trainer.set_memory_limit(limit_bytes)

    def set_monitor(self, callback: Callable[[_treadle.MonitorEvent], None] | None, pattern: str = "*", inputs: bool = False) -> None:
        """As `InferenceSession.set_monitor()`, of all graphs that the trainer runs: gradients and updates are among the values. Setting another
        one compiles the graphs anew, in which every value of the model is there.
        """
        _treadle.monitor_trainer(self._trainer, callback, pattern, inputs)

    def end_profiling(self) -> str:
        """Ends what `sess_options.enable_profiling` began and writes the trace. Returns the file's path."""
        return self._trainer.end_profiling()

    def node_counters(self) -> list[NodeCounter]:
        """Like `InferenceSession.node_counters()`, if the option of `sess_options` is set."""
        return counters.read(self._trainer)

    def reset_node_counters(self) -> None:
        """Begins the counts anew."""
        _treadle.reset_node_counters(self._trainer)

    def step(self, feeds: Any, labels: Any, run_options: RunOptions | None = None) -> float:
        """Forward, backward and update, in place.

        :param feeds: the model's inputs: the array of the only one, a tuple in their order, or a dict by name. PyTorch's tensors are read in place.
        :param labels: as the loss takes them; None where it has none.
        :return: the loss before the update.
        :raises ValueError: an input is missing.
        :raises InvalidArgument: there is no such input, or a value has another dtype or shape than the model and the loss take.
        :raises Fail: the step was cancelled or passed its deadline; nothing has changed.
        :raises OutOfMemory: the step does not fit in `memory_limit_bytes`; nothing has changed.
        """
        with given(feeds, self._inputs) as taken:
            return self._trainer.step(taken, as_array(labels), run_options)

    def evaluate(self, feeds: Any, labels: Any, run_options: RunOptions | None = None) -> float:
        """The loss with the running statistics and without dropout; changes nothing."""
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
        :param validation: batches that each epoch ends with. With `ema_decay`, the averages are evaluated.
        :param metrics: "accuracy" (of the first output, over axis 1), or by name functions of the outputs and the labels of a batch, whose mean over
            the samples is taken, or objects with `reset()`, `update(outputs, labels)` and `result()`.
        :param callbacks: `Callback`s, or functions that are called with the `Fit` behind each epoch. `EarlyStopping` is one.
        :param steps_per_epoch: an epoch is so many steps, and the data go on where they were; by default all of the data.
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
        """Within `with trainer.averaged():` the averages are in the parameters' place: `evaluate`, `predict` and `save` have them.

        Steps and checkpoints are refused there. A trainer without `ema_decay` raises.
        """
        self._trainer.use_averages(True)
        try:
            yield
        finally:
            self._trainer.use_averages(False)

    def predict(self, feeds: Any, run_options: RunOptions | None = None) -> list[Any]:
        """The model's outputs, in order."""
        with given(feeds, self._inputs) as taken:
            return self._trainer.predict(taken, run_options)

    def gradients(self, feeds: Any, labels: Any, run_options: RunOptions | None = None) -> dict[str, np.ndarray]:
        """The loss's gradient by each parameter; changes nothing."""
        with given(feeds, self._inputs) as taken:
            return self._trainer.gradients(taken, as_array(labels), run_options)

    def __repr__(self) -> str:
        return f"Trainer(outputs={self.output_names}, learning_rate={self.learning_rate:g}, num_steps={self.num_steps})"

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Arrays over the parameters themselves: they change with every step, and may be written between steps."""
        return self._trainer.parameters

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Running means and variances, as `parameters`."""
        return self._trainer.states

    @property
    def momentum(self) -> dict[str, np.ndarray]:
        """The optimizer's velocity of each parameter, as `parameters`; empty for optimizers without."""
        return self._trainer.momentum

    @property
    def optimizer_state(self) -> dict[str, np.ndarray]:
        """All that the optimizer keeps, as `parameters`, by "PARAMETER/WHAT": momentum, mean, squares, average, gradient (of accumulation)."""
        return self._trainer.optimizer_state

    @property
    def averages(self) -> dict[str, np.ndarray]:
        """The exponential average of each parameter, as `parameters`; empty without `ema_decay`."""
        return self._trainer.averages

    @property
    def rank(self) -> int:
        """This trainer's among `num_ranks`, from 0; 0 without a communicator."""
        return self._trainer.rank

    @property
    def num_ranks(self) -> int:
        """Trainers that take steps together; 1 without a communicator."""
        return self._trainer.num_ranks

    @property
    def num_updates(self) -> int:
        """Updates of the parameters so far: steps divided by `accumulation_steps`."""
        return self._trainer.num_updates

    @property
    def num_steps(self) -> int:
        """Steps so far, those of accumulation included. What Dropout draws depends on it."""
        return self._trainer.num_steps

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss in the backward pass of the next step; None if `sess_options.precision` has no float16."""
        return self._trainer.loss_scale

    @property
    def num_skipped(self) -> int:
        """Steps so far that changed nothing, as a gradient was infinite or NaN with the loss scaled. `num_steps` does not count them."""
        return self._trainer.num_skipped

    @property
    def scheduled_rate(self) -> float:
        """The learning rate of the next update, by the schedule; groups have their factors of it."""
        return self._trainer.scheduled_rate

    @property
    def output_names(self) -> list[str]:
        """Names of the model's outputs, in its order."""
        return self._trainer.output_names

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next steps, before the schedule."""
        return self._trainer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._trainer.learning_rate = rate

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Writes the model as it was read, with the trained initializers; adapters are merged into their weights."""
        self._trainer.save(os.fspath(path), as_metadata(metadata))

    def to_bytes(self, metadata: Mapping[str, str] | None = None) -> bytes:
        """The model with the parameters as they are now, as an ONNX file's bytes."""
        return self._trainer.to_bytes(as_metadata(metadata))

    def save_checkpoint(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Writes all that it takes to go on with the same bits: parameters, states, the optimizer's state, counters, learning rate and settings.

        The file is a safetensors file with a checksum, complete or absent. `metadata` is the caller's own, such as the position in the data.
        """
        self._trainer.save_checkpoint(os.fspath(path), as_metadata(metadata))

    def load_checkpoint(self, path: str | os.PathLike[str], *, own_settings: bool = False) -> dict[str, str]:
        """Takes all of a checkpoint and returns its metadata. One that is damaged, of another model, or of other settings is an error, and then
        nothing has changed.

        :param own_settings: keep this trainer's loss, schedule, learning rate and numbers; only the optimizer must be the same.
        """
        return dict(self._trainer.load_checkpoint(os.fspath(path), own_settings))

    def save_adapters(self, path: str | os.PathLike[str]) -> None:
        """Writes the adapters of `lora` alone, as a safetensors file with PEFT's names and shapes; rank and alpha are its metadata."""
        self._trainer.save_adapters(os.fspath(path))

    def load_adapters(self, path: str | os.PathLike[str]) -> None:
        """Takes adapters that `save_adapters` or PEFT wrote. Others than this trainer's are an error, and then nothing has changed."""
        self._trainer.load_adapters(os.fspath(path))

    def to_text(self) -> str:
        """The forward, backward and update graph, one node a line."""
        return self._trainer.to_text()


Trainer.__doc__ = with_keywords(Trainer.__doc__, _treadle.TrainerOptions, TABLE)


def generate_artifacts(model: ModelLike, folder: str | os.PathLike[str], **options: Any) -> None:
    """`Trainer(model, **options).write_artifacts(folder)`: the offline step before training on another machine."""
    Trainer(model, **options).write_artifacts(folder)


class CheckpointFolder:
    """Checkpoints of one trainer in one folder, named by its steps; only one process may write there.

    ::

        checkpoints = CheckpointFolder("runs/7", keep_last=3)
        if resumed := checkpoints.resume(trainer):
            first_epoch = int(resumed[1]["epoch"])
        ...
        checkpoints.save(trainer, {"epoch": str(epoch)})

    :param keep_last: older checkpoints go when a newer one is complete; 0 keeps all.
    :param asynchronous: `save` copies the tensors and returns, and a thread writes them. What fails there, the next `save` or `wait` raises.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep_last: int = 3, asynchronous: bool = False) -> None:
        self._folder = _treadle.CheckpointFolder(os.fspath(folder), keep_last, asynchronous)

    def __repr__(self) -> str:
        return f"CheckpointFolder({self.files()})"

    def save(self, trainer: Trainer, metadata: Mapping[str, str] | None = None) -> str:
        """Writes a checkpoint, `metadata` with it. Returns its path."""
        return self._folder.save(trainer._trainer, as_metadata(metadata))

    def wait(self) -> None:
        """Until the last checkpoint is on disk."""
        self._folder.wait()

    def files(self) -> list[str]:
        """Complete checkpoints, oldest first."""
        return self._folder.files()

    def resume(self, trainer: Trainer, *, own_settings: bool = False) -> tuple[str, dict[str, str]] | None:
        """Loads the newest checkpoint that is not damaged, as `Trainer.load_checkpoint`. Returns its path and metadata, or None without any."""
        resumed = self._folder.resume(trainer._trainer, own_settings)
        return (resumed[0], dict(resumed[1])) if resumed else None


class EventFile:
    """A file of numbers over steps that TensorBoard reads, as `treadle train --tensorboard` writes them.

    ::

        events = EventFile("runs/7")
        for batch in loader:
            loss = trainer.step({"image": batch["image"]}, batch["label"])
            events.write(trainer.num_steps, {"step/loss": loss, "step/learning_rate": trainer.scheduled_rate})

    :param folder: a new file is made in it, and the folder if there is none.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._file = _treadle.EventFile(os.fspath(folder))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """The numbers by their names, at this step. They are on their way to the disk when the call returns."""
        self._file.write(step, [(str(name), float(value)) for name, value in scalars.items()])

    @property
    def path(self) -> str:
        """The file's metadata."""
        return self._file.path

    def __repr__(self) -> str:
        return f"EventFile({self.path!r})"


class DataLoader:
    """Batches of arrays, shuffled by a seed, whose position a checkpoint keeps. Each loop over it is one epoch, or what is left of one.

    ::

        loader = DataLoader({"image": images, "label": labels}, batch_size=64)
        if resumed := checkpoints.resume(trainer):
            loader.resume(resumed[1])
        while loader.epoch < 20:
            for batch in loader:
                trainer.step({"image": batch["image"]}, batch["label"])
            checkpoints.save(trainer, loader.to_metadata())

    :param arrays: a sample is a row of each; they are not copied (`numpy.load(path, mmap_mode="r")` keeps them in the file) and must not change.
    :param shuffle: another order in each epoch, by `seed` and epoch.
    :param drop_last: leave out the samples of an epoch that fill no batch.
    :param prefetch: so many batches are read ahead by a thread; 0: none.
    :param rank: of each batch, the part of this rank among `num_ranks`; `batch_size` counts the samples of all. A last batch with fewer samples
        than ranks is left out.
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
        """Batches an epoch."""
        return self._loader.batches_per_epoch

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        while (batch := self._loader.next()) is not None:
            yield batch

    def __repr__(self) -> str:
        return f"DataLoader(batches={len(self)}, epoch={self.epoch}, batch={self.batch})"

    @property
    def epoch(self) -> int:
        """The number of the next batch, from 0."""
        return self._loader.position[0]

    @property
    def batch(self) -> int:
        """Within the epoch, from 0."""
        return self._loader.position[1]

    def to_metadata(self) -> dict[str, str]:
        """The position, and what the order depends on, for the metadata of a checkpoint."""
        return dict(self._loader.to_metadata())

    def resume(self, metadata: Mapping[str, str]) -> None:
        """Goes on where `to_metadata` was taken. Other data or options are an error that names the first difference."""
        self._loader.resume(as_metadata(metadata))
