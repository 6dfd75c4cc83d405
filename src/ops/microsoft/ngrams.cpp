// Implements VarlenNGramHashMapping (com.microsoft 1), which is NGramHashMapping for packed sequences of different lengths.
#include <algorithm>

#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "ops/checks.h"
#include "ops/list.h"
#include "ops/microsoft/microsoft.h"
#include "ops/tensor/movement.h"

namespace treadle::ops {
namespace {

enum Input : int { kIds, kMultipliers, kVocabularies, kStarts, kPastIds, kOffsets, kEnd, kSegments, kPastSegments, kCaptureCount };

constexpr int64_t kMostStates = 8;

void infer_packed_hashes(InferContext& c) {
  const int64_t size = c.get_int("max_ngram_size"), heads = c.get_int("n_head_per_ngram"), states = c.get_int("state_update_capacity");
  if (size < 2 || heads < 1 || size > 1024 || heads > 65536)
    throw Error(ErrorCode::invalid_argument, fmt::format("max_ngram_size = {} and n_head_per_ngram = {}", size, heads));
  if (states < 0 || states > kMostStates)
    throw Error(ErrorCode::invalid_argument, fmt::format("state_update_capacity is {}; expected 0 to {}", states, kMostStates));
  if (c.has_input(kCaptureCount) != (states > 0))
    throw Error(ErrorCode::invalid_argument, fmt::format("state_update_capacity is {} {} capture_count: they go together", states,
                                                         c.has_input(kCaptureCount) ? "with" : "without"));
  for (int i : {kIds, kStarts})
    if (c.has_rank(i) && c.rank(i) != 1)
      throw Error(ErrorCode::invalid_argument, fmt::format("the input {} is of rank {}, not 1", i, c.rank(i)));
  const Dim tokens = c.has_rank(kIds) ? c.shape(kIds)[0] : c.data_dependent_dim("tokens");
  const Dim batch = c.has_rank(kStarts) ? c.shape(kStarts)[0] - 1 : c.data_dependent_dim("batch");
  c.set_output(0, c.dtype(kIds), {tokens, (size - 1) * heads});
  if (c.has_output(1)) c.set_output(1, c.dtype(kIds), {batch, size - 1});
  if (c.has_output(2)) c.set_output(2, DType::int32, {batch, size - 1});
  if (c.has_output(3)) c.set_output(3, c.dtype(kIds), {batch, states, size - 1});
}

template <typename T>
struct PackedHashes {
  using Bits = std::make_unsigned_t<T>;  // unsigned, so that products wrap around
  int64_t tokens, batch, size, heads, states;
  T pad;
  bool resets, wanted[4];

  static PackedHashes bind(BindContext& c) {
    PackedHashes k{c.num_elements(kIds),
                   c.num_elements(kStarts) - 1,
                   c.get_int("max_ngram_size"),
                   c.get_int("n_head_per_ngram"),
                   c.get_int("state_update_capacity"),
                   static_cast<T>(c.get_int("pad_id")),
                   c.get_int("reset_on_eos") != 0,
                   {}};
    for (int i = 0; i < 4; ++i) k.wanted[i] = c.has_output(i);
    if (k.batch < 0)
      throw Error(ErrorCode::invalid_argument, "cumulative_sequence_length is empty; expected one element more than sequences");
    if (c.num_elements(kMultipliers) < k.size)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} multipliers for n-grams of {}", c.num_elements(kMultipliers), k.size));
    const int64_t outputs = k.history() * k.heads;
    check_equal(c.num_elements(kVocabularies), outputs, "vocab_sizes and heads");
    if (c.has_input(kOffsets)) check_equal(c.num_elements(kOffsets), outputs, "head_offsets and heads");
    for (int i : {kPastIds, kPastSegments})
      if (c.has_input(i)) check_equal(c.num_elements(i), k.batch * k.history(), "elements of a past");
    if (c.has_input(kEnd)) check_equal(c.num_elements(kEnd), 1, "elements of eos_token_id");
    if (c.has_input(kSegments)) check_equal(c.num_elements(kSegments), k.tokens, "elements of segment_ids and input_ids");
    if (c.has_input(kCaptureCount)) check_equal(c.num_elements(kCaptureCount), k.batch, "elements of capture_count and sequences");
    return k;
  }

  void run(RunContext& c) const {
    const auto* vocabularies = c.in<T>(kVocabularies);
    for (int64_t i = 0; i < history() * heads; ++i)
      if (vocabularies[i] < 1)
        throw Error(ErrorCode::invalid_argument, fmt::format("vocab_sizes has {}; they must be positive", vocabularies[i]));
    const auto* starts = c.in<int32_t>(kStarts);
    for (int64_t i = 0; i < batch; ++i)
      if (starts[i] >= starts[i + 1])
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("cumulative_sequence_length has {} before {}: no sequence may be empty", starts[i], starts[i + 1]));
    if (starts[0] != 0 || starts[batch] != tokens)
      throw Error(ErrorCode::invalid_argument, fmt::format("cumulative_sequence_length goes from {} to {}; expected 0 to {}, the tokens",
                                                           starts[0], starts[batch], tokens));
    for (int64_t i = 0; i < batch; ++i) run_sequence(c, i, Sequence{c, *this, i});
  }

