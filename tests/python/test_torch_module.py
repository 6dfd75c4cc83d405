"""Compares treadle.torch.Module with PyTorch, for the same modules, weights, inputs and optimizers."""

import copy
import io
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import torch_modules as modules
import treadle.torch
from torch import nn
from torch_pairs import OPTIONS, close, close_gradients, gradients, graphs, mlp, pair  # noqa: F401  a fixture among them
from treadle.torch import FallbackWarning, _manager, explain

pytestmark = pytest.mark.filterwarnings("error::treadle.torch.FallbackWarning")


def test_evaluation_sees_every_change_of_the_weights():
    ours, theirs = pair(mlp)
    ours.eval(), theirs.eval()
    x = torch.randn(5, 4)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.5) for module in (ours, theirs)]
    other = mlp().state_dict()

    def step(module, optimizer):
        optimizer.zero_grad()
        module(x).square().sum().backward()
        optimizer.step()

    def write(module):
        module[0].weight.data[1, 2] = 4.0  # PyTorch does not count writes to .data

    def replace(module):
        module[2].weight.data = torch.full((3, 8), 0.25)

    def turn(module):
        module[0].weight.data = torch.arange(32.0).reshape(4, 8).t() / 10  # the weight is not contiguous

    def write_turned(module):
        module[0].weight.data[3, 1] = -7.0

    changes = [write, replace, lambda module: module.load_state_dict(other), turn, write_turned]
    with torch.no_grad():
        for _ in range(2):
            close(ours(x), theirs(x))
    for module, optimizer in zip((ours, theirs), optimizers, strict=True):
        step(module, optimizer)
    for change in changes:
        with torch.no_grad():
            close(ours(x), theirs(x))
        change(ours)
        change(theirs)
        with torch.no_grad():
            for _ in range(2):
                close(ours(x), theirs(x))


@pytest.mark.parametrize("kind", modules.KINDS)
def test_training_goes_as_in_pytorch(kind, gradients):
    make, inputs = modules.KINDS[kind]
    ours, theirs = pair(make)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9) for module in (ours, theirs)]
    losses = ([], [])
    for step in range(8):
        x = inputs(4 if step % 2 else 6)
        wanted = None
        for module, optimizer, found in zip((ours, theirs), optimizers, losses, strict=True):
            y = module(x)
            wanted = torch.randn_like(y) if wanted is None else wanted
            loss = nn.functional.mse_loss(y, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        close(ours.state_dict()[name], value, 5e-3)
    assert graphs(ours) == 1  # another batch size needs no other graph
    ours.eval(), theirs.eval()
    with torch.no_grad():
        close(ours(x), theirs(x), 5e-3)


def test_a_transformer_of_the_library_of_that_name():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                                     hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3)  # fmt: skip
    ours, theirs = pair(lambda: transformers.BertForSequenceClassification(config).train())
    for batch, length in ((3, 7), (2, 11)):
        feeds = {"input_ids": torch.randint(0, 40, (batch, length)), "attention_mask": torch.ones(batch, length, dtype=torch.int64),
                 "labels": torch.randint(0, 3, (batch,))}  # fmt: skip
        feeds["attention_mask"][0, 4:] = 0
        found = [module(**feeds) for module in (ours, theirs)]
        assert type(found[0]) is type(found[1])
        close(found[0].logits, found[1].logits)
        for result in found:
            result.loss.backward()
        close(found[0].loss, found[1].loss)
        close_gradients(ours, theirs)
    assert ours.config.hidden_size == 32


def test_nested_inputs_and_outputs():
    ours, theirs = pair(modules.Nested)
    x, extra = torch.randn(5, 4), torch.randn(4, requires_grad=True)
    for given in ({}, {"scale": 2.0}, {"extra": extra}, {"pair": (None, torch.randn(5, 1))}):
        a, b = (module({"x": x}, **given) for module in (ours, theirs))
        assert type(a) is modules.Scores
        assert a.note == "given"
        assert a.parts["shape"] == 4
        assert a.parts["all"][1][1] is None
        assert a.parts["all"][1][0].dtype == torch.int64
        assert not a.parts["all"][1][0].requires_grad
        assert torch.equal(a.parts["all"][1][0], b.parts["all"][1][0])
        for result in (a, b):
            (result.mean.sum() + result.parts["all"][0].square().sum()).backward()
        close(a.mean, b.mean)
        close_gradients(ours, theirs)
    assert graphs(ours) == 4
    assert "structure or a constant" in explain(ours).events[1].why


