// Implements RotaryEmbedding of com.microsoft, whose positions are input 1; a single number serves the whole batch. Also MRotaryEmbedding,
// which has three positions per token (time, height, width), each for a part of the frequencies (Wang et al. 2024, Qwen2-VL,
// arXiv:2409.12191).
#include <algorithm>

#include "ops/microsoft/attention.h"
#include "ops/rank_branches.h"

namespace treadle::ops {
namespace {

/// Returns the positions [batch, length]. If only one position is given, the tokens' positions count up from it.
ValueId all_positions(Decomposition& d, ValueId given, ValueId batch, ValueId length) {
  return by_rank(d, {given, batch, length}, {0}, {2, kAnyRank}, [](NodeWriter& w, const std::vector<ValueId>& v) {
    if (w.rank(v[0]) >= 2) return std::vector{v[0]};
    const ValueId row = w.op("Add", {counted(w, v[2]), w.op("Reshape", {v[0], w.ints({1})})});
    return std::vector{w.op("Expand", {row, joined(w, {v[1], v[2]})})};
  })[0];
}

void decompose_rotary(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const Attributes& a = d.attributes();
  const int64_t heads = a.get_int("num_heads", 0), rotated = a.get_int("rotary_embedding_dim", 0);
  if (heads < 0 || rotated < 0 || (rotated > 0 && heads == 0))
    throw Error(ErrorCode::invalid_model,
                fmt::format("rotary_embedding_dim is {} and num_heads {}; the first needs the second", rotated, heads));
  if (a.get_float("scale", 1) != 1)
    throw Error(ErrorCode::not_implemented, fmt::format("scale = {} is not implemented", a.get_float("scale")));
  // If num_heads is set, the kernel itself tells apart [batch, length, features] and [batch, heads, length, size], so no branches are
  // needed.
  if (heads == 0 && branch_by_rank(d, {0}, {3, 4})) return;
  ValueId x = d.in(0);
  const int rank = d.rank(x);
  if (rank >= 0 && rank != 3 && rank != 4) throw Error(ErrorCode::invalid_model, fmt::format("input is of rank {}, not 3 or 4", rank));
  const ValueId length = d.op("Shape", {x}, {{"start", int64_t{-2}}, {"end", int64_t{-1}}});
  const ValueId positions = all_positions(d, d.in(1), extents(d, x, 0), length);
  // open: the number of heads is unknown before the run. A head has twice as many features as the caches have columns.
  const bool open = rank == 3 && heads == 0;
  if (open) {
    ValueId size = d.op("Mul", {extents(d, d.in(2), 1), d.ints({2})});
    x = d.op("Reshape", {x, joined(d, {d.ints({0, 0, -1}), size})});
    x = d.op("Transpose", {x}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  }
  Attributes attributes = d.copied({"interleaved", "rotary_embedding_dim"});
  if (rank != 4 && !open) attributes.set("num_heads", heads);
  ValueId y = d.op("RotaryEmbedding", {x, d.in(2), d.in(3), positions}, std::move(attributes));
  d.give(0, open ? merge_heads(d, y) : y);
  d.finish();
}

/// Returns, for each frequency, which of the three positions (time, height, width) it uses.
std::vector<int64_t> position_of_frequencies(const std::vector<int64_t>& sections, bool interleaved) {
  std::vector<int64_t> which;
  if (!interleaved) {
    for (size_t s = 0; s < sections.size(); ++s) which.insert(which.end(), static_cast<size_t>(sections[s]), static_cast<int64_t>(s));
    return which;
  }
  for (int64_t i = 0; i < sections[0] + sections[1] + sections[2]; ++i) {
    const int64_t s = i % 3;
    which.push_back(i < 3 * sections[static_cast<size_t>(s)] ? s : 0);
  }
  return which;
}

void decompose_sectioned_rotary(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const Attributes& a = d.attributes();
  constexpr int64_t kMostFrequencies = 512;  // limit for the constants made below; usual heads have 64 frequencies
  const std::vector<int64_t>& sections = a.get_ints("mrope_section");
  if (sections.size() != 3 || std::any_of(sections.begin(), sections.end(), [](int64_t n) { return n < 0 || n > kMostFrequencies; }))
    throw Error(ErrorCode::invalid_model,
                fmt::format("mrope_section must have three extents, each from 0 to {} frequencies", kMostFrequencies));
  const int64_t layout = a.get_int("mrope_layout", 0);
  if (layout != 0 && layout != 1) throw Error(ErrorCode::invalid_model, fmt::format("mrope_layout = {}; expected 0 or 1", layout));
  if (branch_by_rank(d, {0}, a.get_int("num_heads", 0) > 0 ? std::vector<int>{3, 4} : std::vector<int>{4})) return;
  ValueId x = d.in(0), positions = d.in(1);
  const int rank = d.rank(x);
  if (rank != 3 && rank != 4) throw Error(ErrorCode::invalid_model, fmt::format("input is of rank {}, not 3 or 4", rank));
  // Looks up the angles for all three positions, [3, batch, length, frequencies]. For each frequency, takes the angle of the position it
  // uses.
  const std::vector<int64_t> which = position_of_frequencies(sections, layout == 1);
  const auto count = static_cast<int64_t>(which.size());
  ValueId choice = d.constant(Tensor::vector<int64_t>(which).reshaped(Shape{1, 1, 1, count}));
  choice = d.op("Expand", {choice, joined(d, {d.ints({1}), d.op("Shape", {positions}, {{"start", int64_t{1}}}), d.ints({1})})});
  auto chosen = [&](ValueId cache) {
    ValueId all = d.op("Gather", {cache, positions});
    ValueId turns = d.op("Squeeze", {d.op("GatherElements", {all, choice}, {{"axis", int64_t{0}}}), d.ints({0})});
    return d.scaled(turns, a.get_float("scale", 1), x);  // the factor applies only to the rotated features
  };
  Attributes attributes = d.copied({"interleaved", "rotary_embedding_dim"});
  if (rank == 3) attributes.set("num_heads", positive(d, "num_heads"));
  d.give(0, d.op("RotaryEmbedding", {x, chosen(d.in(2)), chosen(d.in(3))}, std::move(attributes)));
  d.finish();
}

}  // namespace

OpDef sectioned_rotary_op() {
  constexpr TypeSet kTypes{DType::float32, DType::float16, DType::bfloat16};
  return op("MRotaryEmbedding", {{"input", kTypes, "T"}, {"position_ids", kInt64}, {"cos_cache", kTypes, "T"}, {"sin_cache", kTypes, "T"}},
            {{"output", kTypes, "T"}},
            {{"interleaved", int64_t{0}},
             {"is_packed_batching", int64_t{0}},
             {"mrope_layout", int64_t{0}},
             {"mrope_section", AttributeDef::Required{}},
             {"num_heads", int64_t{0}},
             {"rotary_embedding_dim", int64_t{0}},
             {"scale", 1.0F}},
            decompose_sectioned_rotary);
}

OpDef rotary_op() {
  constexpr TypeSet kTypes{DType::float32, DType::float16, DType::bfloat16};
  return op("RotaryEmbedding", {{"input", kTypes, "T"}, {"position_ids", kInt64}, {"cos_cache", kTypes, "T"}, {"sin_cache", kTypes, "T"}},
            {{"output", kTypes, "T"}},
            {{"interleaved", int64_t{0}},
             {"is_packed_batching", int64_t{0}},
             {"num_heads", int64_t{0}},
             {"rotary_embedding_dim", int64_t{0}},
             {"scale", 1.0F}},
            decompose_rotary);
}

}  // namespace treadle::ops
