"""Inputs and weights of the networks that both the ancestors and Treadle run. Uses only NumPy, as every ancestor's environment imports it.

NumPy's `RandomState` gives the same numbers in every version, so recordings need not contain the inputs.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

SEED = 20  # shared by all scenarios; each network adds its own number


def normal(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Returns float32 arrays from the standard normal distribution, drawn in the order of the arguments."""
    rng = np.random.RandomState(SEED + seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def checksum(arrays: Mapping[str, np.ndarray]) -> int:
    """Returns a checksum, by which a recording shows the inputs that it was made with."""
    value = 0
    for name in sorted(arrays):
        value = zlib.crc32(np.ascontiguousarray(arrays[name]).tobytes(), zlib.crc32(name.encode(), value))
    return value


# A perceptron fc2(tanh(fc1(data))) with 4 rows of 5 numbers, 6 hidden units and 3 scores.
MLP = normal(0, fc1_weight=(6, 5), fc1_bias=(6,), fc2_weight=(3, 6), fc2_bias=(3,))
MLP_DATA = normal(1, data=(4, 5), head=(4, 3), more=(7, 5))
MLP_LABELS = np.array([0, 2, 1, 2], np.int64)

# A small convolutional network: conv 3x3, BatchNorm (eps 1e-3, momentum 0.8), Relu, MaxPool 2x2, a classifier.
CONV = normal(2, conv_weight=(4, 2, 3, 3), conv_bias=(4,), bn_gamma=(4,), bn_beta=(4,), fc_weight=(3, 36), fc_bias=(3,))
CONV_STATES = {"bn_moving_mean": np.float32([0.1, -0.2, 0.3, 0]), "bn_moving_var": np.float32([0.5, 1, 1.5, 2])}
CONV_DATA = normal(3, data=(2, 2, 6, 6), data_2=(2, 2, 6, 6), head=(2, 3))
EPSILON, MOMENTUM = 1e-3, 0.8

# An embedding table of 6 rows, of which the network reads some, and one of them twice.
TABLE = normal(4, table=(6, 3), head=(4, 3))
ROWS = np.array([4, 1, 4, 2], np.int64)

# A matrix with few stored elements, and a dense one that it is multiplied with.
SPARSE = normal(5, matrix=(5, 4), dense=(4, 3), head=(5, 3))
SPARSE["matrix"] = np.where(np.abs(SPARSE["matrix"]) > 0.9, SPARSE["matrix"], 0).astype(np.float32)
SPARSE["matrix"][2] = 0  # a row without stored elements

# Operands of single operators: some numbers, and points where a derivative jumps.
POINTS = np.float32([-2, -1, -0.5, 0, 0.25, 0.5, 1, 3])
POSITIVE = np.float32([0.1, 0.5, 1, 2, 3, 4, 5, 6])
OTHER = np.float32([-2, 1, -1, 0, 0.5, 0.25, 2, -3])
HEAD = np.float32([1, -1, 2, 0.5, 3, -2, 1, 0.25])


def chain(count: int) -> dict[str, np.ndarray]:
    """Returns the data of a training loop: `count` batches as one array."""
    return normal(6, batches=(count, 4, 5))