def test_gradients_of_inputs_and_of_some_outputs(gradients):
    ours, theirs = pair(modules.Nested)
    results = []
    for module in (ours, theirs):
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        module({"x": x}).mean.sum().backward()  # the other outputs get no gradient
        results.append(x.grad)
    close(*results)


def test_a_parameter_that_nothing_depends_on_has_no_gradient(gradients):
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x)

    ours, theirs = pair(Spare)
    x = torch.randn(3, 4)
    for module in (ours, theirs):
        module(x).sum().backward()
    close_gradients(ours, theirs)
    assert ours.spare.weight.grad is None


def test_gradients_are_memory_of_their_own(gradients):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return x + self.a + self.b

    module = treadle.torch.Module(Sum(), **OPTIONS)
    head = torch.ones(3)
    module(torch.zeros(3)).backward(head)
    module.a.grad.zero_()
    assert module.b.grad.tolist() == [1, 1, 1]
    assert head.tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["resnet", "tagger"])
def test_several_forwards_before_a_backward(kind, gradients):
    make, inputs = modules.KINDS[kind]
    ours, theirs = pair(make)
    batches = [inputs(3), inputs(5), inputs(3)]
    for module in (ours, theirs):
        outputs = [module(x) for x in batches]
        module(batches[0])  # without gradients, the graph has no backward pass
        for y in reversed(outputs):
            y.square().mean().backward()
    close_gradients(ours, theirs)
    for name, value in theirs.state_dict().items():
        close(ours.state_dict()[name], value)


def test_retained_graphs_go_back_again(gradients):
    ours, theirs = pair(modules.resnet)
    x = modules.images(3)
    for module in (ours, theirs):
        loss = module(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    close_gradients(ours, theirs)
    for name, value in theirs.state_dict().items():  # statistics must have been updated once
        close(ours.state_dict()[name], value)


def test_a_parameter_written_to_before_the_backward_pass_is_an_error(gradients):
    module = treadle.torch.Module(mlp(), **OPTIONS)
    y = module(torch.randn(2, 4)).sum()
    with torch.no_grad():
        module[0].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_outputs_may_be_written_to():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return torch.sigmoid(self.linear(x))  # the gradient of sigmoid reads its output

    ours, theirs = pair(Gate)
    x = torch.randn(3, 4)
    y = ours(x)
    z = theirs(x).clone()
    for value in (y, z):
        value.mul_(3.0)
        value.sum().backward()
    close_gradients(ours, theirs)


def test_without_gradients():
    ours, theirs = pair(modules.resnet)
    x = modules.images(3)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            y = ours(x)
            assert not y.requires_grad
            close(y, theirs(x))
    for name, value in theirs.state_dict().items():  # a module in training mode updates statistics even without gradients
        close(ours.state_dict()[name], value)
    ours.eval(), theirs.eval()
    close(ours(x), theirs(x))
    ours(x).sum().backward()
    theirs(x).sum().backward()
    close_gradients(ours, theirs)
    before = copy.deepcopy(ours.state_dict())
    ours(x)
    for name, value in ours.state_dict().items():
        assert torch.equal(value, before[name])


def test_evaluation_sees_weights_that_were_written_behind_autograd():
    ours, theirs = pair(mlp)
    x = torch.randn(2, 4)
    for module in (ours, theirs):
        module.eval()
    with torch.no_grad():
        for factor in (1.0, 2.0, 3.0):
            for module in (ours, theirs):
                module[2].weight.data.mul_(factor)
                module[0].weight.data = module[0].weight.data * factor  # this replaces the tensor's memory
            for _ in range(4):
                close(ours(x), theirs(x))


def test_packed_weights_follow_the_optimizer():
    torch.manual_seed(0)
    theirs = modules.resnet()
    ours = treadle.torch.Module(copy.deepcopy(theirs), num_threads=1, pack_weights=True)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (ours, theirs)]
    x = modules.images(3)
    for _ in range(3):
        for module, optimizer in zip((ours, theirs), optimizers, strict=True):
            module.train()
            module(x).square().mean().backward()
            optimizer.step()
            module.eval()
        with torch.inference_mode():
            for batch in (x, x, x[:2]):
                close(ours(batch), theirs(batch))
    for module in (ours, theirs):
        module[6].bias.data += 1
    ours.repack()
    with torch.no_grad():
        close(ours(x), theirs(x))
    assert graphs(ours) == 2


