// What calls of local functions may make of a small file.
#pragma once

#include <cstddef>
#include <cstdint>

#include "onnx/model_def.h"

namespace treadle::onnx {

/// Nodes of the file cost it bytes; those that calls of functions repeat do not. They may take so many bytes as the file's own nodes allow.
class UnfoldingBudget {
 public:
  explicit UnfoldingBudget(const ModelDef& model);

  /// A node of a function that a call repeats. @param name_bytes  of what stands in front of its names.
  /// @throws Error(resource_exhausted) beyond the limits.
  void charge(const NodeDef& node, size_t name_bytes);
  /// What a node of a function takes from its caller.
  void charge(const AttributeDef& attribute);

 private:
  void check() const;

  int64_t limit_bytes_ = 0, bytes_ = 0, nodes_ = 0;
};

}  // namespace treadle::onnx
