#!/usr/bin/env python3
"""Measures requests or rows per second of the examples in examples/deploy, each with Treadle and with onnxruntime in turn.

    .venv-deploy/bin/python bench/deploy.py MODEL [--shape 1,3,224,224] [--only REGEX] [--rounds 3] [--seconds 5]

Each framework has two workers with one thread each, on the same machine as the client, which takes its share of the cores. `ratio` is Treadle's
median over onnxruntime's. tests/deploy starts the servers by the same functions.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "deploy"
sys.path.insert(0, str(EXAMPLES))
WEB = ("gunicorn", "uvicorn", "mlserver", "ray_serve")
JOBS = ("ray_data", "spark")


def environment(runtime: str, **more: str) -> dict[str, str]:
    """Returns the environment of an example's process: without Ray's usage reports and dashboard."""
    scripts = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "RUNTIME": runtime, "RAY_USAGE_STATS_ENABLED": "0", "ORT_DISABLE_TELEMETRY": "1", **more}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _is_up(port: int, path: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("POST" if path == "/" else "GET", path, b"")
        return connection.getresponse().status in (200, 400)  # 400: the model's server is up and refuses the empty body
    return False


@contextlib.contextmanager
def server(kind: str, model: str, runtime: str, input_name: str) -> Iterator[tuple[str, str | None]]:
    """Starts a server until the end of the block. Yields its address, and the input's name if it speaks KServe's protocol."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "w+b") as log:
        path, name = "/", None
        more = {"MODEL": os.path.abspath(model)}
        where = EXAMPLES
        if kind == "gunicorn":
            command = ["gunicorn", "--preload", "--workers", "2", "--threads", "2", "--bind", f"127.0.0.1:{port}", "web:wsgi"]
        elif kind == "uvicorn":
            command = ["uvicorn", "--workers", "2", "--port", str(port), "--log-level", "warning", "web:asgi"]
        elif kind == "ray_serve":
            config = Path(folder) / "serve.yaml"
            config.write_text(f"http_options: {{host: 127.0.0.1, port: {port}}}\napplications: [{{name: model, import_path: 'ray_serve:app'}}]\n")
            command = ["serve", "run", "--app-dir", str(EXAMPLES), str(config)]
        else:
            where = Path(shutil.copytree(EXAMPLES / "kserve", Path(folder) / "model"))
            (where / "model-settings.json").write_text(
                f'{{"name": "model", "implementation": "model_runtime.OnnxModel", "parameters": {{"uri": "{os.path.abspath(model)}"}}}}'
            )
            more |= {"MLSERVER_HTTP_PORT": str(port), "MLSERVER_GRPC_PORT": str(free_port()), "MLSERVER_HOST": "127.0.0.1"}
            command, path, name = ["mlserver", "start", "."], "/v2/models/model/ready", input_name
        process = subprocess.Popen(command, cwd=where, env=environment(runtime, **more), stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 300
            while not _is_up(port, path):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{kind} did not start:\n{log.read().decode(errors='replace')}")
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}{'/v2/models/model/infer' if name else '/'}", name
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            if kind == "ray_serve":
                subprocess.run(["ray", "stop", "--force"], env=environment(runtime), stdout=log, stderr=log, check=False)


def job(kind: str, model: str, runtime: str, *arguments: str) -> str:
    """Runs the program, and returns the JSON that it prints last."""
    command = [sys.executable, str(EXAMPLES / f"{kind}.py"), model, *arguments]
    done = subprocess.run(command, env=environment(runtime), capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{kind} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip().splitlines()[-1]


def rate(kind: str, args: argparse.Namespace, runtime: str) -> float:
    if kind in JOBS:
        row = args.shape.split(",", 1)[1]
        return float(job(kind, args.model, runtime, "--shape", row, "--rows", str(args.rows)).split()[-2])
    with server(kind, args.model, runtime, args.input) as (url, name):
        command = [sys.executable, str(EXAMPLES / "load.py"), url, "--shape", args.shape, "--seconds", str(args.seconds), *(["--kserve", name] if name else [])]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--shape", default="1,3,224,224")
    parser.add_argument("--input", default="", help="name of the input (default: the model's first)")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rows", type=int, default=1000)
    args = parser.parse_args()
    import onnxruntime

    args.input = args.input or onnxruntime.InferenceSession(args.model, providers=["CPUExecutionProvider"]).get_inputs()[0].name
    print("| framework | Treadle, /s | onnxruntime, /s | ratio |\n|---|---|---|---|")
    for kind in (*WEB, *JOBS):
        if not re.search(args.only, kind):
            continue
        rates: dict[str, list[float]] = {"treadle": [], "onnxruntime": []}
        for _ in range(args.rounds):
            for runtime, found in rates.items():
                found.append(rate(kind, args, runtime))
        ours, theirs = (statistics.median(found) for found in rates.values())
        print(f"| {kind} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
