"""Converts keywords of trainers to options of the core, whose table lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import _treadle, communicator as _communicator
from ._models import load_model
from ._session_options import as_list


# Rows of the library's table of trainer options, by keyword.
TABLE = {row["keyword"]: row for row in _treadle.trainer_options()}

# The types of keywords that accept more forms of values than the option itself (see `_one_by_one` and `_natural`).
FORMS = {"communicator": "Any", "lazy_updates": "bool | Iterable[str]", "loss": "ModelLike", "schedule": "str | Mapping[str, Any]"}

# Keywords whose value may be a dict that sets several options. For each keyword: the option that each key of the dict sets.
_TOGETHER = {
    "schedule": {"kind": "schedule"} | {name: name for name in ("warmup_steps", "total_steps", "step_size", "gamma", "final_factor")},
    "loss_scaling": {name: name for name in ("init_scale", "growth_factor", "backoff_factor", "growth_interval")},
    "lora": {name: f"lora_{name}" for name in ("rank", "alpha", "dropout", "targets", "seed")},
    "betas": {"beta1": "beta1", "beta2": "beta2"},
}


def _one_by_one(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options one by one, without those that are None."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        settings = {name: value}
        if name == "betas" and value is not None:
            value = dict(zip(("beta1", "beta2"), value, strict=True))
        if name in _TOGETHER and not isinstance(value, str):
            names = _TOGETHER[name]
            if unknown := [key for key in value or {} if key not in names]:
                raise ValueError(f"a {name.replace('_', ' ')} has no setting {unknown[0]!r}; it has {', '.join(names)}")
            settings = {names[key]: setting for key, setting in (value or {}).items()}
        for option, setting in settings.items():
            if setting is None:
                continue
            if option in options:
                raise TypeError(f"the option {option} is given twice")
            options[option] = setting
    return options


def _natural(options: _treadle.TrainerOptions, name: str, value: Any) -> Any:
    """Converts the value to the form that the core expects."""
    if name == "groups":
        return [dict(group) for group in value]
    if name == "initialize":
        return dict(value)
    if name == "lazy_updates" and isinstance(value, bool):
        return ["*"] if value else []
    if name == "class_weights":
        return [float(weight) for weight in value]
    return as_list(options, name, value)


def trainer_options(given: Mapping[str, Any], keywords: Iterable[str]) -> _treadle.TrainerOptions:
    """Converts keywords to the core's options.

    :param keywords: keywords of `Trainer` that are not in the table, for suggestions in errors.
    """
    for name in given:
        if name not in TABLE and name not in _TOGETHER:
            nearest = _treadle.nearest_names(name, [*TABLE, *keywords])
            raise TypeError(f"Trainer() got an unexpected keyword argument {name!r}; is it {nearest}?")
    options = _treadle.TrainerOptions()
    values = _one_by_one(given)
    communicator, deadline_s = values.pop("communicator", None), values.pop("communicator_deadline_s", _communicator.DEADLINE_S)
    for name, value in values.items():
        if name == "loss" and not isinstance(value, str):
            options.set_loss_model(load_model(value))
            continue
        natural = _natural(options, name, value)
        try:
            setattr(options, name, natural)
        except TypeError:
            if name in ("groups", "initialize"):  # these two functions name the wrong part in their own errors
                raise
            expected = TABLE[name]["type"].replace("0 or 1", "True or False")
            raise TypeError(f"{name} is {value!r}; {expected} is expected") from None
    options.communicator = _communicator.of(communicator, deadline_s)
    return options
