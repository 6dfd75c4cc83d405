// Distinguishes errors with the same ErrorCode, because ONNX Runtime has separate statuses or exceptions for them.
#pragma once

#include <string>

#include "treadle/error.h"

namespace treadle {

class Fault : public Error {
 public:
  enum class Kind {
    unknown_input,  ///< a feed names an input that the model does not have
    external_data,  ///< a file of external data does not fit the model
    ort_format,     ///< damaged data in ONNX Runtime's format
    schema,         ///< a node's operands or attributes do not match its schema
    operand_type,   ///< ... or the types of its operands
    unmade_value,   ///< a node reads a value that no node computes
  };
  Fault(Kind kind, ErrorCode code, std::string message) : Error(code, std::move(message)), kind_(kind) {}
  Kind kind() const noexcept { return kind_; }

 private:
  Kind kind_;
};

}  // namespace treadle
