// Tells contents apart by 256 bits that nobody outside of the process can foresee.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace treadle {

/// Equal contents have equal digests; different ones do not, but for a chance of less than 2^-120 that a file cannot raise: the keys are
/// drawn when the process first asks. Means nothing in another process (but a forked child has its parent's keys).
struct ContentDigest {
  size_t size_bytes = 0;
  std::array<uint64_t, 4> words{};
  bool of_file = false;  ///< not of contents, but of where they are in a mapped file
  bool operator==(const ContentDigest&) const = default;
};

/// Reads every byte once, some 10 to 20 GB a second on one core. The bytes may stand at any address.
/// Source: NH of UMAC (Black, Halevi, Krawczyk, Krovetz and Rogaway 1999, CRYPTO) over words of 64 bits, twice with shifted keys, as a
/// tree.
ContentDigest digest_of(std::span<const std::byte> bytes);

/// Of contents that may be a mapped file's: then the file and the place tell them apart, and no byte is read. Such a digest differs from
/// that of the same contents elsewhere.
ContentDigest identify(std::span<const std::byte> bytes);

}  // namespace treadle
