"""Pairs of a wrapped module and the same module in PyTorch, for the tests of treadle.torch."""

import copy

import pytest
import torch
import treadle.torch
from torch import nn
from treadle.torch import explain

OPTIONS = {"num_threads": 1}


@pytest.fixture(params=[None, 0.0], ids=["together", "one_by_one"])
def gradients(request, monkeypatch):
    """Sets whether gradients reach autograd together or one by one."""
    monkeypatch.setitem(OPTIONS, "gradient_group_mb", request.param)


def pair(make, seed=0):
    """Returns a wrapped module, and its copy in PyTorch."""
    torch.manual_seed(seed)
    module = make()
    return treadle.torch.Module(module, **OPTIONS), copy.deepcopy(module)


def close(ours, theirs, tolerance=1e-4):
    """Compares tensors; the tolerance is relative to the largest magnitude."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= tolerance * max(float(theirs.abs().max()), 1e-6)


def close_gradients(ours, theirs, tolerance=1e-3):
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            close(a.grad, b.grad, tolerance)


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def graphs(module):
    return explain(module).num_graphs
