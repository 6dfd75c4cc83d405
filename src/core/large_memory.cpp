#include "core/large_memory.h"

#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <cstdint>
#include <string>

#include "core/checked.h"
#include "core/cpu_info.h"
#include "treadle/error.h"

namespace treadle {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 65'536;  // a multiple of every page size in use

}  // namespace

std::shared_ptr<Storage> allocate_large(size_t size_bytes) {
  if (size_bytes < kHugePage) return Storage::allocate(size_bytes);
  if (size_t limit = cpu_info().memory_limit_bytes; limit > 0 && size_bytes > limit) return Storage::allocate(size_bytes);  // which throws
  // Huge pages start at multiples of their size, a mapping anywhere: what is too much before and behind goes back.
  const size_t rounded = align_up(size_bytes, kPage), asked = rounded + kHugePage;
  void* mapped = asked < size_bytes ? MAP_FAILED : ::mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw Error(ErrorCode::resource_exhausted, "cannot allocate " + std::to_string(size_bytes) + " bytes");
  auto* begin = static_cast<std::byte*>(mapped);
  std::byte* data = begin + (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  size_t mapped_bytes = asked;
  if (data != begin && ::munmap(begin, static_cast<size_t>(data - begin)) == 0)
    mapped_bytes -= static_cast<size_t>(data - begin), begin = data;
  auto* end = begin + mapped_bytes;
  if (data + rounded != end && ::munmap(data + rounded, static_cast<size_t>(end - (data + rounded))) == 0)
    mapped_bytes -= static_cast<size_t>(end - (data + rounded));
  ::madvise(data, rounded, MADV_HUGEPAGE);  // a wish: without huge pages small ones do
  try {
    return Storage::borrow(data, size_bytes, [begin, mapped_bytes] { ::munmap(begin, mapped_bytes); });
  } catch (...) {
    ::munmap(begin, mapped_bytes);
    throw;
  }
}

void give_back_free_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace treadle
