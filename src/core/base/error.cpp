#include "treadle/error.h"

#include "core/base/utf8.h"

namespace treadle {

std::string_view error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::ok: return "ok";
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::invalid_model: return "invalid_model";
    case ErrorCode::not_implemented: return "not_implemented";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::resource_exhausted: return "resource_exhausted";
    case ErrorCode::cancelled: return "cancelled";
    case ErrorCode::timed_out: return "timed_out";
    case ErrorCode::io_error: return "io_error";
    case ErrorCode::internal: return "internal";
  }
  return "unknown";
}

// Errors quote text from files and are shown on terminals, so unprintable characters are escaped here for all errors.
Error::Error(ErrorCode code, std::string message)
    : std::runtime_error(""),  // has no text, because what() is overridden
      code_(code),
      message_(printable(std::move(message))),
      text_(message_) {}

Error::~Error() = default;

Error& Error::add_context(std::string context, std::string details) {
  if (!context_.empty()) return *this;
  context_ = printable(std::move(context));
  text_ = context_ + ":\n  " + message_;
  if (!details.empty()) text_ += "\n  " + printable(std::move(details));
  return *this;
}

Error& Error::add_details(std::string_view details) {
  while (details.ends_with('\n')) details.remove_suffix(1);
  if (details.empty()) return *this;
  text_ += "\n  ";
  for (char c : printable(std::string(details))) c == '\n' ? text_ += "\n  " : text_ += c;
  return *this;
}

}  // namespace treadle
