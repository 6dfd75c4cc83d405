// Implements operators of the treadle domain, to which GreedySearch, Sampling and BeamSearch of com.microsoft are decomposed. Between two
// runs of the decoder, they compute one step of the search.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "graph/infer.h"
#include "kernels/random/philox.h"
#include "ops/checks.h"
#include "ops/generator/random_key.h"
#include "ops/math/elementwise.h"
#include "ops/microsoft/generation.h"
#include "ops/microsoft/microsoft.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kInt32{DType::int32};
constexpr TypeSet kFloat32{DType::float32};
// The score of a forbidden token. It must be finite, because it is added to the score of a beam.
constexpr float kForbidden = std::numeric_limits<float>::lowest();

void infer_scores(InferContext& c) {
  if (c.has_rank(0) && c.rank(0) != 2) throw Error(ErrorCode::invalid_argument, fmt::format("the scores are of rank {}, not 2", c.rank(0)));
  c.set_output(0, c.input(0));
}

/// The ids of Whisper's special tokens, from the attribute `timestamp_tokens`. If it is absent, `known` is false, and Whisper's rules are
/// not applied.
struct TimestampTokens {
  static constexpr size_t kCount = 7;
  int64_t end_of_text, start_of_transcript, translate, transcribe, start_of_lm, no_timestamps, first_time;
  bool known;

  static TimestampTokens of(const ShapeContext& c) {
    const auto& t = c.get_ints("timestamp_tokens");
    if (t.size() != kCount) return {};
    return {t[0], t[1], t[2], t[3], t[4], t[5], t[6], true};
  }
};

// Lowers the scores of tokens that are forbidden or penalized (repeated, for example).
struct SearchScores {
  enum Input : int {
    kScores,
    kSequences,
    kRound,
    kMaxLength,
    kMinLength,
    kPenalty,
    kVocabMask,
    kPrefixMask,
    kPresenceMask,
    kTemperature,
    kProcessor
  };
  int64_t rows, vocabulary, length, batch, eos, ngram;
  float temperature, presence_penalty;
  TimestampTokens times;