 private:
  int64_t history() const { return size - 1; }

  /// The tokens and segment numbers of one sequence. Tokens at places from -history to -1 are from the past, before the new tokens.
  struct Sequence {
    const T *ids, *past, *end;
    const int32_t *segments, *past_segments;
    int64_t begin, length, history;
    T missing;
    bool resets;

    Sequence(RunContext& c, const PackedHashes& k, int64_t i)
        : ids(c.in<T>(kIds)),
          past(c.in<T>(kPastIds)),
          end(c.in<T>(kEnd)),
          segments(c.in<int32_t>(kSegments)),
          past_segments(c.in<int32_t>(kPastSegments)),
          begin(c.in<int32_t>(kStarts)[i]),
          length(c.in<int32_t>(kStarts)[i + 1] - begin),
          history(k.history()),
          missing(end ? *end : k.pad),
          resets(k.resets) {
      ids += begin;
      if (past) past += i * history;
      if (segments) segments += begin;
      if (past_segments) past_segments += i * history;
    }
    T token(int64_t place) const {
      if (place >= 0) return ids[place];
      return past ? past[history + place] : missing;
    }
    int32_t segment(int64_t place) const {
      if (place < 0 && past_segments) return past_segments[history + place];
      return segments ? segments[std::max<int64_t>(place, 0)] : 0;  // a past without segments continues the first token's segment
    }
    /// Returns true if an n-gram must not extend to the tokens before this place, because a text or a segment ends there.
    bool stops(int64_t place) const {
      if (resets && end && token(place - 1) == *end) return true;
      return segments && (place > 0 || past_segments) && segment(place) != segment(place - 1);
    }
  };

  void run_sequence(RunContext& c, int64_t index, const Sequence& s) const {
    const T *factors = c.in<T>(kMultipliers), *vocabularies = c.in<T>(kVocabularies), *offsets = c.in<T>(kOffsets);
    for (int64_t place = 0; place < s.length; ++place) {
      T* out = c.out<T>(0) + (s.begin + place) * history() * heads;
      Bits mix = static_cast<Bits>(s.token(place)) * static_cast<Bits>(factors[0]);
      bool is_missing = false;
      for (int64_t shift = 1; shift < size; ++shift) {
        is_missing = is_missing || s.stops(place - shift + 1);
        mix ^= static_cast<Bits>(is_missing ? s.missing : s.token(place - shift)) * static_cast<Bits>(factors[shift]);
        for (int64_t head = (shift - 1) * heads; head < shift * heads; ++head) {
          T code = static_cast<T>(static_cast<T>(mix) % vocabularies[head]);
          if (code < 0) code += vocabularies[head];
          out[head] = static_cast<T>(static_cast<Bits>(code) + static_cast<Bits>(offsets ? offsets[head] : T{0}));
        }
      }
    }
    for (int64_t i = 0; i < history(); ++i) {
      const int64_t place = s.length - history() + i;
      if (wanted[1]) c.out<T>(1)[index * history() + i] = s.token(place);
      if (wanted[2]) c.out<int32_t>(2)[index * history() + i] = s.segment(place);
    }
    if (!wanted[3]) return;
    auto* kept = c.out<T>(3);
    const int64_t count = states > 0 ? std::clamp<int64_t>(c.in<int32_t>(kCaptureCount)[index], 0, std::min(s.length, states)) : 0;
    for (int64_t state = 0; state < states; ++state)
      for (int64_t i = 0; i < history(); ++i)
        kept[(index * states + state) * history() + i] = state < count ? s.token(state + 1 - history() + i) : pad;
  }
};

}  // namespace

std::vector<OpDef> microsoft_ngrams_ops() {
  using Required = AttributeDef::Required;
  const TypeSet int32{DType::int32};
  return {{.name = "VarlenNGramHashMapping",
           .domain = kMicrosoft,
           .since = {1},
           .inputs = {{"input_ids", kInt32Or64, "M"},
                      {"multipliers", kInt32Or64, "M"},
                      {"vocab_sizes", kInt32Or64, "M"},
                      {"cumulative_sequence_length", int32},
                      maybe("past_ids", kInt32Or64, "M"),
                      maybe("head_offsets", kInt32Or64, "M"),
                      maybe("eos_token_id", kInt32Or64, "M"),
                      maybe("segment_ids", int32),
                      maybe("past_segment_ids", int32),
                      maybe("capture_count", int32)},
           .outputs = {{"hash_ids", kInt32Or64, "M"},
                       maybe("present_ids", kInt32Or64, "M"),
                       maybe("present_segment_ids", int32),
                       maybe("state_update", kInt32Or64, "M")},
           .attributes = {{"max_ngram_size", Required{}},
                          {"n_head_per_ngram", Required{}},
                          {"pad_id", Required{}},
                          {"reset_on_eos", int64_t{0}},
                          {"state_update_capacity", int64_t{0}}},
           .infer = infer_packed_hashes,
           .kernels = typed<PackedHashes, int32_t, int64_t>()}};
}

}  // namespace treadle::ops
