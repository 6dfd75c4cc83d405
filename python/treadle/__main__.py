"""``python -m treadle`` and the program ``treadle``: the command line."""

from __future__ import annotations

import signal
import sys

from ._treadle import run_command_line


def main() -> None:
    """Run the command that ``sys.argv`` names, and end with its status."""
    # Commands are compiled code, during which Python's handler would only note Ctrl-C. Commands that must end in order set their own
    # handlers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    sys.exit(run_command_line(["treadle", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
