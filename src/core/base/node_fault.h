// An error of a node in a run, together with the node's operator, since ONNX Runtime's status for the error depends on the operator.
#pragma once

#include <string>
#include <utility>

#include "treadle/error.h"

namespace treadle {

/// An error that a node raised about its inputs.
class NodeFault : public Error {
 public:
  NodeFault(const Error& error, std::string node_op_type, std::string node_domain, std::string node_name)
      : Error(error), op_type(std::move(node_op_type)), domain(std::move(node_domain)), name(std::move(node_name)) {}
  std::string op_type, domain, name;
};

}  // namespace treadle
