#include "passes/factors.h"

#include <algorithm>
#include <cmath>

#include "passes/matching.h"

namespace treadle::passes {
namespace {

constexpr int kMaxDepth = 3;
constexpr size_t kMaxFactors = 6;

void collect(const Graph& graph, ValueId id, int depth, Factors& factors) {
  if (auto number = scalar_constant(graph, id)) {
    factors.constant *= *number;
    return;
  }
  const Node* node = producer_of(graph, id);
  if (node && depth < kMaxDepth && factors.values.size() < kMaxFactors && node->domain.empty()) {
    if (node->op_type == "Mul") {
      collect(graph, node->inputs[0], depth + 1, factors);
      return collect(graph, node->inputs[1], depth + 1, factors);
    }
    if (node->op_type == "Div") {
      if (auto divisor = scalar_constant(graph, node->inputs[1]); divisor && *divisor != 0) {
        factors.constant /= *divisor;
        return collect(graph, node->inputs[0], depth + 1, factors);
      }
    }
    if (node->op_type == "Pow") {
      auto exponent = scalar_constant(graph, node->inputs[1]);
      if (exponent && (*exponent == 2 || *exponent == 3)) {
        for (int i = 0; i < static_cast<int>(*exponent); ++i) factors.values.push_back(node->inputs[0]);
        return;
      }
    }
  }
  factors.values.push_back(id);
}

}  // namespace

bool Factors::take(ValueId x) {
  auto found = std::find(values.begin(), values.end(), x);
  if (found == values.end()) return false;
  values.erase(found);
  return true;
}

std::optional<double> scalar_constant(const Graph& graph, ValueId id) {
  const Tensor* tensor = id == kNoValue ? nullptr : graph.constant_tensor(id);
  if (!tensor || tensor->num_elements() != 1) return std::nullopt;
  switch (tensor->dtype()) {
    case DType::float32: return static_cast<double>(*tensor->data<float>());
    case DType::int64: return static_cast<double>(*tensor->data<int64_t>());  // exponents of Pow may be integers
    case DType::int32: return static_cast<double>(*tensor->data<int32_t>());
    default: return std::nullopt;
  }
}

Factors factors_of(const Graph& graph, ValueId id) {
  Factors factors;
  collect(graph, id, 0, factors);
  return factors;
}

ValueId added_to_constant(const Graph& graph, ValueId id, double number) {
  const Node* node = producer_of(graph, id);
  if (!node || !node->is("Add")) return kNoValue;
  for (size_t i : {0U, 1U}) {
    auto constant = scalar_constant(graph, node->inputs[i]);
    if (constant && is_near(*constant, number)) return node->inputs[1 - i];
  }
  return kNoValue;
}

bool is_near(double a, double b) { return std::fabs(a - b) <= 2e-6 * std::fabs(b); }

}  // namespace treadle::passes
