// What tells the random nodes of a graph apart, besides their names: also in a file, whose reader numbers nodes anew.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>

#include "graph/graph.h"

namespace treadle {

/// Among the metadata of a node that was read from a file: its number in the graph that was written.
inline constexpr const char* kRandomId = "treadle.random_id";

inline uint64_t random_id(const Node& node) {
  for (const auto& [key, value] : node.metadata) {
    uint64_t number = 0;
    if (key == kRandomId && std::from_chars(value.data(), value.data() + value.size(), number).ec == std::errc()) return number;
  }
  return static_cast<uint64_t>(node.id);
}

}  // namespace treadle