def test_frozen_parts(gradients):
    def make():
        network = modules.resnet()
        for parameter in network[2].parameters():
            parameter.requires_grad_(False)
        return network

    ours, theirs = pair(make)
    for module in (ours, theirs):
        module[3].eval()  # its normalisations do not update statistics
    x = modules.images(4)
    for module in (ours, theirs):
        module(x).square().sum().backward()
    close_gradients(ours, theirs)
    for name, value in theirs.state_dict().items():
        close(ours.state_dict()[name], value)
    for module in (ours, theirs):
        module[2].requires_grad_(True)
        module.zero_grad()
        module(x).square().sum().backward()
    close_gradients(ours, theirs)
    assert "other tensors require gradients" in explain(ours).events[-1].why


def test_tied_weights_have_one_gradient(gradients):
    ours, theirs = pair(modules.Gpt)
    ids = modules.ids(2)
    for module in (ours, theirs):
        module(ids).square().mean().backward()
    assert ours.head.weight is ours.words.weight
    close_gradients(ours, theirs)


def test_hooks_fire(gradients):
    ours, theirs = pair(mlp)
    seen = []
    for module in (ours, theirs):
        calls = []
        module[0].weight.register_hook(lambda grad, calls=calls: calls.append("parameter") or grad * 2)
        module.register_forward_hook(lambda module, args, y, calls=calls: calls.append("forward"))
        y = module(torch.ones(2, 4))
        y.register_hook(lambda grad, calls=calls: calls.append("output"))
        y.sum().backward()
        seen.append(calls)
    assert seen[0] == seen[1] == ["forward", "output", "parameter"]
    close_gradients(ours, theirs)


def test_hooks_run_while_other_gradients_are_to_be_computed():
    def layers():
        return nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])

    freed = treadle.torch.Module(layers(), num_threads=1, gradient_group_mb=0.0)
    sums = []

    def hook(parameter):
        with torch.profiler.record_function("hook"):
            sums.append(float(parameter.grad.sum()))
            parameter.grad = None

    for parameter in freed.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    x = torch.ones(2, 4)
    freed(x).sum().backward()
    assert len(sums) == 6
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        freed(x).sum().backward()
    ranges = sorted((event.time_range.start, event.name) for event in recorded.events() if event.name in ("hook", "treadle::backward"))
    names = [name for _, name in ranges]
    assert names.count("hook") == 6
    assert names.index("hook") < len(names) - 1 - names[::-1].index("treadle::backward")


def test_a_backward_pass_may_end_before_all_gradients_are_made():
    ours = treadle.torch.Module(mlp(), gradient_group_mb=0.0)
    theirs = copy.deepcopy(ours.wrapped)
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    made = []
    for module in (ours, theirs):
        loss = module(x).square().sum()
        last = torch.autograd.grad(loss, module[2].bias, retain_graph=True)
        first = torch.autograd.grad(loss, module[0].weight, retain_graph=True)
        made.append([*last, *first, *torch.autograd.grad(loss, list(module.parameters()))])
    for a, b in zip(*made, strict=True):
        close(a, b)


@pytest.mark.parametrize("size", [-1, float("nan")])
def test_groups_of_no_size_are_an_error(size):
    with pytest.raises(ValueError, match="gradient_group_mb"):
        treadle.torch.Module(mlp(), gradient_group_mb=size)


def test_hooks_within_are_kept_by_pytorch():
    module = treadle.torch.Module(mlp())
    calls = []
    handle = module[0].register_forward_hook(lambda *_: calls.append(1))
    with pytest.warns(FallbackWarning, match="0 \\(Linear\\) has hooks"):
        module(torch.ones(2, 4))
    module(torch.ones(2, 4))
    assert len(calls) == 2
    handle.remove()
    module(torch.ones(2, 4))
    assert len(calls) == 2
    assert graphs(module) == 1


def test_clipping_and_accumulation(gradients):
    ours, theirs = pair(mlp)
    for module in (ours, theirs):
        for x in (torch.ones(2, 4), torch.full((3, 4), -2.0)):
            module(x).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    close_gradients(ours, theirs)


