// Computes the key of a node's random stream from the attribute `seed` and the node's identity. The run's number is RandomStream::stream.
#pragma once

#include <bit>

#include "graph/kernel.h"
#include "graph/random_id.h"
#include "kernels/random/philox.h"

namespace treadle::ops {

/// Hashes `seed`, node name and id. Two nodes with the same seed draw different numbers; one node draws the same numbers in every session.
inline uint64_t random_key(const ShapeContext& c, uint64_t seed) {
  uint64_t hash = 0xCBF29CE484222325U ^ seed;  // the hash function FNV-1a
  auto mix = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001B3U; };
  for (unsigned char letter : c.node().name) mix(letter);
  mix(random_id(c.node()));
  return hash;
}
/// Returns the key for the attribute `seed`, which most random operators declare as a float.
inline uint64_t random_key(const ShapeContext& c) { return random_key(c, std::bit_cast<uint32_t>(c.get_float("seed", 0))); }

}  // namespace treadle::ops
