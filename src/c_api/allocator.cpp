// Implements the allocators of the C ABI.
#include "c_api/allocator.h"

#include <cstddef>
#include <memory>

#include "c_api/arguments.h"
#include "c_api/context.h"
#include "c_api/status.h"

using treadle::MemoryClass;

namespace treadle::c_api {

// Returns the C ABI's number of a memory class. TREADLE_MEMORY_TOTAL has a fixed number, and classes added later have larger numbers.
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

namespace {

using namespace treadle::c_api;

// Checks that the required functions are set.
Argument functions_of(const treadle_allocator_callbacks& calls) {
  return first_fault({needed(calls.allocate != nullptr, "callbacks.allocate"), needed(calls.free != nullptr, "callbacks.free")});
}

treadle::AllocatorCallbacks callbacks_of(const treadle_allocator_callbacks& calls, const std::shared_ptr<CallbackContext>& context) {
  treadle::AllocatorCallbacks callbacks;
  callbacks.name = calls.name ? calls.name : "custom";
  callbacks.allocate = [context, allocate = calls.allocate](size_t size_bytes, MemoryClass memory_class) {
    return allocate(context->context, size_bytes, number_of(memory_class));
  };
  callbacks.free = [context, free = calls.free](void* data, size_t size_bytes, MemoryClass memory_class) {
    free(context->context, data, size_bytes, number_of(memory_class));
  };
  if (calls.trim) callbacks.trim = [context, trim = calls.trim] { return trim(context->context); };
  return callbacks;
}

}  // namespace

extern "C" {

treadle_status* treadle_allocator_create(const treadle_allocator_callbacks* callbacks, treadle_allocator** out) {
  constexpr size_t kFirstVersion = sizeof(treadle_allocator_callbacks);
  const treadle_allocator_callbacks calls = whole(callbacks, kFirstVersion);
  return call(__func__,
              {needed(callbacks, "callbacks"), sized(callbacks, kFirstVersion, "callbacks"), functions_of(calls), needed(out, "out")}, [&] {
                auto context = std::make_shared<CallbackContext>();
                context->context = calls.context;
                auto made = make<treadle_allocator>(std::make_shared<treadle::CallbackAllocator>(callbacks_of(calls, context)));
                context->release = calls.release;
                *out = made.release();
              });
}

void treadle_allocator_release(treadle_allocator* allocator) { dispose(allocator); }

treadle_status* treadle_allocator_statistics(const treadle_allocator* allocator, int32_t memory_class, uint64_t* bytes,
                                             uint64_t* peak_bytes, uint64_t* num_allocations) {
  return call(__func__, {handle(allocator, "allocator"), known_memory_class(memory_class)}, [&] {
    const treadle::MemoryStatistics statistics = allocator->allocator->statistics();
    const treadle::MemoryUsage& usage = usage_of(statistics, memory_class);
    if (bytes) *bytes = usage.bytes;
    if (peak_bytes) *peak_bytes = usage.peak_bytes;
    if (num_allocations) *num_allocations = static_cast<uint64_t>(usage.num_allocations);
  });
}

}  // extern "C"
