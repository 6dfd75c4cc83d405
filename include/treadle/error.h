// The one exception type of the library.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "treadle/export.h"

namespace treadle {

/// What went wrong, in the coarsest useful classes. The C ABI's status codes have the same values.
enum class ErrorCode : int {
  ok = 0,
  invalid_argument = 1,    ///< a caller's value: wrong name, dtype, shape, option
  invalid_model = 2,       ///< the file or graph breaks ONNX's rules
  not_implemented = 3,     ///< valid, but this build lacks the operator, dtype or feature
  not_found = 4,           ///< file, value or option that does not exist
  resource_exhausted = 5,  ///< a limit or the memory
  cancelled = 6,
  timed_out = 7,
  io_error = 8,
  internal = 9,  ///< our own mistake
};

TREADLE_API std::string_view error_code_name(ErrorCode code) noexcept;

/// Thrown where a fault is seen, with both values; the layer that walks the graph adds the node once, by `add_context`.
class TREADLE_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string message);
  ~Error() override;

  ErrorCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const std::string& context() const noexcept { return context_; }

  /// The context stands before the message, closed by a colon: `Conv node "a" (ai.onnx, opset 17), during shape inference:`.
  /// @param details  printed after the message, one line (operands' types, attributes); may be empty.
  /// Does nothing if a context is there already: the innermost node is the one that matters.
  Error& add_context(std::string context, std::string details = {});
  /// More to print behind the message and the details that are there; of several lines, each is indented alike.
  Error& add_details(std::string_view details);

  const char* what() const noexcept override { return text_.c_str(); }

 private:
  ErrorCode code_;
  std::string message_, context_, text_;
};

}  // namespace treadle
