"""treadle.torch.Module under DistributedDataParallel: two processes with Gloo beside one with both halves of the batch."""

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


def _worker(rank, kind, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    try:
        # Buckets and groups of 1 KB: several all-reduces a step, which begin while the rest is computed.
        module = treadle.torch.Module(_module(kind), gradient_group_mb=0.001)
        parallel = nn.parallel.DistributedDataParallel(module, bucket_cap_mb=0.001)
        half = BATCH // 2
        gradients = _train(parallel, [x[rank * half : (rank + 1) * half] for x in _batches(kind)])
        assert treadle.torch.explain(module).num_graphs == 1
        torch.save((gradients, module.state_dict()), os.path.join(folder, f"{rank}.pt"))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["gpt", "unet"])
def test_gradients_are_those_of_one_process(kind, tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    torch.multiprocessing.spawn(_worker, (kind, port, str(tmp_path)), nprocs=2)
    (first, state), (second, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    alone = copy.deepcopy(_module(kind))
    expected = _train(alone, _batches(kind))
    for ours, others, theirs in zip(first, second, expected, strict=True):
        for a, b, c in zip(ours, others, theirs, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c, rtol=1e-3, atol=1e-4 * float(c.abs().max()) + 1e-7)
    assert list(state) == list(alone.state_dict())
