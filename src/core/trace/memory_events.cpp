#include "core/trace/memory_events.h"

namespace treadle {
namespace {

std::atomic<uint64_t> next_number{1};

void write(RecordKind kind, const MemoryAccount* account, int64_t bytes, int64_t packed) {
  // Stores the account in the record's field `end`. A profile selects the records of its session by this account (Recorder::collect).
  Recorder::of_process().record(MemoryHolder::name(), kind, read_ticks(), reinterpret_cast<uintptr_t>(account), bytes, packed);
}

}  // namespace

thread_local constinit uint32_t MemoryHolder::name_ = MemoryHolder::kNobody;

void BlockRecord::write_taken(const MemoryAccount* account, MemoryClass memory_class, size_t size_bytes) noexcept {
  number_ = next_number.fetch_add(1, std::memory_order_relaxed);
  write(RecordKind::memory, account, static_cast<int64_t>(size_bytes), pack(number_, memory_class));
}

void BlockRecord::write_given_back(const MemoryAccount* account, MemoryClass memory_class, size_t size_bytes) const noexcept {
  write(RecordKind::memory, account, -static_cast<int64_t>(size_bytes), pack(number_, memory_class));
}

void BlockRecord::refused(const MemoryAccount* account, MemoryClass memory_class, size_t size_bytes) noexcept {
  if (RecordWindow::any_for_memory() && account)
    write(RecordKind::out_of_memory, account, static_cast<int64_t>(size_bytes), pack(0, memory_class));
}

}  // namespace treadle
