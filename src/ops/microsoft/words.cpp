// Implements operators of com.microsoft on words and tokens: WordConvEmbedding, MurmurHash3, NGramRepeatBlock, BifurcationDetector,
// NGramHashMapping.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>

#include "core/threads/thread_pool.h"
#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "kernels/text/murmur_hash.h"
#include "ops/checks.h"
#include "ops/list.h"
#include "ops/microsoft/microsoft.h"
#include "ops/rank_branches.h"
#include "ops/tensor/movement.h"

namespace treadle::ops {
namespace {

// Embeds the characters [words, L], convolves along each word, and takes the maximum over positions for each filter. A word has as many
// characters as are not 0. A window extends past the word's end only if the word is shorter than the window. Empty words give zeros.
void decompose_word_conv(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const std::vector<int> ranks{2, 4, 1, 2};
  for (size_t i = 0; i < ranks.size(); ++i) branch_by_rank(d, {i}, {ranks[i]});
  ValueId sequence = d.in(0), weights = d.in(1);
  // Returns an extent of the weights: the attribute, checked against the weights, or the weights' own extent if the attribute is absent.
  const auto said = [&](std::string_view name, ValueId x, int axis) {
    const int64_t declared = d.attributes().get_int(name, -1), extent = d.extent(x, axis);
    if (declared >= 0 && extent >= 0 && declared != extent)
      throw Error(ErrorCode::invalid_model, fmt::format("{} is {}, the weights have {}", name, declared, extent));
    return declared >= 0 ? declared : extent;
  };
  const int64_t filters = said("embedding_size", weights, 0), window = said("conv_window_size", weights, 2),
                letter = said("char_embedding_size", weights, 3);
  Attributes kernel;
  const bool both = window >= 0 && letter >= 0;
  if (both) kernel.set("kernel_shape", std::vector<int64_t>{window, letter});
  const auto or_copied = [&](int64_t extent, bool compared) { return extent >= 0 && !compared ? extent : 0; };
  weights = d.op("Reshape", {weights, d.ints({or_copied(filters, false), 1, or_copied(window, both), or_copied(letter, both)})});
  const ValueId width = window >= 0 ? d.ints({window}) : d.op("Shape", {weights}, {{"start", int64_t{2}}, {"end", int64_t{3}}});
  ValueId zero = d.constant(Tensor::scalar<int32_t>(0)), last = d.ints({-1});
  // Computes the length of each word: the number of its characters that are not 0, but 0 if the first character is 0.
  ValueId letters = d.cast(d.op("Greater", {sequence, zero}), DType::int64);
  ValueId length = d.op("Mul", {d.op("ReduceSum", {letters, last}), d.op("Slice", {letters, d.ints({0}), d.ints({1}), last})});
  ValueId longest = d.op("Shape", {sequence}, {{"start", int64_t{-1}}});
  // Each word becomes an image of one channel, whose rows are the embedded characters.
  ValueId letters_shape = d.op("Shape", {d.op("Gather", {d.in(3), zero})});
  ValueId images = d.op("Concat", {d.ints({-1, 1}), longest, letters_shape}, {{"axis", int64_t{0}}});
  ValueId sums = d.op("Conv", {d.op("Reshape", {d.op("Gather", {d.in(3), sequence}), images}), weights, d.in(2)}, std::move(kernel));
  sums = d.op("Squeeze", {sums, d.ints({3})});  // the shape is [words, filters, positions]
  ValueId places = d.op("Max", {d.op("Sub", {length, width}), d.ints({0})});
  ValueId place = d.op("Range", {d.constant(Tensor::scalar<int64_t>(0)), d.op("Squeeze", {d.op("Shape", {sums}, {{"start", int64_t{2}}})}),
                                 d.constant(Tensor::scalar<int64_t>(1))});
  ValueId counts = d.op("LessOrEqual", {place, d.op("Reshape", {places, d.ints({-1, 1, 1})})});
  sums = d.op("Where", {counts, sums, d.constant(Tensor::scalar(-std::numeric_limits<float>::infinity()))});
  ValueId best = d.op("Tanh", {d.op("ReduceMax", {sums, d.ints({2})}, {{"keepdims", int64_t{0}}})});
  ValueId empty = d.op("Equal", {d.op("Reshape", {length, d.ints({-1, 1})}), d.ints({0})});
  d.give(0, d.op("Where", {empty, d.constant(Tensor::scalar(0.0F)), best}));
  d.finish();
}

void infer_hash(InferContext& c) {
  DType dtype = c.get_int("positive", 1) != 0 ? DType::uint32 : DType::int32;
  if (!c.has_rank(0)) return c.set_output_dtype(0, dtype);
  c.set_output(0, dtype, c.shape(0));
}

/// Computes the MurmurHash3 of the bytes of each element. The attribute `positive` only decides whether the 32 bits are an unsigned number.
struct MurmurHash3 {
  DType dtype;
  int64_t total;
  uint32_t seed;

