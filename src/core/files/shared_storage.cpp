#include "core/files/shared_storage.h"

#include <atomic>
#include <cstring>

#include "core/base/weak_cache.h"
#include "core/files/content_digest.h"
#include "core/values/allocation.h"

namespace treadle {
namespace {

struct DigestHash {
  size_t operator()(const ContentDigest& digest) const noexcept { return digest.words[0] ^ digest.words[3]; }
};

struct Shared {
  WeakCache<ContentDigest, Storage, DigestHash> blocks;
  std::atomic<int64_t> hits{0}, misses{0};

  static Shared& all() {
    static auto* const all = new Shared;  // never destroyed: tensors of static objects may still use it
    return *all;
  }
};

std::shared_ptr<Storage> find(const ContentDigest& digest) {
  Shared& shared = Shared::all();
  auto found = shared.blocks.find(digest);
  (found ? shared.hits : shared.misses).fetch_add(1, std::memory_order_relaxed);
  return found;
}

std::shared_ptr<Storage> add(const ContentDigest& digest, std::shared_ptr<Storage> block) {
  std::byte* data = block->data();
  const size_t size_bytes = block->size_bytes();
  return Shared::all().blocks.add(digest, Storage::borrow_read_only(data, size_bytes, [block] {}));
}

}  // namespace

std::shared_ptr<Storage> shared_copy(std::span<const std::byte> bytes) {
  const ContentDigest digest = identify(bytes);
  if (auto found = find(digest)) return found;
  AllocationScope scope(nullptr, MemoryClass::weights);
  auto block = Storage::allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(block->data(), bytes.data(), bytes.size());
  return add(digest, std::move(block));
}

std::shared_ptr<Storage> share_storage(std::shared_ptr<Storage> fresh) {
  const ContentDigest digest = digest_of({fresh->data(), fresh->size_bytes()});
  auto found = find(digest);
  return found ? found : add(digest, std::move(fresh));
}

SharedCounts shared_storage_counts() {
  Shared& shared = Shared::all();
  SharedCounts counts{0, 0, shared.hits, shared.misses};
  for (const auto& block : shared.blocks.all()) {
    ++counts.count;
    counts.size_bytes += block->size_bytes();
  }
  return counts;
}

}  // namespace treadle
