// Distinguishes errors with the same ErrorCode, because ONNX Runtime has separate statuses or exceptions for them.
#pragma once

#include <string>
#include <utility>

#include "treadle/error.h"

namespace treadle {

class Fault : public Error {
 public:
  enum class Kind {
    unknown_input,  ///< a run is fed a name that the model does not have
    external_data,  ///< a file of external data does not fit the model
    ort_format,     ///< a file in ONNX Runtime's format is damaged
    no_graph,       ///< the protobuf message of a model contains no graph
    no_ir_version,  ///< a model does not name the version of ONNX's format
    schema,         ///< a node's operands or attributes do not match the schema of its operator
    operand_type,   ///< the types of a node's operands do not match its operator
    unmade_value,   ///< a node reads a value that no node computes
  };
  /// @param words  text in ONNX Runtime's message for this fault that programs search for; empty: only the text that belongs to `kind`
  Fault(Kind kind, ErrorCode code, std::string message, std::string words = {})
      : Error(code, std::move(message)), kind_(kind), words_(std::move(words)) {}
  Kind kind() const noexcept { return kind_; }
  const std::string& words() const noexcept { return words_; }

 private:
  Kind kind_;
  std::string words_;
};

}  // namespace treadle
