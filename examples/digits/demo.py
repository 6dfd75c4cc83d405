#!/usr/bin/env python3
"""Recognises handwritten digits with a network that treadle trained, measures it, and trains it again for a few seconds.

Run this by scripts/demo, which does all set-up.
"""

import argparse
import pathlib
import resource
import sys
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "scripts"))

import treadle  # noqa: E402
from treadle.train import Trainer  # noqa: E402

BLOCK = 100  # number of consecutive runs of one session that are measured; as many before them are not
MODEL = HERE / "digits.onnx"
SHADES = " .:-=+*#%@"


def peak_memory_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def draw(images, captions):
    """Draws images side by side, two characters per pixel, with a caption under each."""
    rows = []
    for y in range(images.shape[2]):
        rows.append("   ".join("".join(SHADES[min(9, int(pixel * 9.99))] * 2 for pixel in image[0, y]) for image in images))
    rows.append("   ".join(f"{caption:^16}" for caption in captions))
    return "\n".join(rows)


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def load(make_session):
    start = time.perf_counter()
    session = make_session()
    return session, (time.perf_counter() - start) * 1e3


def latencies_us(sessions, feed, rounds=300):
    """Returns the median time of a run of each session. Blocks of runs alternate between sessions, so that changes of the machine affect all alike.
    Threads may spin after a run (30 to 40 ms in onnxruntime) and take a CPU from the other session, so each block begins after a pause.
    """
    times = [[] for _ in sessions]
    for _ in range(rounds // BLOCK):
        for session, taken in zip(sessions, times, strict=True):
            time.sleep(0.06)
            for _ in range(BLOCK):
                session.run(None, feed)
            for _ in range(BLOCK):
                start = time.perf_counter()
                session.run(None, feed)
                taken.append(time.perf_counter() - start)
    return [float(np.median(taken)) * 1e6 for taken in times]


def recognise():
    from train_digits import load_split

    base = peak_memory_mb()
    session, load_ms = load(lambda: treadle.InferenceSession(str(MODEL)))
    _, _, images, labels = load_split()
    scores = session.run(None, {"image": images})[0]
    used = peak_memory_mb() - base
    predicted, sureness = scores.argmax(axis=1), softmax(scores).max(axis=1)

    wrong = np.flatnonzero(predicted != labels)
    shown = [*np.flatnonzero(predicted == labels)[:4], *wrong[:2]]
    captions = [f"{predicted[i]} ({sureness[i]:.0%})" + ("" if predicted[i] == labels[i] else f", is {labels[i]}") for i in shown]
    print(f"\nHandwritten digits that the network never saw (scikit-learn's digits, {len(labels)} held out)\n")
    for first in range(0, len(shown), 4):
        print(draw(images[shown[first : first + 4]], captions[first : first + 4]), "\n")
    print(f"accuracy          {np.mean(predicted == labels):.2%}  ({len(wrong)} of {len(labels)} wrong)")
    print(f"memory            {used:.1f} MB at the peak, over the interpreter's own")
    return session, load_ms, images


def compare(session, load_ms, images):
    names, sessions, loads = ["treadle"], [session], [load_ms]
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        other, other_ms = load(lambda: onnxruntime.InferenceSession(str(MODEL), options, providers=["CPUExecutionProvider"]))
        names.append("onnxruntime")
        sessions.append(other)
        loads.append(other_ms)
    except ImportError:
        pass
    single, batch = {"image": images[:1]}, {"image": images[:64]}
    rows = [loads, latencies_us(sessions, single), latencies_us(sessions, batch)]
    print("\n" + " " * 24 + "".join(f"{name:>14}" for name in names))
    for title, row, unit in zip(("load", "median, 1 image", "median, 64 images"), rows, ("ms", "us", "us"), strict=True):
        print(f"{title:<24}" + "".join(f"{value:>11.1f} {unit}" for value in row))
    if len(sessions) == 2:
        a, b = (s.run(None, batch)[0] for s in sessions)
        print(f"{'largest difference':<24}{np.abs(a - b).max():>14.1e}")


def train(seconds):
    from train_digits import batches, build_model, load_split

    images, labels, test_images, test_labels = load_split()
    trainer = Trainer(build_model(seed=1), learning_rate=0.05, momentum=0.9, weight_decay=5e-4)
    print(f"\nTraining it anew for {seconds:g} s: forward, backward and update in one graph\n")
    rng, terminal = np.random.default_rng(1), sys.stderr.isatty()
    start, history, steps = time.perf_counter(), [], 0
    while time.perf_counter() - start < seconds:
        for batch in batches(len(labels), 64, rng):
            history.append(trainer.step({"image": images[batch]}, labels[batch]))
            steps += 1
            if terminal and steps % 5 == 0:
                print(f"\r  step {steps:5}  loss {np.mean(history[-10:]):.4f} ", end="", file=sys.stderr, flush=True)
            if time.perf_counter() - start >= seconds:
                break
    elapsed = time.perf_counter() - start
    if terminal:
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
    parts = np.array_split(np.array(history), min(10, len(history)))
    top = max(part.mean() for part in parts)
    done = 0
    for part in parts:
        done += len(part)
        print(f"  step {done:5}  loss {part.mean():.4f}  {'#' * max(1, round(40 * part.mean() / top))}")
    correct = trainer.predict({"image": test_images})[0].argmax(axis=1) == test_labels
    print(f"\n{steps} steps of 64 images, {steps * 64 / elapsed:,.0f} images/s; held-out accuracy now {correct.mean():.2%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="how long to train")
    options = parser.parse_args()
    compare(*recognise())
    if options.seconds > 0:
        train(options.seconds)


if __name__ == "__main__":
    main()