  static SearchScores bind(BindContext& c) {
    SearchScores k{c.shape(kScores)[0],           c.shape(kScores)[1],
                   c.shape(kSequences)[1],        c.shape(kScores)[0],
                   c.get_int("eos_token_id"),     c.get_int("no_repeat_ngram_size"),
                   c.get_float("temperature", 1), c.get_float("presence_penalty"),
                   TimestampTokens::of(c)};
    check_equal(c.shape(kSequences)[0], k.rows, "sequences and rows of scores");
    for (int i : {kRound, kMaxLength, kMinLength, kPenalty, kTemperature, kProcessor})
      if (c.has_input(i)) check_equal(c.num_elements(i), 1, "elements of a parameter of the search");
    if (c.has_input(kVocabMask)) check_equal(c.num_elements(kVocabMask), k.vocabulary, "elements of vocab_mask and the vocabulary");
    for (int i : {kPrefixMask, kPresenceMask}) {
      if (!c.has_input(i)) continue;
      const Shape& mask = c.shape(i);
      if (mask.rank() != 2 || mask[1] != k.vocabulary || mask[0] < 1 || k.rows % mask[0] != 0)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the mask {} is {}; expected a row of {} for each sample of the batch",
                                i == kPrefixMask ? "prefix_vocab_mask" : "presence_mask", to_string(mask), k.vocabulary));
      if (i == kPresenceMask && c.has_input(kPrefixMask)) check_equal(mask[0], c.shape(kPrefixMask)[0], "rows of the two masks");
      k.batch = mask[0];
    }
    if (k.vocabulary < 1) throw Error(ErrorCode::invalid_argument, "the decoder's logits have no tokens");
    c.request_scratch(static_cast<size_t>(k.vocabulary));
    return k;
  }

  void run(RunContext& c) const {
    const int32_t most = *c.in<int32_t>(kMaxLength);
    if (length >= most)
      throw Error(ErrorCode::invalid_argument, fmt::format("max_length is {}, and the sequences have {} tokens already", most, length));
    const int32_t processor = c.in<int32_t>(kProcessor) ? *c.in<int32_t>(kProcessor) : 0;
    if (processor < 0 || processor > (times.known ? 1 : 0))
      throw Error(ErrorCode::invalid_argument, fmt::format("logits_processor is {}; expected {}", processor, times.known ? "0 or 1" : "0"));
    const float heat = c.in<float>(kTemperature) ? *c.in<float>(kTemperature) : temperature;
    const auto* in = c.in<float>(kScores);
    auto* out = c.out<float>(0);
    if (out != in) std::copy_n(in, rows * vocabulary, out);
    for (int64_t row = 0; row < rows; ++row) {
      const std::span<float> scores(out + row * vocabulary, static_cast<size_t>(vocabulary));
      const std::span<const int32_t> sequence(c.in<int32_t>(kSequences) + row * length, static_cast<size_t>(length));
      if (c.in<float>(kPenalty)) penalize(scores, sequence, *c.in<float>(kPenalty), c.scratch<uint8_t>());
      if (ngram > 0) forbid_repeated(scores, sequence);
      forbid_masked(c, scores, row / (rows / batch));
      if (c.in<int32_t>(kMinLength) && length < *c.in<int32_t>(kMinLength)) at(scores, eos) = kForbidden;
      if (heat > 0 && heat != 1)
        for (float& score : scores) score /= heat;
      if (const auto* presence = c.in<int32_t>(kPresenceMask))
        for (int64_t i = 0; i < vocabulary; ++i)
          scores[static_cast<size_t>(i)] -= static_cast<float>(presence[row / (rows / batch) * vocabulary + i]) * presence_penalty;
      if (processor == 1) order_timestamps(scores, sequence);
    }
  }

 private:
  static float& at(std::span<float> scores, int64_t token) {
    if (token < 0 || token >= std::ssize(scores))
      throw Error(ErrorCode::invalid_argument, fmt::format("the token {} is outside of the vocabulary of {}", token, scores.size()));
    return scores[static_cast<size_t>(token)];
  }
  void penalize(std::span<float> scores, std::span<const int32_t> sequence, float penalty, uint8_t* seen) const {
    if (!(penalty > 0)) throw Error(ErrorCode::invalid_argument, fmt::format("repetition_penalty is {}; expected more than 0", penalty));
    if (penalty == 1) return;
    std::fill_n(seen, vocabulary, 0);
    for (const int32_t token : sequence) {
      float& score = at(scores, token);
      if (std::exchange(seen[token], 1) == 0) score = score < 0 ? score * penalty : score / penalty;
    }
  }
  void forbid_repeated(std::span<float> scores, std::span<const int32_t> sequence) const {
    if (ngram > length) return;
    const auto prefix = sequence.last(static_cast<size_t>(ngram - 1));
    for (int64_t i = 0; i + ngram <= length; ++i)
      if (std::equal(prefix.begin(), prefix.end(), sequence.begin() + i))
        at(scores, sequence[static_cast<size_t>(i + ngram - 1)]) = kForbidden;
  }
  void forbid_masked(RunContext& c, std::span<float> scores, int64_t sample) const {
    const auto *mask = c.in<int32_t>(kVocabMask), *prefix = *c.in<int64_t>(kRound) == 0 ? c.in<int32_t>(kPrefixMask) : nullptr;
    for (int64_t i = 0; i < vocabulary; ++i)
      if ((mask && mask[i] == 0) || (prefix && prefix[sample * vocabulary + i] == 0)) scores[static_cast<size_t>(i)] = kForbidden;
  }

  // Applies Whisper's rules for timestamps: they come in pairs (begin and end) and never decrease. If all timestamps together are likelier
  // than the best text token, text tokens are forbidden.
  void order_timestamps(std::span<float> scores, std::span<const int32_t> sequence) const {
    constexpr int64_t kLastInitial = 50;
    const int64_t first_time = std::clamp<int64_t>(times.first_time, 0, vocabulary);
    auto forbid = [&](int64_t begin, int64_t end) {
      for (int64_t i = std::max<int64_t>(begin, 0); i < std::min(end, vocabulary); ++i) scores[static_cast<size_t>(i)] = kForbidden;
    };
    auto is_time = [&](int32_t token) { return token >= times.first_time; };
    const auto found = std::find_if(sequence.begin(), sequence.end(), is_time);
    const int64_t begin = found == sequence.end() ? length : found - sequence.begin() + 1;
    for (int64_t token : {times.no_timestamps, times.start_of_lm}) forbid(token, token + 1);
    if (length > begin)
      for (int64_t token : {times.start_of_transcript, times.translate, times.transcribe}) forbid(token, token + 1);
    const bool last = length > 0 && is_time(sequence.back());
    const bool before = length <= begin || is_time(sequence[static_cast<size_t>(length - 2)]);
    if (last && before) forbid(first_time, vocabulary);
    if (last && !before) forbid(0, times.end_of_text);
    const auto latest = std::find_if(sequence.rbegin(), sequence.rend(), is_time);
    if (latest != sequence.rend()) forbid(first_time, *latest + (last && !before ? 0 : 1));
    if (length == begin) forbid(first_time + kLastInitial + 1, vocabulary);
    if (first_time < 1 || first_time >= vocabulary) return;
    const auto text_end = scores.begin() + first_time;
    const float largest = *std::max_element(text_end, scores.end());
    float sum = 0;
    for (auto score = text_end; score != scores.end(); ++score)
      if (*score > kForbidden) sum += std::exp(*score - largest);
    if (sum > 0 && std::log(sum) + largest > *std::max_element(scores.begin(), text_end)) forbid(0, first_time);
  }
};