  static MurmurHash3 bind(BindContext& c) { return {c.dtype(0), c.num_elements(0), static_cast<uint32_t>(c.get_int("seed"))}; }

  void run(RunContext& c) const {
    auto* y = c.out<uint32_t>(0);
    parallel_for(c.pool(), total, 1024, [&](int64_t begin, int64_t end) {
      if (dtype == DType::string) {
        for (int64_t i = begin; i < end; ++i) y[i] = kernels::murmur_hash3(std::as_bytes(std::span(c.in<std::string>(0)[i])), seed);
      } else if (element_bytes(dtype) == 4) {
        hash_numbers<4>(c, begin, end, y);
      } else {
        hash_numbers<8>(c, begin, end, y);
      }
    });
  }
  // The size is a template parameter, so that the compiler unrolls the loops over bytes.
  template <size_t kBytes>
  void hash_numbers(RunContext& c, int64_t begin, int64_t end, uint32_t* y) const {
    const std::byte* x = c.in<std::byte>(0);
    for (int64_t i = begin; i < end; ++i) y[i] = kernels::murmur_hash3({x + static_cast<size_t>(i) * kBytes, kBytes}, seed);
  }
};

void infer_repeat_block(InferContext& c) {
  if (c.get_int("ngram_size") < 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("ngram_size = {}; expected at least 1", c.get_int("ngram_size")));
  for (int i : {0, 1})
    if (c.has_rank(i) && c.rank(i) != 2)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} is of rank {}, not 2", i == 0 ? "input_ids" : "scores", c.rank(i)));
  if (c.has_rank(0) && c.has_rank(1)) unify(c.shape(0)[0], c.shape(1)[0], "rows of input_ids and scores");
  c.set_output(0, c.input(1));
}

// Sets scores to -infinity: those of tokens that would complete an n-gram that is already in the row.
struct NGramRepeatBlock {
  int64_t rows, length, vocabulary, size;

  static NGramRepeatBlock bind(BindContext& c) {
    check_equal(c.shape(0)[0], c.shape(1)[0], "rows of input_ids and scores");
    return {c.shape(0)[0], c.shape(0)[1], c.shape(1)[1], c.get_int("ngram_size")};
  }
  void run(RunContext& c) const {
    const auto* ids = c.in<int64_t>(0);
    const auto* scores = c.in<float>(1);
    auto* out = c.out<float>(0);
    if (out != scores) std::copy_n(scores, rows * vocabulary, out);
    if (size > length) return;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t *tokens = ids + row * length, *suffix = tokens + length - (size - 1);
      for (int64_t i = 0; i + size <= length; ++i) {
        if (!std::equal(suffix, suffix + size - 1, tokens + i)) continue;
        const int64_t banned = tokens[i + size - 1];
        if (banned < 0 || banned >= vocabulary)
          throw Error(ErrorCode::invalid_argument, fmt::format("the token {} is outside the vocabulary of {}", banned, vocabulary));
        out[row * vocabulary + banned] = -std::numeric_limits<float>::infinity();
      }
    }
  }
};

