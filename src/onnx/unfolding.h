// Limits the expansion of a small file by calls of local functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "onnx/model_def.h"

namespace treadle::onnx {

/// Limits the memory of nodes that repeated calls of local functions copy, in proportion to the file's own nodes.
class UnfoldingBudget {
 public:
  explicit UnfoldingBudget(const ModelDef& model);

  /// Counts a function's node that a call copies. @param name_bytes  length of the prefix of its names @throws Error(resource_exhausted)
  /// beyond the limits
  void charge(const NodeDef& node, size_t name_bytes);
  /// Counts an attribute that a function's node gets from the caller.
  void charge(const AttributeDef& attribute);

 private:
  void check() const;

  int64_t limit_bytes_ = 0, bytes_ = 0, nodes_ = 0;
};

}  // namespace treadle::onnx
