"""What README and docs/ name exists: files that they link, commands and options of the command line, scripts, passes, Python names."""

import pathlib
import re

import pytest

from conftest import REPOSITORY

DOCUMENTS = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


@pytest.fixture(params=DOCUMENTS, ids=lambda path: path.name)
def document(request):
    return request.param


def command_sources():
    return "\n".join(path.read_text() for path in sorted((REPOSITORY / "src" / "cli").glob("*.cpp")))


def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_named_files_exist(document):
    """Paths in backticks or in plain text that begin with a folder of the repository."""
    folders = "bench|docs|examples|include|python|scripts|src|tests"
    for path in re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*\w)", document.read_text()):
        if "<" in path or pathlib.Path(path).name in {"fuzz_model"}:
            continue
        matches = [REPOSITORY / path, (REPOSITORY / path).with_suffix(".py")]
        built = path.startswith(("python/treadle/_treadle",))
        assert built or any(match.exists() for match in matches), path


def test_commands_and_their_options_exist(document):
    sources = command_sources()
    commands = set(re.findall(r'\{"(\w+)", "[^"]*",\s+add_', sources))
    assert {"run", "inspect", "check", "bench", "optimize", "compare", "options"} <= commands
    for line in document.read_text().splitlines():
        for command, rest in re.findall(r"(?:^|`|\s{4})treadle (\w+)((?: [^`#|]*)?)", line):
            if command.upper() == command:
                continue  # treadle COMMAND
            assert command in commands, line
            for option in re.findall(r"(?<!\w)--([\w-]+)", rest):
                assert re.search(rf'"[^"]*--{option}[",]', sources) or option in {"help", "version"}, line
