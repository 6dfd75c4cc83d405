#!/usr/bin/env python3
"""Trains the digits network of examples/digits with treadle, and writes it as ONNX.

Data: scikit-learn's digits (1,797 images of 8 x 8, from the UCI repository), which come inside the package. Every fifth image of a fixed
permutation is held out; the accuracy on those is written into the model's metadata.
"""

import argparse
import pathlib
import sys
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

from treadle.train import Trainer

ROOT = pathlib.Path(__file__).resolve().parent.parent


def load_split():
    """Returns images [n, 1, 8, 8] in [0, 1] and labels: (training images, training labels, held-out images, held-out labels)."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    held_out = np.arange(len(order)) % 5 == 4
    train, test = order[~held_out], order[held_out]
    return images[train], labels[train], images[test], labels[test]


def build_model(seed=0, channels=(16, 32)):
    """Returns a model of two conv-bn-relu blocks, a max pool and a linear layer, with He initialisation."""
    rng = np.random.default_rng(seed)
    initializers, nodes = [], []

    def tensor(name, values):
        initializers.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def conv_bn_relu(x, index, inputs, outputs):
        p = f"block{index}"
        weights = tensor(f"{p}.conv.weight", rng.normal(0, np.sqrt(2 / (inputs * 9)), (outputs, inputs, 3, 3)))
        nodes.append(helper.make_node("Conv", [x, weights], [f"{p}.conv"], name=f"{p}/conv", pads=[1, 1, 1, 1]))
        statistics = [
            tensor(f"{p}.bn.scale", np.ones(outputs)),
            tensor(f"{p}.bn.bias", np.zeros(outputs)),
            tensor(f"{p}.bn.mean", np.zeros(outputs)),
            tensor(f"{p}.bn.var", np.ones(outputs)),
        ]
        nodes.append(helper.make_node("BatchNormalization", [f"{p}.conv", *statistics], [f"{p}.bn"], name=f"{p}/bn", momentum=0.9))
        nodes.append(helper.make_node("Relu", [f"{p}.bn"], [p], name=f"{p}/relu"))
        return p

    x = conv_bn_relu("image", 1, 1, channels[0])
    x = conv_bn_relu(x, 2, channels[0], channels[1])
    nodes.append(helper.make_node("MaxPool", [x], ["pooled"], name="pool", kernel_shape=[2, 2], strides=[2, 2]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["features"], name="flatten"))
    size = channels[1] * 16
    weights = tensor("head.weight", rng.normal(0, np.sqrt(1 / size), (10, size)))
    bias = tensor("head.bias", np.zeros(10))
    nodes.append(helper.make_node("Gemm", ["features", weights, bias], ["scores"], name="head", transB=1))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        initializers,
        doc_string="Classifies handwritten digits, 8 x 8 pixels in [0, 1].",
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="treadle scripts/train_digits.py")
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def accuracy(trainer, images, labels):
    return float(np.mean(np.argmax(trainer.predict({"image": images})[0], axis=1) == labels))


def batches(count, size, rng):
    order = rng.permutation(count)
    return [order[first : first + size] for first in range(0, count - size + 1, size)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.05, help="of the first epoch; falls to 0 along a cosine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "examples" / "digits" / "digits.onnx")
    options = parser.parse_args()

    train_images, train_labels, test_images, test_labels = load_split()
    trainer = Trainer(build_model(options.seed), learning_rate=options.learning_rate, momentum=0.9, weight_decay=5e-4)
    rng = np.random.default_rng(options.seed)
    start = time.perf_counter()
    for epoch in range(options.epochs):
        trainer.learning_rate = options.learning_rate * 0.5 * (1 + np.cos(np.pi * epoch / options.epochs))
        losses = [trainer.step({"image": train_images[b]}, train_labels[b]) for b in batches(len(train_images), options.batch_size, rng)]
        print(
            f"epoch {epoch + 1:2}/{options.epochs}  loss {np.mean(losses):.4f}  held-out accuracy {accuracy(trainer, test_images, test_labels):.4f}"
            f"  {time.perf_counter() - start:.1f} s",
            file=sys.stderr,
        )
    metadata = {
        "accuracy": f"{accuracy(trainer, test_images, test_labels):.4f}",
        "accuracy_on": f"{len(test_labels)} held-out images of scikit-learn's digits",
        "trained_on": f"{len(train_labels)} images of scikit-learn's digits",
        "seed": str(options.seed),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    trainer.save(options.output, metadata)
    onnx.checker.check_model(str(options.output))
    print(f"{options.output}: {options.output.stat().st_size / 1000:.0f} kB, held-out accuracy {metadata['accuracy']}")


if __name__ == "__main__":
    main()
