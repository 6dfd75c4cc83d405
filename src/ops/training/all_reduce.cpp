// Implements means over the ranks of a data-parallel trainer (domain treadle). AllReduceBegin copies values, times this rank's weight, into
// a bucket. A thread of the trainer sums the bucket over all ranks while the run continues. AllReduceEnd waits for it, and returns the sums
// divided by the sum of all weights. Two nodes work with every schedule; a single operator that completes later would need an executor that
// starts nodes when they are ready. The output of AllReduceBegin is a number that only orders nodes: the next AllReduceBegin, and every
// AllReduceEnd after the last AllReduceBegin, so that no node waits while there is work. Values after the first `sizes.size()` are not
// copied; they are inputs only so that they are computed before.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <type_traits>
#include <vector>

#include "core/ranks/exchange.h"
#include "core/threads/thread_pool.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/elementwise/convert.h"
#include "ops/list.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr int64_t kGrain = 16384;
constexpr int kFirstValue = 2;  // inputs 0 and 1: the previous bucket's number, the weight

// The bucket that a node fills or reads, and the number of elements of each value in it.
struct BucketState final : PackedState {
  explicit BucketState(const CreateContext& c)
      : exchange(Exchange::find(c.attributes().get_int("exchange"))),
        bucket(static_cast<size_t>(c.attributes().get_int("bucket"))),
        sizes(c.attributes().get_ints("sizes")) {
    exchange.check_bucket(bucket, std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  }
  Exchange& exchange;
  size_t bucket;
  std::vector<int64_t> sizes;
};

void scale(ThreadPool* pool, const float* from, float* to, int64_t n, float factor) {
  parallel_for(pool, n, kGrain, [=](int64_t begin, int64_t end) {
    if (factor == 1)
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin) * sizeof(float));
    else
      for (int64_t i = begin; i < end; ++i) to[i] = from[i] * factor;
  });
}

void scale(ThreadPool* pool, const float* from, BFloat16* to, int64_t n, float factor) {
  parallel_for(pool, n, kGrain, [=](int64_t begin, int64_t end) {
    constexpr int64_t kBlock = 512;
    float block[kBlock];
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t count = std::min(kBlock, end - first);
      for (int64_t i = 0; i < count; ++i) block[i] = from[first + i] * factor;
      kernels::narrow(block, to + first, count);
    }
  });
}

void scale(ThreadPool* pool, const BFloat16* from, float* to, int64_t n, float factor) {
  parallel_for(pool, n, kGrain, [=](int64_t begin, int64_t end) {
    kernels::widen(from + begin, to + begin, end - begin);
    for (int64_t i = begin; i < end; ++i) to[i] *= factor;
  });
}

template <typename Wire>
struct Begin {
  int num_values;
  bool weighted;

  static std::string declines(const CreateContext& c) {
    return (c.attributes().get_int("bfloat16") != 0) == std::is_same_v<Wire, BFloat16> ? "" : "the bucket has another dtype";
  }
  static std::unique_ptr<PackedState> create(const CreateContext& c) { return std::make_unique<BucketState>(c); }
  static Begin bind(BindContext& c) {
    const std::vector<int64_t>& sizes = c.get_ints("sizes");
    const auto count = static_cast<int>(sizes.size());
    if (c.num_inputs() - kFirstValue < count)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} values, and the sizes of {}", c.num_inputs() - kFirstValue, count));
    for (int i = 0; i < count; ++i)
      if (c.num_elements(kFirstValue + i) != sizes[static_cast<size_t>(i)])
        throw Error(ErrorCode::invalid_argument, fmt::format("value {} has {} elements, its place in the bucket {}", i,
                                                             c.num_elements(kFirstValue + i), sizes[static_cast<size_t>(i)]));
    return {count, c.has_input(1)};
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<BucketState>();
    *c.out<int64_t>(0) = static_cast<int64_t>(state.bucket);
    auto* to = static_cast<Wire*>(state.exchange.open(state.bucket));
    if (!to) return;  // filled before: under a memory limit, a run may compute a value twice
    const float weight = weighted ? *c.in<float>(1) : 1;
    for (int i = 0; i < num_values; ++i) {
      const int64_t count = state.sizes[static_cast<size_t>(i)];
      if (weight == 0)  // the mean is 0 / 0; its NaN must stay out of the sum
        std::memset(static_cast<void*>(to), 0, static_cast<size_t>(count) * sizeof(Wire));
      else
        scale(c.pool(), c.in<float>(kFirstValue + i), to, count, weight);
      to += count;
    }
    state.exchange.send(state.bucket, weight);
  }
};

template <typename Wire>
struct End {
  int num_outputs;
  bool mean;

