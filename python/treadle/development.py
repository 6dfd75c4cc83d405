"""Where the headers and libraries are with which C and C++ programs are built.

    cc program.c -o program $(python -m treadle --cflags --libs)

The package contains them: nothing else needs to be installed. See docs/tutorials/c-and-cpp.md.
"""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Callable, Sequence

__all__ = ["cmake_dir", "include_dir", "library_dir"]

_PACKAGE = pathlib.Path(__file__).parent
_SOURCES = pathlib.Path(__file__).resolve().parents[2]  # of the build folder, whose package is links to the sources


def _first_with(what: str, name: str, folders: Sequence[pathlib.Path]) -> str:
    for folder in folders:
        if (folder / name).exists():
            return str(folder)
    raise FileNotFoundError(f"this installation of treadle has no {what}: there is no {name} in {' or '.join(map(str, folders))}")


def include_dir() -> str:
    """Return the folder for the compiler's option -I, which has treadle/treadle.h (C) and treadle/treadle.hpp (C++)."""
    return _first_with("headers", "treadle/treadle.h", [_PACKAGE / "include", _SOURCES / "include"])


def library_dir() -> str:
    """Return the folder for the linker's option -L, which has libtreadle.so."""
    return _first_with("library to link with", "libtreadle.so", [_PACKAGE / "lib", _PACKAGE.parents[1]])


def cmake_dir() -> str:
    """Return the folder for CMake's variable treadle_DIR, in which find_package(treadle) finds the target treadle::treadle."""
    return _first_with("CMake package", "treadle-config.cmake", [_PACKAGE / "lib" / "cmake" / "treadle"])


def _cflags() -> list[str]:
    return [f"-I{include_dir()}"]


def _libs() -> list[str]:
    folder = library_dir()
    return [f"-L{folder}", "-ltreadle", f"-Wl,-rpath,{folder}"]


#: What `python -m treadle` prints for these options: words of a compiler's command line, or one folder.
FLAGS: dict[str, Callable[[], list[str]]] = {"--cflags": _cflags, "--libs": _libs, "--cmakedir": lambda: [cmake_dir()]}


def flags_text(options: Sequence[str]) -> str:
    """Return the words for the options of FLAGS, quoted for a shell."""
    return shlex.join([word for option in options for word in FLAGS[option]()])
