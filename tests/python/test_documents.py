"""What README and docs/ name exists: files that they link, commands and options of the command line, scripts, passes, Python names."""

import importlib.util
import pathlib
import re

import pytest

from conftest import REPOSITORY

DOCUMENTS = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]


@pytest.fixture(params=DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
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


def test_blocks_have_a_form_that_the_site_knows(document):
    """mkdocs shows others as plain text; scripts/docs_hook.py turns `console varies` into `console`."""
    for information in re.findall(r"^ *```(\S.*)$", document.read_text(), re.MULTILINE):
        assert re.fullmatch(r'\w+( title="[^"]+")?|console varies', information), information


def test_the_sites_pages_exist():
    """`scripts/docs` builds the site and finds pages that mkdocs.yml does not list; it needs packages that tests do not."""
    pages = re.findall(r": ([\w/-]+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(pages) > 30
    for page in pages:
        assert (REPOSITORY / "docs" / page).exists(), page


def test_the_reference_of_the_command_line_is_the_programs(program):
    spec = importlib.util.spec_from_file_location("generator", REPOSITORY / "scripts" / "generate_command_line_reference.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert generator.PAGE.read_text() == generator.page(str(program))


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
