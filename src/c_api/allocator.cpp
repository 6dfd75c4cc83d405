// Allocators of the C ABI.
#include "c_api/allocator.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "c_api/context.h"
#include "c_api/status.h"

using treadle::Error;
using treadle::ErrorCode;
using treadle::MemoryClass;
using treadle::c_api::CallbackContext;
using treadle::c_api::guarded;
using treadle::c_api::require;

namespace treadle::c_api {

// What came behind the total stands behind it.
int32_t number_of(MemoryClass memory_class) {
  const auto number = static_cast<int32_t>(memory_class);
  return number < TREADLE_MEMORY_TOTAL ? number : number + 1;
}

const MemoryUsage& usage_of(const MemoryStatistics& statistics, int32_t memory_class) {
  if (memory_class == TREADLE_MEMORY_TOTAL) return statistics.total;
  for (size_t c = 0; c < kNumMemoryClasses; ++c)
    if (number_of(static_cast<MemoryClass>(c)) == memory_class) return statistics.classes[c];
  throw Error(ErrorCode::invalid_argument, std::to_string(memory_class) + " is no class of memory");
}

}  // namespace treadle::c_api

extern "C" {

treadle_status* treadle_allocator_create(const treadle_allocator_callbacks* given, treadle_allocator** out) {
  return guarded([&] {
    constexpr size_t kFirstVersion = sizeof(treadle_allocator_callbacks);
    if (require(given, "callbacks").struct_size < kFirstVersion)
      throw Error(ErrorCode::invalid_argument, "the callbacks' struct_size is not set");
    require(out, "out");
    const treadle_allocator_callbacks calls = *given;
    if (!calls.allocate || !calls.free) throw Error(ErrorCode::invalid_argument, "an allocator needs the functions allocate and free");
    auto context = std::make_shared<CallbackContext>();
    context->context = calls.context;
    treadle::AllocatorCallbacks callbacks;
    callbacks.name = calls.name ? calls.name : "custom";
    callbacks.allocate = [context, allocate = calls.allocate](size_t size_bytes, MemoryClass memory_class) {
      return allocate(context->context, size_bytes, treadle::c_api::number_of(memory_class));
    };
    callbacks.free = [context, free = calls.free](void* data, size_t size_bytes, MemoryClass memory_class) {
      free(context->context, data, size_bytes, treadle::c_api::number_of(memory_class));
    };
    if (calls.trim) callbacks.trim = [context, trim = calls.trim] { return trim(context->context); };
    auto made = std::make_unique<treadle_allocator>(treadle_allocator{std::make_shared<treadle::CallbackAllocator>(std::move(callbacks))});
    context->release = calls.release;
    *out = made.release();
  });
}

void treadle_allocator_release(treadle_allocator* allocator) { delete allocator; }

treadle_status* treadle_allocator_statistics(const treadle_allocator* allocator, int32_t memory_class, uint64_t* bytes,
                                             uint64_t* peak_bytes, uint64_t* num_allocations) {
  return guarded([&] {
    const treadle::MemoryStatistics statistics = require(allocator, "allocator").allocator->statistics();
    const treadle::MemoryUsage& usage = treadle::c_api::usage_of(statistics, memory_class);
    if (bytes) *bytes = usage.bytes;
    if (peak_bytes) *peak_bytes = usage.peak_bytes;
    if (num_allocations) *num_allocations = static_cast<uint64_t>(usage.num_allocations);
  });
}

}  // extern "C"
