"""Where the time and memory of a session's runs went.

    with treadle.profile(session) as p:
        for _ in range(20):
            session.run(None, feeds)
    print(p.table())
    p.save("report.html")
"""

from __future__ import annotations

import json
import os
import pathlib
import types
from dataclasses import dataclass
from typing import Any

from . import _treadle
from .errors import InvalidArgument
from .session import InferenceSession

__all__ = ["Profile", "ProfileComparison", "ProfiledNode", "profile"]


@dataclass(frozen=True)
class ProfiledNode:
    """A node as it ran, after fusion. What cannot be known is None."""

    name: str
    op_type: str
    kernel: str | None
    sources: tuple[str, ...]
    """Nodes of the model as read that it stands for; empty: the one of its own name."""
    input_shapes: tuple[tuple[int, ...] | None, ...]
    output_shapes: tuple[tuple[int, ...] | None, ...]
    calls: float
    """In one run."""
    median_ms: float
    p10_ms: float
    p90_ms: float
    share: float
    """Of the run, 0 to 1."""
    flops: float | None
    bytes: float | None
    gflops: float | None
    gb_per_s: float | None
    of_peak: float | None
    """What the machine could take over what the node took."""

    @classmethod
    def _of(cls, node: dict[str, Any]) -> ProfiledNode:
        def shapes(operands: list[dict[str, Any]]) -> tuple[tuple[int, ...] | None, ...]:
            return tuple(tuple(o["shape"]) if "shape" in o else None for o in operands)

        ms = node.get("ms", {})
        return cls(
            name=node["name"],
            op_type=node["op"],
            kernel=node.get("kernel"),
            sources=tuple(node.get("sources", ())),
            input_shapes=shapes(node["inputs"]),
            output_shapes=shapes(node["outputs"]),
            calls=node.get("calls", 0.0),
            median_ms=ms.get("median", 0.0),
            p10_ms=ms.get("p10", 0.0),
            p90_ms=ms.get("p90", 0.0),
            share=node.get("share", 0.0),
            flops=node.get("flops"),
            bytes=node.get("bytes"),
            gflops=node.get("gflops"),
            gb_per_s=node.get("gb_per_s"),
            of_peak=node.get("of_peak"),
        )


@dataclass(frozen=True)
class ProfileComparison:
    """Two profiles side by side."""

    text: str
    data: dict[str, Any]
    """As `treadle profile --diff A.json B.json --json` prints it."""

    @property
    def verdict(self) -> str:
        """Of the whole run: "faster", "slower", "unchanged" or "cannot tell"."""
        return str(self.data["run"]["verdict"])

    def __str__(self) -> str:
        return self.text


class Profile:
    """What `treadle.profile` records, or what a file of `treadle profile --json` holds (`Profile.load`)."""

    def __init__(self, session: InferenceSession | None = None, *, peaks: bool = True) -> None:
        self._session = session
        self._peaks = peaks
        self._json: str | None = None

    def __enter__(self) -> Profile:
        if self._session is None:
            raise InvalidArgument("a profile that was loaded records nothing", code="invalid_argument")
        _treadle.start_profiling(self._session._sess)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        if self._session is None:
            return
        session, options = self._session, self._session.get_session_options()
        _treadle.pause_profiling(session._sess)
        float32 = options.precision in ("", "float32")
        threads = options.intra_op_num_threads if self._peaks else None
        self._json = _treadle.profile_json(session._sess, session._model_path or "", threads, float32)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """A profile that was saved as .json."""
        made = cls()
        made._json = pathlib.Path(path).read_text(encoding="utf-8")
        _treadle.profile_table(made._json, 1, "time")  # raises for what is no profile
        return made

    def _text(self) -> str:
        if self._json is None:
            raise InvalidArgument("nothing has been recorded yet: leave the `with` block first", code="invalid_argument")
        return self._json

    @property
    def data(self) -> dict[str, Any]:
        """All of it, as `treadle profile --json` prints it."""
        return dict(json.loads(self._text()))

    @property
    def nodes(self) -> list[ProfiledNode]:
        """Nodes in the order of the plan."""
        return [ProfiledNode._of(node) for node in self.data["nodes"]]

    @property
    def where(self) -> dict[str, float]:
        """Parts of a typical run, in milliseconds; they sum to the whole."""
        return {part["title"]: part["ms"] for part in self.data["where"]}

    def table(self, top: int = 25, sort: str = "time") -> str:
        """Nodes, operators, where a run went, and memory, for the terminal.

        `top`: nodes shown, 0 for all. `sort`: "time", "order", "name", "calls", "gflops", "bandwidth" or "peak".
        """
        return _treadle.profile_table(self._text(), top, sort)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a page that needs no network (.html), or the data (.json)."""
        target = pathlib.Path(path)
        if target.suffix == ".html":
            target.write_text(_treadle.profile_html(self._text()), encoding="utf-8")
        elif target.suffix == ".json":
            target.write_text(self._text(), encoding="utf-8")
        else:
            raise InvalidArgument(f"{path}: a name that ends in .html or .json is expected", code="invalid_argument")

    def compare(self, before: Profile, tolerance: float = 0.03, top: int = 25) -> ProfileComparison:
        """What has changed since `before`, beyond the noise: intervals of medians at 99 %."""
        text, data = _treadle.compare_profiles(before._text(), self._text(), tolerance, top)
        return ProfileComparison(text, json.loads(data))


def profile(session: InferenceSession, *, peaks: bool = True) -> Profile:
    """Records the session's runs in a `with` block, whoever makes them.

    `peaks=False` leaves out the measurement of what the machine reaches (0.3 s), and with it all that is said of the peak.
    """
    return Profile(session, peaks=peaks)
