"""Writes treadle/_keywords.pyi: the keywords of sessions, runs and trainers with types and descriptions, for type checkers and editors.

The build runs this. The keywords come from the core's tables of options, the types from the setters of the options' attributes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

import treadle._session_options as session
import treadle._trainer_options as trainer
from treadle import _treadle

HEAD = """import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict

from . import _treadle, enums
from ._models import ModelLike
"""


def type_of(options: type, name: str) -> str:
    """Returns the type that the attribute's setter takes, as this file names it."""
    signature = getattr(options, name).fset.__nb_signature__[0][0]
    taken = re.search(r"arg: (.*), /\)", signature)[1].replace("treadle._treadle.", "_treadle.").replace("treadle.enums.", "enums.")
    taken = re.sub(r"\b(collections\.abc|typing)\.", "", taken).replace("Sequence[", "Iterable[")
    return re.sub(r"(?<![\w.\"])[A-Z]\w+", lambda found: f"_treadle.{found[0]}" if hasattr(_treadle, found[0]) else found[0], taken)


def typed_dict(title: str, options: type, keywords: Iterable[str], forms: dict[str, str], none: bool = False) -> str:
    """Writes a class with a line per keyword. `forms`: types of keywords that no setter declares; `none`: every keyword may be None."""
    lines = [f"\nclass {title}(TypedDict, total=False):"]
    for name in keywords:
        taken = forms.get(name) or type_of(options, name)
        lines.append(f"    {name}: {taken}{' | None' if none and not taken.endswith('None') else ''}")
        lines.append(f"    {session.described(options, name)!r}")
    return "\n".join(lines) + "\n"


def main() -> None:
    methods = {name: taken for name, (taken, *_) in session.METHODS.items()}
    text = HEAD + typed_dict("SessionKeywords", _treadle.SessionOptions, session.SESSION_KEYWORDS, methods)
    text += typed_dict("RunKeywords", _treadle.RunOptions, session.RUN_KEYWORDS, {})
    text += typed_dict("TrainerKeywords", _treadle.TrainerOptions, trainer.TABLE, trainer.FORMS, none=True)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(text)


main()
