// Implements the key and value caches of GroupQueryAttention and DecoderMaskedMultiHeadAttention, where each sample of a batch has its own
// length.
#include "ops/microsoft/attention_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/threads/thread_pool.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/microsoft/attention.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void check_total(int64_t total, int64_t past, int64_t length) {
  if (total < length || (total > past && total != past + length))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("total_sequence_length is {}; with {} new tokens and a cache of {} it has to be {}, or at most the cache's {}",
                            total, length, past, past + length, past));
}

void infer_cache_positions(InferContext& c) {
  enum : int { kQuery, kPast, kLengths, kTotal };
  const bool known = c.has_rank(kQuery);
  if (known && c.rank(kQuery) != 3) throw Error(ErrorCode::invalid_argument, fmt::format("the query is of rank {}, not 3", c.rank(kQuery)));
  check_one_element(c, kTotal, "total_sequence_length");
  const Dim batch = known ? c.shape(kQuery)[0] : c.data_dependent_dim("batch"),
            length = known ? c.shape(kQuery)[1] : c.data_dependent_dim("length");
  c.set_output(0, DType::int64, {batch}), c.set_output(1, DType::int64, {batch});
  c.set_output(2, DType::int64, {batch, length});
  c.set_output(3, DType::int64, {Dim(1)});
  const auto total = c.known(kTotal);
  if (!total || total->size() != 1 || !c.has_input(kPast) || !c.has_rank(kPast) || c.rank(kPast) != 4) return;
  const Dim &all = (*total)[0], &past = c.shape(kPast)[2];
  // Rejects a constant length that every run would reject, before a cache of that length is allocated.
  if (all.is_const() && past.is_const() && length.is_const() && !c.has_input(5)) check_total(all.value(), past.value(), length.value());
  c.set_known(3, {maximum(all, past)});
}

// Computes for GroupQueryAttention the cache row at which new keys begin, the number of valid keys, the positions of the queries, and the
// length of the caches.
struct CachePositions : CachePositionsPlan {
  static CachePositions bind(BindContext& c) { return {CachePositionsPlan::bind(c)}; }

  /// Checks sample b. It has `count` new tokens, followed by padding, and `end` keys including the new ones. `total` is the limit for
  /// `end`.
  void check_padded(int64_t b, int64_t count, int64_t end, int64_t total) const {
    if (count < 0 || count > std::min(length, end))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("query_seqlens[{}] = {}, for {} new tokens at most and {} keys in all", b, count, length, end));
    if (total < length || end > total || end - count > std::max(total, past) - length)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("seqlens_k[{}] = {} and query_seqlens[{}] = {} with {} tokens, a past of {} and total_sequence_length = {}",
                              b, end - 1, b, count, length, past, total));
  }

  void check(int64_t total) const {
    check_total(total, past, length);
    if (length > 1 && total != length && batch != 1)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} new tokens behind a past, for a batch of {}: either has to be 1", length, batch));
  }

  void run(RunContext& c) const {
    const int32_t* lengths = c.in<int32_t>(2);
    const int64_t total = *c.in<int32_t>(3), present = std::max(total, past);
    const int64_t* ids = c.in<int64_t>(4);
    const int32_t* counts = c.in<int32_t>(5);
    if (!counts) check(total);
    const bool prompt = !counts && total == length;  // true: the cache is empty
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t end = static_cast<int64_t>(lengths[b]) + 1, first = prompt ? 0 : end - (counts ? counts[b] : length);
      if (counts) check_padded(b, counts[b], end, total);
      if (end < 1 || end > present || first < 0)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("seqlens_k[{}] = {}, for {} new tokens and {} keys in all", b, lengths[b], length, present));
      c.out<int64_t>(0)[b] = first;
      c.out<int64_t>(1)[b] = causal ? first + length : end;
      for (int64_t s = 0; s < length; ++s) {
        const int64_t own = b * length + s;
        // The first token of a prompt has the position that was given, and later tokens count up from it.
        c.out<int64_t>(2)[own] = prompt ? prompt_position(ids, s) : ids ? ids[own] : first + s;
      }
    }
    *c.out<int64_t>(3) = present;
  }
};

void infer_update_cache(InferContext& c) {
  const int64_t heads = c.get_int("num_heads", 1);
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  if (c.rank(0) != 3) throw Error(ErrorCode::invalid_argument, fmt::format("keys or values are of rank {}, not 3", c.rank(0)));
  const SymbolicShape& update = c.shape(0);
  Dim length = update[1];
  if (c.has_input(2)) {
    const auto known = c.known(2);
    length = known && known->size() == 1 ? (*known)[0] : c.data_dependent_dim("cache");
  }
  c.set_output(0, c.dtype(0), {update[0], Dim(heads), length, floor_div(update[2], Dim(heads))});
}

