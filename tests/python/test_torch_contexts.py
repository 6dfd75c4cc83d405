"""Compares treadle.torch.Module within torch.utils.checkpoint and under torch.autocast with PyTorch."""

import copy
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import treadle.torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_pairs import OPTIONS, close, close_gradients, gradients, graphs, mlp, pair  # noqa: F401  a fixture among them
from treadle.torch import FallbackWarning, explain

pytestmark = pytest.mark.filterwarnings("error::treadle.torch.FallbackWarning")


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_calls(reentrant, gradients):
    ours, theirs = pair(mlp)
    results = []
    for module in (ours, theirs):
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        checkpoint(module, x * 2, use_reentrant=reentrant).square().sum().backward()
        results.append(x.grad)
    close(*results)
    close_gradients(ours, theirs)


def bytes_of_runs(module):
    """Returns the bytes of all runs, including those that wait for a backward pass."""
    plans = [plan for plans in module.__dict__["_manager"]._plans.values() for plan in plans]
    return sum(plan.joint.memory_statistics()["activations"]["bytes"] for plan in plans)


def test_a_checkpointed_call_keeps_no_activations():
    torch.manual_seed(0)
    module = treadle.torch.Module(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8)), **OPTIONS)
    x = torch.randn(128, 64, requires_grad=True)
    kept = module(x)
    held = bytes_of_runs(module)
    assert held > 128 * 256 * 4
    kept.sum().backward()
    made = checkpoint(module, x, use_reentrant=False)
    assert bytes_of_runs(module) == 0
    made.sum().backward()
    assert bytes_of_runs(module) == 0


def test_a_share_of_the_activations():
    torch.manual_seed(0)
    whole = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.GELU())), nn.Linear(128, 8))
    shares = [{"recompute_fraction": 0.0}, {"memory_fraction": 0.6}, {"recompute_fraction": 0.2}]
    modules = [treadle.torch.Module(copy.deepcopy(whole), **share, **OPTIONS) for share in shares]
    is_less = []  # runs recompute values; new extents have no such plan at first
    for rows in (256, 64, 256, 256):
        x = torch.randn(rows, 128)
        held = []
        for module in modules:
            made = module(x)
            held.append(bytes_of_runs(module))
            module.zero_grad()
            made.square().sum().backward()
        assert held[1] <= 0.65 * held[0]
        is_less.append(held[2] < held[0])
        for plain, *others in zip(*(module.parameters() for module in modules), strict=True):
            assert all(torch.equal(plain.grad, other.grad) for other in others)
    assert is_less[0] and is_less[-1]
    with torch.no_grad():
        assert torch.equal(modules[0](x), modules[1](x))
    for name in ("memory_fraction", "recompute_fraction"):
        with pytest.raises(ValueError, match=f"{name} is 2"):
            treadle.torch.Module(whole, **{name: 2})


@pytest.mark.parametrize("planes", [True, False])  # channels come first, as in ONNX, or last
def test_normalisations_are_computed_twice_although_their_statistics_have_moved(planes):
    torch.manual_seed(0)
    if planes:
        layers, x = [layer for _ in range(3) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())], torch.randn(8, 16, 24, 24)
    else:
        layers, x = [layer for _ in range(3) for layer in (nn.Linear(96, 96), nn.BatchNorm1d(96), nn.ReLU())], torch.randn(256, 96)
    plain = nn.Sequential(*layers)
    once, twice = (treadle.torch.Module(copy.deepcopy(plain), recompute_fraction=share, **OPTIONS) for share in (0.0, 0.5))
    for _ in range(2):
        for module in (plain, once, twice):
            module.zero_grad()
            module(x).square().mean().backward()
    assert bytes_of_runs(twice) < bytes_of_runs(once)
    for (name, expected), *others in zip(plain.named_parameters(), once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(others[1].grad, expected.grad, rtol=1e-3, atol=1e-5, msg=name)
        assert torch.equal(others[0].grad, others[1].grad), name
    for expected, *others in zip(plain.buffers(), once.buffers(), twice.buffers(), strict=True):
        assert torch.equal(others[0], others[1])
        torch.testing.assert_close(others[1], expected, rtol=1e-4, atol=1e-5)


def test_gradients_lie_where_activations_were_until_they_are_kept():
    torch.manual_seed(0)
    plain = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.GELU())), nn.Linear(128, 8))
    module = treadle.torch.Module(copy.deepcopy(plain), **OPTIONS)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in (plain, module)]

    def step(rows, before_forward):
        x = torch.randn(rows, 128)
        for m, optimizer in zip((plain, module), optimizers, strict=True):
            if before_forward:
                optimizer.zero_grad()
            y = m(x)
            if not before_forward:
                optimizer.zero_grad()
            y.square().mean().backward()
            optimizer.step()
        for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)

    def bytes_of_gradients():
        return max(plan.joint.memory_statistics()["gradients"]["peak_bytes"] for plans in module.__dict__["_manager"]._plans.values() for plan in plans)

    for _ in range(3):
        step(512, before_forward=True)
    in_arena = bytes_of_gradients()
    # These loops begin a run while gradients exist, and zero or add to the gradients after it.
    for _ in range(3):
        step(512, before_forward=False)
    assert in_arena < bytes_of_gradients()
    kept = [parameter.grad.clone() for parameter in module.parameters()]
    x = torch.randn(512, 128)
    for m in (plain, module):
        m(x).square().mean().backward()
    for before, ours, theirs in zip(kept, module.parameters(), plain.parameters(), strict=True):
        assert not torch.equal(before, ours.grad)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def chain(blocks, x, call):
    for block in blocks:
        x = call(lambda y, block=block: block(torch.relu(y)) + y, x)
    return x


