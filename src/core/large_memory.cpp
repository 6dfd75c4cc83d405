#include "core/large_memory.h"

#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <cstdint>

#include "core/allocation.h"
#include "core/checked.h"

namespace treadle {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 65'536;  // a multiple of every page size in use

class HugePages final : public Allocator {
 public:
  std::string_view name() const noexcept override { return "huge pages"; }

  // Huge pages start at multiples of their size, a mapping anywhere: what is too much before and behind goes back.
  void* allocate(size_t size_bytes, MemoryClass /*memory_class*/) override {
    const size_t rounded = align_up(size_bytes, kPage), asked = rounded + kHugePage;
    if (asked < size_bytes) return nullptr;
    void* mapped = ::mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    auto* begin = static_cast<std::byte*>(mapped);
    std::byte* data = begin + (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
    // Where the system has no room to note another mapping, addresses are lost, which were never touched.
    if (data != begin) ::munmap(begin, static_cast<size_t>(data - begin));
    if (std::byte* behind = data + rounded, *end = begin + asked; behind != end) ::munmap(behind, static_cast<size_t>(end - behind));
    ::madvise(data, rounded, MADV_HUGEPAGE);  // a wish: without huge pages small ones do
    return data;
  }
  void free(void* data, size_t size_bytes, MemoryClass /*memory_class*/) noexcept override { ::munmap(data, align_up(size_bytes, kPage)); }
};

}  // namespace

std::shared_ptr<Storage> allocate_large(size_t size_bytes) {
  const AllocationContext* around = AllocationScope::current();
  if (size_bytes < kHugePage || (around && around->allocator)) return Storage::allocate(size_bytes);
  static const auto* pages = new std::shared_ptr<Allocator>(std::make_shared<HugePages>());  // tensors may outlive static objects
  const AllocationContext own{*pages, around ? around->account : nullptr};
  AllocationScope scope(&own, AllocationScope::current_class());
  return Storage::allocate(size_bytes);
}

void give_back_free_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace treadle