// Writes a cache [batch, heads, length, size]: first rows of `past`, then, from row write_indices[b] on, rows of `update` [batch, new,
// heads * size], then zeros. If `counts` is given, only the first counts[b] rows of `update` are written. If the output is in the memory of
// `past`, only the new rows are written.
struct UpdateCache : UpdateCachePlan {
  static UpdateCache bind(BindContext& c) { return {UpdateCachePlan::bind(c)}; }

  void run(RunContext& c) const {
    const int64_t* places = c.in<int64_t>(1);
    const int32_t* counts = c.in<int32_t>(4);
    auto new_rows = [&](int64_t b) { return counts ? counts[b] : added; };
    for (int64_t b = 0; b < batch; ++b)
      if (new_rows(b) < 0 || new_rows(b) > added || places[b] < 0 || places[b] > past || places[b] > length - new_rows(b))
        throw Error(ErrorCode::invalid_argument, fmt::format("{} keys of {} at place {} of a cache of {}, with a past of {}", new_rows(b),
                                                             added, places[b], length, past));
    const size_t row = static_cast<size_t>(size) * element;
    const auto rows = [&](int64_t count) { return static_cast<size_t>(count) * row; };
    const auto *from = c.in<std::byte>(0), *old = c.in<std::byte>(3);
    auto* to = c.out<std::byte>(0);
    parallel_for(c.pool(), batch * heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const int64_t b = plane / heads, h = plane % heads, place = places[b];
        std::byte* dst = to + rows(plane * length);
        const std::byte* own = old ? old + rows(plane * past) : nullptr;
        if (dst != own) {
          if (place > 0) std::memcpy(dst, own, rows(place));
          const int64_t done = place + new_rows(b), kept = std::max(done, std::min(past, length));
          if (kept > done) std::memcpy(dst + rows(done), own + rows(done), rows(kept - done));
          if (length > kept) std::memset(dst + rows(kept), 0, rows(length - kept));
        }
        for (int64_t s = 0; s < new_rows(b) && row > 0; ++s)
          std::memcpy(dst + rows(place + s), from + rows((b * added + s) * heads + h), row);
      }
    });
  }
};

void infer_gather_beams(InferContext& c) { c.set_output(0, c.input(0)); }

// Reorders a cache [batch * beams, heads, length, size] for a beam search. indirection [batch, beams, rows] names, for each row of the
// past, the beam of the same sample from which the row is copied. Rows after the past are copied unchanged.
struct GatherBeams : GatherBeamsPlan {
  static GatherBeams bind(BindContext& c) { return {GatherBeamsPlan::bind(c)}; }

  void run(RunContext& c) const {
    const int64_t past = *c.in<int64_t>(2), kept = std::min(past, length);
    const int32_t* from = c.in<int32_t>(1);
    if (past < 0 || past > columns || past > length)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("cache_indirection names rows for {} keys, the cache has {}, the past {}", columns, length, past));
    for (int64_t b = 0; b < planes / std::max<int64_t>(1, heads); ++b)
      for (int64_t t = 0; t < past; ++t)
        if (const int32_t beam = from[b * columns + t]; beam < 0 || beam >= beams)
          throw Error(ErrorCode::invalid_argument, fmt::format("cache_indirection has {}, there are {} beams", beam, beams));
    const size_t row = static_cast<size_t>(size) * element;
    if (row == 0) return;
    const auto* src = c.in<std::byte>(0);
    auto* dst = c.out<std::byte>(0);
    parallel_for(c.pool(), planes, 1, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const int64_t b = plane / heads, h = plane % heads, sample = b / beams * beams;
        auto at = [&](int64_t batch, int64_t t) { return static_cast<size_t>((batch * heads + h) * length + t) * row; };
        for (int64_t t = 0; t < kept; ++t) std::memcpy(dst + at(b, t), src + at(sample + from[b * columns + t], t), row);
        std::memcpy(dst + at(b, kept), src + at(b, kept), static_cast<size_t>(length - kept) * row);
      }
    });
  }
};

}  // namespace

