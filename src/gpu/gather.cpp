// Computes Gather, GatherElements, GatherND and ArrayFeatureExtractor. The indices are read on the GPU, without waiting on the host.
#include "gpu/gather.h"

#include <fmt/format.h>

#include <vector>

#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "kernels/movement/gather.h"
#include "ops/tensor/gather.h"
#include "ops/tensor/movement.h"

namespace treadle::gpu {
namespace {

constexpr int kMaxGatheredRank = 4;  // limit for the number of dimensions of the index space (the output) and of indices per tuple

struct GatherState final : FaultState {
  const vulkan::Shader* shader = nullptr;
  int64_t words = 1;  // words per element; the shader copies words of 1, 2 or 4 bytes
};

/// The arguments of the shader gather.comp, which copies words: `count`, `slice`, `steps` and `strides` count words, not elements.
struct Gathering {
  int64_t count = 1, slice = 1, tuples = 1;
  int depth = 1;
  uint32_t index_words = 1;
  int64_t dims[kMaxGatheredRank] = {}, steps[kMaxGatheredRank] = {}, extents[kMaxGatheredRank] = {}, strides[kMaxGatheredRank] = {};

  void run(RunContext& c) const {
    const auto& state = c.packed<GatherState>();
    if (count == 0) return;
    const std::string axes = depth == 1 ? fmt::format("the axis, which has {} elements", extents[0]) : "its axis";
    const auto site = state.fault(fmt::format("an index is outside of {}", axes));
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(1)).fault(site);
    push_sizes(push, {count, slice, tuples, depth});
    push.word(index_words).word(site.number);
    for (const auto* values : {&dims, &steps, &extents, &strides})
      for (const int64_t value : *values) push.word(static_cast<uint32_t>(value));
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(count)));
  }

 protected:
  /// Sets the extents of the index space (the output), outermost dimension first, and a step for each dimension: the number of words by
  /// which the position in the data moves when the index grows by one.
  void set_space(const BindContext& c, std::span<const int64_t> extents_of_space, std::span<const int64_t> steps_of_space) {
    count32(c.num_elements(0) * c.packed<GatherState>().words);
    index_words = c.dtype(1) == DType::int64 ? 2U : 1U;
    const size_t rank = extents_of_space.size(), missing = size_t{kMaxGatheredRank} - rank;
    count = 1;
    for (size_t i = 0; i < size_t{kMaxGatheredRank}; ++i) {
      dims[i] = i < missing ? 1 : extents_of_space[i - missing];
      steps[i] = i < missing ? 0 : steps_of_space[i - missing];
      count *= dims[i];
    }
    count32(count);
  }
};

/// Gather and ArrayFeatureExtractor.
struct Gather : Gathering {
  static Gather bind(BindContext& c) {
    const bool of_features = c.node().op_type == "ArrayFeatureExtractor";
    const ops::GatherExtents rows = of_features ? ops::GatherExtents::of_features(c) : ops::GatherExtents::of(c, c.shape(0));
    Gather k;
    k.slice = rows.inner * c.packed<GatherState>().words;
    k.tuples = rows.num_indices;
    k.extents[0] = rows.extent, k.strides[0] = k.slice;
    const int64_t space[] = {rows.outer, k.tuples, k.slice}, by[] = {rows.extent * k.slice, 0, 1};
    k.set_space(c, space, by);
    return k;
  }
};

struct GatherNd : Gathering {
  static GatherNd bind(BindContext& c) {
    const kernels::TuplePlan plan = kernels::plan_tuples(c.shape(0).dims(), c.shape(1).dims(), c.get_int("batch_dims"));
    GatherNd k;
    k.slice = plan.slice * c.packed<GatherState>().words;
    k.tuples = plan.batch * plan.tuples;
    k.depth = plan.depth;
    for (int i = 0; i < plan.depth; ++i) k.extents[i] = plan.extents[i], k.strides[i] = plan.strides[i] * k.slice;
    const int64_t space[] = {plan.batch, plan.tuples, k.slice}, by[] = {plan.slices * k.slice, 0, 1};
    k.set_space(c, space, by);
    return k;
  }
};

