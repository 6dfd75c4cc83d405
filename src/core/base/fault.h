// Distinguishes errors with the same ErrorCode, because ONNX Runtime has separate statuses or exceptions for them.
#pragma once

#include <string>
#include <utility>

#include "treadle/error.h"

namespace treadle {

class Fault : public Error {
 public:
  enum class Kind {
    unknown_input,  ///< a run is fed a name that the model has not
    external_data,  ///< a file beside the model that does not fit it
    ort_format,     ///< bytes in ONNX Runtime's format that are damaged
    no_graph,       ///< a protobuf message that contains no graph
    no_ir_version,  ///< a model that does not say what version of ONNX's it is of
    schema,         ///< a node has other operands or attributes than its operator
    operand_type,   ///< ... or operands of other types
    unmade_value,   ///< a node reads what nothing makes
  };
  /// @param words  text that programs search for in ONNX Runtime's message; empty: only the words of the kind
  Fault(Kind kind, ErrorCode code, std::string message, std::string words = {})
      : Error(code, std::move(message)), kind_(kind), words_(std::move(words)) {}
  Kind kind() const noexcept { return kind_; }
  const std::string& words() const noexcept { return words_; }

 private:
  Kind kind_;
  std::string words_;
};

}  // namespace treadle
