#include "core/base/checked.h"
#include "treadle/allocator.h"
#include "treadle/error.h"
#include "treadle/tensor.h"

namespace treadle {

struct CallbackAllocator::State {
  AllocatorCallbacks callbacks;
  MemoryAccount account{"the allocator"};
};

CallbackAllocator::CallbackAllocator(AllocatorCallbacks callbacks) {
  if (!callbacks.allocate || !callbacks.free)
    throw Error(ErrorCode::invalid_argument, "an allocator needs the functions allocate and free");
  if (callbacks.name.empty()) callbacks.name = "custom";
  state_ = std::make_unique<State>();
  state_->callbacks = std::move(callbacks);
}

CallbackAllocator::~CallbackAllocator() = default;

std::string_view CallbackAllocator::name() const noexcept { return state_->callbacks.name; }

void* CallbackAllocator::allocate(size_t size_bytes, MemoryClass memory_class) {
  void* data = state_->callbacks.allocate(size_bytes, memory_class);
  if (!data) return nullptr;
  if (reinterpret_cast<uintptr_t>(data) % Storage::kAlignment != 0) {
    state_->callbacks.free(data, size_bytes, memory_class);
    throw Error(ErrorCode::invalid_argument, "the allocator \"" + state_->callbacks.name +
                                                 "\" gave memory at an address that is no multiple of " +
                                                 std::to_string(Storage::kAlignment));
  }
  state_->account.try_charge(memory_class, size_bytes);  // cannot fail without a limit
  return data;
}

void CallbackAllocator::free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept {
  state_->callbacks.free(data, size_bytes, memory_class);
  state_->account.discharge(memory_class, size_bytes);
}

size_t CallbackAllocator::trim() noexcept { return state_->callbacks.trim ? state_->callbacks.trim() : 0; }

MemoryStatistics CallbackAllocator::statistics() const { return state_->account.statistics(); }

}  // namespace treadle
