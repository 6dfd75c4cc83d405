// What is wrong with a node in a run: ONNX Runtime has statuses for it that depend on the operator.
#pragma once

#include <string>
#include <utility>

#include "treadle/error.h"

namespace treadle {

/// The error of a node for what it was given.
class NodeFault : public Error {
 public:
  NodeFault(const Error& error, std::string node_op_type, std::string node_domain, std::string node_name)
      : Error(error), op_type(std::move(node_op_type)), domain(std::move(node_domain)), name(std::move(node_name)) {}
  std::string op_type, domain, name;
};

}  // namespace treadle