void infer_bifurcation(InferContext& c) {
  const int64_t least = c.get_int("min_ngram_size", 1), most = c.get_int("max_ngram_size", 3);
  if (least < 1 || most < least)
    throw Error(ErrorCode::invalid_argument, fmt::format("min_ngram_size = {}, max_ngram_size = {}", least, most));
  for (int i : {0, 1, 3})
    if (c.has_input(i) && c.has_rank(i) && c.rank(i) != 1)
      throw Error(ErrorCode::invalid_argument, fmt::format("the input {} is of rank {}, not 1", i, c.rank(i)));
  c.set_output(0, DType::int64, {c.data_dependent_dim("tokens")});
  c.set_output(1, DType::int64, SymbolicShape{});
}

// Aggressive decoding: accepts predicted tokens up to and including the first one that differs from the source. Then looks for the last
// tokens in the source, as n-grams of increasing length, until an n-gram occurs only once.
struct BifurcationDetector {
  static constexpr bool allocates = true;
  int64_t least, most;

  static BifurcationDetector bind(BindContext& c) { return {c.get_int("min_ngram_size", 1), c.get_int("max_ngram_size", 3)}; }

  void run(RunContext& c) const {
    auto tokens_of = [&](int input) { return c.input(input).tensor().contiguous(); };
    const Tensor source_tensor = tokens_of(0), current_tensor = tokens_of(1), previous = tokens_of(2);
    std::span<const int64_t> source = source_tensor.span<int64_t>(), current = current_tensor.span<int64_t>();
    std::vector<int64_t> tokens(current.begin(), current.end());
    if (c.in<int64_t>(3)) {
      const Tensor predicted_tensor = tokens_of(3);
      std::span<const int64_t> predicted = predicted_tensor.span<int64_t>();
      if (previous.num_elements() != 1)
        throw Error(ErrorCode::invalid_argument, fmt::format("prev_suffix_match_idx is {}, expected one number", describe(previous)));
      const int64_t from = previous.data<int64_t>()[0], length = std::ssize(source);
      if (from < 0 || from > length)
        throw Error(ErrorCode::invalid_argument, fmt::format("prev_suffix_match_idx is {}, outside the {} source tokens", from, length));
      if (std::ssize(predicted) != length - from + 1)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("{} predicted tokens for {} source tokens from {} on", predicted.size(), source.size(), from));
      int64_t same = 0;
      while (same < length - from && predicted[static_cast<size_t>(same)] == source[static_cast<size_t>(from + same)]) ++same;
      tokens.insert(tokens.end(), predicted.begin(), predicted.begin() + same + 1);
    }
    std::copy(tokens.begin(), tokens.end(), c.allocate_output(0, Shape{std::ssize(tokens)}).data<int64_t>());
    *c.allocate_output(1, Shape{}).data<int64_t>() = suffix_match(source, tokens);
  }

 private:
  /// Returns the position in the source after the n-gram that ends the tokens; -1 if no such n-gram occurs exactly once.
  int64_t suffix_match(std::span<const int64_t> source, std::span<const int64_t> tokens) const {
    int64_t result = -1;
    for (int64_t size = least; size <= most && size <= std::ssize(tokens); ++size) {
      std::span<const int64_t> suffix = tokens.last(static_cast<size_t>(size));
      auto found = std::search(source.begin(), source.end(), suffix.begin(), suffix.end());
      if (found == source.end()) break;
      result = found - source.begin() + size;
      if (result >= std::ssize(source)) break;
      if (std::search(found + 1, source.end(), suffix.begin(), suffix.end()) == source.end()) break;
      result = -1;
    }
    return result;
  }
};

