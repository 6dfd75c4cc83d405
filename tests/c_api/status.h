// Helpers for the statuses of the C ABI.
#pragma once

#include <string>

#include "treadle/treadle.h"

namespace treadle::testing {

/// Releases the status and returns its message; empty if there was no error.
inline std::string message_of(treadle_status* status) {
  std::string message = treadle_status_message(status);
  treadle_status_release(status);
  return message;
}

}  // namespace treadle::testing
