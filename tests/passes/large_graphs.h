// Makes graphs with tens of thousands of nodes, on which a test and bench/optimizer.cpp measure how the optimiser's work grows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/graph/graph_builder.h"

namespace treadle::testing {

class LargeGraph {
 public:
  using Make = void (LargeGraph::*)(int64_t nodes);
  struct Kind {
    std::string_view name, description;
    Make make;
  };
  static const std::vector<Kind>& kinds() {
    static const std::vector<Kind> all{
        {"transformer", "layers with shape arithmetic, layer normalisation, attention and Gelu written out", &LargeGraph::transformer},
        {"convolutions", "residual blocks of Conv, BatchNormalization, Relu and Pad", &LargeGraph::convolutions},
        {"chain", "pointwise operators one behind the other, which share their constants", &LargeGraph::chain},
        {"no-ops", "Identity, Reshape, Transpose and Cast that undo each other", &LargeGraph::no_ops},
        {"constants", "nodes that can be computed once, and one reader for each", &LargeGraph::constants},
        {"same", "nodes that compute what others have computed", &LargeGraph::same},
        {"readers", "one value that all nodes read, each of which is an output", &LargeGraph::readers},
        {"join", "many values that one Concat reads", &LargeGraph::join}};
    return all;
  }

  /// Makes a graph with about `nodes` nodes of a kind.
  static std::unique_ptr<Graph> make(const Kind& kind, int64_t nodes) {
    LargeGraph graph;
    (graph.*kind.make)(nodes);
    return graph.b_.take();
  }

 private:
  static constexpr int64_t kWidth = 16;

  ValueId op(std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes = {}) {
    ++made_;
    return b_.op("v" + std::to_string(made_), op_type, std::move(inputs), std::move(attributes));
  }
  std::string name(std::string_view stem) { return std::string(stem) + std::to_string(++constants_); }
  ValueId weights(const Shape& shape) {
    return b_.graph().add_constant(name("w"), GraphBuilder::random_tensor(shape, static_cast<uint32_t>(constants_)));
  }
  ValueId scalar(float value) { return b_.scalar(name("c"), value); }
  ValueId ints(const std::vector<int64_t>& values) { return b_.ints(name("i"), values); }

