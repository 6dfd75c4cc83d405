// Computes LabelEncoder for numbers and OneHotEncoder for integers. The shader finds keys by binary search.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "gpu/device_data.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/ml/mapping.h"
#include "ops/tensor/movement.h"

namespace treadle::gpu {
namespace {

/// The types of keys, with their numbers in lookup.comp.
enum class Keys : uint32_t { words, longs, floats, doubles };

struct LookupState final : FaultState {
  const vulkan::Shader* shader = nullptr;
  DeviceData data;
  size_t keys = 0, places = 0, values = 0;  // offsets of the arrays in the device data
  int64_t num_keys = 0, words = 1, otherwise = 0;
  std::string missing;  // says what is wrong with keys that are missing; empty if keys may be missing
  size_t size_bytes() const override { return data.size_bytes(); }
};

struct Lookups {
  int64_t count;
  DType x;

  static Lookups bind(BindContext& c) {
    count32(c.num_elements(0) * c.packed<LookupState>().words);
    if (c.dtype(0) == DType::int16) c.request_scratch(static_cast<size_t>(c.num_elements(0)) * sizeof(int32_t));
    return {c.num_elements(0), c.dtype(0)};
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<LookupState>();
    const std::byte* const data = state.data.here();
    vulkan::VulkanStream::FaultSite site;
    if (!state.missing.empty()) site = state.fault(state.missing);
    const void* from = c.in<void>(0);
    if (x == DType::int16) from = convert_elements(x, from, DType::int32, c.scratch<void>(), count);
    Push push;
    push.pointer(c.out<void>(0)).pointer(from).pointer(data + state.keys).pointer(data + state.places).pointer(data + state.values);
    push.fault(site);
    push_sizes(push, {count, state.num_keys, state.words, state.otherwise});
    push.word(site.number);
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(count)));
  }
};

Keys keys_of(DType dtype) {
  if (dtype == DType::float32) return Keys::floats;
  if (dtype == DType::float64) return Keys::doubles;
  return dtype == DType::int64 ? Keys::longs : Keys::words;
}

/// Adds the keys to the device data in the order that the shader requires. In `lookup`, float keys are stored as float64.
void add_keys(const ops::Lookup& lookup, LookupState& state) {
  std::vector<std::pair<int64_t, uint32_t>> sorted;
  for (const auto& [number, place] : lookup.numbers()) {
    int64_t key = number;
    if (lookup.dtype() == DType::float32)
      key = number == INT64_MIN ? INT32_MIN : std::bit_cast<int32_t>(static_cast<float>(std::bit_cast<double>(number)));
    sorted.emplace_back(key, static_cast<uint32_t>(place));
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> keys;
  std::vector<uint32_t> places;
  for (const auto& [key, place] : sorted) keys.push_back(key), places.push_back(place);
  state.keys = state.data.add(keys), state.places = state.data.add(places);
  state.num_keys = count32(static_cast<int64_t>(keys.size()));
}

DeviceKernel with_lookup(Keys keys, bool one_hot, int64_t word_bytes, std::shared_ptr<LookupState> state) {
  static const KernelDef kernel = treadle::kernel<Lookups>("gpu");
  const uint32_t constants[] = {static_cast<uint32_t>(keys), uint32_t{one_hot}};
  state->shader = find_moving_shader("lookup", static_cast<size_t>(word_bytes), constants);
  return {&kernel, std::move(state)};
}

}  // namespace

DeviceKernel find_encoder(const Graph& graph, const Node& node) {
  const DType x = graph.type(node.inputs[0]).dtype, y = graph.type(node.outputs[0]).dtype;
  const bool one_hot = node.op_type == "OneHotEncoder";
  if ((!one_hot && node.op_type != "LabelEncoder") || x == DType::string || y == DType::string) return {};
  if (one_hot && !is_integer(x)) return {};  // the shader cannot convert float keys to integers
  const std::unique_ptr<PackedState> made = select_kernel(graph, node).create(CreateContext(graph, node));
  auto state = std::make_shared<LookupState>();
  state->node = describe(node);
  if (one_hot) {
    add_keys(static_cast<const ops::CategoryLookup&>(*made).lookup, *state);
    state->words = graph.type(node.outputs[0]).shape->back().value();
    if (node.attributes.get_int("zeros", 1) == 0)
      state->missing = fmt::format("an element of X is none of the {} categories", state->words);
    return with_lookup(keys_of(x), true, sizeof(float), std::move(state));
  }
  const auto& mapping = static_cast<const ops::Mapping&>(*made);
  add_keys(mapping.keys, *state);
  const auto bytes_of = [](const Tensor& tensor) { return std::span(static_cast<const std::byte*>(tensor.raw()), tensor.size_bytes()); };
  std::vector<std::byte> values;
  for (const Tensor* tensor : {&mapping.values, &mapping.otherwise})
    values.insert(values.end(), bytes_of(*tensor).begin(), bytes_of(*tensor).end());
  state->values = state->data.add(values);
  state->otherwise = mapping.values.num_elements();
  const int64_t bytes = ops::element_bytes(y), word = std::min<int64_t>(bytes, sizeof(uint32_t));
  state->words = bytes / word;
  return with_lookup(keys_of(x), false, word, std::move(state));
}

}  // namespace treadle::gpu
