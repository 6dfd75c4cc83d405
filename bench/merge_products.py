"""Writes a model in which MatMuls (and biases) that read the same value are merged to one product and a Split, as a rule of the optimiser would.

    bench/merge_products.py MODEL MERGED && for m in MODEL MERGED; do treadle bench $m --threads 1; done

Attention can read the parts of such a product in place (`attention-layouts`). docs/performance.md has the results.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper


def constants_of(graph):
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found |= {name: attribute.t for name in node.output for attribute in node.attribute if attribute.name == "value"}
        elif node.op_type == "Identity" and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def merge(model):
    """@return the number of groups that were merged"""
    graph = model.graph
    constants, readers, groups = constants_of(graph), {}, {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
        if node.op_type == "MatMul" and node.input[1] in constants and len(constants[node.input[1]].dims) == 2:
            groups.setdefault(node.input[0], []).append(node)

    def bias_of(product):
        behind = readers.get(product.output[0], [])
        if len(behind) != 1 or behind[0].op_type != "Add" or not any(name in constants for name in behind[0].input):
            return None
        return behind[0]

    made, gone, count = {}, set(), 0
    for x, products in groups.items():
        sums = [bias_of(product) for product in products]
        if len(products) < 2 or (any(sums) and not all(sums)):
            continue
        weights = [numpy_helper.to_array(constants[product.input[1]]) for product in products]
        name, y = f"merged{count}", f"merged{count}_y"
        tensors = {"_w": np.concatenate(weights, 1), "_sizes": np.array([w.shape[1] for w in weights], np.int64)}
        nodes = [helper.make_node("MatMul", [x, name + "_w"], [y], name=name)]
        ends = products
        if all(sums):
            biases = [next(constants[i] for i in node.input if i in constants) for node in sums]
            tensors["_b"] = np.concatenate([numpy_helper.to_array(bias).reshape(-1) for bias in biases])
            nodes.append(helper.make_node("Add", [y, name + "_b"], [name + "_z"]))
            y, ends = name + "_z", sums
        nodes.append(helper.make_node("Split", [y, name + "_sizes"], [node.output[0] for node in ends], axis=-1))
        graph.initializer.extend(numpy_helper.from_array(tensor, name + stem) for stem, tensor in tensors.items())
        made[id(products[0])] = nodes
        gone |= {id(node) for node in products} | {id(node) for node in sums if node}
        count += 1
    nodes = [new for node in graph.node for new in made.get(id(node), []) + ([] if id(node) in gone else [node])]
    del graph.node[:]
    graph.node.extend(nodes)
    return count


if __name__ == "__main__":
    model = onnx.load(sys.argv[1])
    print(merge(model), "groups")
    onnx.save(model, sys.argv[2])
