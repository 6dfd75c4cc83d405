// Errors that other layers tell apart from those of the same ErrorCode: ONNX Runtime has a status or an exception of its own for each.
#pragma once

#include <string>

#include "treadle/error.h"

namespace treadle {

class Fault : public Error {
 public:
  enum class Kind {
    unknown_input,  ///< a run is fed a name that the model has not
    external_data,  ///< a file beside the model that does not fit it
    ort_format,     ///< bytes in ONNX Runtime's format that are damaged
    schema,         ///< a node has other operands or attributes than its operator
    operand_type,   ///< ... or operands of other types
    unmade_value,   ///< a node reads what nothing makes
  };
  Fault(Kind kind, ErrorCode code, std::string message) : Error(code, std::move(message)), kind_(kind) {}
  Kind kind() const noexcept { return kind_; }

 private:
  Kind kind_;
};

}  // namespace treadle
