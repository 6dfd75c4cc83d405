// Lists capabilities and options that some executors do not support. Errors, tests and the table in docs/sessions.md use these texts.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "treadle/session.h"

namespace treadle {

struct Refusal {
  std::string_view where;    ///< the way in which the model is executed, such as "execution on devices"
  std::string_view what;     ///< a capability, or an option's name in SessionOptions
  std::string_view instead;  ///< the reason why the capability or option has no effect in that way of executing, or the alternative

  std::string message() const;
};

std::span<const Refusal> refusals();
/// Throws the error that the list has for this pair of `where` and `what`.
/// @param name  the object concerned, such as a device; empty: none.
/// @throws Error(invalid_argument) with the listed text. @pre the list has this pair
[[noreturn]] void refuse(std::string_view where, std::string_view what, std::string_view name = {});

/// Refuses options that the kind of execution `where` does not support.
/// @param options  options that complete() has returned
/// @throws Error(invalid_argument) for the first such option that is set.
void refuse_set(std::string_view where, const SessionOptions& options);

/// Returns the table in Markdown, for docs/sessions.md.
std::string refusals_markdown();

}  // namespace treadle
