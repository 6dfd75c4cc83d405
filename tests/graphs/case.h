// A graph with feeds, and its text form, which the fuzzer prints and regression tests contain.
//
//     opset 21
//     input x float32 [2,N]
//     constant c int64 [2] = 1 2
//     y, z = Split(x, c) axis=1
//     w = If(b)
//       then_branch {
//         t = Neg(y)
//         output t float32
//       }
//       else_branch {
//         ...
//       }
//     output w float32
//     feeds                    (a set of feeds; there may be several, of other extents)
//     feed x [2,3] = 0.5 1 2 3 4 5
//
// Attributes: axis=1, alpha=0.5f, axes=[0,1], mode="edge", value=int64[2]{1 2}, type=type(seq(float32)). Types of sequences: seq(float32).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx/model_def.h"
#include "tests/graphs/array.h"

namespace treadle::graphs {

using Feeds = std::map<std::string, Array>;

struct Case {
  onnx::ModelDef model;
  std::vector<Feeds> sets;
};

std::string print(const Case& c);
/// Prints a node's call without its bodies: "Split(x, c) axis=1".
std::string print_call(const onnx::NodeDef& node);
/// Reads a case from its text. @throws std::runtime_error that names the line
Case parse(const std::string& text);
inline Case clone(const Case& c) { return parse(print(c)); }

onnx::AttributeDef integer(std::string name, int64_t value);
onnx::AttributeDef integers(std::string name, std::vector<int64_t> values);
onnx::AttributeDef real(std::string name, float value);
onnx::AttributeDef text(std::string name, std::string value);
onnx::AttributeDef reals(std::string name, std::vector<float> values);
onnx::AttributeDef texts(std::string name, std::vector<std::string> values);
onnx::AttributeDef tensor(std::string name, const Array& value);
/// Returns an attribute with a tensor's or sequence's type.
onnx::AttributeDef type_of(std::string name, DType dtype, bool is_sequence);
onnx::AttributeDef body(std::string name, onnx::GraphDef graph);
onnx::TensorDef initializer(std::string name, const Array& value);
/// Returns a declaration of a tensor or sequence without a shape.
onnx::ValueInfoDef declare(std::string name, DType dtype, bool is_sequence = false);

/// Returns a model without nodes.
Case empty_case();

}  // namespace treadle::graphs
