"""Sends requests to a server of this folder over several connections at once, and prints how many it answers per second.

    python load.py http://127.0.0.1:8000/ --shape 1,1,8,8 --seconds 5
    python load.py http://127.0.0.1:8080/v2/models/digits/infer --kserve image --shape 1,1,8,8
"""

import argparse
import http.client
import io
import json
import threading
import time
import urllib.parse

import numpy as np


def request_of(batch, kserve):
    """Returns a request's body and headers. The body is an array (.npy) or, given an input's name, a request of KServe's protocol (V2)."""
    if kserve:
        tensor = {"name": kserve, "shape": list(batch.shape), "datatype": "FP32", "data": batch.ravel().tolist()}
        return json.dumps({"inputs": [tensor]}).encode(), {"Content-Type": "application/json"}
    body = io.BytesIO()
    np.save(body, batch)
    return body.getvalue(), {"Content-Type": "application/octet-stream"}


def answer_of(body, kserve):
    """Reads the model's first output from an answer."""
    if kserve:
        output = json.loads(body)["outputs"][0]
        return np.array(output["data"], np.float32).reshape(output["shape"])
    return np.load(io.BytesIO(body), allow_pickle=False)


def post(connection, path, body, headers):
    """Sends a request and returns the answer's body. @raises an error if the status is not 200"""
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {answer.decode(errors='replace')}")
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--kserve", help="name of the input; the server speaks KServe's protocol")
    parser.add_argument("--shape", default="1,1,8,8")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    url = urllib.parse.urlsplit(args.url)
    batch = np.random.default_rng(0).random([int(extent) for extent in args.shape.split(",")], np.float32)
    body, headers = request_of(batch, args.kserve)
    counts, end = [0] * args.connections, time.perf_counter() + args.seconds

    def send(place):
        connection = http.client.HTTPConnection(url.hostname, url.port)
        while time.perf_counter() < end:
            post(connection, url.path or "/", body, headers)
            counts[place] += 1

    threads = [threading.Thread(target=send, args=(place,)) for place in range(args.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{sum(counts) / args.seconds:.0f} requests/s")


if __name__ == "__main__":
    main()