void infer_hash_mapping(InferContext& c) {
  const int64_t size = c.get_int("max_ngram_size"), heads = c.get_int("n_head_per_ngram");
  if (size < 2 || heads < 1 || size > 1024 || heads > 65536)
    throw Error(ErrorCode::invalid_argument, fmt::format("max_ngram_size = {} and n_head_per_ngram = {}", size, heads));
  if (!c.has_rank(0)) {
    c.set_output_dtype(0, c.dtype(0));
    return c.set_output_dtype(1, c.dtype(0));
  }
  if (c.rank(0) != 2) throw Error(ErrorCode::invalid_argument, fmt::format("input_ids is of rank {}, not 2", c.rank(0)));
  const SymbolicShape& ids = c.shape(0);
  if (c.has_input(3) && c.has_rank(3) && c.rank(3) == 2) unify(c.shape(3)[1], size - 1, "columns of past_ids");
  c.set_output(0, c.dtype(0), {ids[0], ids[1], (size - 1) * heads});
  if (c.has_output(1)) c.set_output(1, c.dtype(0), {ids[0], size - 1});
}

// Hashes n-grams for n = 2 .. max_ngram_size: multiplies each of the last n tokens by a factor, combines the products by xor, and takes the
// result modulo the vocabulary size of each head. Tokens before the end of a text, or of another segment, count as padding.
template <typename T>
struct NGramHashMapping {
  using Bits = std::make_unsigned_t<T>;  // unsigned, so that products wrap around
  int64_t batch, length, size, heads;
  T pad;
  bool resets;

  static NGramHashMapping bind(BindContext& c) {
    NGramHashMapping k{c.shape(0)[0],
                       c.shape(0)[1],
                       c.get_int("max_ngram_size"),
                       c.get_int("n_head_per_ngram"),
                       static_cast<T>(c.get_int("pad_id")),
                       c.get_int("reset_on_eos") != 0};
    const int64_t outputs = (k.size - 1) * k.heads;
    if (c.num_elements(1) < k.size)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} multipliers for n-grams of {}", c.num_elements(1), k.size));
    check_equal(c.num_elements(2), outputs, "vocab_sizes and heads");
    if (c.has_input(3)) check_equal(c.num_elements(3), k.batch * (k.size - 1), "elements of past_ids");
    if (c.has_input(4)) check_equal(c.num_elements(4), outputs, "head_offsets and heads");
    if (c.has_input(5)) check_equal(c.num_elements(5), 1, "elements of eos_token_id");
    if (c.has_input(6)) check_equal(c.num_elements(6), k.batch * k.length, "elements of segment_ids and input_ids");
    return k;
  }

  void run(RunContext& c) const {
    const T *ids = c.in<T>(0), *factors = c.in<T>(1), *vocabularies = c.in<T>(2), *past = c.in<T>(3), *offsets = c.in<T>(4),
            *end = c.in<T>(5);
    const auto* segments = c.in<int32_t>(6);
    T *hashes = c.out<T>(0), *present = c.out<T>(1);
    const T missing = end ? *end : pad;
    const int64_t history = size - 1, outputs = history * heads;
    for (int64_t i = 0; i < outputs; ++i)
      if (vocabularies[i] < 1)
        throw Error(ErrorCode::invalid_argument, fmt::format("vocab_sizes has {}; they must be positive", vocabularies[i]));
    for (int64_t row = 0; row < batch; ++row) {
      auto token = [&](int64_t place) {  // past tokens are at -history to -1
        if (place >= 0) return ids[row * length + place];
        return past ? past[row * history + history + place] : missing;
      };
      auto stops = [&](int64_t place) {  // true: the n-gram must not extend before this place
        if (resets && end && token(place - 1) == *end) return true;
        return segments && place > 0 && segments[row * length + place] != segments[row * length + place - 1];
      };
      for (int64_t place = 0; place < length; ++place) {
        T* out = hashes + (row * length + place) * outputs;
        Bits mix = static_cast<Bits>(token(place)) * static_cast<Bits>(factors[0]);
        bool is_missing = false;
        for (int64_t shift = 1; shift < size; ++shift) {
          is_missing = is_missing || stops(place - shift + 1);
          const T own = is_missing ? missing : token(place - shift);
          mix ^= static_cast<Bits>(own) * static_cast<Bits>(factors[shift]);
          for (int64_t head = (shift - 1) * heads; head < shift * heads; ++head) {
            T code = static_cast<T>(static_cast<T>(mix) % vocabularies[head]);
            if (code < 0) code += vocabularies[head];
            out[head] = static_cast<T>(static_cast<Bits>(code) + static_cast<Bits>(offsets ? offsets[head] : T{0}));
          }
        }
      }
      if (present)
        for (int64_t i = 0; i < history; ++i) present[row * history + i] = token(length - history + i);
    }
  }
};

}  // namespace