void infer_sample(InferContext& c) {
  infer_scores(c);
  c.set_output(1, c.input(0));
  if (c.has_rank(0))
    c.set_output(0, DType::int32, {c.shape(0)[0]});
  else
    c.set_output_dtype(0, DType::int32);
}

// Draws a token for each row from the smallest set of likeliest tokens whose probabilities sum up to top_p. Other tokens get the score
// filter_value.
struct SampleTokens {
  int64_t rows, vocabulary, keep;
  float top_p, filter_value;
  bool custom;
  uint64_t key;

  static SampleTokens bind(BindContext& c) {
    SampleTokens k{c.shape(0)[0],
                   c.shape(0)[1],
                   c.get_int("min_tokens_to_keep"),
                   c.get_float("top_p"),
                   c.get_float("filter_value"),
                   c.get_int("custom") != 0,
                   random_key(c, 0)};
    check_equal(c.num_elements(1), 1, "elements of the round");
    if (c.has_input(2)) check_equal(c.num_elements(2), 1, "elements of seed");
    if (k.vocabulary < 1) throw Error(ErrorCode::invalid_argument, "there are no tokens to draw from");
    c.request_scratch(static_cast<size_t>(k.vocabulary) * (sizeof(double) + sizeof(int64_t)));
    return k;
  }
  void run(RunContext& c) const {
    const auto* in = c.in<float>(0);
    auto* filtered = c.out<float>(1);
    if (filtered != in) std::copy_n(in, rows * vocabulary, filtered);
    // Each round draws from a random stream of its own. If `seed` is given, the streams are the same in every run.
    const auto round = static_cast<uint64_t>(*c.in<int64_t>(1));
    const auto* seed = c.in<int32_t>(2);
    const kernels::RandomStream stream{seed ? static_cast<uint64_t>(*seed) : key, (seed ? 0 : c.run_id << 16) + round};
    for (int64_t row = 0; row < rows; ++row) {
      float* scores = filtered + row * vocabulary;
      filter(scores, c.scratch<double>());
      c.out<int32_t>(0)[row] = draw(scores, c.scratch<double>(), stream.uniform(static_cast<uint64_t>(row)));
    }
  }