struct GatherElements : Gathering {
  static GatherElements bind(BindContext& c) {
    const Shape& data = c.shape(0);
    const kernels::ElementsPlan plan = kernels::plan_elements(data.dims(), c.shape(1).dims(), c.axis("axis", 0, data.rank()));
    GatherElements k;
    k.slice = c.packed<GatherState>().words;
    k.extents[0] = plan.axis_extent, k.strides[0] = plan.axis_stride * k.slice;
    std::vector<int64_t> space(plan.loop.dims, plan.loop.dims + plan.loop.rank), by;
    for (int axis = 0; axis < plan.loop.rank; ++axis) by.push_back(plan.loop.strides[0][axis] * k.slice);
    if (k.slice > 1) space.push_back(k.slice), by.push_back(1);
    k.set_space(c, space, by);
    k.tuples = std::max<int64_t>(k.count / k.slice, 1);
    return k;
  }
};

/// Returns true if the indices of a GatherElements have the same extents as the data along all axes but the node's. The axes before the
/// node's can then be merged into one, and so can those after it.
bool joins_dimensions(const Node& node, const SymbolicShape& data, const SymbolicShape& indices) {
  const auto rank = static_cast<int64_t>(data.size()), given = node.attributes.get_int("axis", 0), axis = given < 0 ? given + rank : given;
  if (indices.size() != data.size()) return false;
  for (int64_t i = 0; i < rank; ++i)
    if (i != axis && data[static_cast<size_t>(i)] != indices[static_cast<size_t>(i)]) return false;
  return true;
}

}  // namespace

void gather_slices(const SliceGathering& g) {
  const int64_t count = g.outer * g.num_indices * g.slice;
  Push push;
  push.pointer(g.y).pointer(g.x).pointer(g.indices).pointer(nullptr);
  push_sizes(push, {count, g.slice, g.num_indices, 1, 2, 0});
  push_sizes(push, {1, g.outer, g.num_indices, g.slice});                       // extents of the index space
  push_sizes(push, {0, g.extent * g.slice, 0, 1});                              // step in x for each dimension of the index space
  push_sizes(push, {g.extent, 0, 0, 0}), push_sizes(push, {g.slice, 0, 0, 0});  // extent and stride of the gathered axis
  stream().dispatch(*find_moving_shader("gather", g.word_bytes), push.bytes(), groups_over(count32(count)));
}

DeviceKernel find_gather(const Graph& graph, const Node& node) {
  static const KernelDef gather = kernel<Gather>("gpu"), elements = kernel<GatherElements>("gpu"), nd = kernel<GatherNd>("gpu");
  const bool by_element = node.is("GatherElements", ""), by_tuple = node.is("GatherND", "");
  if (!by_element && !by_tuple && !node.is("ArrayFeatureExtractor", "ai.onnx.ml") && !node.is("Gather", "")) return {};
  const Type &data = graph.type(node.inputs[0]), &indices = graph.type(node.inputs[1]);
  if (!ops::has_plain_bytes(data.dtype) || (indices.dtype != DType::int32 && indices.dtype != DType::int64)) return {};
  const int64_t bytes = ops::element_bytes(data.dtype), word = bytes < 4 ? bytes : 4;
  if ((by_element && !data.has_rank()) || (by_tuple && !indices.has_rank())) return {};
  if (by_element && data.shape->size() + (bytes > word ? 1 : 0) > size_t{kMaxGatheredRank} &&
      !(indices.has_rank() && joins_dimensions(node, *data.shape, *indices.shape)))
    return {};
  if (by_tuple && (indices.shape->empty() || !indices.shape->back().is_const() || indices.shape->back().value() > kMaxGatheredRank))
    return {};
  auto state = std::make_shared<GatherState>();
  state->shader = find_moving_shader("gather", static_cast<size_t>(word));
  state->words = bytes / word;
  state->node = describe(node);
  return {by_element ? &elements : by_tuple ? &nd : &gather, std::move(state)};
}

}  // namespace treadle::gpu