  // Reshapes x [batch, length, width] to [batch, length, heads, size], with arithmetic on its shape, as exporters write it.
  ValueId split_heads(ValueId x) {
    std::vector<ValueId> parts;
    for (int64_t axis : {0, 1}) {
      const ValueId extent = op("Gather", {op("Shape", {x}), b_.constant<int64_t>(name("i"), Shape{}, {axis})});
      parts.push_back(op("Unsqueeze", {extent, ints({0})}));
    }
    parts.push_back(ints({2}));
    parts.push_back(ints({kWidth / 2}));
    const ValueId heads = op("Reshape", {x, op("Concat", parts, {{"axis", int64_t{0}}})});
    return op("Transpose", {heads}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  }
  ValueId normalized(ValueId x) {
    const ValueId centered = op("Sub", {x, op("ReduceMean", {x, ints({-1})})});
    const ValueId variance = op("ReduceMean", {op("Pow", {centered, scalar(2)}), ints({-1})});
    const ValueId scaled = op("Div", {centered, op("Sqrt", {op("Add", {variance, scalar(1e-5F)})})});
    return op("Add", {op("Mul", {scaled, weights({kWidth})}), weights({kWidth})});
  }
  ValueId linear(ValueId x, int64_t in, int64_t out) { return op("Add", {op("MatMul", {x, weights({in, out})}), weights({out})}); }

  void transformer(int64_t nodes) {
    ValueId x = b_.input("x", {b_.symbol("batch"), b_.symbol("length"), kWidth});
    while (made_ < nodes) {
      const ValueId n = normalized(x);
      const ValueId q = split_heads(linear(n, kWidth, kWidth)), k = split_heads(linear(n, kWidth, kWidth)),
                    v = split_heads(linear(n, kWidth, kWidth));
      const ValueId kt = op("Transpose", {k}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
      const ValueId p = op("Softmax", {op("Div", {op("MatMul", {q, kt}), scalar(2.8284271F)})}, {{"axis", int64_t{-1}}});
      const ValueId heads = op("Transpose", {op("MatMul", {p, v})}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
      const ValueId joined = op("Reshape", {heads, ints({0, 0, kWidth})});
      x = op("Add", {linear(joined, kWidth, kWidth), x});
      const ValueId wide = linear(normalized(x), kWidth, 2 * kWidth);
      const ValueId erf = op("Add", {op("Erf", {op("Div", {wide, scalar(1.4142135F)})}), scalar(1)});
      x = op("Add", {linear(op("Mul", {op("Mul", {wide, erf}), scalar(0.5F)}), 2 * kWidth, kWidth), x});
    }
    b_.output(x);
  }

  void convolutions(int64_t nodes) {
    ValueId x = b_.input("x", {b_.symbol("batch"), 8, 12, 12});
    auto normalized = [&](ValueId y) { return op("BatchNormalization", {y, weights({8}), weights({8}), weights({8}), positive({8})}); };
    while (made_ < nodes) {
      const ValueId padded = op("Pad", {x, ints({0, 0, 1, 1, 0, 0, 1, 1})});
      const ValueId first = op("Relu", {normalized(op("Conv", {padded, weights({8, 8, 3, 3})}))});
      const ValueId second = normalized(op("Conv", {first, weights({8, 8, 3, 3})}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}}));
      x = op("Relu", {op("Add", {second, x})});
    }
    b_.output(x);
  }
  ValueId positive(const Shape& shape) {
    return b_.graph().add_constant(name("w"), Tensor::vector<float>(std::vector<float>(static_cast<size_t>(shape[0]), 2.0F)));
  }

  void chain(int64_t nodes) {
    ValueId x = b_.input("x", {b_.symbol("n"), kWidth});
    const ValueId factor = scalar(1.5F), row = weights({kWidth});
    static constexpr std::string_view kUnary[] = {"Relu", "Sigmoid", "Tanh", "Exp"};
    while (made_ < nodes) {
      x = op("Mul", {x, factor});
      x = op(kUnary[made_ / 3 % 4], {x});
      x = op("Add", {x, row});
    }
    b_.output(x);
  }

  void no_ops(int64_t nodes) {
    ValueId x = b_.input("x", {b_.symbol("n"), 4, kWidth});
    const std::vector<int64_t> turn{0, 2, 1};
    while (made_ < nodes) {
      x = op("Identity", {x});
      x = op("Transpose", {op("Transpose", {x}, {{"perm", turn}})}, {{"perm", turn}});
      x = op("Reshape", {op("Reshape", {x, ints({0, -1})}), ints({0, 4, kWidth})});
      x = op("Cast", {x}, {{"to", int64_t{1}}});
      x = op("Mul", {op("Neg", {x}), scalar(1)});
    }
    b_.output(x);
  }

  void constants(int64_t nodes) {
    ValueId x = b_.input("x", {b_.symbol("n"), 4}), y = b_.floats("start", {1, 2, 3, 4});
    const ValueId step = scalar(0.5F);
    while (made_ < nodes) {
      y = op("Add", {op("Mul", {y, step}), step});
      x = op("Add", {x, y});
    }
    b_.output(x);
  }

  void same(int64_t nodes) {
    const ValueId in = b_.input("x", {b_.symbol("n"), kWidth});
    ValueId x = in;
    const ValueId row = weights({kWidth});
    while (made_ < nodes) {
      const ValueId a = op("Tanh", {op("Mul", {in, row})}), c = op("Tanh", {op("Mul", {in, row})});
      x = op("MatMul",
             {op("Sub", {x, op("Add", {a, c})}), b_.graph().find_value("square") == kNoValue ? square() : b_.graph().find_value("square")});
    }
    b_.output(x);
  }
  ValueId square() { return b_.weights("square", {kWidth, kWidth}); }

  void readers(int64_t nodes) {
    const ValueId x = b_.input("x", {b_.symbol("n"), 4});
    while (made_ < nodes) b_.output(op("Identity", {op("Add", {x, scalar(static_cast<float>(made_))})}));
  }

  void join(int64_t nodes) {
    const ValueId x = b_.input("x", {b_.symbol("n"), 4});
    std::vector<ValueId> parts;
    while (made_ < nodes) parts.push_back(op("Relu", {op("Add", {x, scalar(static_cast<float>(made_))})}));
    b_.output(op("Concat", parts, {{"axis", int64_t{1}}}));
  }

  GraphBuilder b_;
  int64_t made_ = 0, constants_ = 0;
};

}  // namespace treadle::testing
