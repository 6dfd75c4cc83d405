// One step of a FusedElementwise (a chain of pointwise operators), in the syntax of the attribute "steps".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace treadle {

/// One operator of a chain: `Mul 0 3`, `LeakyRelu 2 alpha=0.1`. Operands are indices of the node's inputs, then of earlier results.
struct ElementwiseStep {
  std::string op_type;
  std::vector<size_t> operands;
  std::vector<std::pair<std::string, float>> attributes;

  /// @throws Error(invalid_model)
  static ElementwiseStep parse(std::string_view text);
  std::string to_string() const;
  float attribute(std::string_view name, float otherwise) const;
};

}  // namespace treadle
