// What tests of the C ABI do with a status.
#pragma once

#include <string>

#include "treadle/treadle.h"

namespace treadle::testing {

/// Its message; it is released. Empty: there was no error.
inline std::string message_of(treadle_status* status) {
  std::string message = treadle_status_message(status);
  treadle_status_release(status);
  return message;
}

}  // namespace treadle::testing
