"""Compares treadle.torch.Module in two processes with Gloo, with averaged gradients and sharded parameters, with one process and both
halves of the batch."""

import copy
import os
import socket

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import torch_modules as modules
import treadle.torch
from torch import nn

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch has no Gloo", allow_module_level=True)

from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

STEPS, BATCH = 3, 8


def _module(kind):
    torch.manual_seed(3)
    return modules.KINDS[kind][0]()


def _batches(kind):
    torch.manual_seed(4)
    return [modules.KINDS[kind][1](BATCH) for _ in range(STEPS)]


def _train(module, batches):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    gradients = []
    for x in batches:
        optimizer.zero_grad()
        module(x).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in module.parameters()])
        optimizer.step()
    return gradients


def _run(rank, port, work, *args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    try:
        work(rank, *args)
    finally:
        torch.distributed.destroy_process_group()


def _in_two_processes(work, *args):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    torch.multiprocessing.spawn(_run, (port, work, *args), nprocs=2)


def _averages(rank, kind, folder):
    # With buckets and groups of 1 KB, a step has several all-reduces, which begin during the backward pass.
    module = treadle.torch.Module(_module(kind), gradient_group_mb=0.001)
    parallel = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=0.001)
    half = BATCH // 2
    gradients = _train(parallel, [x[rank * half : (rank + 1) * half] for x in _batches(kind)])
    assert treadle.torch.explain(module).num_graphs == 1
    torch.save((gradients, module.state_dict()), os.path.join(folder, f"{rank}.pt"))


@pytest.mark.parametrize("kind", ["gpt", "unet"])
def test_gradients_are_those_of_one_process(kind, tmp_path):
    _in_two_processes(_averages, kind, str(tmp_path))
    (first, state), (second, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    alone = copy.deepcopy(_module(kind))
    expected = _train(alone, _batches(kind))
    for ours, others, theirs in zip(first, second, expected, strict=True):
        for a, b, c in zip(ours, others, theirs, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c, rtol=1e-3, atol=1e-4 * float(c.abs().max()) + 1e-7)
    assert list(state) == list(alone.state_dict())


def _blocks():
    torch.manual_seed(6)
    return [nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)) for _ in range(3)]


def _losses(module, optimizer, x):
    losses = []
    for _ in range(5):
        loss = module(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return losses


def _shards(rank, how, folder):
    wrapped = [treadle.torch.Module(block) for block in _blocks()]
    module = nn.Sequential(*wrapped)
    optimizer_of = torch.optim.Adam
    if how == "fully_shard":  # frees each block's weights after its forward pass, and gathers them again for its backward pass
        for block in module:
            fully_shard(block, reshard_after_forward=True)
        fully_shard(module)
    elif how == "FullyShardedDataParallel":
        options = {"device_id": torch.device("cpu"), "use_orig_params": True}
        module = FullyShardedDataParallel(nn.Sequential(*[FullyShardedDataParallel(block, **options) for block in wrapped]), **options)
    else:
        module = nn.parallel.DistributedDataParallel(module)
        optimizer_of = lambda parameters, lr: ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=lr)  # noqa: E731
    torch.manual_seed(7)
    x = torch.randn(BATCH, 16)
    half = BATCH // 2
    losses = torch.stack(_losses(module, optimizer_of(module.parameters(), lr=0.01), x[rank * half : (rank + 1) * half]))
    torch.distributed.all_reduce(losses)
    for block in wrapped:
        # No part falls back to PyTorch, or is exported again.
        assert [event.what for event in treadle.torch.explain(block).events] == ["exported"]
    if rank == 0:
        torch.save(losses / 2, os.path.join(folder, "losses.pt"))


@pytest.mark.parametrize("how", ["ZeroRedundancyOptimizer", "fully_shard", "FullyShardedDataParallel"])
def test_sharded_training_goes_as_in_one_process(how, tmp_path):
    _in_two_processes(_shards, how, str(tmp_path))
    alone = nn.Sequential(*_blocks())
    torch.manual_seed(7)
    expected = _losses(alone, torch.optim.Adam(alone.parameters(), lr=0.01), torch.randn(BATCH, 16))
    torch.testing.assert_close(torch.load(tmp_path / "losses.pt"), torch.stack(expected), rtol=1e-4, atol=1e-6)
