// The struct behind the handle treadle_allocator, and functions for the memory usage per class.
#pragma once

#include <memory>

#include "c_api/arguments.h"
#include "treadle/allocator.h"
#include "treadle/treadle.h"

struct treadle_allocator : treadle::c_api::Handle<treadle_allocator> {
  std::shared_ptr<treadle::CallbackAllocator> allocator;
};

namespace treadle::c_api {

/// Returns the usage of a treadle_memory_class, whose numbers never change. @throws Error(invalid_argument) for other numbers
const MemoryUsage& usage_of(const MemoryStatistics& statistics, int32_t memory_class);
int32_t number_of(MemoryClass memory_class);

}  // namespace treadle::c_api
