// Describes nodes that draw random numbers, for kernels of every device. The key of a node's random stream depends on its attribute `seed`
// and on the node. The number of the run is added later.
#pragma once

#include <bit>

#include "graph/kernel.h"
#include "graph/random_id.h"
#include "kernels/random/philox.h"
#include "treadle/error.h"

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

/// The numbers of RandomNormal, RandomUniform and their forms with Like are offset + scale * r.
struct RandomRange {
  double offset, scale;

  static RandomRange bind(const ShapeContext& c) {
    if (c.node().op_type.starts_with("RandomNormal")) return {c.get_float("mean", 0), c.get_float("scale", 1)};
    const double low = c.get_float("low", 0);
    return {low, static_cast<double>(c.get_float("high", 1)) - low};
  }
};

struct MultinomialPlan {
  int64_t batch, classes, samples;

  /// @throws Error(invalid_argument) if there are samples, but no classes
  static MultinomialPlan bind(const BindContext& c) {
    const MultinomialPlan k{c.shape(0)[0], c.shape(0)[1], c.output_shape(0)[1]};
    if (k.batch > 0 && k.samples > 0 && k.classes == 0) throw Error(ErrorCode::invalid_argument, "there are no classes to draw from");
    return k;
  }
};

}  // namespace treadle::ops
