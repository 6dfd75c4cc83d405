// Limits the expansion of a small file by calls of local functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "onnx/model_def.h"

namespace treadle::onnx {

/// A file pays for its nodes with bytes, but not for nodes that repeated calls copy. These may use memory in proportion to the file's own
/// nodes.
class UnfoldingBudget {
 public:
  explicit UnfoldingBudget(const ModelDef& model);

  /// Charges a function's node that a call copies. @param name_bytes  length of the prefix of its names
  /// @throws Error(resource_exhausted) beyond the limits
  void charge(const NodeDef& node, size_t name_bytes);
  /// Charges an attribute that a function's node takes from the caller.
  void charge(const AttributeDef& attribute);

 private:
  void check() const;

  int64_t limit_bytes_ = 0, bytes_ = 0, nodes_ = 0;
};

}  // namespace treadle::onnx
