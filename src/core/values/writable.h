// Checks that memory may be written. Arrays over bytes objects and mapped files are read-only.
#pragma once

#include <string>
#include <string_view>

#include "treadle/error.h"
#include "treadle/tensor.h"

namespace treadle {

/// Throws if the memory is read-only. @param what  its owner, such as `output "y"`. @throws Error(invalid_argument)
inline void expect_writable(const Tensor& memory, std::string_view what) {
  if (memory.storage() && !memory.storage()->writable())
    throw Error(ErrorCode::invalid_argument, std::string(what) + " is written to, and its memory, " + describe(memory) + ", is read-only");
}

}  // namespace treadle
