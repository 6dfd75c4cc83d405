#include "core/values/held_memory.h"

#include <new>

namespace treadle {

OutOfMemory::OutOfMemory(std::string message, std::shared_ptr<const HeldMemory> held)
    : Error(ErrorCode::resource_exhausted, std::move(message)), held_(std::move(held)) {}

OutOfMemory::~OutOfMemory() = default;

OutOfMemory& OutOfMemory::describe(std::string_view lines) {
  is_described_ = true;
  add_details(lines);
  return *this;
}

std::shared_ptr<const HeldMemory> held_memory(const MemoryAccount* account) noexcept {
  if (!account) return nullptr;
  try {
    auto held = std::make_shared<HeldMemory>();
    for (; account; account = account->parent().get()) held->accounts.push_back({account->name(), account->statistics()});
    return held;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace treadle
