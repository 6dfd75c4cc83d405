"""Tests treadle.torch.run_options: limits, checks and monitors for the graphs of PyTorch modules."""

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import treadle.torch
from torch import nn
from torch_pairs import OPTIONS
from treadle import RunOptions
from treadle.torch import run_options

pytestmark = pytest.mark.filterwarnings("error::treadle.torch.FallbackWarning")


class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return torch.sqrt(self.linear(x))


def positive():
    module = Root()
    with torch.no_grad():
        module.linear.weight.fill_(1.0)
        module.linear.bias.zero_()
    return module


def test_a_cancelled_call_is_an_error_and_the_next_one_works():
    module, x = treadle.torch.Module(positive(), **OPTIONS), torch.ones(2, 4)
    module(x).sum().backward()
    options = RunOptions()
    options.terminate = True
    for gradients in (torch.enable_grad(), torch.no_grad()):
        with gradients, run_options(options), pytest.raises(treadle.errors.Error) as error:
            module(x)
        assert error.value.code == "cancelled"
    assert torch.allclose(module(x), torch.full((2, 3), 2.0))


def test_the_backward_pass_has_the_options_of_its_call():
    module, x = treadle.torch.Module(positive(), **OPTIONS), torch.ones(2, 4)
    module(x)
    options = RunOptions()
    with run_options(options):
        loss = module(x).sum()
    options.terminate = True
    with pytest.raises(treadle.errors.Error) as error:
        loss.backward()
    assert error.value.code == "cancelled"


def test_values_are_checked():
    module = treadle.torch.Module(positive(), **OPTIONS)
    assert torch.isnan(module(-torch.ones(2, 4))).all()
    options = RunOptions()
    options.check_finite = "nan"
    with run_options(options):
        module(torch.ones(2, 4))
        with pytest.raises(treadle.errors.Error, match="NaN"):
            module(-torch.ones(2, 4))
        with run_options(None):
            module(-torch.ones(2, 4))


def test_packed_weights_have_them_too():
    module, x = treadle.torch.Module(positive(), pack_weights=True, **OPTIONS).eval(), torch.ones(2, 4)
    options = RunOptions()
    options.terminate = True
    with torch.no_grad():
        for _ in range(3):
            module(x)
        with run_options(options), pytest.raises(treadle.errors.Error) as error:
            module(x)
    assert error.value.code == "cancelled"


def test_metadata_come_when_both_passes_have_ended():
    module, x = treadle.torch.Module(positive(), **OPTIONS), torch.ones(2, 4)
    module(x).sum().backward()
    seen = []
    options = RunOptions()
    options.on_metadata = seen.append
    with run_options(options):
        loss = module(x).sum()
    assert not seen
    loss.backward()
    assert len(seen) == 1
    assert len(seen[0].nodes) >= 3


def test_a_deadline_that_is_far_away_changes_nothing():
    module, x = treadle.torch.Module(positive(), **OPTIONS), torch.ones(2, 4)
    module(x).sum().backward()
    expected = module.linear.weight.grad.clone()
    module.zero_grad()
    options = RunOptions()
    options.deadline_ms = 600_000
    with run_options(options):
        module(x).sum().backward()
    assert torch.equal(module.linear.weight.grad, expected)


def test_other_threads_have_their_own():
    module, x = treadle.torch.Module(positive(), **OPTIONS), torch.ones(2, 4)
    module(x)
    options = RunOptions()
    options.terminate = True
    results = []
    with run_options(options):
        thread = threading.Thread(target=lambda: results.append(module(x)))
        thread.start()
        thread.join()
    assert len(results) == 1
