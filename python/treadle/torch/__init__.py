"""Runs forward and backward passes of PyTorch modules by Treadle's graphs (`pip install treadle[torch]`).

::

    model = treadle.torch.Module(model)
"""

from ._distributed import communicator
from ._manager import Event, FallbackWarning
from ._module import Explanation, Module, explain
from ._plan import run_options

__all__ = ["Event", "Explanation", "FallbackWarning", "Module", "communicator", "explain", "run_options"]
