// Gives each node that uses random numbers (Dropout, RandomNormal …) an id, in an attribute that is written to files too. The node's name
// would not do: a node without a name gets a new name each time the file is read.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>

#include "graph/graph.h"

namespace treadle {

/// Metadata key of a node read from a file. The value is the node's id in the graph that was written.
inline constexpr const char* kRandomId = "treadle.random_id";

inline uint64_t random_id(const Node& node) {
  for (const auto& [key, value] : node.metadata) {
    uint64_t number = 0;
    if (key == kRandomId && std::from_chars(value.data(), value.data() + value.size(), number).ec == std::errc()) return number;
  }
  return static_cast<uint64_t>(node.id);
}

}  // namespace treadle
