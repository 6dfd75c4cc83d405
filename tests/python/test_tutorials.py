"""Checks that README and the pages of docs/ do what they show: writes their programs to files, runs their commands, and compares the output.

A block ```console contains commands after "$ " and their output. A block with title="NAME", such as ```python title="NAME", is the file NAME. Numbers
may differ by 2 %, since kernels differ between machines; in a block ```console varies they may be any. A line "..." matches any lines, and " ..." at
the end of a line matches the rest of it.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from conftest import REPOSITORY

FENCE = re.compile(r"^```(\S+)[ \t]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
PAGES = [
    path for path in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))) if "```console" in path.read_text(encoding="utf-8")
]


def split(line):
    """Returns the line with its numbers replaced, and the numbers."""
    return " ".join(NUMBER.sub("#", line).split()), [float(number) for number in NUMBER.findall(line)]


def matches(shown, printed, varies):
    if shown.endswith(" ..."):
        shown = shown.removesuffix(" ...")
        printed = printed[: len(shown)]
    (words, numbers), (other_words, other_numbers) = split(shown), split(printed)
    if varies:
        return words.replace("-", "") == other_words.replace("-", "")
    return words == other_words and all(abs(a - b) <= 0.02 * max(abs(a), abs(b)) for a, b in zip(numbers, other_numbers, strict=True))


def first_difference(shown, printed, varies):
    """Returns the first line of `shown` that is missing in `printed`; None if they agree."""
    if not shown:
        return None if not printed else f"more is printed: {printed[0]}"
    if shown[0].strip() == "...":
        rests = (first_difference(shown[1:], printed[start:], varies) for start in range(len(printed) + 1))
        differences = [rest for rest in rests if rest is None or len(shown) > 1]
        return None if None in differences or not differences else differences[0]
    if not printed or not matches(shown[0], printed[0], varies):
        return shown[0]
    return first_difference(shown[1:], printed[1:], varies)


def commands_of(block):
    """Returns pairs of a command and the lines that it prints."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        yield command, lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_happens(page, program, tmp_path):
    for example in ("digits/digits.onnx", "digits/zero.png", "train/spirals.onnx"):
        shutil.copy(REPOSITORY / "examples" / example, tmp_path)
    folders = [str(pathlib.Path(program).resolve().parent), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(folders), "COLUMNS": "80", "TREADLE_SHARING_DIR": str(tmp_path / "sharing")}
    if "PYTHONPATH" in environment:  # the path may be relative to the repository
        environment["PYTHONPATH"] = os.pathsep.join(str(pathlib.Path(folder).resolve()) for folder in environment["PYTHONPATH"].split(os.pathsep))
    for language, title, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if title.startswith("title="):
            (tmp_path / title.removeprefix("title=").strip('"')).write_text(text)
        if language != "console":
            continue
        for command, shown in commands_of(text):
            made = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert made.returncode == 0, f"$ {command}\n{made.stdout}{made.stderr}"
            printed = made.stdout.rstrip().splitlines()
            difference = first_difference([line for line in shown if line.strip()], [line for line in printed if line.strip()], title == "varies")
            assert difference is None, f"$ {command}\nexpected: {difference}\n{made.stdout}"


def test_differences_are_seen():
    assert first_difference(["a 1.00", "..."], ["a 1.01", "b"], False) is None
    assert first_difference(["a 1.00"], ["a 1.10"], False) == "a 1.00"
    assert first_difference(["a 1.00"], ["a 7.5"], True) is None
    assert first_difference(["...", "z"], ["a", "b"], False) == "z"
    assert first_difference([], ["a"], False) == "more is printed: a"
    assert first_difference(["a 1; ..."], ["a 1; b"], False) is None
    assert first_difference(["a 1; ..."], ["a 2; b"], False) == "a 1; ..."
