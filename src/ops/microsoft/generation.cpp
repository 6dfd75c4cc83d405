// Implements GreedySearch, Sampling, BeamSearch and WhisperBeamSearch (com.microsoft 1).
#include "ops/microsoft/generation.h"

#include <fmt/format.h>

#include "ops/list.h"
#include "ops/microsoft/microsoft.h"

namespace treadle::ops {
namespace {

constexpr SearchInputs kGreedyInputs{}, kSamplingInputs{.presence_mask = 7, .seed = 8},
    kBeamInputs{.beams = 3,
                .returned = 4,
                .length_penalty = 5,
                .penalty = 6,
                .vocab_mask = 7,
                .prefix_mask = 8,
                .attention_mask = 9,
                .decoder_ids = 10,
                .processor = 11},
    kWhisperInputs = [] {
      SearchInputs inputs = kBeamInputs;
      inputs.temperature = 14;
      return inputs;
    }();

template <Search kSearch, const SearchInputs& kInputs>
void decompose_search(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  d.refuse(3, "cross_qk"), d.refuse(4, "non_speech_probs");
  for (size_t i : {12, 13})
    if (kInputs.temperature >= 0 && d.has(i))
      throw Error(ErrorCode::not_implemented, fmt::format("the input {} (of cross_qk) is not implemented", i));
  write_search(d, kSearch, kInputs);
}

}  // namespace

std::vector<OpDef> microsoft_generation_ops() {
  using Required = AttributeDef::Required;
  const TypeSet ints{DType::int32}, floats{DType::float32};
  const std::vector<AttributeDef> common = {{"decoder", Required{}},
                                            {"decoder_start_token_id", int64_t{-1}},
                                            {"encoder"},
                                            {"eos_token_id", Required{}},
                                            {"init_decoder"},
                                            {"model_type", int64_t{0}},
                                            {"no_repeat_ngram_size", int64_t{0}},
                                            {"pad_token_id", Required{}},
                                            {"vocab_size", int64_t{-1}}};
  auto with = [&](std::vector<AttributeDef> more) {
    more.insert(more.end(), common.begin(), common.end());
    return more;
  };
  const std::vector<Port> greedy = {{"input_ids", ints},          {"max_length", ints},
                                    maybe("min_length", ints),    maybe("repetition_penalty", floats),
                                    maybe("vocab_mask", ints),    maybe("prefix_vocab_mask", ints),
                                    maybe("attention_mask", ints)};
  std::vector<Port> sampling = greedy;
  sampling.push_back(maybe("presence_mask", ints)), sampling.push_back(maybe("seed", ints));
  auto beam = [&](TypeSet text) {
    return std::vector<Port>{{"input_ids", text | ints},          {"max_length", ints},
                             maybe("min_length", ints),           {"num_beams", ints},
                             {"num_return_sequences", ints},      maybe("length_penalty", floats),
                             maybe("repetition_penalty", floats), maybe("vocab_mask", ints),
                             maybe("prefix_vocab_mask", ints),    maybe("attention_mask", ints),
                             maybe("decoder_input_ids", ints),    maybe("logits_processor", ints)};
  };
  std::vector<Port> whisper = beam(floats);
  for (std::string_view name : {"cross_qk_layer_head", "extra_decoding_ids"}) whisper.push_back(maybe(name, ints));
  whisper.push_back(maybe("temperature", floats));
  const std::vector<Port> found = {{"sequences", ints}, maybe("sequences_scores", floats), maybe("scores", floats)};
  std::vector<Port> spoken = found;
  for (std::string_view name : {"cross_qk", "non_speech_probs"}) spoken.push_back(maybe(name, floats));
  return {op("GreedySearch", greedy, {{"sequences", ints}}, common, decompose_search<Search::greedy, kGreedyInputs>),
          op("Sampling", sampling, {{"sequences", ints}, maybe("filtered_logits", floats)},
             with({{"custom", int64_t{0}},
                   {"filter_value", -1e20F},
                   {"min_tokens_to_keep", int64_t{0}},
                   {"presence_penalty", 0.0F},
                   {"temperature", 1.0F},
                   {"top_p", 0.0F}}),
             decompose_search<Search::sampling, kSamplingInputs>),
          op("BeamSearch", beam(ints), found, with({{"early_stopping", int64_t{0}}}), decompose_search<Search::beam, kBeamInputs>),
          op("WhisperBeamSearch", whisper, spoken,
             {{"beginning_timestamp_token_id"},
              {"decoder", Required{}},
              {"decoder_output_cross_qk", int64_t{0}},
              {"decoder_start_token_id", int64_t{-1}},
              {"early_stopping", int64_t{0}},
              {"encoder", Required{}},
              {"eos_token_id", Required{}},
              {"model_type", int64_t{2}},
              {"no_repeat_ngram_size", int64_t{0}},
              {"no_speech_token_id"},
              {"no_timestamps_token_id"},
              {"pad_token_id", Required{}},
              {"start_of_lm_token_id"},
              {"transcribe_token_id"},
              {"translate_token_id"},
              {"vocab_size", int64_t{-1}}},
             decompose_search<Search::beam, kWhisperInputs>)};
}

}  // namespace treadle::ops