 private:
  void filter(float* scores, double* probabilities) const {
    auto* order = reinterpret_cast<int64_t*>(probabilities + vocabulary);
    std::iota(order, order + vocabulary, 0);
    std::stable_sort(order, order + vocabulary,
                     [&](int64_t a, int64_t b) { return custom ? scores[a] > scores[b] : scores[a] < scores[b]; });
    const float largest = scores[order[custom ? 0 : vocabulary - 1]];
    float total = 0, sum = 0;
    for (int64_t i = 0; i < vocabulary; ++i) total += std::exp(scores[order[i]] - largest);
    for (int64_t i = 0; i < vocabulary; ++i) probabilities[i] = std::exp(scores[order[i]] - largest) / total;
    for (int64_t i = 0; i < vocabulary; ++i) {
      sum += static_cast<float>(probabilities[i]);
      if (custom) {  // removes all tokens after the one with which the sum reaches top_p
        if (i + 1 < vocabulary && sum > top_p) scores[order[i + 1]] = filter_value;
      } else if (sum <= 1 - top_p && i < vocabulary - std::max<int64_t>(i == 0 ? 1 : keep, 1)) {  // the likeliest always stay
        scores[order[i]] = filter_value;
      }
    }
  }
  int32_t draw(const float* scores, double* cumulative, double number) const {
    const double largest = *std::max_element(scores, scores + vocabulary);
    double total = 0;
    for (int64_t i = 0; i < vocabulary; ++i) cumulative[i] = total += std::exp(static_cast<double>(scores[i]) - largest);
    const auto found = std::upper_bound(cumulative, cumulative + vocabulary, number * total) - cumulative;
    return static_cast<int32_t>(std::min<int64_t>(found, vocabulary - 1));
  }
};

// The finished sequences of one sample, best first, at most as many as there are beams.
struct Hypotheses {
  int64_t beams, room;
  float length_penalty;
  float* scores;
  int32_t *tokens, *lengths;

  int64_t count() const { return std::find(lengths, lengths + beams, 0) - lengths; }
  float normalized(float sum, int64_t length) const { return sum / std::pow(static_cast<float>(length), length_penalty); }
  /// Returns true if an unfinished beam with the sum `best` may still become better than the worst finished sequence.
  bool can_improve(float best, int64_t length) const { return scores[beams - 1] < normalized(best, length); }

  void add(const int32_t* sequence, int64_t length, float sum) const {
    const float score = normalized(sum, length);
    int64_t place = count();
    if (place == beams && score <= scores[--place]) return;
    for (; place > 0 && score > scores[place - 1]; --place) {
      scores[place] = scores[place - 1], lengths[place] = lengths[place - 1];
      std::copy_n(tokens + (place - 1) * room, room, tokens + place * room);
    }
    scores[place] = score, lengths[place] = static_cast<int32_t>(length);
    std::copy_n(sequence, length, tokens + place * room);
  }
};

struct BeamGeometry {
  int64_t batch, beams, length, room;

  /// @param sequences, tokens  indices of the inputs [batch * beams, length] and [batch, beams, max_length]
  static BeamGeometry of(const ShapeContext& c, int sequences, int tokens) {
    const Shape &own = c.shape(sequences), &kept = c.shape(tokens);
    const BeamGeometry g{kept[0], kept[1], own[1], kept[2]};
    check_equal(own[0], g.batch * g.beams, "sequences and beams");
    if (g.beams < 1) throw Error(ErrorCode::invalid_argument, fmt::format("num_beams is {}; expected 1 or more", g.beams));
    return g;
  }
  void check_fits(const int32_t* found_lengths) const {
    if (length > room)
      throw Error(ErrorCode::invalid_argument, fmt::format("max_length is {}, and the sequences have {} tokens already", room, length));
    for (int64_t i = 0; i < batch * beams; ++i)
      if (found_lengths[i] < 0 || found_lengths[i] > room)
        throw Error(ErrorCode::invalid_argument, fmt::format("a hypothesis has {} tokens; 0 to {} expected", found_lengths[i], room));
  }
};

