"""Chooses the precision of a model: choose_precision gives a value for SessionOptions.precision."""

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
    """The fastest precision whose results stay within `bound` of float32's on these samples.

    The error is the largest difference over the largest value of an output; labels, tokens and other outputs that are not of floats must
    stay as they are. Where bfloat16 for all nodes is too coarse, the model is cut into `max_groups` groups of nodes, and as many of those
    that add least to the error get it as the bound allows. `samples` are as in treadle.quantize; the first one is timed, `timed_runs` times
    for each precision, in sessions with `sess_options`. The result's `precision` is "float32" where nothing faster keeps to the bound.

        choice = treadle.choose_precision("model.onnx", [{"x": x}], bound=1e-3)
        options.precision = choice.precision

    Raises treadle.errors.InvalidArgument without samples, or for a bound that is not positive.
    """
    return _choose(load_model(model), _source(samples), bound, max_groups, timed_runs, sess_options or SessionOptions())
