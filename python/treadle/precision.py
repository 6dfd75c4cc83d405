"""Chooses the precision of a model: choose_precision() returns a value for SessionOptions.precision."""

from __future__ import annotations

from ._models import ModelLike, load_model
from ._treadle import PrecisionChoice, SessionOptions, TriedPrecision
from ._treadle import choose_precision as _choose
from .quantization import Samples, _source

__all__ = ["PrecisionChoice", "TriedPrecision", "choose_precision"]


def choose_precision(
    model: ModelLike,
    samples: Samples,
    bound: float = 1e-3,
    *,
    sess_options: SessionOptions | None = None,
    max_groups: int = 16,
    timed_runs: int = 9,
) -> PrecisionChoice:
    """Finds the fastest precision whose results differ from those of float32 by at most `bound` on these samples.

    The error is the largest difference of an output divided by the output's largest value; outputs that are no floats, such as labels and tokens,
    must not change. If bfloat16 for all nodes is too imprecise, the nodes are divided into `max_groups` groups, and as many groups as the bound
    allows get bfloat16, beginning with those that add least to the error. `samples` are as in treadle.quantize. The first sample is timed,
    `timed_runs` times for each precision, in sessions with `sess_options`. The result's `precision` is "float32" if no faster one is within
    the bound.

        choice = treadle.choose_precision("model.onnx", [{"x": x}], bound=1e-3)
        options.precision = choice.precision

    Raises treadle.errors.InvalidArgument without samples, or for a bound that is not positive.
    """
    return _choose(load_model(model), _source(samples), bound, max_groups, timed_runs, sess_options or SessionOptions())
