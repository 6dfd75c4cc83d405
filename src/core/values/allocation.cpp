#include "core/values/allocation.h"

#include <fmt/format.h>

#include <cstdlib>

#include "core/base/checked.h"
#include "core/values/held_memory.h"
#include "treadle/error.h"

namespace treadle {
namespace {

struct Current {
  const AllocationContext* context = nullptr;
  MemoryClass memory_class = MemoryClass::other;
};
constinit thread_local Current innermost;
constinit thread_local size_t allocated = 0;

class PlainAllocator final : public Allocator {
 public:
  std::string_view name() const noexcept override { return "plain"; }
  void* allocate(size_t size_bytes, MemoryClass /*memory_class*/) override {
    const size_t rounded = align_up(size_bytes, Storage::kAlignment);
    return rounded < size_bytes ? nullptr : std::aligned_alloc(Storage::kAlignment, rounded);
  }
  void free(void* data, size_t /*size_bytes*/, MemoryClass /*memory_class*/) noexcept override { std::free(data); }
};

}  // namespace

std::string_view memory_class_name(MemoryClass memory_class) noexcept {
  switch (memory_class) {
    case MemoryClass::weights: return "weights";
    case MemoryClass::packed: return "packed";
    case MemoryClass::activations: return "activations";
    case MemoryClass::scratch: return "scratch";
    case MemoryClass::io: return "io";
    case MemoryClass::parameters: return "parameters";
    case MemoryClass::gradients: return "gradients";
    case MemoryClass::optimizer_state: return "optimizer_state";
    case MemoryClass::other: break;
  }
  return "other";
}

Allocator::~Allocator() = default;
void Allocator::renew(void* /*data*/, size_t /*size_bytes*/) noexcept {}
size_t Allocator::trim() noexcept { return 0; }
void Allocator::visit_regions(const std::function<void(const MemoryRegion&)>& /*visit*/) const {}
void Allocator::check() {}

const std::shared_ptr<Allocator>& plain_allocator() {
  static const auto* allocator = new std::shared_ptr<Allocator>(std::make_shared<PlainAllocator>());  // tensors may outlive static objects
  return *allocator;
}

MemoryAccount::MemoryAccount(std::string name, size_t limit_bytes, std::shared_ptr<MemoryAccount> parent)
    : name_(std::move(name)), parent_(std::move(parent)), limit_(limit_bytes) {}

void MemoryAccount::Counter::count(size_t now) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  size_t seen = peak.load(std::memory_order_relaxed);
  while (seen < now && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

void MemoryAccount::Counter::add(size_t size_bytes) noexcept { count(bytes.fetch_add(size_bytes, std::memory_order_relaxed) + size_bytes); }

MemoryUsage MemoryAccount::Counter::read() const {
  return {bytes.load(std::memory_order_relaxed), peak.load(std::memory_order_relaxed), allocations.load(std::memory_order_relaxed)};
}

// Compare-and-exchange, instead of adding and subtracting again, so that the account never shows more than its limit.
bool MemoryAccount::take(size_t size_bytes) noexcept {
  const size_t limit = limit_bytes();
  size_t before = total_.bytes.load(std::memory_order_relaxed);
  do {
    if (limit > 0 && (size_bytes > limit || before > limit - size_bytes)) return false;
  } while (!total_.bytes.compare_exchange_weak(before, before + size_bytes, std::memory_order_relaxed));
  total_.count(before + size_bytes);
  return true;
}

bool MemoryAccount::try_charge(MemoryClass memory_class, size_t size_bytes) noexcept {
  if (parent_ && !parent_->try_charge(memory_class, size_bytes)) return false;
  if (!take(size_bytes)) {
    if (parent_) parent_->discharge(memory_class, size_bytes);
    return false;
  }
  classes_[static_cast<size_t>(memory_class)].add(size_bytes);
  return true;
}

void throw_limit_too_low(const MemoryAccount* asker, size_t limit_bytes, std::string_view whose, size_t least_bytes,
                         std::string_view details) {
  BlockRecord::refused(asker, MemoryClass::other, least_bytes);
  throw OutOfMemory(
      fmt::format("the memory limit of {} bytes of {} is too low: this run needs at least {}{}", limit_bytes, whose, least_bytes, details));
}

namespace {
std::string limit_reached(size_t limit_bytes, std::string_view whose, size_t size_bytes, std::string_view what, size_t used_bytes,
                          std::string_view details) {
  return fmt::format("the memory limit of {} bytes of {} leaves no {} bytes for {}: {} are in use{}", limit_bytes, whose, size_bytes, what,
                     used_bytes, details);
}
}  // namespace

void throw_limit_reached(const MemoryAccount* asker, size_t limit_bytes, std::string_view whose, size_t size_bytes, std::string_view what,
                         size_t used_bytes, std::string_view details) {
  BlockRecord::refused(asker, MemoryClass::other, size_bytes);
  throw OutOfMemory(limit_reached(limit_bytes, whose, size_bytes, what, used_bytes, details));
}

void MemoryAccount::charge(MemoryClass memory_class, size_t size_bytes) {
  if (try_charge(memory_class, size_bytes)) return;
  BlockRecord::refused(this, memory_class, size_bytes);
  const MemoryAccount* full = this;
  for (const MemoryAccount* account = this; account; account = account->parent_.get())
    if (size_t limit = account->limit_bytes(); limit > 0 && account->bytes() + size_bytes > limit) full = account;
  throw OutOfMemory(limit_reached(full->limit_bytes(), full->name_, size_bytes, memory_class_name(memory_class), full->bytes(),
                                  fmt::format("; a limit of {} has room for them", full->bytes() + size_bytes)),
                    held_memory(this));
}

void MemoryAccount::charge_beyond_limits(MemoryClass memory_class, size_t size_bytes) noexcept {
  classes_[static_cast<size_t>(memory_class)].add(size_bytes);
  total_.add(size_bytes);
  if (parent_) parent_->charge_beyond_limits(memory_class, size_bytes);
}

void MemoryAccount::discharge(MemoryClass memory_class, size_t size_bytes) noexcept {
  classes_[static_cast<size_t>(memory_class)].bytes.fetch_sub(size_bytes, std::memory_order_relaxed);
  total_.bytes.fetch_sub(size_bytes, std::memory_order_relaxed);
  if (parent_) parent_->discharge(memory_class, size_bytes);
}

void AllocationContext::charge(MemoryClass memory_class, size_t size_bytes) const {
  if (!account || account->try_charge(memory_class, size_bytes)) return;
  if (!room || !room->charge(*account, memory_class, size_bytes)) account->charge(memory_class, size_bytes);
}

MemoryStatistics MemoryAccount::statistics() const {
  MemoryStatistics result;
  for (size_t c = 0; c < kNumMemoryClasses; ++c) result.classes[c] = classes_[c].read();
  result.total = total_.read();
  result.limit_bytes = limit_bytes();
  return result;
}

void MemoryAccount::reset_peaks() noexcept {
  for (Counter& counter : classes_) counter.peak.store(counter.bytes.load(std::memory_order_relaxed), std::memory_order_relaxed);
  total_.peak.store(bytes(), std::memory_order_relaxed);
}

AllocationScope::AllocationScope(const AllocationContext* context, MemoryClass memory_class) noexcept
    : context_before_(innermost.context), class_before_(innermost.memory_class) {
  innermost = {context, memory_class};
}

AllocationScope::~AllocationScope() { innermost = {context_before_, class_before_}; }

const AllocationContext* AllocationScope::current() noexcept { return innermost.context; }
size_t AllocationScope::allocated_bytes() noexcept { return allocated; }
void AllocationScope::count_allocation(size_t size_bytes) noexcept { allocated += size_bytes; }
MemoryClass AllocationScope::current_class() noexcept { return innermost.memory_class; }

MemoryCharge::MemoryCharge(std::shared_ptr<MemoryAccount> account, MemoryClass memory_class, size_t size_bytes)
    : class_(memory_class), size_bytes_(size_bytes) {
  if (account) account->charge(memory_class, size_bytes);
  record_.taken(account.get(), memory_class, size_bytes);
  account_ = std::move(account);
}

void MemoryCharge::reset() noexcept {
  if (account_) {
    account_->discharge(class_, size_bytes_);
    record_.given_back(account_.get(), class_, size_bytes_);
  }
  account_.reset();
  size_bytes_ = 0;
}

}  // namespace treadle
