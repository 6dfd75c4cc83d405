#include "core/values/large_memory.h"

#include <sys/mman.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <utility>

#include "core/base/checked.h"
#include "core/base/cpu_info.h"
#include "core/base/fork_mutex.h"
#include "core/values/allocation.h"
#include "core/values/held_memory.h"
#include "treadle/error.h"

namespace treadle {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 65'536;  // a multiple of all page sizes in use

constexpr size_t kKeptAtMost = size_t{128} << 20;

// Keeps blocks that runs released, for later requests, since the system need not clear kept pages. This never enlarges the process: the
// used and the kept blocks together stay below the peak of the used ones, because a request that no kept block can serve first unmaps as
// many bytes as it maps. The system may take the pages when memory is short (MADV_FREE). Blocks are split for smaller requests and
// neighbors merged, since runs with changing extents request ever new sizes, several of them concurrently.
class KeptBlocks {
 public:
  // Takes the smallest sufficient block and keeps the remainder. Null if there is none.
  void* take(size_t rounded) noexcept {
    std::lock_guard lock(mutex_);
    Block* best = nullptr;
    for (Block& block : blocks_)
      if (block.size_bytes >= rounded && (!best || block.size_bytes < best->size_bytes)) best = &block;
    if (!best) {
      give_back(rounded);
      return nullptr;
    }
    std::byte* taken = best->data;
    best->data += rounded;
    best->size_bytes -= rounded;
    return taken;
  }
  bool keep(void* data, size_t rounded) noexcept {
    std::lock_guard lock(mutex_);
    Block joined{static_cast<std::byte*>(data), rounded};
    Block *free = nullptr, *before = nullptr, *behind = nullptr;
    size_t kept = rounded;
    for (Block& block : blocks_) {
      kept += block.size_bytes;
      if (block.size_bytes == 0)
        free = &block;
      else if (block.data + block.size_bytes == joined.data)
        before = &block;
      else if (joined.data + rounded == block.data)
        behind = &block;
    }
    if (kept > kKeptAtMost || (!free && !before && !behind) || ::madvise(data, rounded, MADV_FREE) != 0) return false;
    if (before) joined = {before->data, before->size_bytes + joined.size_bytes};
    if (behind) joined.size_bytes += std::exchange(*behind, {}).size_bytes;
    *(before ? before : behind ? behind : free) = joined;
    return true;
  }
  void give_back_all() noexcept {
    std::lock_guard lock(mutex_);
    give_back(SIZE_MAX);
  }

 private:
  struct Block {
    std::byte* data = nullptr;
    size_t size_bytes = 0;  // 0: the entry is free
  };

  void give_back(size_t at_least) noexcept {
    for (Block& block : blocks_) {
      if (at_least == 0) return;
      if (block.size_bytes == 0) continue;
      at_least -= std::min(at_least, block.size_bytes);
      ::munmap(block.data, block.size_bytes);
      block = {};
    }
  }

  ForkMutex mutex_;
  std::array<Block, 32> blocks_;
};

class HugePages final : public Allocator {
 public:
  std::string_view name() const noexcept override { return "huge pages"; }

  // Huge pages are aligned to their size, mappings are not: maps more and unmaps the excess at both ends.
  void* allocate(size_t size_bytes, MemoryClass /*memory_class*/) override {
    const size_t rounded = align_up(size_bytes, kPage);
    if (rounded < size_bytes) return nullptr;
    if (void* kept = kept_.take(rounded)) return kept;
    return map(rounded);
  }
  // Keeps only memory of runs. Weights are allocated once per session, so nobody would reuse their blocks.
  void free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept override {
    const size_t rounded = align_up(size_bytes, kPage);
    const bool comes_again = memory_class == MemoryClass::activations || memory_class == MemoryClass::scratch;
    if (!comes_again || !kept_.keep(data, rounded)) ::munmap(data, rounded);
  }
  // Returns the address of the resized block, with the same content; null if that fails.
  void* resize(void* data, size_t old_bytes, size_t new_bytes) noexcept {
    const size_t before = align_up(old_bytes, kPage), rounded = align_up(new_bytes, kPage);
    if (rounded < new_bytes) return nullptr;
    if (rounded <= before) {
      if (rounded < before) ::munmap(static_cast<std::byte*>(data) + rounded, before - rounded);
      return data;
    }
    if (::mremap(data, before, rounded, 0) != MAP_FAILED) return data;
    if (errno == EFAULT) return nullptr;  // a block merged from several mappings cannot be moved
    void* larger = map(rounded);
    if (!larger) return nullptr;
    // If mremap() fails, it may have unmapped `larger`, and another thread may use these addresses: they must not be unmapped here. They
    // have no pages, so only addresses are lost.
    return ::mremap(data, before, rounded, MREMAP_MAYMOVE | MREMAP_FIXED, larger) == MAP_FAILED ? nullptr : larger;
  }
  void give_back() noexcept { kept_.give_back_all(); }

