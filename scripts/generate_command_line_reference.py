#!/usr/bin/env python3
"""Writes docs/reference/command-line.md from what `treadle COMMAND --help` says.

    scripts/generate_command_line_reference.py [--treadle build/release/src/cli/treadle]

tests/python/test_documents.py fails where the page is older than the program.
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

Exit status 0: success. 1: the command failed, or found what it looks for (`check`, `compare`, `profile --diff`). 2: a wrong call.
`--json` prints JSON for programs. `-o` names what is written.
"""


def help_of(treadle: str, *command: str) -> str:
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    made = subprocess.run([treadle, *command, "--help"], capture_output=True, text=True, check=True, env=environment)
    return re.sub(r"\n{3,}", "\n\n", made.stdout).strip()


def page(treadle: str) -> str:
    commands = re.findall(r"^  (\w+) ", help_of(treadle).split("Subcommands:")[1], re.MULTILINE)
    sections = [f"## {command}\n\n```text\n{help_of(treadle, command)}\n```\n" for command in commands]
    return "\n".join([HEAD, *sections])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--treadle", default=str(ROOT / "build/release/src/cli/treadle"))
    PAGE.write_text(page(parser.parse_args().treadle), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
