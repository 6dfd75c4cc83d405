"""Checks that the things exist that README and docs/ name: linked files, commands and options, scripts, passes, Python names."""

import ast
import functools
import importlib
import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import textwrap
import types

import pytest

import treadle
from conftest import REPOSITORY

DOCUMENTS = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def document(request):
    return request.param


def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_named_files_exist(document):
    """Checks paths, in backticks or in plain text, that begin with a folder of the repository."""
    folders = "bench|docs|examples|include|python|scripts|src|tests"
    for path in re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*\w)", document.read_text()):
        if "<" in path or pathlib.Path(path).name in {"fuzz_model"}:
            continue
        matches = [REPOSITORY / path, (REPOSITORY / path).with_suffix(".py")]
        built = path.startswith(("python/treadle/_treadle",))
        assert built or any(match.exists() for match in matches), path


@functools.cache
def options_of(program, command):
    shown = subprocess.run([str(program), command, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--([\w-]+)", shown))


def test_commands_and_their_options_exist(document, program):
    commands = set(re.findall(r"COMMAND\((\w+)\)", (REPOSITORY / "src" / "cli" / "commands.h").read_text()))
    assert {"run", "inspect", "check", "bench", "optimize", "compare", "options"} <= commands
    for line in document.read_text().splitlines():
        for command, rest in re.findall(r"(?:^|`|\s{4})treadle (\w+)((?: [^`#|]*)?)", line):
            if command.upper() == command:
                continue  # the line contains a placeholder for any command
            assert command in commands, line
            for option in re.findall(r"(?<!\w)--([\w-]+)", rest):
                assert option in options_of(program, command), line


SHOWN = re.compile(r"(?:^ {4}|`)(treadle [a-z]+ [^`\n]*)", re.MULTILINE)
# Placeholders, and commands that do not end by themselves.
NOT_CALLED = re.compile(r"\.\.\.|…|treadle coordinator|completion|[A-Z]+=|\b[A-Z]{3,}\b")


def test_commands_are_written_as_the_program_takes_them(document, program, tmp_path):
    """Checks commands outside of ```console blocks, which test_tutorials.py runs. Files are missing, but a wrong option or value gives exit status
    2."""
    environment = {**os.environ, "TREADLE_SHARING_DIR": str(tmp_path / "sharing")}
    text = re.sub(r"^```console.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    for command in SHOWN.findall(text):
        words = shlex.split(command, comments=True)
        if document.name == "CHANGELOG.md" or NOT_CALLED.search(command) or all(word.startswith("-") or "=" in word for word in words[2:]):
            continue
        made = subprocess.run([str(program), *words[1:]], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert made.returncode in {0, 1}, f"{command}\n{made.stderr}"


def python_blocks(text):
    """Returns ```python blocks, and indented blocks that begin with something only Python has."""
    yield from re.findall(r"^```python[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    without = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for block in re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", without, re.MULTILINE):
        if re.match(r"\s*(import |from \w|with treadle|\w+ = treadle\.)", block):
            yield textwrap.dedent(re.split(r"^ {4}treadle ", block, flags=re.MULTILINE)[0])


def test_python_in_documents_is_python_and_names_what_exists(document):
    for block in python_blocks(document.read_text()):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "treadle":
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}"), alias.name
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == "treadle" and alias.name != "treadle.onnxruntime_shim":
                        importlib.import_module(alias.name)
            if isinstance(node, ast.Attribute):
                check_attribute(ast.unparse(node))


def check_attribute(name):
    """Checks that the modules, classes and functions exist that a name such as `treadle.a.b` names."""
    if not re.fullmatch(r"treadle(\.\w+)+", name):
        return
    value = treadle
    for part in name.split(".")[1:]:
        if not isinstance(value, (types.ModuleType, type)):
            return
        if isinstance(value, types.ModuleType) and not hasattr(value, part):
            importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part)


def test_blocks_have_a_form_that_the_site_knows(document):
    """mkdocs shows other forms as plain text; scripts/docs_hook.py turns `console varies` into `console`."""
    for information in re.findall(r"^ *```(\S.*)$", document.read_text(), re.MULTILINE):
        assert re.fullmatch(r'\w+( title="[^"]+")?|console varies', information), information


def test_the_sites_pages_exist():
    """Checks pages without building the site. `scripts/docs` does that, with packages that tests do not need."""
    pages = re.findall(r": ([\w/-]+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(pages) > 30
    for page in pages:
        assert (REPOSITORY / "docs" / page).exists(), page


def test_the_reference_of_the_command_line_is_the_programs(program):
    spec = importlib.util.spec_from_file_location("generator", REPOSITORY / "scripts" / "generate_command_line_reference.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.PAGE.read_text() == generator.page(str(program))


def test_the_header_of_the_whole_cpp_interface_includes_all_others():
    folder = REPOSITORY / "include" / "treadle"
    included = set(re.findall(r'#include "treadle/(.*)"', (folder / "treadle.hpp").read_text()))
    assert included == {header.name for header in folder.iterdir()} - {"treadle.hpp", "treadle.h", "plugin.h", "export.h"}


def test_the_references_have_every_public_header():
    text = "".join((REPOSITORY / "docs" / "reference" / name).read_text() for name in ("c.md", "cpp.md"))
    for header in (REPOSITORY / "include" / "treadle").iterdir():
        if header.name not in {"treadle.hpp", "export.h", "dlpack.h"}:
            assert f'"include/treadle/{header.name}"' in text, header.name


def test_the_readmes_speed_is_the_newest_measured():
    page = (REPOSITORY / "docs/performance.md").read_text()
    measured = [(mean, count, lowest) for count, mean, lowest in re.findall(r"^\| \w+ \| one thread, batch 1 \| (\d+) \| ([\d.]+) \| ([\d.]+)", page, re.MULTILINE)]
    shown = re.findall(r"is ([\d.]+)× as fast .*?(\d+) models; slowest case ([\d.]+)×", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert len(shown) == 2
    assert shown == measured