enum BeamInput : int { kTotals, kBeamSequences, kFoundScores, kFoundTokens, kFoundLengths, kDone, kLengthPenalty };

float length_penalty_of(RunContext& c, int input) { return c.in<float>(input) ? *c.in<float>(input) : 1; }

void infer_beam_step(InferContext& c) {
  infer_scores(c);
  const Dim rows = c.has_rank(0) ? c.shape(0)[0] : c.data_dependent_dim("beams");
  c.set_output(0, DType::float32, {rows});
  c.set_output(1, DType::int32, {rows, Dim(1)});
  c.set_output(2, DType::int64, {rows});
  for (int i = 0; i < 4; ++i) c.set_output(3 + i, c.input(kFoundScores + i));
  c.set_output(7, DType::boolean, SymbolicShape{});
}

// Chooses the next tokens of each sample among the continuations of all its beams. Beams that end become hypotheses (finished sequences).
struct BeamStep {
  BeamGeometry g;
  int64_t vocabulary, eos, pad;
  bool early_stopping;

  static BeamStep bind(BindContext& c) {
    const BeamStep k{BeamGeometry::of(c, kBeamSequences, kFoundTokens), c.shape(kTotals)[1], c.get_int("eos_token_id"),
                     c.get_int("pad_token_id"), c.get_int("early_stopping") == 1};
    const int64_t beams = k.g.batch * k.g.beams;
    check_equal(c.shape(kTotals)[0], beams, "rows of scores and beams");
    check_equal(c.num_elements(kFoundScores), beams, "scores of hypotheses and beams");
    check_equal(c.num_elements(kFoundLengths), beams, "lengths of hypotheses and beams");
    check_equal(c.num_elements(kDone), k.g.batch, "elements of done and the batch");
    if (c.has_input(kLengthPenalty)) check_equal(c.num_elements(kLengthPenalty), 1, "elements of length_penalty");
    if (k.vocabulary < 2) throw Error(ErrorCode::invalid_argument, "a beam search needs a vocabulary of 2 tokens at least");
    c.request_scratch(static_cast<size_t>(k.g.beams * k.vocabulary) * sizeof(int64_t));
    return k;
  }

  void run(RunContext& c) const {
    g.check_fits(c.in<int32_t>(kFoundLengths));
    const int64_t beams = g.batch * g.beams;
    auto keep = [&]<typename T>(int input, int output, int64_t count, T*) {
      if (c.out<T>(output) != c.in<T>(input)) std::copy_n(c.in<T>(input), count, c.out<T>(output));
    };
    keep(kFoundScores, 3, beams, static_cast<float*>(nullptr));
    keep(kFoundTokens, 4, beams * g.room, static_cast<int32_t*>(nullptr));
    keep(kFoundLengths, 5, beams, static_cast<int32_t*>(nullptr));
    keep(kDone, 6, g.batch, static_cast<bool*>(nullptr));
    auto* done = c.out<bool>(6);
    for (int64_t sample = 0; sample < g.batch; ++sample) {
      if (!done[sample]) {
        done[sample] = advance(c, sample);
        continue;
      }
      for (int64_t row = sample * g.beams; row < (sample + 1) * g.beams; ++row)
        c.out<float>(0)[row] = 0, c.out<int32_t>(1)[row] = static_cast<int32_t>(pad), c.out<int64_t>(2)[row] = row;
    }
    *c.out<bool>(7) = std::find(done, done + g.batch, false) != done + g.batch;
  }

