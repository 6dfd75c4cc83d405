#!/usr/bin/env python3
"""Writes docs/reference/command-line.md from the output of `treadle COMMAND --help`.

    scripts/generate_command_line_reference.py [--treadle build/release/src/cli/treadle]

tests/python/test_documents.py fails if the page is out of date.
"""

import argparse
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "command-line.md"
HEAD = """# Command line

Made by scripts/generate_command_line_reference.py from `treadle COMMAND --help`; do not edit by hand.

Exit status 0: success. 1: the command failed, or found what it looks for (`check`, `compare`). 2: a wrong call.
`--json` prints JSON for programs. `-o` names what is written.
"""


def help_of(treadle: str, *command: str) -> str:
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    made = subprocess.run([treadle, *command, "--help"], capture_output=True, text=True, check=True, env=environment)
    return re.sub(r"\n{3,}", "\n\n", made.stdout).strip()


def page(treadle: str) -> str:
    return "\n".join([HEAD, *sections(treadle)])


def sections(treadle: str, *command: str) -> list[str]:
    """Returns the sections of the page for a command and all its subcommands. No command means the program itself."""
    text = help_of(treadle, *command)
    below = re.findall(r"^  (\w+) ", text.partition("Subcommands:")[2], re.MULTILINE)
    own = [f"## {' '.join(command)}\n\n```text\n{text}\n```\n"] if command else []
    return [*own, *(section for name in below for section in sections(treadle, *command, name))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--treadle", default=str(ROOT / "build/release/src/cli/treadle"))
    PAGE.write_text(page(parser.parse_args().treadle), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
