"""MXNet's executors: arrays are bound to a model's arguments once, and `forward()` and `backward()` work on them in place.

    from treadle import mxnet

    executor = mxnet.simple_bind("model.onnx", x=(32, 784))
    executor.forward(is_train=True, x=images)
    executor.backward()
"""

from __future__ import annotations

from .executor import Executor, bind, simple_bind

__all__ = ["Executor", "bind", "simple_bind"]
