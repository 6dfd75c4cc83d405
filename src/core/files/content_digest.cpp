#include "core/files/content_digest.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "core/files/file.h"

namespace treadle {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr size_t kBlockWords = 128, kShift = 2, kResultWords = 4;
constexpr size_t kBlockBytes = kBlockWords * sizeof(uint64_t);
constexpr size_t kLevels = 12;  // each level has 1/32 of the nodes of the level below: 12 levels cover any memory

// Draws bytes from the system's generator. The processor's can take tens of microseconds per word in virtual machines, 74 ms for all keys.
bool draw(void* to, size_t size_bytes) {
  constexpr size_t kAtOnce = 256;  // getrandom() never returns fewer bytes if it is asked for at most this many
  for (size_t at = 0; at < size_bytes; at += kAtOnce) {
    const size_t part = std::min(kAtOnce, size_bytes - at);
    if (getrandom(static_cast<std::byte*>(to) + at, part, 0) != static_cast<ssize_t>(part)) return false;
  }
  return true;
}

struct Keys {
  uint64_t words[kLevels][kBlockWords + kShift];

  static const Keys& all() {
    static const Keys* const keys = [] {
      auto* made = new Keys;
      if (draw(made->words, sizeof made->words)) return made;
      std::random_device random;
      for (auto& level : made->words)
        for (uint64_t& word : level) word = uint64_t{random()} << 32 | random();
      return made;
    }();
    return *keys;
  }
};

uint64_t load(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// Sums (m0 + k0) (m1 + k1) over pairs of words. Two contents of a block collide for 1 in 2^64 keys, or 1 in 2^128 with the second, shifted
// set of keys.
void hash_block(const std::byte* block, const uint64_t* key, uint64_t* result) {
  Wide first = 0, second = 0;
  for (size_t i = 0; i < kBlockWords; i += 2) {
    const uint64_t a = load(block + i * sizeof(uint64_t)), b = load(block + (i + 1) * sizeof(uint64_t));
    first += static_cast<Wide>(a + key[i]) * (b + key[i + 1]);
    second += static_cast<Wide>(a + key[i + kShift]) * (b + key[i + 1 + kShift]);
  }
  result[0] = static_cast<uint64_t>(first), result[1] = static_cast<uint64_t>(first >> 64);
  result[2] = static_cast<uint64_t>(second), result[3] = static_cast<uint64_t>(second >> 64);
}

/// A tree of hashes: the hashes of the blocks of one level are the contents of the next level.
class Tree {
 public:
  void add_block(size_t level, const std::byte* block) {
    uint64_t result[kResultWords];
    hash_block(block, Keys::all().words[level], result);
    if (levels_.size() <= level) levels_.emplace_back();
    Level& into = levels_[level];
    std::memcpy(into.words + into.used, result, sizeof(result));
    into.used += kResultWords;
    if (into.used < kBlockWords) return;
    into.used = 0;
    into.was_full = true;
    uint64_t full[kBlockWords];
    std::memcpy(full, into.words, sizeof(full));  // a copy, because levels_ may be reallocated
    add_block(level + 1, reinterpret_cast<const std::byte*>(full));
  }

  // Completes each level by a last block padded with zeros. The digest includes the total size, so padding is unambiguous.
  std::array<uint64_t, 4> finish() {
    for (size_t level = 0; level < levels_.size(); ++level) {
      Level& rest = levels_[level];
      if (level + 1 == levels_.size() && rest.used == kResultWords && !rest.was_full)
        return {rest.words[0], rest.words[1], rest.words[2], rest.words[3]};
      if (rest.used == 0) continue;
      uint64_t last[kBlockWords] = {};
      std::memcpy(last, rest.words, rest.used * sizeof(uint64_t));
      rest.used = 0;
      add_block(level + 1, reinterpret_cast<const std::byte*>(last));
    }
    return {};
  }

 private:
  struct Level {
    uint64_t words[kBlockWords];
    size_t used = 0;
    bool was_full = false;
  };
  std::vector<Level> levels_;
};

}  // namespace

ContentDigest digest_of(std::span<const std::byte> bytes) {
  Tree tree;
  size_t done = 0;
  for (; bytes.size() - done >= kBlockBytes; done += kBlockBytes) tree.add_block(0, bytes.data() + done);
  if (done < bytes.size() || bytes.empty()) {
    std::byte last[kBlockBytes] = {};
    if (done < bytes.size()) std::memcpy(last, bytes.data() + done, bytes.size() - done);
    tree.add_block(0, last);
  }
  return {bytes.size(), tree.finish(), false};
}

ContentDigest identify(std::span<const std::byte> bytes) {
  const auto range = mapped_range(bytes.data(), bytes.size());
  if (!range) return digest_of(bytes);
  const uint64_t words[] = {range->device,
                            range->inode,
                            range->file_bytes,
                            range->offset,
                            static_cast<uint64_t>(range->modified_ns),
                            static_cast<uint64_t>(range->changed_ns)};
  ContentDigest digest = digest_of(std::as_bytes(std::span(words)));
  digest.size_bytes = bytes.size();
  digest.of_file = true;
  return digest;
}

}  // namespace treadle