 private:
  static void* map(size_t rounded) noexcept {
    const size_t asked = rounded + kHugePage;
    if (asked < rounded) return nullptr;
    void* mapped = ::mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    auto* begin = static_cast<std::byte*>(mapped);
    std::byte* data = begin + (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
    // If the system cannot manage more mappings, untouched addresses are lost.
    if (data != begin) ::munmap(begin, static_cast<size_t>(data - begin));
    if (std::byte* behind = data + rounded, *end = begin + asked; behind != end) ::munmap(behind, static_cast<size_t>(end - behind));
    ::madvise(data, rounded, MADV_HUGEPAGE);  // a hint: without huge pages, small ones are used
    return data;
  }

  KeptBlocks kept_;
};

const std::shared_ptr<HugePages>& huge_pages() {
  static const auto* pages = new std::shared_ptr<HugePages>(std::make_shared<HugePages>());  // never destroyed: tensors may live longer
  return *pages;
}

// Populates all pages in one call, at a third of the cost of touching each. Does nothing if the page in the middle is resident, since
// the memory is then most likely reused and has all its pages.
void take_pages(std::byte* data, size_t size_bytes) noexcept {
#ifdef __linux__
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14; older systems reject it
  constexpr size_t kFewest = 16;
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t before = (page - reinterpret_cast<uintptr_t>(data) % page) % page;
  if (size_bytes < before + kFewest * page) return;
  std::byte* const first = data + before;
  const size_t count = (size_bytes - before) / page;
  unsigned char is_there = 1;
  if (::mincore(first + count / 2 * page, page, &is_there) == 0 && (is_there & 1U) == 0) ::madvise(first, count * page, kPopulateWrite);
#else
  (void)data, (void)size_bytes;
#endif
}

}  // namespace

std::shared_ptr<Storage> allocate_large(size_t size_bytes) {
  const AllocationContext* around = AllocationScope::current();
  if (around && around->allocator) return Storage::allocate(size_bytes);
  if (size_bytes < kHugePage) {
    std::shared_ptr<Storage> made = Storage::allocate(size_bytes);
    const MemoryClass memory_class = AllocationScope::current_class();
    const bool is_written_whole = memory_class == MemoryClass::weights || memory_class == MemoryClass::packed;
    if (is_written_whole) take_pages(made->data(), size_bytes);
    return made;
  }
  const AllocationContext own{huge_pages(), around ? around->account : nullptr, around ? around->room : nullptr};
  AllocationScope scope(&own, AllocationScope::current_class());
  return Storage::allocate(size_bytes);
}

Tensor clone_large(const Tensor& tensor) {
  Tensor copy(tensor.dtype(), tensor.shape(), allocate_large(tensor.size_bytes()));
  copy.copy_from(tensor);
  return copy;
}

LargeBlock::LargeBlock(size_t size_bytes) : size_bytes_(size_bytes) {
  const AllocationContext* around = AllocationScope::current();
  if (size_bytes < kPage || size_bytes > SIZE_MAX - kPage || (around && around->allocator)) {
    storage_ = allocate_large(size_bytes);
    data_ = storage_->data();
    return;
  }
  const size_t limit = cpu_info().memory_limit_bytes;
  const auto refuse = [&] {
    throw OutOfMemory(
        fmt::format("cannot allocate {} bytes{}", size_bytes, limit > 0 ? fmt::format("; the machine or its cgroup allows {}", limit) : ""),
        held_memory(around ? around->account.get() : nullptr));
  };
  if (limit > 0 && size_bytes > limit) refuse();
  class_ = AllocationScope::current_class();
  MemoryAccount* account = around ? around->account.get() : nullptr;
  if (around) around->charge(class_, charged());
  data_ = static_cast<std::byte*>(huge_pages()->allocate(size_bytes, class_));
  if (around) account_ = around->account;
  if (!data_) {
    if (account_) account_->discharge(class_, charged());
    BlockRecord::refused(account, class_, charged());
    refuse();
  }
  record_.taken(account, class_, charged());
  if (around) AllocationScope::count_allocation(charged());
}

LargeBlock::~LargeBlock() {
  if (storage_) return;
  huge_pages()->free(data_, size_bytes_, class_);
  if (!account_) return;
  account_->discharge(class_, charged());
  record_.given_back(account_.get(), class_, charged());
}

size_t LargeBlock::charged() const noexcept { return align_up(size_bytes_, Storage::kAlignment); }

void LargeBlock::keep_only(std::span<Range> ranges) noexcept {
  if (storage_) return;
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.offset < b.offset; });
  size_t used_to = 0;
  auto give_back_before = [&](size_t offset) {
    const size_t from = align_up(used_to, kPage), to = offset / kPage * kPage;
    if (from < to) ::madvise(data_ + from, to - from, MADV_DONTNEED);
  };
  for (const Range& range : ranges) {
    give_back_before(range.offset);
    used_to = std::max(used_to, range.offset + range.size_bytes);
  }
  give_back_before(align_up(size_bytes_, kPage));
  is_handed_over_ = true;
  if (!account_) return;
  account_->discharge(class_, charged());
  record_.given_back(account_.get(), class_, charged());
  account_.reset();
}

bool LargeBlock::resize(size_t size_bytes) noexcept {
  if (!can_resize() || size_bytes == 0) return false;
  const size_t before = charged(), after = align_up(size_bytes, Storage::kAlignment);
  if (account_ && after > before && !account_->try_charge(class_, after - before)) return false;
  void* moved = huge_pages()->resize(data_, size_bytes_, size_bytes);
  if (account_ && moved && after < before) account_->discharge(class_, before - after);
  if (account_ && !moved && after > before) account_->discharge(class_, after - before);
  if (!moved) return false;
  record_.given_back(account_.get(), class_, before);
  record_.taken(account_.get(), class_, after);
  data_ = static_cast<std::byte*>(moved);
  size_bytes_ = size_bytes;
  return true;
}

void give_back_kept_memory() { huge_pages()->give_back(); }

void give_back_free_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace treadle
