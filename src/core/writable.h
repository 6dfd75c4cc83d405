// Memory that is to be written to: an array over bytes, or a mapping of a file, is there to be read only.
#pragma once

#include <string>
#include <string_view>

#include "treadle/error.h"
#include "treadle/tensor.h"

namespace treadle {

/// @param what  whose memory it is, such as `output "y"`. @throws Error(invalid_argument) if the memory is read-only.
inline void expect_writable(const Tensor& memory, std::string_view what) {
  if (memory.storage() && !memory.storage()->writable())
    throw Error(ErrorCode::invalid_argument, std::string(what) + " is written to, and its memory, " + describe(memory) + ", is read-only");
}

}  // namespace treadle
