// The base class of the library's exceptions.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "treadle/export.h"

namespace treadle {

/// Kinds of errors. The C ABI's status codes have the same values.
enum class ErrorCode : int {
  ok = 0,
  invalid_argument = 1,    ///< a caller's value is wrong: name, dtype, shape, option
  invalid_model = 2,       ///< the file or graph violates ONNX's rules
  not_implemented = 3,     ///< valid, but this build lacks the operator, dtype or feature
  not_found = 4,           ///< a file, value or option does not exist
  resource_exhausted = 5,  ///< a limit is exceeded, or memory is exhausted
  cancelled = 6,
  timed_out = 7,
  io_error = 8,
  internal = 9,  ///< a bug in Treadle
};

TREADLE_API std::string_view error_code_name(ErrorCode code) noexcept;

/// Thrown where a fault is detected, with the values involved. The code that walks the graph then adds the node's name by add_context().
class TREADLE_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string message);
  ~Error() override;

  ErrorCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const std::string& context() const noexcept { return context_; }

  /// Puts the context and a colon before the message: `Conv node "a" (ai.onnx, opset 17), during shape inference:`. Does nothing if the
  /// error already has a context, since the innermost node matters.
  /// @param details  a line printed after the message (types of the operands, attributes); may be empty
  Error& add_context(std::string context, std::string details = {});
  /// Appends lines after the message and details, with the same indentation.
  Error& add_details(std::string_view details);

  const char* what() const noexcept override { return text_.c_str(); }

 private:
  ErrorCode code_;
  std::string message_, context_, text_;
};

}  // namespace treadle