 private:
  /// Chooses the next tokens of one sample. Returns true if the sample is finished.
  bool advance(RunContext& c, int64_t sample) const {
    const int64_t first = sample * g.beams, candidates = 2 * g.beams;
    const float* scores = c.in<float>(kTotals) + first * vocabulary;
    auto* order = c.scratch<int64_t>();
    std::iota(order, order + g.beams * vocabulary, 0);
    std::partial_sort(order, order + candidates, order + g.beams * vocabulary,
                      [&](int64_t a, int64_t b) { return scores[a] > scores[b] || (scores[a] == scores[b] && a < b); });
    const Hypotheses found{g.beams,
                           g.room,
                           length_penalty_of(c, kLengthPenalty),
                           c.out<float>(3) + first,
                           c.out<int32_t>(4) + first * g.room,
                           c.out<int32_t>(5) + first};
    int64_t next = 0;
    for (int64_t i = 0; i < candidates && next < g.beams; ++i) {
      const int64_t parent = first + order[i] / vocabulary, token = order[i] % vocabulary;
      if (token != eos) {
        c.out<float>(0)[first + next] = scores[order[i]];
        c.out<int32_t>(1)[first + next] = static_cast<int32_t>(token);
        c.out<int64_t>(2)[first + next++] = parent;
      } else if (i < g.beams) {
        found.add(c.in<int32_t>(kBeamSequences) + parent * g.length, g.length, scores[order[i]]);
      }
    }
    return found.count() == g.beams && (early_stopping || !found.can_improve(scores[order[0]], g.length));
  }
};

void infer_beam_sequences(InferContext& c) {
  c.set_output(0, c.input(kFoundTokens));
  c.set_output(1, c.input(kFoundScores));
}

// Returns the hypotheses (finished sequences) of each sample, best first. Unfinished beams are included unless the sample is finished.
struct BeamSequences {
  static constexpr int kReturned = 7;
  BeamGeometry g;
  int32_t pad;

  static BeamSequences bind(BindContext& c) {
    const BeamSequences k{BeamGeometry::of(c, kBeamSequences, kFoundTokens), static_cast<int32_t>(c.get_int("pad_token_id"))};
    const int64_t beams = k.g.batch * k.g.beams;
    check_equal(c.num_elements(kTotals), beams, "scores and beams");
    check_equal(c.num_elements(kFoundScores), beams, "scores of hypotheses and beams");
    check_equal(c.num_elements(kFoundLengths), beams, "lengths of hypotheses and beams");
    check_equal(c.num_elements(kDone), k.g.batch, "elements of done and the batch");
    check_equal(c.num_elements(kReturned), 1, "elements of num_return_sequences");
    if (c.has_input(kLengthPenalty)) check_equal(c.num_elements(kLengthPenalty), 1, "elements of length_penalty");
    c.request_scratch(static_cast<size_t>(k.g.beams) * sizeof(int32_t));
    return k;
  }
  void run(RunContext& c) const {
    g.check_fits(c.in<int32_t>(kFoundLengths));
    if (const int32_t returned = *c.in<int32_t>(kReturned); returned < 1 || returned > g.beams)
      throw Error(ErrorCode::invalid_argument, fmt::format("num_return_sequences is {}; expected 1 to num_beams, {}", returned, g.beams));
    for (int64_t sample = 0; sample < g.batch; ++sample) {
      const int64_t first = sample * g.beams;
      auto* tokens = c.out<int32_t>(0) + first * g.room;
      auto* scores = c.out<float>(1) + first;
      auto* lengths = c.scratch<int32_t>();
      std::copy_n(c.in<int32_t>(kFoundTokens) + first * g.room, g.beams * g.room, tokens);
      std::copy_n(c.in<float>(kFoundScores) + first, g.beams, scores);
      std::copy_n(c.in<int32_t>(kFoundLengths) + first, g.beams, lengths);
      if (!c.in<bool>(kDone)[sample]) {
        const Hypotheses found{g.beams, g.room, length_penalty_of(c, kLengthPenalty), scores, tokens, lengths};
        for (int64_t row = first; row < first + g.beams; ++row)
          found.add(c.in<int32_t>(kBeamSequences) + row * g.length, g.length, c.in<float>(kTotals)[row]);
      }
      for (int64_t beam = 0; beam < g.beams; ++beam) std::fill(tokens + beam * g.room + lengths[beam], tokens + (beam + 1) * g.room, pad);
    }
  }
};

}  // namespace