def test_double_backward_of_one_gradient_is_refused():
    module = treadle.torch.Module(nn.Linear(3, 2, bias=False))
    (grad,) = torch.autograd.grad(module(torch.ones(1, 3)).sum(), module.weight, create_graph=True)
    assert grad.tolist() == [[1, 1, 1], [1, 1, 1]]
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        grad.sum().backward()


def test_double_backward_is_refused(gradients):
    module = treadle.torch.Module(mlp(), **OPTIONS)
    x = torch.randn(2, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    assert grad.requires_grad
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        grad.square().sum().backward()


def test_state_dict_deepcopy_and_pickle():
    ours, theirs = pair(modules.resnet)
    x = modules.images(2)
    ours(x).sum().backward()
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    with io.BytesIO() as file:
        torch.save(ours.state_dict(), file)
        file.seek(0)
        theirs.load_state_dict(torch.load(file))
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert isinstance(copied, treadle.torch.Module)
        assert next(copied.parameters()).data_ptr() != next(ours.parameters()).data_ptr()
        assert copied.training
        close(copied.eval()(x), theirs.eval()(x))
    outer = nn.Sequential(ours, nn.Identity())
    assert list(outer.state_dict()) == ["0." + name for name in theirs.state_dict()]
    outer.load_state_dict({"0." + name: value for name, value in theirs.state_dict().items()})
    assert {id(p) for p in outer.parameters()} == {id(p) for p in ours.wrapped.parameters()}


def test_tensors_that_are_plain_attributes_are_read_as_they_are():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.scale = nn.Linear(2, 2), torch.tensor([2.0, 3.0])

        def forward(self, x):
            return self.linear(x) * self.scale

    ours, theirs = pair(Scaled)
    x = torch.ones(1, 2)
    for change in (lambda module: None, lambda module: setattr(module, "scale", torch.tensor([5.0, 7.0])), lambda module: module.scale.mul_(2)):
        for module in (ours, theirs):
            change(module)
        close(ours(x), theirs(x))
    assert graphs(ours) == 1
    for module in (ours, theirs):
        module.scale = torch.tensor([1.0, 2.0], requires_grad=True)
        module(x).sum().backward()
    close(ours.scale.grad, theirs.scale.grad)


def test_memory_that_ran_out_is_asked_for_again(monkeypatch):
    ours, theirs = pair(mlp)
    manager, x = ours._manager, torch.randn(5, 4)
    find = manager._find

    def starve(*arguments):
        raise treadle.errors.OutOfMemory("none left", code="resource_exhausted")

    monkeypatch.setattr(manager, "_find", starve)
    with pytest.warns(FallbackWarning, match="runs in PyTorch: none left$"):
        close(ours(x), theirs(x))
    monkeypatch.setattr(manager, "_find", find)
    close(ours(x), theirs(x))
    assert explain(ours).events[-1].what != "in PyTorch"


def test_another_class_is_the_wrappers_own():
    class Other(treadle.torch.Module):
        pass

    module = treadle.torch.Module(mlp())
    module.__class__ = Other  # torch.distributed.fsdp replaces a module's class like this
    assert type(module) is Other
    assert type(module.wrapped) is nn.Sequential
    assert module(torch.ones(1, 4)).shape == (1, 3)


def test_a_changed_attribute_makes_another_graph():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.factor, self.config = nn.Linear(4, 4), 2.0, {"shift": 1.0}

        def forward(self, x):
            return self.linear(x) * self.factor + self.config["shift"]

    ours, theirs = pair(Scaled)
    x = torch.randn(3, 4)
    close(ours(x), theirs(x))
    for module in (ours, theirs):
        module.factor = 3.0
    close(ours(x), theirs(x))
    for module in (ours, theirs):
        module.config["shift"] = -1.0
    close(ours(x), theirs(x))
    for module in (ours, theirs):
        module.linear = nn.Linear(4, 4)
    theirs.linear.load_state_dict(ours.linear.state_dict())
    close(ours(x), theirs(x))
    assert graphs(ours) == 3
    ours.factor, ours.config["shift"] = 2.0, 1.0
    ours(x)
    assert graphs(ours) == 3
    assert [event.exporter for event in explain(ours).events] == ["torch.export"] * 3
    assert "an attribute" in str(explain(ours))


def test_an_attribute_that_changes_with_every_call_fills_no_memory():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(3, 2), 0

        def forward(self, x):
            return self.layer(x)

    module, x = Counted(), torch.randn(4, 3)
    ours = treadle.torch.Module(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for module.calls in range(600):
            close(ours(x), module(x))
    manager = ours._manager
    assert explain(ours).num_graphs == _manager._MAX_GRAPHS
    assert len(manager._all_attributes) <= _manager._MAX_ATTRIBUTES and len(manager._refused) <= _manager._MAX_ATTRIBUTES
    module.calls = 3  # an existing graph is used again
    events = len(explain(ours).events)
    close(ours(x), module(x))
    assert len(explain(ours).events) == events and any(plan.joint for plan in manager._known.values())


def test_batches_of_one_are_no_other_graph():
    ours, theirs = pair(modules.resnet)
    ours.eval(), theirs.eval()
    for batch in (1, 3, 2):
        x = modules.images(batch)
        close(ours(x), theirs(x))
    assert graphs(ours) == 1
    x = torch.randn(2, 3, 24, 24)  # another image size needs one more graph
    close(ours(x), theirs(x))
    x = torch.randn(2, 3, 32, 32)
    close(ours(x), theirs(x))
    assert graphs(ours) == 2


def test_dropout_drops_by_pytorchs_generator():
    module = treadle.torch.Module(nn.Sequential(nn.Linear(200, 500), nn.Dropout(0.3)))
    x = torch.randn(20, 200)

    def draw(seed):
        torch.manual_seed(seed)
        return module(x)

    first, again, other = draw(1), draw(1), draw(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    dropped = float((first == 0).double().mean())
    assert abs(dropped - 0.3) < 0.02  # share of 10,000 elements; its standard deviation is 0.0046
    close(first[first != 0], (module.wrapped[0](x) / 0.7)[first != 0])
    module.zero_grad()
    first.sum().backward(retain_graph=True)
    close(module[0].bias.grad, ((first != 0) / 0.7).sum(0))
    gradient = module[0].bias.grad.clone()
    module.zero_grad()
    first.sum().backward()  # random numbers are drawn once, even if the pass is repeated
    assert torch.equal(module[0].bias.grad, gradient)
    module.eval()
    close(module(x), module.wrapped[0](x))


def test_what_cannot_be_exported_runs_in_pytorch_by_parts(monkeypatch):
    tried = []
    export = _manager.export
    monkeypatch.setattr(_manager, "export", lambda module, *rest: tried.append(type(module)) or export(module, *rest))
    ours, theirs = pair(modules.Branching)
    x = torch.randn(3, 4)
    with pytest.warns(FallbackWarning, match="Branching runs in PyTorch: torch.export: .*1 of its parts"):
        y = ours(x)
    close(y, theirs(x))
    for module in (ours, theirs):
        for value in (x, -x, torch.ones(2, 4)):
            module(value).square().sum().backward()
    close_gradients(ours, theirs)
    assert [event.what for event in explain(ours).parts["body"].events] == ["exported"]
    assert tried == [modules.Branching, nn.Sequential]  # each module has been tried once
    assert "forward" not in ours.body.__dict__
    copy.deepcopy(ours)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (modules.Counting, "writes to state:calls"),
        (modules.Replacing, "another tensor in the place of .last."),
        (lambda: mlp().double(), "is torch.float64; gradients exist for float32"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)), "cumulative average"),
    ],
)
def test_modules_that_stay_in_pytorch(make, reason):
    ours, theirs = pair(make)
    x = torch.randn(3, 4, dtype=next(theirs.parameters()).dtype)
    with pytest.warns(FallbackWarning, match=reason) as caught:
        for _ in range(3):
            ours(x).sum().backward()
            theirs(x).sum().backward()
    assert len([warning for warning in caught if warning.category is FallbackWarning]) == 1
    close_gradients(ours, theirs)
    for name, value in theirs.state_dict().items():
        close(ours.state_dict()[name], value)


