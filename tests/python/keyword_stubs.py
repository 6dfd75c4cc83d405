"""Reads the stubs of keywords of sessions, runs and trainers, which the build writes for type checkers."""

from __future__ import annotations

import ast
import pathlib

import pytest

import treadle

STUB = pathlib.Path(treadle.__file__).with_name("_keywords.pyi")


def keyword_types(title: str) -> dict[str, str]:
    """Returns the type of each keyword in the stub's class, as text."""
    if not STUB.exists():
        pytest.skip("this build of the package has no stubs")
    classes = {node.name: node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ClassDef)}
    return {line.target.id: ast.unparse(line.annotation) for line in classes[title].body if isinstance(line, ast.AnnAssign)}
