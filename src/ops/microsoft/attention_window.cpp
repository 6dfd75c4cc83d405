// Implements caches that keep the keys and values of an attention window only: GroupQueryAttention with sliding_window_cache = 1, as
// onnxruntime's schema defines it.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/threads/thread_pool.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/microsoft/attention.h"
#include "ops/microsoft/attention_cache.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

/// Returns the number of keys, out of `total`, that are in a cache for `capacity` keys. A full cache drops several keys at once.
int64_t resident(int64_t total, int64_t capacity, int64_t window) {
  if (total <= capacity) return total;
  const int64_t gap = capacity - window + 1;
  return total - gap * ((total - capacity + gap - 1) / gap);
}

void infer_window_positions(InferContext& c) {
  enum : int { kQuery };
  const bool known = c.has_rank(kQuery) && c.rank(kQuery) >= 2;
  const Dim batch = known ? c.shape(kQuery)[0] : c.data_dependent_dim("batch"),
            length = known ? c.shape(kQuery)[1] : c.data_dependent_dim("length");
  for (int i : {0, 1, 3, 4}) c.set_output(i, DType::int64, {batch});
  c.set_output(2, DType::int64, {batch, length});
}

// Computes for each sample: the first cache row that its queries see; the number of rows that they see, including new ones; the positions
// of the queries; the index, among the seen rows, of the first one that stays in the cache; and the position of the first seen row.
struct WindowPositions : WindowPositionsPlan {
  enum Output : int { kFirst, kRows, kPositionIds, kKept, kOrigin };
  static WindowPositions bind(BindContext& c) { return {WindowPositionsPlan::bind(c)}; }

  void run(RunContext& c) const {
    const int32_t* lengths = c.in<int32_t>(kLengths);
    const int64_t total = *c.in<int32_t>(kTotal);
    const int64_t* ids = c.in<int64_t>(kPositions);
    const int32_t* counts = c.in<int32_t>(kCounts);
    const bool prompt = !counts && total == length;  // true: the cache is empty
    if (length > 1 && !prompt && !counts && batch != 1)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} new tokens behind a past, for a batch of {}: either has to be 1", length, batch));
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t end = static_cast<int64_t>(lengths[b]) + 1, added = counts ? counts[b] : length, past = end - added;
      if (added < 0 || added > length)
        throw Error(ErrorCode::invalid_argument, fmt::format("query_seqlens[{}] = {}, of {} new tokens", b, added, length));
      if (end < 1 || past < 0 || end > total)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("seqlens_k[{}] = {}, for {} new tokens and total_sequence_length = {}", b, lengths[b], added, total));
      // The first query sees window - 1 past keys. The cache may hold more of them.
      const int64_t before = resident(past, capacity, window), after = resident(end, capacity, window);
      const int64_t carried = std::max(after - added, std::min(before, window - 1)), rows = carried + added;
      c.out<int64_t>(kFirst)[b] = before - carried;
      c.out<int64_t>(kRows)[b] = rows;
      c.out<int64_t>(kKept)[b] = rows - after;
      c.out<int64_t>(kOrigin)[b] = end - rows;
      for (int64_t s = 0; s < length; ++s) {
        const int64_t own = b * length + s;
        // The first token of a prompt has the position that was given, and later tokens count up from it.
        c.out<int64_t>(kPositionIds)[own] = prompt ? prompt_position(ids, s) : ids ? ids[own] : past + s;
      }
    }
  }
};

void infer_update_window(InferContext& c) {
  enum : int { kUpdate, kPast = 4 };
  if (!c.has_rank(kUpdate) || c.rank(kUpdate) != 3 || !c.has_rank(kPast) || c.rank(kPast) != 4) {
    for (int i : {0, 1}) c.set_output_dtype(i, c.dtype(kUpdate));
    return;
  }
  const SymbolicShape &update = c.shape(kUpdate), &past = c.shape(kPast);
  c.set_output(0, c.dtype(kUpdate), past);
  c.set_output(1, c.dtype(kUpdate), {past[0], past[1], past[2] + update[1] - Dim(1), past[3]});
}

// Writes two buffers [batch, heads, rows, size]. `keys` gets rows[b] rows, then zeros: first rows of `past` from first[b] on, then rows of
// `update` [batch, new, heads * size] (counts[b] of them if `counts` is given). `present`, the next cache, gets the same rows from kept[b]
// on. `keys` is longer than `present` if there are several new rows, since it also has rows that `present` drops.
struct UpdateWindow : UpdateWindowPlan {
  static UpdateWindow bind(BindContext& c) { return {UpdateWindowPlan::bind(c)}; }