std::vector<OpDef> generation_steps_ops() {
  const std::vector<Port> beams = {{"scores", kFloat32},
                                   {"sequences", kInt32, "", Presence::required, of_rank(2)},
                                   {"found_scores", kFloat32},
                                   {"found_tokens", kInt32, "", Presence::required, of_rank(3)},
                                   {"found_lengths", kInt32},
                                   {"done", kBool},
                                   maybe("length_penalty", kFloat32)};
  std::vector<Port> finished = beams;
  finished.push_back({"num_return_sequences", kInt32});
  return {
      {.name = "SearchScores",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"scores", kFloat32, "", Presence::required, of_rank(2)},
                  {"sequences", kInt32, "", Presence::required, of_rank(2)},
                  {"round", kInt64},
                  {"max_length", kInt32},
                  maybe("min_length", kInt32),
                  maybe("repetition_penalty", kFloat32),
                  maybe("vocab_mask", kInt32),
                  maybe("prefix_vocab_mask", kInt32),
                  maybe("presence_mask", kInt32),
                  maybe("temperature", kFloat32),
                  maybe("logits_processor", kInt32)},
       .outputs = {{"processed_scores", kFloat32}},
       .attributes = {{"eos_token_id", int64_t{-1}},
                      {"no_repeat_ngram_size", int64_t{0}, at_least(0)},
                      {"temperature", 1.0F},
                      {"presence_penalty", 0.0F},
                      {"timestamp_tokens"}},
       .infer = infer_scores,
       .cost = elementwise_cost<4>,
       .alias = {may_reuse(0, 0)},
       .kernels = {kernel<SearchScores>()}},
      {.name = "SampleTokens",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"scores", kFloat32, "", Presence::required, of_rank(2)}, {"round", kInt64}, maybe("seed", kInt32)},
       .outputs = {{"tokens", kInt32}, {"filtered_scores", kFloat32}},
       .attributes = {{"top_p", 0.0F}, {"filter_value", -1e20F}, {"min_tokens_to_keep", int64_t{0}, at_least(0)}, {"custom", int64_t{0}}},
       .infer = infer_sample,
       .cost = elementwise_cost<32>,
       .alias = {may_reuse(1, 0)},
       .kernels = {kernel<SampleTokens>()},
       .deterministic = false},
      {.name = "BeamStep",
       .domain = "treadle",
       .since = {1},
       .inputs = beams,
       .outputs = {{"next_scores", kFloat32},
                   {"next_tokens", kInt32},
                   {"parents", kInt64},
                   {"found_scores", kFloat32},
                   {"found_tokens", kInt32},
                   {"found_lengths", kInt32},
                   {"done", kBool},
                   {"goes_on", kBool}},
       .attributes = {{"eos_token_id", int64_t{-1}}, {"pad_token_id", int64_t{0}}, {"early_stopping", int64_t{0}}},
       .infer = infer_beam_step,
       .cost = elementwise_cost<8>,
       .alias = {may_reuse(3, kFoundScores), may_reuse(4, kFoundTokens), may_reuse(5, kFoundLengths), may_reuse(6, kDone)},
       .kernels = {kernel<BeamStep>()}},
      {.name = "BeamSequences",
       .domain = "treadle",
       .since = {1},
       .inputs = finished,
       .outputs = {{"sequences", kInt32}, {"sequences_scores", kFloat32}},
       .attributes = {{"pad_token_id", int64_t{0}}},
       .infer = infer_beam_sequences,
       .cost = elementwise_cost<1>,
       .kernels = {kernel<BeamSequences>()}}};
}

}  // namespace treadle::ops
