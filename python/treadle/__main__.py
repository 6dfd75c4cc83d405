"""``python -m treadle`` and the program ``treadle``: the command line.

``python -m treadle --cflags --libs`` prints the flags with which C and C++ programs are compiled and linked; ``--cmakedir`` the folder for CMake.
"""

from __future__ import annotations

import signal
import sys

from ._treadle import run_command_line
from .development import FLAGS, flags_text


def main() -> None:
    """Run the command that ``sys.argv`` names, and end with its status."""
    if len(sys.argv) > 1 and all(argument in FLAGS for argument in sys.argv[1:]):
        try:
            print(flags_text(sys.argv[1:]))
        except FileNotFoundError as error:
            sys.exit(f"treadle: {error}")
        return
    # Commands are compiled code, during which Python's handler would only note Ctrl-C. Commands that must end in order set their own
    # handlers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    sys.exit(run_command_line(["treadle", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