  static std::string declines(const CreateContext& c) { return Begin<Wire>::declines(c); }
  static std::unique_ptr<PackedState> create(const CreateContext& c) { return std::make_unique<BucketState>(c); }
  static End bind(BindContext& c) {
    const std::vector<int64_t>& sizes = c.get_ints("sizes");
    for (int i = 0; i < c.num_outputs(); ++i)
      if (static_cast<size_t>(i) >= sizes.size() || (c.has_output(i) && c.output_shape(i).num_elements() != sizes[static_cast<size_t>(i)]))
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("output {} is {}, which its size in the bucket contradicts", i, to_string(c.output_shape(i))));
    return {c.num_outputs(), c.get_int("mean") != 0};
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<BucketState>();
    state.exchange.wait();
    const auto* from = static_cast<const Wire*>(state.exchange.sums(state.bucket));
    const float weight = mean ? state.exchange.total_weight() : 1;
    if (weight == 0) throw Error(ErrorCode::invalid_argument, "no label of any rank counts, so that there is no mean to step by");
    const float factor = 1 / weight;
    int output = 0;
    for (int64_t count : state.sizes) {
      if (float* to = output < num_outputs ? c.out<float>(output) : nullptr) scale(c.pool(), from, to, count, factor);
      from += count, ++output;
    }
  }
};

// The operator Share outputs one number: the weight of this rank in the mean over all ranks. Ranks may have different weights.
struct ExchangeState final : PackedState {
  explicit ExchangeState(const CreateContext& c) : exchange(Exchange::find(c.attributes().get_int("exchange"))) {}
  Exchange& exchange;
};
struct Share {
  static std::unique_ptr<PackedState> create(const CreateContext& c) { return std::make_unique<ExchangeState>(c); }
  static Share bind(BindContext&) { return {}; }
  void run(RunContext& c) const {
    Exchange& exchange = c.packed<ExchangeState>().exchange;
    exchange.wait();
    *c.out<float>(0) = exchange.own_share();
  }
};

void infer_end(InferContext& c) {
  // The attribute `shapes` has, for each output, its rank followed by its extents.
  const std::vector<int64_t>& shapes = c.attributes().get_ints("shapes");
  size_t at = 0;
  for (int i = 0; i < c.num_outputs(); ++i) {
    if (at >= shapes.size() || shapes[at] < 0 || static_cast<size_t>(shapes[at]) >= shapes.size() - at)
      throw Error(ErrorCode::invalid_model, fmt::format("\"shapes\" ends before output {}", i));
    SymbolicShape shape;
    for (int64_t axis = 1; axis <= shapes[at]; ++axis) shape.push_back(Dim(shapes[at + static_cast<size_t>(axis)]));
    at += static_cast<size_t>(shapes[at]) + 1;
    c.set_output(i, DType::float32, std::move(shape));
  }
}

}  // namespace

std::vector<OpDef> all_reduce_ops() {
  const TypeSet floats{DType::float32};
  using Required = AttributeDef::Required;
  return {{.name = "AllReduceBegin",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"after", kInt64, "", Presence::optional},
                      {"weight", floats, "", Presence::optional},
                      {"values", floats, "", Presence::variadic}},
           .outputs = {{"begun", kInt64}},
           .attributes = {{"exchange", Required{}}, {"bucket", Required{}}, {"sizes", Required{}}, {"bfloat16", int64_t{0}}},
           .infer = [](InferContext& c) { c.set_output(0, DType::int64, SymbolicShape{}); },
           .kernels = {kernel<Begin<float>>("float32"), kernel<Begin<BFloat16>>("bfloat16")},
           .deterministic = false,
           .communicates = true},
          {.name = "AllReduceEnd",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"begun", kInt64}},
           .outputs = {{"means", floats, "", Presence::variadic}},
           .attributes = {{"exchange", Required{}},
                          {"bucket", Required{}},
                          {"sizes", Required{}},
                          {"shapes", Required{}},
                          {"mean", int64_t{1}},
                          {"bfloat16", int64_t{0}}},
           .infer = infer_end,
           .kernels = {kernel<End<float>>("float32"), kernel<End<BFloat16>>("bfloat16")},
           .deterministic = false,
           .communicates = true},
          {.name = "AllReduceShare",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"begun", kInt64}},
           .outputs = {{"share", floats}},
           .attributes = {{"exchange", Required{}}},
           .infer = [](InferContext& c) { c.set_output(0, DType::float32, SymbolicShape{}); },
           .kernels = {kernel<Share>("plain")},
           .deterministic = false,
           .communicates = true}};
}

}  // namespace treadle::ops
