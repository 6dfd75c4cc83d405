// What some ways of running do not have. Errors, tests and the table of docs/sessions.md take their words from this list.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "treadle/session.h"

namespace treadle {

struct Refusal {
  std::string_view where;    ///< the way of running
  std::string_view what;     ///< a capability, or an option as SessionOptions has it
  std::string_view instead;  ///< why it has no meaning there, or what serves instead

  std::string message() const;
};

std::span<const Refusal> refusals();
/// @param name  of what is refused; empty: the words say it.
/// @throws Error(invalid_argument) in the words of the list. @pre it is there
[[noreturn]] void refuse(std::string_view where, std::string_view what, std::string_view name = {});

/// @throws Error(invalid_argument) for the first option of the list that is set. @param options  complete()
void refuse_set(std::string_view where, const SessionOptions& options);

/// The table as docs/sessions.md has it.
std::string refusals_markdown();

}  // namespace treadle