std::vector<OpDef> microsoft_words_ops() {
  using Required = AttributeDef::Required;
  const TypeSet hashed = TypeSet{DType::int32, DType::uint32, DType::int64, DType::uint64, DType::float32, DType::float64} | kString;
  return {
      op("WordConvEmbedding",
         {{"Sequence", {DType::int32}, "", Presence::required, of_rank(2)},
          {"W", kFloats, "T1", Presence::required, of_rank(4)},
          {"B", kFloats, "T1", Presence::required, of_rank(1)},
          {"C", kFloats, "T1", Presence::required, of_rank(2)}},
         {{"Y", kFloats, "T1"}},
         {{"char_embedding_size", int64_t{-1}, at_least(-1)},
          {"conv_window_size", int64_t{-1}, at_least(-1)},
          {"embedding_size", int64_t{-1}, at_least(-1)}},
         decompose_word_conv),
      {.name = "MurmurHash3",
       .domain = kMicrosoft,
       .since = {1},
       .inputs = {{"X", hashed}},
       .outputs = {{"Y", {DType::int32, DType::uint32}}},
       .attributes = {{"positive", int64_t{1}}, {"seed", int64_t{0}}},
       .infer = infer_hash,
       .kernels = {kernel<MurmurHash3>()}},
      {.name = "NGramRepeatBlock",
       .domain = kMicrosoft,
       .since = {1},
       .inputs = {{"input_ids", kInt64}, {"scores", {DType::float32}}},
       .outputs = {{"scores_out", {DType::float32}}},
       .attributes = {{"ngram_size", Required{}}},
       .infer = infer_repeat_block,
       .alias = {may_reuse(0, 1)},
       .kernels = {kernel<NGramRepeatBlock>()}},
      {.name = "BifurcationDetector",
       .domain = kMicrosoft,
       .since = {1},
       .inputs = {{"src_tokens", kInt64}, {"cur_tokens", kInt64}, {"prev_suffix_match_idx", kInt64}, maybe("pred_tokens", kInt64)},
       .outputs = {{"tokens", kInt64}, {"suffix_match_idx", kInt64}},
       .attributes = {{"max_ngram_size", int64_t{3}}, {"min_ngram_size", int64_t{1}}},
       .infer = infer_bifurcation,
       .kernels = {kernel<BifurcationDetector>()}},
      {.name = "NGramHashMapping",
       .domain = kMicrosoft,
       .since = {1},
       .inputs = {{"input_ids", kInt32Or64, "M"},
                  {"multipliers", kInt32Or64, "M"},
                  {"vocab_sizes", kInt32Or64, "M"},
                  maybe("past_ids", kInt32Or64, "M"),
                  maybe("head_offsets", kInt32Or64, "M"),
                  maybe("eos_token_id", kInt32Or64, "M"),
                  maybe("segment_ids", {DType::int32})},
       .outputs = {{"hash_ids", kInt32Or64, "M"}, maybe("present_ids", kInt32Or64, "M")},
       .attributes =
           {{"max_ngram_size", Required{}}, {"n_head_per_ngram", Required{}}, {"pad_id", Required{}}, {"reset_on_eos", int64_t{0}}},
       .infer = infer_hash_mapping,
       .kernels = typed<NGramHashMapping, int32_t, int64_t>()},
  };
}

}  // namespace treadle::ops