CachePositionsPlan CachePositionsPlan::bind(const BindContext& c) {
  const Shape& query = c.shape(0);
  if (query.rank() != 3) throw Error(ErrorCode::invalid_argument, fmt::format("the query is of rank {}, not 3", query.rank()));
  CachePositionsPlan k{query[0], query[1], 0, c.get_int("causal", 1) != 0};
  if (c.has_input(1)) {
    if (c.shape(1).rank() != 4) throw Error(ErrorCode::invalid_argument, fmt::format("past_key is of rank {}, not 4", c.shape(1).rank()));
    k.past = c.shape(1)[2];
  }
  check_equal(c.num_elements(2), k.batch, "elements of seqlens_k and the batch");
  check_equal(c.num_elements(3), 1, "elements of total_sequence_length and 1");
  if (c.has_input(4)) check_equal(c.num_elements(4), k.batch * k.length, "elements of position_ids and tokens");
  if (c.has_input(5)) check_equal(c.num_elements(5), k.batch, "elements of query_seqlens and the batch");
  return k;
}

UpdateCachePlan UpdateCachePlan::bind(const BindContext& c) {
  const Shape &update = c.shape(0), &out = c.output_shape(0);
  if (update.rank() != 3) throw Error(ErrorCode::invalid_argument, fmt::format("keys or values are of rank {}, not 3", update.rank()));
  UpdateCachePlan k{};
  k.element = static_cast<size_t>(element_bytes(c.dtype(0)));
  k.batch = update[0], k.added = update[1], k.heads = c.get_int("num_heads", 1), k.size = update[2] / k.heads;
  check_equal(update[2], k.size * k.heads, "features of keys or values, and heads times their size");
  k.length = out[2];
  check_equal(c.num_elements(1), k.batch, "elements of write_indices and the batch");
  if (c.has_input(4)) check_equal(c.num_elements(4), k.batch, "elements of counts and the batch");
  if (c.has_input(3)) {
    const Shape& past = c.shape(3);
    if (past.rank() != 4) throw Error(ErrorCode::invalid_argument, fmt::format("the past is of rank {}, not 4", past.rank()));
    k.past = past[2];
    if (!(past == Shape{k.batch, k.heads, k.past, k.size}))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the past {} does not fit a batch of {} and {} heads of size {}", to_string(past), k.batch, k.heads, k.size));
  }
  return k;
}

GatherBeamsPlan GatherBeamsPlan::bind(const BindContext& c) {
  const Shape &cache = c.shape(0), &from = c.shape(1);
  check_equal(from[0] * from[1], cache[0], "samples and beams of cache_indirection, and the batch");
  check_equal(c.num_elements(2), 1, "elements of the past's length, and one");
  return {static_cast<size_t>(element_bytes(c.dtype(0))), cache[0] * cache[1], cache[1], cache[2], cache[3], from[1], from[2]};
}

std::vector<OpDef> cache_ops() {
  constexpr TypeSet kInt32{DType::int32}, kKept = kFloats | TypeSet{DType::int8, DType::uint8};
  return {sparse_blocks_op(),
          update_window_op(),
          window_positions_op(),
          {.name = "CachePositions",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"query", kFloats, "", Presence::required, of_rank(3)},
                      maybe("past_key", kKept),
                      {"seqlens_k", kInt32},
                      {"total_sequence_length", kInt32},
                      maybe("position_ids", kInt64),
                      maybe("query_seqlens", kInt32)},
           .outputs = {{"write_indices", kInt64}, {"valid_lengths", kInt64}, {"position_ids", kInt64}, {"length", kInt64}},
           .attributes = {{"causal", int64_t{1}, zero_or_one()}},
           .infer = infer_cache_positions,
           .kernels = {kernel<CachePositions>()}},
          {.name = "UpdateCache",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"update", kKept, "T", Presence::required, of_rank(3)},
                      {"write_indices", kInt64},
                      maybe("length", kInt64),
                      maybe("past", kKept, "T"),
                      maybe("counts", kInt32)},
           .outputs = {{"present", kKept, "T"}},
           .attributes = {{"num_heads", int64_t{1}, between(1, INT32_MAX)}},
           .infer = infer_update_cache,
           .alias = {may_reuse(0, 3)},
           .kernels = {kernel<UpdateCache>()},
           .value_inputs = {2}},
          {.name = "GatherBeams",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"cache", kFloats, "T", Presence::required, of_rank(4)},
                      {"indirection", kInt32, "", Presence::required, of_rank(3)},
                      {"past", kInt64}},
           .outputs = {{"cache_of_beams", kFloats, "T"}},
           .infer = infer_gather_beams,
           .kernels = {kernel<GatherBeams>()}}};
}

}  // namespace treadle::ops
