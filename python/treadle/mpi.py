"""Builds the plugin that joins the processes of `mpirun`: `python -m treadle.mpi [--output FILE] [--compiler mpicxx]`.

Implementations of MPI have no common binary interface, so this package contains the plugin's source instead of compiled plugins for each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_FOLDER = Path(__file__).parent
FILE = _FOLDER / "plugins" / "treadle_mpi.so"  # where the library looks for it
_SOURCE = _FOLDER / "plugins" / "mpi_communicator.cpp"
_DEFINITIONS = ("-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX")


def build(output: str | os.PathLike[str] | None = None, *, compiler: str | None = None) -> Path:
    """Compiles the plugin with the machine's MPI. This is needed once per installation.

    :param output: the file to write. By default it is inside the package, where the library finds it; for another file, set TREADLE_MPI_PLUGIN.
    :param compiler: the compiler of the MPI to which `mpirun` belongs; by default `$MPICXX` or, if that is not set, `mpicxx`.
    :raises RuntimeError: there is no such compiler, or it fails; the message contains its output.
    :raises OSError: the file cannot be written.
    """
    path = Path(output) if output else FILE
    program = compiler or os.environ.get("MPICXX", "mpicxx")
    if shutil.which(program) is None:
        raise RuntimeError(f"there is no {program}: install MPI's compiler (Debian: libopenmpi-dev and g++), or name it with `compiler`")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        flags = ["-std=c++20", "-O2", "-shared", "-fPIC", *_DEFINITIONS, f"-I{_FOLDER / 'include'}"]
        done = subprocess.run([program, *flags, str(_SOURCE), "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{program} cannot compile the plugin:\n{done.stderr.strip()}")
        made.replace(path)
    return path


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m treadle.mpi", description="Builds the plugin that joins the processes of mpirun.")
    parser.add_argument("--output", help=f"the file (default: {FILE}, where it is found)")
    parser.add_argument("--compiler", help="MPI's C++ compiler (default: $MPICXX, else mpicxx)")
    args = parser.parse_args()
    try:
        path = build(args.output, compiler=args.compiler)
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(path if args.output is None else f"{path}; set TREADLE_MPI_PLUGIN to this name")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
