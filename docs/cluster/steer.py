#!/usr/bin/env python3
"""Steers jobs through the coordinator's socket, with nothing but Python's standard library: for nodes and containers without Treadle.

steer.py list                                    all jobs, as JSON
steer.py set NAME-or-ID share=30 memory=2GiB     also class=guaranteed|opportunistic, suspend, resume
steer.py policy [NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys


def default_socket() -> str:
    return os.path.join(os.environ.get("TREADLE_SHARING_DIR", f"/dev/shm/treadle-{os.geteuid()}"), "coordinator")


def ask(path: str, request: str) -> list[str]:
    """The lines of the answer. Raises OSError if there is no coordinator, ValueError with its message if it refuses."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(path)
        connection.sendall(request.encode() + b"\n")
        lines = connection.makefile(encoding="utf-8", errors="replace")
        status, _, rest = lines.readline().rstrip("\n").partition(" ")
        if status != "ok":
            raise ValueError(rest or "the coordinator went away")
        return [lines.readline().rstrip("\n") for _ in range(int(rest))]


def parse(line: str) -> dict[str, str | float]:
    job: dict[str, str | float] = {}
    for word in line.split(" "):
        key, _, value = word.partition("=")
        try:
            job[key] = value if key in ("name", "class") else json.loads(value)
        except json.JSONDecodeError:
            job[key] = value
    return job


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", default=default_socket())
    parser.add_argument("request", nargs="+")
    arguments = parser.parse_args()
    try:
        lines = ask(arguments.socket, " ".join(arguments.request))
    except (OSError, ValueError) as error:
        print(f"steer.py: {arguments.socket}: {error}", file=sys.stderr)
        return 1
    if arguments.request[0] == "list":
        print(json.dumps([parse(line) for line in lines], indent=2))
    else:
        print("\n".join(lines), end="\n" if lines else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
