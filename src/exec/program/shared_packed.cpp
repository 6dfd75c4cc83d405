#include "exec/program/shared_packed.h"

#include <atomic>
#include <string>
#include <vector>

#include "core/base/weak_cache.h"
#include "core/files/content_digest.h"
#include "core/values/allocation.h"
#include "treadle/allocator.h"

namespace treadle::exec {
namespace {

/// Everything about a node that can affect the result of KernelDef::create.
struct Key {
  const KernelDef* kernel = nullptr;
  Attributes attributes;
  std::vector<std::string> types;  // types of the inputs, then of the outputs
  std::vector<ContentDigest> constants;
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  size_t operator()(const Key& key) const noexcept {
    size_t hash = reinterpret_cast<uintptr_t>(key.kernel);
    for (const ContentDigest& constant : key.constants) hash = hash * 31 + (constant.words[0] ^ constant.words[3]);
    return hash;
  }
};

struct Shared {
  WeakCache<Key, PackedState, KeyHash> states;
  std::atomic<int64_t> hits{0}, misses{0};

  static Shared& all() {
    static auto* const all = new Shared;
    return *all;
  }
};

// Fills in the key. Returns false if the constants are too small to be worth sharing, or cannot be compared byte for byte.
bool describe(const Graph& graph, const Node& node, Key& key) {
  size_t total_bytes = 0;
  std::vector<const Tensor*> constants;
  for (ValueId input : node.inputs) {
    if (input == kNoValue) {
      key.types.emplace_back();
      continue;
    }
    key.types.push_back(to_string(graph.type(input)));
    if (!graph.value(input).is_constant()) continue;
    const Tensor* constant = graph.stored_tensor(input);
    if (!constant || constant->dtype() == DType::string || !constant->is_contiguous()) return false;
    total_bytes += constant->size_bytes();
    constants.push_back(constant);
    key.types.back() += "=";  // marks a constant; without the mark, an input of the same type computed by the run would look the same
  }
  if (total_bytes < kWorthSharing) return false;
  for (ValueId output : node.outputs) key.types.push_back(output == kNoValue ? std::string() : to_string(graph.type(output)));
  for (const Tensor* constant : constants) key.constants.push_back(identify({constant->raw(), constant->size_bytes()}));
  key.attributes = node.attributes;
  return true;
}

}  // namespace

std::shared_ptr<PackedState> shared_packed(const Graph& graph, const Node& node, const KernelDef& kernel) {
  if (!kernel.shares_packed) return nullptr;
  Key key{.kernel = &kernel};
  if (!describe(graph, node, key)) return nullptr;
  Shared& shared = Shared::all();
  if (auto found = shared.states.find(key)) {
    shared.hits.fetch_add(1, std::memory_order_relaxed);
    return found;
  }
  shared.misses.fetch_add(1, std::memory_order_relaxed);
  AllocationScope scope(nullptr, MemoryClass::packed);
  std::shared_ptr<PackedState> made = kernel.create(CreateContext(graph, node));
  return made ? shared.states.add(key, std::move(made)) : nullptr;
}

SharedCounts shared_packed_counts() {
  Shared& shared = Shared::all();
  SharedCounts counts{0, 0, shared.hits, shared.misses};
  for (const auto& state : shared.states.all()) {
    ++counts.count;
    counts.size_bytes += state->size_bytes();
  }
  return counts;
}

}  // namespace treadle::exec

namespace treadle {

SharedWeightsStatistics shared_weights_statistics() {
  const SharedCounts constants = shared_storage_counts(), packed = exec::shared_packed_counts();
  return {constants.count,   constants.size_bytes,         packed.count,
          packed.size_bytes, constants.hits + packed.hits, constants.misses + packed.misses};
}

}  // namespace treadle
