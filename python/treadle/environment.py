"""Settings of the whole process: logging, and what this build contains."""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Callable

from . import _treadle

__all__ = ["get_build_info", "get_version_string", "set_default_logger_callback", "set_default_logger_severity", "set_default_logger_verbosity"]

_logger = logging.getLogger("treadle")
# The levels of Python's logging for ONNX Runtime's severities 0 to 4: verbose, info, warning, error, fatal.
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_default_severity = 2
_tells_all = False  # whether messages below warnings are handed to Python's logging
_callback: logging.Handler | None = None


def _warn(text: str, severity: int) -> None:
    """Called by the extension with warnings about a model; `severity` is the session's log_severity_level, -1 for the default."""
    lowest = _default_severity if severity < 0 else severity
    if lowest <= 2:
        _logger.warning(text)


def _deliver(severity: int, line: str) -> None:
    """Hands a message of the library to the logger of its category."""
    values = json.loads(line)
    category = values["category"]
    logger = _logger if category == "general" else _logger.getChild(category)
    logger.log(_LEVELS[severity], "%s", values["message"], extra={"treadle": values})


def set_default_logger_severity(severity: int) -> None:
    """Sets the lowest severity that is logged: 0 verbose, 1 info, 2 warning (the default), 3 error, 4 fatal.

    Messages go to the loggers "treadle.CATEGORY" of Python's logging: session, run, program, placement, fusion, memory. Their records have the
    values of a message in the attribute `treadle`, a dict.
    """
    global _default_severity, _tells_all
    if not 0 <= severity < len(_LEVELS):
        raise ValueError(f"the severity is {severity}, outside [0, 4]")
    _default_severity = severity
    _logger.setLevel(_LEVELS[severity])
    if severity < 2:
        _treadle.set_log_callback(_deliver, severity, json=True)
    elif _tells_all:
        _treadle.set_log_callback(None)
    _tells_all = severity < 2


class _Callback(logging.Handler):
    def __init__(self, function: Callable[[int, str, str, str, str], None]) -> None:
        super().__init__()
        self.function = function

    def emit(self, record: logging.LogRecord) -> None:
        severity = max(i for i, level in enumerate(_LEVELS) if level <= max(record.levelno, _LEVELS[0]))
        self.function(severity, record.name, "", f"{record.filename}:{record.lineno} {record.funcName}", record.getMessage())


def set_default_logger_callback(callback: Callable[[int, str, str, str, str], None] | None, severity: int = 2) -> None:
    """Sends messages to `callback(severity, category, logid, code_location, message)` instead of the usual handlers; with None, to the handlers
    again.

    :param severity: the lowest severity that is logged, as in set_default_logger_severity; only checked if the callback is None.
    """
    global _callback
    if not 0 <= severity < len(_LEVELS):
        raise ValueError(f"the severity is {severity}, outside [0, 4]")
    if callback is not None and not callable(callback):
        raise TypeError(f"the callback is a {type(callback).__name__}, which cannot be called")
    if _callback is not None:
        _logger.removeHandler(_callback)
        _callback, _logger.propagate = None, True
    if callback is None:
        return
    _callback = _Callback(callback)
    _logger.addHandler(_callback)
    _logger.propagate = False
    set_default_logger_severity(severity)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Does nothing."""


def get_version_string() -> str:
    """Returns Treadle's version."""
    return _treadle.version()


def get_build_info() -> str:
    """Returns one line about this build."""
    return f"Treadle Build Info: version={_treadle.version()}, platform={platform.machine()}"
