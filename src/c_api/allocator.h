// The allocator behind its handle.
#pragma once

#include <memory>

#include "treadle/allocator.h"
#include "treadle/treadle.h"

struct treadle_allocator {
  std::shared_ptr<treadle::CallbackAllocator> allocator;
};
