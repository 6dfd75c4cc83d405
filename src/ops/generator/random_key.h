// The random stream of a node: a function of its seed, of the node, and of the run.
#pragma once

#include <bit>

#include "graph/kernel.h"
#include "graph/random_id.h"
#include "kernels/random/philox.h"

namespace treadle::ops {

/// Mixes seed and node, so that two nodes of one seed draw different numbers, and one node the same in every session.
inline uint64_t random_key(const ShapeContext& c, uint64_t seed) {
  uint64_t hash = 0xCBF29CE484222325U ^ seed;  // FNV-1a
  auto mix = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001B3U; };
  for (unsigned char letter : c.node().name) mix(letter);
  mix(random_id(c.node()));
  return hash;
}
/// With the attribute `seed`, a float in most operators.
inline uint64_t random_key(const ShapeContext& c) { return random_key(c, std::bit_cast<uint32_t>(c.get_float("seed", 0))); }

}  // namespace treadle::ops