@pytest.mark.parametrize("group_mb", [None, 0.0])
def test_checkpointed_functions_around_modules(group_mb):
    torch.manual_seed(0)
    theirs = nn.ModuleList(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6)) for _ in range(3))
    ours = nn.ModuleList(treadle.torch.Module(copy.deepcopy(block), gradient_group_mb=group_mb, **OPTIONS) for block in theirs)
    for blocks, call in ((ours, partial(checkpoint, use_reentrant=False)), (theirs, lambda f, x: f(x))):
        for step in range(2):
            y = chain(blocks, torch.linspace(-1, 1, 12).reshape(2, 6), call)
            y.square().sum().backward(retain_graph=True)
            y.sum().backward()
    close_gradients(ours, theirs)
    assert all(graphs(block) == 1 for block in ours)


def test_nested_checkpoints():
    ours, theirs = pair(mlp)
    results = []
    for module in (ours, theirs):
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        inner = partial(checkpoint, module, use_reentrant=False)
        checkpoint(lambda y, inner=inner: inner(y * 2).tanh(), x, use_reentrant=False).square().sum().backward()
        results.append(x.grad)
    close(*results)
    close_gradients(ours, theirs)


def test_a_checkpointed_dropout_goes_back_through_the_mask_it_has_shown():
    module = treadle.torch.Module(nn.Dropout(0.5), **OPTIONS)
    x = torch.ones(64, requires_grad=True)
    made = checkpoint(module, x, use_reentrant=False)
    made.sum().backward()
    assert 0 < int((made == 0).sum()) < 64
    assert torch.equal(x.grad, made.detach())


def wide_mlp():
    return nn.Sequential(nn.Linear(48, 96), nn.Tanh(), nn.LayerNorm(96), nn.Linear(96, 24))


def autocast_step(module, x, dtype):
    with torch.autocast("cpu", dtype=dtype):
        y = module(x)
        loss = y.float().square().mean()
    loss.backward()
    return y


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_rounds_products(dtype, gradients):
    ours, theirs = pair(wide_mlp)
    exact = copy.deepcopy(theirs).double()
    x = torch.randn(32, 48)
    made = [autocast_step(module, x, dtype) for module in (ours, theirs)]
    exact(x.double()).square().mean().backward()
    assert [y.dtype for y in made] == [dtype, dtype]
    close(*made, tolerance=0.02)
    for (name, a), b, c in zip(ours.named_parameters(), theirs.parameters(), exact.parameters(), strict=True):
        assert a.grad.dtype == torch.float32, name
        error = [float((gradient.double() - c.grad).norm() / c.grad.norm()) for gradient in (a.grad, b.grad)]
        assert 0 < error[0] < max(1.5 * error[1], 1e-3), (name, error)  # the results are rounded, but no worse than PyTorch's


def test_autocast_has_a_graph_of_its_own():
    ours, theirs = pair(wide_mlp)
    x = torch.randn(3, 48)
    plain = ours(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = ours(x)
    assert plain.dtype == torch.float32
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(ours(x), plain)
    close(plain, theirs(x))
    assert "autocast" in str(explain(ours))
    assert graphs(ours) == 2


@pytest.mark.parametrize("pack", [False, True])
def test_autocast_without_gradients(pack):
    torch.manual_seed(0)
    theirs = wide_mlp().eval()
    ours = treadle.torch.Module(copy.deepcopy(theirs), pack_weights=pack, **OPTIONS)
    x = torch.randn(5, 48)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            y = ours(x)
            assert y.dtype == torch.bfloat16
            close(y, theirs(x), tolerance=0.02)


def test_autocast_between_modules_of_pytorch():
    """The input has 16 bits, and so has its gradient."""
    results = []
    for wrap in (treadle.torch.Module, lambda module: module):
        torch.manual_seed(0)
        before, module = nn.Linear(8, 48), wide_mlp()
        wrapped = wrap(module)
        autocast_step(lambda x, wrapped=wrapped, before=before: wrapped(before(x)), torch.randn(16, 8), torch.bfloat16)
        results.append(before.weight.grad)
    close(*results, tolerance=0.03)


def test_what_draws_at_random_gets_the_dtypes_of_autocast():
    module = treadle.torch.Module(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), **OPTIONS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module(torch.ones(4, 8)).dtype == torch.bfloat16


def test_a_module_that_switches_autocast_runs_in_pytorch():
    class Switches(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            y = self.inner(x)
            with torch.autocast("cpu", enabled=False):
                return y.float() @ x.float().T

    ours, theirs = pair(Switches)
    x = torch.randn(4, 8)
    close(ours(x), theirs(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.warns(FallbackWarning, match="switches autocast"):
            y = ours(x)
        assert torch.equal(y, theirs(x))
