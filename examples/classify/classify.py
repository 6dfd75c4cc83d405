"""Recognises a handwritten digit, then quantises the model to 8 bits and recognises the digit again.

python classify.py ../digits/digits.onnx quantised.onnx
"""

import sys

import numpy as np

import treadle

# The picture of a zero, 8 x 8 pixels from 0 to 16: the first of scikit-learn's digits.
PIXELS = """
    0 0  5 13  9  1 0 0
    0 0 13 15 10 15 5 0
    0 3 15  2  0 11 8 0
    0 4 12  0  0  8 8 0
    0 5  8  0  0  9 8 0
    0 4 11  0  1 12 7 0
    0 2 14  5 10 12 0 0
    0 0  6 13 10  0 0 0
"""


def main(model: str, small: str) -> None:
    image = np.array(PIXELS.split(), np.float32).reshape(1, 1, 8, 8) / 16
    session = treadle.Session(model)
    scores = session(image)
    print(f"digit {scores.argmax()}, score {scores.max():.4f}, arena {session.memory().arena_bytes} bytes")

    treadle.quantize(model, small, mode="static", samples=[{"image": image}])
    scores = treadle.Session(small)(image)
    print(f"in 8 bits: digit {scores.argmax()}, score {scores.max():.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
