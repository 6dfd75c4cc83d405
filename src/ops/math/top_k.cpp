// Implements TopK (ONNX): the k largest or smallest elements along an axis, and their indices.
#include "ops/math/top_k.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/base/checked.h"
#include "graph/dim_bounds.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/reduce/find_beyond.h"
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

// Orders candidates by value, and equal values by their index along the axis. NaN is larger than all other values, as in NumPy and PyTorch.
template <typename T>
struct ItemOrder {
  using Value = compute_type_t<T>;
  struct Item {
    Value value;
    int64_t index;
  };
  bool largest;

  Item item(T value, int64_t index) const { return {static_cast<Value>(value), index}; }
  static int64_t index_of(const Item& item) { return item.index; }
  bool operator()(const Item& a, const Item& b) const {
    if constexpr (std::is_floating_point_v<Value>) {
      const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
      if (a_nan || b_nan) return a_nan == b_nan ? a.index < b.index : (a_nan == largest);
    }
    if (a.value != b.value) return largest ? a.value > b.value : a.value < b.value;
    return a.index < b.index;
  }
};

// The same order as ItemOrder, as a comparison of 64-bit integers. The upper half of a key has the value's bits, mapped so that a better
// value is a smaller integer; the lower half has the index.
template <typename T>
struct KeyOrder {
  using Value = compute_type_t<T>;
  using Item = uint64_t;
  static constexpr int64_t kMaxExtent = int64_t{1} << 32;
  static constexpr uint32_t kSign = 0x8000'0000;
  bool largest;

  Item item(T value, int64_t index) const {
    const uint32_t up = ascending(static_cast<Value>(value));
    return uint64_t{largest ? ~up : up} << 32 | static_cast<uint64_t>(index);
  }
  static int64_t index_of(Item item) { return static_cast<int64_t>(item & 0xFFFF'FFFF); }
  bool operator()(Item a, Item b) const { return a < b; }

 private:
  static uint32_t ascending(Value value) {
    if constexpr (std::is_floating_point_v<Value>) {
      if (value != value) return ~uint32_t{0};
      const auto bits = std::bit_cast<uint32_t>(value + 0.0F);  // adding 0 turns -0 into 0, so that both compare equal
      return bits & kSign ? ~bits : bits | kSign;
    } else if constexpr (std::is_signed_v<Value>) {
      return static_cast<uint32_t>(static_cast<int32_t>(value)) ^ kSign;
    } else {
      return static_cast<uint32_t>(value);
    }
  }
};

// Selects the k best elements of each row. A row is first copied to scratch memory, because the selection moves elements.
template <typename T>
struct TopK : TopKRows {
  int num_slots;
  size_t slot_bytes;
  bool largest, has_indices;

  static constexpr int64_t kFew = 32;

  static TopK bind(BindContext& c) {
    TopK t{TopKRows::bind(c), 1, 0, c.get_int("largest", 1) != 0, c.has_output(1)};
    t.num_slots = kernels::ScratchSlots::count(c.max_threads(), t.outer * t.inner);
    t.slot_bytes = kernels::aligned_bytes<typename ItemOrder<T>::Item>(t.extent);
    c.request_scratch(t.slot_bytes * static_cast<size_t>(t.num_slots));
    return t;
  }

  /// Returns the index of the first of n elements that is better than the worst one kept so far.
  int64_t next_candidate(const T* src, int64_t n, T worst_kept) const {
    if constexpr (std::is_arithmetic_v<T>) {
      return largest ? kernels::find_above(src, n, worst_kept) : kernels::find_below(src, n, worst_kept);
    } else {
      const auto worst = static_cast<float>(worst_kept);
      int64_t i = 0;
      if (largest)
        while (i < n && static_cast<float>(src[i]) <= worst) ++i;
      else
        while (i < n && static_cast<float>(src[i]) >= worst) ++i;
      return i;
    }
  }

  // Writes the k best elements of a row to `items`, best first. Element i of the row is src[i * inner].
  template <class Order>
  void select(const Order& before, const T* src, typename Order::Item* items) const {
    if (k > kFew) {
      for (int64_t i = 0; i < extent; ++i) items[i] = before.item(src[i * inner], i);
      if (k < extent) std::nth_element(items, items + k - 1, items + extent, before);
      std::sort(items, items + k, before);
      return;
    }
    // For small k: keeps the best elements so far in sorted order. Nearly all further elements are worse than the last one kept.
    int64_t have = 0;
    for (int64_t i = 0; i < extent; ++i) {
      if (have == k && inner == 1) i += next_candidate(src + i, extent - i, src[Order::index_of(items[k - 1])]);
      if (i == extent) break;
      const auto candidate = before.item(src[i * inner], i);
      if (have == k && !before(candidate, items[k - 1])) continue;
      int64_t place = have < k ? have++ : k - 1;
      for (; place > 0 && before(candidate, items[place - 1]); --place) items[place] = items[place - 1];
      items[place] = candidate;
    }
  }

  template <class Order>
  void run_in(RunContext& c, const Order& order) const {
    using Item = typename Order::Item;
    const T* src = c.in<T>(0);
    T* values = c.out<T>(0);
    int64_t* indices = has_indices ? c.out<int64_t>(1) : nullptr;
    kernels::ScratchSlots slots(c.scratch<void>(), slot_bytes, num_slots);
    parallel_for(c.pool(), outer * inner, std::max<int64_t>(1, 16384 / extent), [&](int64_t begin, int64_t end) {
      kernels::ScratchSlots::Lease lease(slots);
      auto* items = reinterpret_cast<Item*>(lease.data());
      for (int64_t row = begin; row < end; ++row) {
        const int64_t from = row / inner * extent * inner + row % inner, to = row / inner * k * inner + row % inner;
        select(order, src + from, items);
        for (int64_t i = 0; i < k; ++i) {
          const int64_t index = Order::index_of(items[i]);
          if (values) values[to + i * inner] = src[from + index * inner];
          if (indices) indices[to + i * inner] = index;
        }
      }
    });
  }

  void run(RunContext& c) const {
    if (k == 0 || extent == 0) return;
    if constexpr (sizeof(T) <= 4) {
      if (extent <= KeyOrder<T>::kMaxExtent) return run_in(c, KeyOrder<T>{largest});
    }
    run_in(c, ItemOrder<T>{largest});
  }
};

// Before opset 10, k was an attribute. This upgrade makes it an input.
void k_to_input(Graph& graph, NodeId id) {
  const int64_t k = graph.node(id).attributes.get_int("k");
  graph.node(id).attributes.set("k", std::vector<int64_t>{k});
  ints_to_input(graph, id, "k", 1);
}

Gradients top_k_gradient(GradientContext& g) {
  const ValueId indices = require_output(g, 1);
  return {g.op("ScatterElements", {zeros_like(g, g.input(0)), indices, g.grad_output(0)}, {{"axis", g.attributes().get_int("axis", -1)}})};
}

}  // namespace

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
       .gradient = top_k_gradient,
       .value_inputs = {1}}};
}

}  // namespace treadle::ops