def test_inputs_that_cannot_be_taken_apart():
    class Holder:
        def __init__(self, x):
            self.x = x

    class Takes(nn.Module):
        def forward(self, holder):
            return holder.x * 2

    module = treadle.torch.Module(Takes())
    with pytest.warns(FallbackWarning, match="Holder"):
        assert module(Holder(torch.ones(2))).tolist() == [2, 2]


def test_other_tracers_see_the_module_itself():
    ours, theirs = pair(mlp)
    x = torch.randn(3, 4)
    with pytest.warns(FallbackWarning, match=r"torch\.func"):
        gradients = torch.func.grad(lambda given: ours(given).sum())(x)
    close(gradients, torch.func.grad(lambda given: theirs(given).sum())(x))
    program = torch.export.export(ours, (x,), strict=False)
    close(program.module()(x), theirs(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(ours, x, check_trace=False)
    close(traced(-x), theirs(-x))
    assert graphs(ours) == 0


def test_threads_share_a_module():
    ours, theirs = pair(mlp)
    batches = [torch.randn(2 + i, 4) for i in range(4)]
    parameters = list(ours.parameters())  # the test reads them here, because nothing may ask the module for them during an export

    def gradient(x):
        return torch.autograd.grad(ours(x).square().sum(), parameters)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(gradient, batches * 5))
    for x, gradients in zip(batches * 5, found, strict=True):
        for a, b in zip(gradients, torch.autograd.grad(theirs(x).square().sum(), list(theirs.parameters())), strict=True):
            close(a, b)
    assert graphs(ours) == 1


def test_an_export_leaves_the_module_to_other_threads():
    """While the module is traced, other threads see its own parameters and its own mode."""

    class Watching(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 3)
            self.all = [self.norm, self.out]  # contains modules that the module also has under another name

        def forward(self, x):
            seen.append(([id(p) for p in watched[0].parameters()], watched[0].norm.training))
            for part in self.all:
                x = part(x)
            return x

    seen, watched = [], []
    ours, theirs = Watching(), Watching()
    theirs.load_state_dict(ours.state_dict())
    watched.append(ours)
    own = [id(p) for p in ours.parameters()]
    wrapped = treadle.torch.Module(ours, num_threads=1)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.5) for module in (ours, theirs)]
    for _ in range(3):  # parameters are inputs of the graph, not constants
        x = torch.randn(8, 4)
        for module, optimizer in zip((wrapped, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
    assert graphs(wrapped) == 1
    assert seen and all(found == (own, True) for found in seen)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(a, b)


def test_a_forward_function_of_a_closure_trains_too():
    """A forward function that is a closure reads the original's parameters, even in a copy of the module."""
    torch.manual_seed(2)
    ours, theirs = nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(4, 3))
    theirs.load_state_dict(ours.state_dict())
    for module in (ours, theirs):
        module.forward = lambda x, module=module: torch.tanh(module[0](x))
    wrapped = treadle.torch.Module(ours, num_threads=1)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.5) for module in (ours, theirs)]
    for _ in range(3):
        x = torch.randn(8, 4)
        for module, optimizer in zip((wrapped, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(a, b)


def test_strided_inputs_and_parameters():
    ours, theirs = pair(lambda: modules.resnet().to(memory_format=torch.channels_last))
    x = modules.images(4).to(memory_format=torch.channels_last)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (ours, theirs)]
    for _ in range(2):
        for module, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            module(x[::2]).square().mean().backward()
            optimizer.step()
    close_gradients(ours, theirs)
    assert ours[2].first[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_wrong_uses_say_so():
    with pytest.raises(TypeError, match=r"a torch.nn.Module is expected, got a function"):
        treadle.torch.Module(mlp)
    module = treadle.torch.Module(mlp())
    with pytest.raises(TypeError, match=r"is a treadle.torch.Module already"):
        treadle.torch.Module(module)
    with pytest.raises(TypeError, match=r"a treadle.torch.Module is expected"):
        explain(mlp())
    assert str(explain(module)) == "not called yet"
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = module.nothing_of_that_name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # the message is PyTorch's own
            module(torch.randn(2, 5))
        module(torch.randn(2, 4))
    assert graphs(module) == 1  # one failed call does not affect later ones


def test_torchs_profiler_shows_the_graphs_ranges():
    ours, _ = pair(mlp)
    x = torch.ones(5, 4)
    ours(x).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        for _ in range(3):
            ours(x).sum().backward()
    counts = {row.key: row.count for row in recorded.key_averages()}
    assert counts["treadle::forward"] == 3
    assert counts["treadle::backward"] == 3
