// Graphs of quantized nodes for tests of passes.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "passes/pipeline.h"
#include "tests/passes/pass_test.h"

namespace treadle::testing {

inline int count(const Graph& graph, std::string_view type, std::string_view domain = "") {
  int n = 0;
  for (NodeId id : graph.order()) n += graph.node(id).is(type, domain) ? 1 : 0;
  return n;
}

/// A graph builder that adds quantized nodes with constant scales and zero points.
class QuantizedGraphBuilder : public GraphBuilder {
 public:
  bool is_signed = false;  ///< codes are int8, with zero points less by 128
  ValueId quantize(std::string_view name, ValueId x, float scale, uint8_t zero) {
    return op(name, "QuantizeLinear", {x, this->scalar(std::string(name) + "_s", scale), byte(name, zero)});
  }
  ValueId dequantize(std::string_view name, ValueId x, float scale, uint8_t zero) {
    return op(name, "DequantizeLinear", {x, this->scalar(std::string(name) + "_s", scale), byte(name, zero)});
  }
  ValueId byte(std::string_view name, uint8_t zero) {
    const std::string zero_point = std::string(name) + "_z";
    if (is_signed) return constant<int8_t>(zero_point, Shape{}, {static_cast<int8_t>(zero - 128)});
    return constant<uint8_t>(zero_point, Shape{}, {zero});
  }
  /// Makes a bias whose elements are multiples of the unit of the integer sums.
  ValueId bias(std::string_view name, int count, float unit) {
    std::vector<float> values;
    for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(i * 911 - 3000) * unit);
    return floats(std::string(name), values);
  }
  ValueId dequantized_weights(std::string_view name, const Shape& shape, const std::vector<float>& scales) {
    const Tensor random = random_tensor(shape, 3);
    std::vector<int8_t> values;
    for (float x : random.span<float>()) values.push_back(static_cast<int8_t>(std::lround(x * 127)));
    const std::string stem(name);
    return op(name, "DequantizeLinear",
              {constant<int8_t>(stem + "_q", shape, values), floats(stem + "_s", scales),
               constant<int8_t>(stem + "_z", Shape{shape[0]}, std::vector<int8_t>(static_cast<size_t>(shape[0]), 0))},
              {{"axis", int64_t{0}}});
  }
};

/// Returns the largest difference between codes of the outputs before and after the whole pipeline. Before, the graph computes in float.
inline int largest_step(Graph& graph, const std::vector<Datum>& feeds, const passes::PipelineOptions& given = {}) {
  const auto before = run_graph(graph, feeds);
  passes::PipelineOptions options = given;
  options.verify = true;
  passes::optimize(graph, options);
  const auto after = run_graph(graph, feeds);
  int largest = 0;
  for (size_t output = 0; output < before.size(); ++output) {
    const Tensor &x = before[output].tensor(), &y = after[output].tensor();
    EXPECT_EQ(x.dtype(), y.dtype());
    EXPECT_EQ(x.shape(), y.shape());
    auto code = [](const Tensor& codes, int64_t i) {
      return codes.dtype() == DType::int8 ? int{codes.data<int8_t>()[i]} : int{codes.data<uint8_t>()[i]};
    };
    for (int64_t i = 0; i < x.num_elements(); ++i) largest = std::max(largest, std::abs(code(x, i) - code(y, i)));
  }
  return largest;
}

}  // namespace treadle::testing
