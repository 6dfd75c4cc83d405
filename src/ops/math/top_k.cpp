// TopK.
#include <fmt/format.h>

#include <algorithm>

#include "core/checked.h"
#include "graph/dim_bounds.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/scratch_slots.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer_top_k(InferContext& c) {
  if (!c.has_rank(0)) {
    c.set_output_dtype(0, c.dtype(0));
    return c.set_output_dtype(1, DType::int64);
  }
  const auto axis = static_cast<size_t>(c.axis("axis", -1, c.rank(0)));
  const auto k = c.known(1);
  if (k && k->size() != 1) throw Error(ErrorCode::invalid_argument, fmt::format("K has {} elements, not 1", k->size()));
  SymbolicShape out = c.shape(0);
  const Dim extent = out[axis], wanted = k ? (*k)[0] : data_dependent_dim(c, "k", extent);
  if (wanted.is_const() && (wanted.value() < 0 || (extent.is_const() && wanted.value() > extent.value())))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("K = {} of the {} elements along axis {}", wanted.value(), to_string(extent), axis));
  out[axis] = wanted;
  c.set_output(0, c.dtype(0), out);
  c.set_output(1, DType::int64, std::move(out));
}

// A candidate and its place along the axis.
template <typename T>
struct Item {
  compute_type_t<T> value;
  int64_t index;
};

// A strict order even with NaN, which counts as larger than everything (as in NumPy and PyTorch); equal values keep their order.
template <typename T>
struct Before {
  bool largest;
  bool operator()(const Item<T>& a, const Item<T>& b) const {
    if constexpr (std::is_floating_point_v<compute_type_t<T>>) {
      const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
      if (a_nan || b_nan) return a_nan == b_nan ? a.index < b.index : (a_nan == largest);
    }
    if (a.value != b.value) return largest ? a.value > b.value : a.value < b.value;
    return a.index < b.index;
  }
};

// Whole rows at a time, each copied to scratch: selection moves its elements.
template <typename T>
struct TopK {
  int64_t outer, extent, inner, k;
  int num_slots;
  size_t slot_bytes;
  bool largest, has_indices;

  static constexpr int64_t kFew = 32;

  static TopK bind(BindContext& c) {
    const Shape& in = c.shape(0);
    const int axis = c.axis("axis", -1, in.rank());
    TopK t{in.product(0, axis),          in[axis],       in.product(axis + 1, in.rank()), c.value_at(1, 0), 1, 0,
           c.get_int("largest", 1) != 0, c.has_output(1)};
    if (t.k < 0 || t.k > t.extent)
      throw Error(ErrorCode::invalid_argument, fmt::format("K = {} of the {} elements along axis {}", t.k, t.extent, axis));
    t.num_slots = kernels::ScratchSlots::count(c.max_threads(), t.outer * t.inner);
    t.slot_bytes = kernels::aligned_bytes<Item<T>>(t.extent);
    c.request_scratch(t.slot_bytes * static_cast<size_t>(t.num_slots));
    return t;
  }

  void run(RunContext& c) const {
    if (k == 0 || extent == 0) return;
    const T* src = c.in<T>(0);
    T* values = c.out<T>(0);
    int64_t* indices = has_indices ? c.out<int64_t>(1) : nullptr;
    kernels::ScratchSlots slots(c.scratch<void>(), slot_bytes, num_slots);
    const Before<T> before{largest};
    parallel_for(c.pool(), outer * inner, std::max<int64_t>(1, 16384 / extent), [&](int64_t begin, int64_t end) {
      kernels::ScratchSlots::Lease lease(slots);
      auto* items = reinterpret_cast<Item<T>*>(lease.data());
      for (int64_t row = begin; row < end; ++row) {
        const int64_t from = row / inner * extent * inner + row % inner, to = row / inner * k * inner + row % inner;
        auto item = [&](int64_t i) { return Item<T>{static_cast<compute_type_t<T>>(src[from + i * inner]), i}; };
        if (k > kFew) {
          for (int64_t i = 0; i < extent; ++i) items[i] = item(i);
          if (k < extent) std::nth_element(items, items + k - 1, items + extent, before);
          std::sort(items, items + k, before);
        } else {
          // The best so far, in order; nearly all others fail the comparison with the worst of them.
          int64_t have = 0;
          for (int64_t i = 0; i < extent; ++i) {
            const Item<T> candidate = item(i);
            if (have == k && (largest ? candidate.value <= items[k - 1].value : candidate.value >= items[k - 1].value)) continue;
            if (have == k && !before(candidate, items[k - 1])) continue;  // NaN fails any comparison
            int64_t place = have < k ? have++ : k - 1;
            for (; place > 0 && before(candidate, items[place - 1]); --place) items[place] = items[place - 1];
            items[place] = candidate;
          }
        }
        for (int64_t i = 0; i < k; ++i) {
          if (values) values[to + i * inner] = src[from + items[i].index * inner];
          if (indices) indices[to + i * inner] = items[i].index;
        }
      }
    });
  }
};

// Until opset 9 K was an attribute.
void k_to_input(Graph& graph, NodeId id) {
  const int64_t k = graph.node(id).attributes.get_int("k");
  graph.node(id).attributes.set("k", std::vector<int64_t>{k});
  ints_to_input(graph, id, "k", 1);
}

}  // namespace

namespace gradients {

Result top_k(GradientContext& g) {
  const ValueId indices = require_output(g, 1);
  return {g.op("ScatterElements", {zeros_like(g, g.input(0)), indices, g.grad_output(0)}, {{"axis", g.attributes().get_int("axis", -1)}})};
}

}  // namespace gradients

std::vector<OpDef> top_k_ops() {
  return {
      {.name = "TopK",
       .since = {1, 10, 11, 24},
       .upgrade = {{1, k_to_input}},
       .inputs = {{"X", kNumeric, "T"}, {"K", kInt64}},
       .outputs = {{"Values", kNumeric, "T"}, {"Indices", kInt64}},
       .attributes = {{"axis", int64_t{-1}}, {"largest", int64_t{1}}, {"sorted", int64_t{1}}},
       .infer = infer_top_k,
       .cost = move_cost,
       .kernels = typed<TopK, float, double, Float16, BFloat16, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>(),
       .gradient = gradients::top_k,
       .value_inputs = {1}}};
}

}  // namespace treadle::ops
