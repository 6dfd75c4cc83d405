// Compares contents by 256-bit digests that are unpredictable outside the process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace treadle {

/// Equal contents have equal digests. Different contents collide with a chance below 2^-120, which a hostile file cannot raise, because
/// keys are random and drawn at the first use. Other processes have other keys, except forked children.
struct ContentDigest {
  size_t size_bytes = 0;
  std::array<uint64_t, 4> words{};
  bool of_file = false;  ///< true: identifies a range of a mapped file, not contents
  bool operator==(const ContentDigest&) const = default;
};

/// Returns the digest of the bytes. Reads every byte once, at 10 to 20 GB/s on one core. The bytes need no alignment. Source: NH of UMAC
/// (Black, Halevi, Krawczyk, Krovetz and Rogaway 1999, CRYPTO) on 64-bit words, with two shifted sets of keys, as a hash tree.
ContentDigest digest_of(std::span<const std::byte> bytes);

/// Returns a digest of the contents. Bytes of a mapped file are not read: file and offset identify them, so equal bytes elsewhere have
/// another digest.
ContentDigest identify(std::span<const std::byte> bytes);

}  // namespace treadle
