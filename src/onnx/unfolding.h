// Limits how much the calls of local functions may expand a small file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "onnx/model_def.h"

namespace treadle::onnx {

/// Limits the memory of the nodes that are copied by repeated calls of local functions, in proportion to the size of the nodes in the file.
class UnfoldingBudget {
 public:
  explicit UnfoldingBudget(const ModelDef& model);

  /// Counts a node of a function that a call copies. @param name_bytes  length of the prefix of the node's names @throws
  /// Error(resource_exhausted) beyond the limits
  void charge(const NodeDef& node, size_t name_bytes);
  /// Counts an attribute that a caller passes to a node of a function.
  void charge(const AttributeDef& attribute);

 private:
  void check() const;

  int64_t limit_bytes_ = 0, bytes_ = 0, nodes_ = 0;
};

}  // namespace treadle::onnx