  void check(int64_t first, int64_t rows, int64_t kept, int64_t count) const {
    if (count < 0 || count > added || first < 0 || rows < count || rows > length || first > capacity - (rows - count) || kept < 0 ||
        kept > rows || rows - kept > capacity)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} rows, {} of them new, from row {} of a cache of {} on, which keeps those from {}", rows, count, first,
                              capacity, kept));
  }

  void run(RunContext& c) const {
    const int64_t *first = c.in<int64_t>(kFirst), *rows = c.in<int64_t>(kRows), *kept = c.in<int64_t>(kKept);
    const int32_t* counts = c.in<int32_t>(kCounts);
    auto new_rows = [&](int64_t b) { return counts ? counts[b] : added; };
    for (int64_t b = 0; b < batch; ++b) check(first[b], rows[b], kept[b], new_rows(b));
    const size_t row = static_cast<size_t>(size) * element;
    const auto bytes = [&](int64_t count) { return static_cast<size_t>(count) * row; };
    if (row == 0) return;
    const auto *from = c.in<std::byte>(kUpdate), *past = c.in<std::byte>(kPast);
    auto *present = c.out<std::byte>(kPresent), *keys = c.out<std::byte>(kKeys);
    parallel_for(c.pool(), batch * heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const int64_t b = plane / heads, h = plane % heads, carried = rows[b] - new_rows(b);
        const std::byte* own = past + bytes(plane * capacity);
        std::byte *all = keys + bytes(plane * length), *dst = present + bytes(plane * capacity);
        std::memcpy(all, own + bytes(first[b]), bytes(carried));
        for (int64_t s = 0; s < new_rows(b); ++s) std::memcpy(all + bytes(carried + s), from + bytes((b * added + s) * heads + h), row);
        std::memset(all + bytes(rows[b]), 0, bytes(length - rows[b]));
        // If `present` is in the memory of `past`, rows that stay in the same place need no copy.
        const bool there = dst == own && first[b] + kept[b] == 0;
        const int64_t done = there ? carried : 0, staying = rows[b] - kept[b];
        std::memcpy(dst + bytes(done), all + bytes(kept[b] + done), bytes(staying - done));
        if (dst != own) std::memset(dst + bytes(staying), 0, bytes(capacity - staying));
      }
    });
  }
};

}  // namespace

WindowPositionsPlan WindowPositionsPlan::bind(const BindContext& c) {
  const Shape &query = c.shape(kQuery), &past = c.shape(kPast);
  if (query.rank() != 3) throw Error(ErrorCode::invalid_argument, fmt::format("the query is of rank {}, not 3", query.rank()));
  if (past.rank() != 4) throw Error(ErrorCode::invalid_argument, fmt::format("past_key is of rank {}, not 4", past.rank()));
  const WindowPositionsPlan k{query[0], query[1], past[2], c.get_int("window", 1)};
  if (k.window < 1 || k.capacity < k.window)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("past_key has room for {} keys, fewer than local_window_size = {}", k.capacity, k.window));
  if (k.length < 1) throw Error(ErrorCode::invalid_argument, "the query is of no token; with sliding_window_cache = 1 it needs one");
  check_equal(c.num_elements(kLengths), k.batch, "elements of seqlens_k and the batch");
  check_equal(c.num_elements(kTotal), 1, "elements of total_sequence_length and 1");
  if (c.has_input(kPositions)) check_equal(c.num_elements(kPositions), k.batch * k.length, "elements of position_ids and tokens");
  if (c.has_input(kCounts)) check_equal(c.num_elements(kCounts), k.batch, "elements of query_seqlens and the batch");
  return k;
}

UpdateWindowPlan UpdateWindowPlan::bind(const BindContext& c) {
  const Shape &update = c.shape(kUpdate), &past = c.shape(kPast);
  if (update.rank() != 3) throw Error(ErrorCode::invalid_argument, fmt::format("keys or values are of rank {}, not 3", update.rank()));
  if (past.rank() != 4) throw Error(ErrorCode::invalid_argument, fmt::format("the past is of rank {}, not 4", past.rank()));
  UpdateWindowPlan k{};
  k.element = static_cast<size_t>(element_bytes(c.dtype(kUpdate)));
  k.batch = past[0], k.heads = past[1], k.capacity = past[2], k.size = past[3], k.added = update[1];
  k.length = c.output_shape(kKeys)[2];
  check_equal(update[0], k.batch, "batches of new and past keys or values");
  check_equal(update[2], k.heads * k.size, "features of keys or values, and heads of the past times their size");
  if (c.has_input(kCounts)) check_equal(c.num_elements(kCounts), k.batch, "elements of counts and the batch");
  for (int i : {kFirst, kRows, kKept}) check_equal(c.num_elements(i), k.batch, "elements of positions and the batch");
  return k;
}

OpDef window_positions_op() {
  constexpr TypeSet kInt32{DType::int32};
  return {.name = "WindowPositions",
          .domain = "treadle",
          .since = {1},
          .inputs = {{"query", kFloats},
                     {"past_key", kFloats},
                     {"seqlens_k", kInt32},
                     {"total_sequence_length", kInt32},
                     maybe("position_ids", kInt64),
                     maybe("query_seqlens", kInt32)},
          .outputs = {{"first", kInt64}, {"rows", kInt64}, {"position_ids", kInt64}, {"kept", kInt64}, {"origin", kInt64}},
          .attributes = {{"window", AttributeDef::Required{}}},
          .infer = infer_window_positions,
          .kernels = {kernel<WindowPositions>()}};
}

OpDef update_window_op() {
  return {.name = "UpdateWindow",
          .domain = "treadle",
          .since = {1},
          .inputs = {{"update", kFloats, "T"},
                     {"first", kInt64},
                     {"rows", kInt64},
                     {"kept", kInt64},
                     {"past", kFloats, "T"},
                     maybe("counts", {DType::int32})},
          .outputs = {{"present", kFloats, "T"}, {"keys", kFloats, "T"}},
          .infer = infer_update_window,
          .alias = {may_reuse(0, 4)},
          .kernels = {kernel<UpdateWindow>()}};
}

}  // namespace treadle::ops
