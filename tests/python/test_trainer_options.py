"""Checks that the keywords of trainers equal the options in the core's table."""

from __future__ import annotations

import pathlib
import typing

import pytest
import treadle
from treadle import _trainer_options, _treadle
from treadle._trainer_options import TABLE
from treadle.train import Trainer

from keyword_stubs import keyword_types

SPIRALS = pathlib.Path(__file__).parents[2] / "examples" / "train" / "spirals.onnx"
# Options that Python passes in another form than the core.
OTHERWISE = {"loss", "schedule", "groups", "initialize", "lazy_updates", "communicator", "communicator_deadline_s"}


def made(**options: typing.Any) -> _treadle.TrainerOptions:
    return _trainer_options.trainer_options(options, Trainer.__init__.__kwdefaults__)


def test_the_table_and_the_keywords_are_the_same():
    assert set(keyword_types("TrainerKeywords")) == set(TABLE)
    assert not set(Trainer.__init__.__kwdefaults__) & set(TABLE)


def test_the_keywords_have_the_tables_types():
    types = keyword_types("TrainerKeywords")
    options = _treadle.TrainerOptions()
    samples = {"number": 0.5, "whole number": 1, "size": 1, "0 or 1": True, "text": "x", "path": "x"}
    for name in set(TABLE) - OTHERWISE:
        value = getattr(options, name)
        if isinstance(value, tuple):
            assert types[name] == f"Iterable[{'float' if name == 'class_weights' else 'str'}] | None", name
            continue
        sample = next((of for kind, of in samples.items() if TABLE[name]["type"].startswith(kind)), value)
        assert types[name] == f"{type(sample).__name__} | None" or types[name].startswith("Literal["), name


def test_each_option_is_an_attribute_that_takes_what_it_gives():
    options = _treadle.TrainerOptions()
    for name in TABLE:
        setattr(options, name, getattr(options, name))
        if TABLE[name]["type"].startswith(("number ", "whole number")):
            kind = int if TABLE[name]["type"].startswith("whole") else float
            setattr(options, name, kind(1) if "below 1" not in TABLE[name]["type"] else 0.5)
            assert getattr(options, name) == (kind(1) if "below 1" not in TABLE[name]["type"] else 0.5)


def test_the_docstring_has_every_option():
    for name in TABLE:
        assert f":param {name}:" in (Trainer.__doc__ or ""), name


def test_options_that_go_together_may_be_given_alone():
    def all_of(options: _treadle.TrainerOptions) -> dict[str, typing.Any]:
        return {name: getattr(options, name) for name in TABLE if name != "communicator"}

    together = made(schedule={"kind": "cosine", "warmup_steps": 3, "total_steps": 9}, betas=(0.5, 0.75), lora={"rank": 2, "alpha": 4.0},
                    loss_scaling={"init_scale": 8.0}, optimizer="adam")
    alone = made(schedule="cosine", warmup_steps=3, total_steps=9, beta1=0.5, beta2=0.75, lora_rank=2, lora_alpha=4.0, init_scale=8.0,
                 optimizer="adam")
    assert all_of(together) == all_of(alone) != all_of(made())
    with pytest.raises(TypeError, match="the option beta1 is given twice"):
        made(betas=(0.5, 0.75), beta1=0.5)
    with pytest.raises(ValueError, match="a loss scaling has no setting 'scale'; it has init_scale"):
        made(loss_scaling={"scale": 2.0})


def test_lists_and_dicts_are_read_as_they_were_written():
    options = made(groups=[{"parameters": ["*.bias"], "weight_decay": 0.0}], initialize={"a*": "zeros", "b": ("normal", 0.5)},
                   class_weights=(weight for weight in (1, 2)), frozen={"c": 1}, lazy_updates=True)
    assert options.groups == [{"parameters": ["*.bias"], "rate_factor": 1.0, "weight_decay": 0.0}]
    assert options.initialize == {"a*": ("zeros", 1.0), "b": ("normal", 0.5)}
    assert options.class_weights == (1.0, 2.0)
    assert options.frozen == ("c",)
    assert options.lazy_updates == ("*",)


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"lerning_rate": 0.1}, TypeError, "unexpected keyword argument 'lerning_rate'; is it learning_rate"),
    ({"seed_options": None}, TypeError, "is it .*sess_options"),
    ({"learning_rate": "fast"}, TypeError, r"learning_rate is 'fast'; number from 0 to 1e\+30 is expected"),
    ({"frozen": "weight"}, TypeError, "frozen is 'weight'; names or patterns"),
    ({"nesterov": "yes"}, TypeError, "nesterov is 'yes'; True or False is expected"),
    ({"learning_rate": -1.0}, treadle.Error, 'the option learning_rate: "-1" is given, a number from 0 to 1e'),
    ({"lora_dropout": 1.0}, treadle.Error, "a number from 0 and below 1 is expected"),
    ({"groups": [{"rate": 1.0}]}, ValueError, "a group has no setting 'rate'; it has parameters, rate_factor, weight_decay"),
    ({"groups": [{"parameters": 3}]}, TypeError, "a group's parameters is 3"),
    ({"initialize": {"a": "zero"}}, treadle.Error, 'no initializer "zero"; the nearest: zeros'),
])
def test_wrong_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        Trainer(SPIRALS, **options)


def test_none_is_the_default():
    everything = dict.fromkeys(TABLE)
    assert Trainer(SPIRALS, **everything).learning_rate == 0.01
