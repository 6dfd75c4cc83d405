// Decomposes token searches into a Loop around the graph of the decoder, which generates one token per iteration. Graphs that run only once
// (`encoder`, `init_decoder`) become nodes in front of the Loop.
#include <fmt/format.h>

#include <functional>
#include <map>
#include <utility>

#include "ops/controlflow/inline_body.h"
#include "ops/microsoft/generation.h"

namespace treadle::ops {
namespace {

enum ModelType : int64_t { kGpt, kEncoderDecoder, kWhisper };
/// The values that a round of the search passes to the next round, with one row per beam; kNoValue for values that the search does not
/// need.
struct SearchState {
  ValueId tokens = kNoValue, positions = kNoValue, next_positions = kNoValue, mask = kNoValue, sequences = kNoValue;
  ValueId finished = kNoValue;  // only used in searches without beams
  // The values up to `done` are only used in searches with beams.
  ValueId scores = kNoValue, found_scores = kNoValue, found_tokens = kNoValue, found_lengths = kNoValue, done = kNoValue;
  std::vector<ValueId> past;

  static constexpr ValueId SearchState::*kMembers[] = {
      &SearchState::tokens,        &SearchState::positions,    &SearchState::next_positions,
      &SearchState::mask,          &SearchState::sequences,    &SearchState::finished,
      &SearchState::scores,        &SearchState::found_scores, &SearchState::found_tokens,
      &SearchState::found_lengths, &SearchState::done};
  template <typename Fn>
  void for_each(const Fn& fn) {
    for (auto member : kMembers)
      if (this->*member != kNoValue) fn(this->*member);
    for (ValueId& value : past) fn(value);
  }
};

/// The graph to which nodes of a step are added: the graph around the Loop, or the Loop's body. In the body, `outside` captures a value of
/// the surrounding graph.
struct Place {
  NodeWriter& w;
  std::function<ValueId(ValueId)> outside;
  ValueId round;
};

/// The results of one round. `shown` is what the round adds to the node's output of scores: those of the beams, or those from which a token
/// is drawn.
struct Step {
  ValueId goes_on = kNoValue, tokens = kNoValue, parents = kNoValue, shown = kNoValue;
};

class SearchWriter {
 public:
  SearchWriter(Decomposition& d, Search search, const SearchInputs& inputs)
      : d_(d), search_(search), inputs_(inputs), type_(d.attributes().get_int("model_type", inputs.temperature < 0 ? kGpt : kWhisper)) {
    if (type_ < kGpt || type_ > kWhisper)
      throw Error(
          ErrorCode::not_implemented,
          fmt::format("model_type is {}; expected 0 (a decoder like GPT-2), 1 (encoder and decoder like T5) or 2 (Whisper)", type_));
    if (type_ != kWhisper && input(inputs.decoder_ids) != kNoValue)
      throw Error(ErrorCode::not_implemented, "decoder_input_ids are for model_type = 2 only");
    ids_ = d.in(0);
    max_length_ = one(1, DType::int32);
    beams_ =
        search == Search::beam ? d.op("Reshape", {d.cast(d.in(static_cast<size_t>(inputs.beams)), DType::int64), d.ints({1})}) : kNoValue;
    min_length_ = one(2, DType::int32), penalty_ = one(inputs.penalty, DType::float32);
    length_penalty_ = one(inputs.length_penalty, DType::float32), seed_ = one(inputs.seed, DType::int32);
    processor_ = one(inputs.processor, DType::int32), temperature_ = one(inputs.temperature, DType::float32);
    vocab_mask_ = input(inputs.vocab_mask), prefix_mask_ = input(inputs.prefix_mask), presence_mask_ = input(inputs.presence_mask);
    batch_ = d.op("Shape", {ids_}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
    if (search == Search::beam) {
      const ValueId samples = d.op("Range", {number(0), d.op("Squeeze", {batch_}), number(1)});
      const ValueId pairs = d.op("Concat", {batch_, beams_}, {{"axis", int64_t{0}}});
      rows_ = d.op("Reshape", {d.op("Expand", {d.op("Unsqueeze", {samples, d.ints({1})}), pairs}), d.ints({-1})});
    }
  }

  void write() {
    SearchState state = type_ == kGpt ? start_of_decoder() : start_of_encoder();
    const ValueId shown = write_loop(state);
    if (search_ == Search::beam)
      give_beams(state, shown);
    else
      give_sequences(state, shown);
    d_.finish();
  }

 private:
  ValueId input(int i) const { return i < 0 ? kNoValue : d_.in(static_cast<size_t>(i)); }
  ValueId one(int i, DType dtype) const { return input(i) == kNoValue ? kNoValue : d_.cast(input(i), dtype); }
  ValueId number(int64_t value) const { return d_.constant(Tensor::scalar(value)); }
  ValueId number32(NodeWriter& w, int64_t value) const { return w.constant(Tensor::scalar(static_cast<int32_t>(value))); }
  int64_t eos() const { return d_.attributes().get_int("eos_token_id"); }
  int64_t pad() const { return d_.attributes().get_int("pad_token_id"); }
  /// Repeats the row of each sample, once per beam.
  ValueId repeated(ValueId x) const { return search_ == Search::beam ? d_.op("Gather", {x, rows_}) : x; }
  ValueId filled(Tensor content, ValueId shape) const { return d_.op("ConstantOfShape", {shape}, {{"value", Datum(std::move(content))}}); }

  const Body& decoder() const {
    const Body* body = d_.node().body("decoder");
    if (!body) throw Error(ErrorCode::invalid_model, "the attribute \"decoder\" (a graph) is missing");
    return *body;
  }
  /// Throws Error(invalid_model) unless the body has `inputs` inputs and `outputs` outputs.
  static void check_body(const Body& body, size_t inputs, size_t outputs) {
    if (num_formal_inputs(body) != inputs || body.graph->outputs.size() != outputs)
      throw Error(ErrorCode::invalid_model, fmt::format("\"{}\" has {} inputs and {} outputs; expected {} and {}", body.attribute,
                                                        num_formal_inputs(body), body.graph->outputs.size(), inputs, outputs));
  }

  // Initializes the part of the state that the search uses. The decoder's part has been set before.
  void start_search(SearchState& state) const {
    const ValueId rows = d_.op("Shape", {state.sequences}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
    if (search_ != Search::beam) {
      state.finished = filled(one_of(false), rows);
      return;
    }
    // All beams of a sample begin with the same tokens. So the first beam starts with the score 0 and the others with a very low one, and
    // the first round extends only the first beam.
    const ValueId pairs = d_.op("Concat", {batch_, beams_}, {{"axis", int64_t{0}}});
    const ValueId places = d_.op("Range", {number(0), d_.op("Squeeze", {beams_}), number(1)});
    const ValueId others =
        d_.op("Where", {d_.op("Equal", {places, number(0)}), d_.constant(Tensor::scalar(0.0F)), d_.constant(Tensor::scalar(-1e9F))});
    state.scores = d_.op("Reshape", {d_.op("Expand", {others, pairs}), d_.ints({-1})});
    const ValueId room = d_.op("Reshape", {d_.cast(max_length_, DType::int64), d_.ints({1})});
    state.found_scores = filled(one_of(0.0F), pairs);
    state.found_tokens = filled(one_of<int32_t>(0), d_.op("Concat", {pairs, room}, {{"axis", int64_t{0}}}));
    state.found_lengths = filled(one_of<int32_t>(0), pairs);
    state.done = filled(one_of(false), batch_);
  }
  template <typename T>
  static Tensor one_of(T value) {
    Tensor tensor(dtype_of<T>, Shape{1});
    *tensor.data<T>() = value;
    return tensor;
  }

  // Returns the initial state for a decoder-only model: a prompt, with a mask for its padding. Without `init_decoder`, the Loop's first
  // round reads the prompt.
  SearchState start_of_decoder() {
    const size_t layers = decoder().graph->outputs.size() - 1;
    check_body(decoder(), 3 + layers, 1 + layers);
    SearchState state;
    start_length_ = d_.op("Squeeze", {d_.op("Shape", {ids_}, {{"start", int64_t{1}}})});
    const bool given = input(inputs_.attention_mask) != kNoValue;
    const ValueId counts =
        given ? d_.cast(input(inputs_.attention_mask), DType::boolean) : d_.op("Not", {d_.op("Equal", {ids_, number32(d_, pad())})});
    const ValueId ones = d_.cast(counts, DType::int32);
    const ValueId places = d_.op("Sub", {d_.op("CumSum", {ones, number(1)}), number32(d_, 1)});
    state.tokens = state.sequences = repeated(ids_);
    state.positions = repeated(d_.op("Where", {counts, places, number32(d_, 0)}));
    state.mask = repeated(given ? input(inputs_.attention_mask) : ones);
    state.next_positions = repeated(d_.op("ReduceSum", {ones, d_.ints({1})}));
    start_search(state);
    for (size_t i = 0; i < layers; ++i)
      state.past.push_back(empty_past(decoder().graph->type(decoder().graph->inputs[3 + i]), state.sequences, i));
    // If there is an `init_decoder`, it computes the first round in front of the Loop. Otherwise the Loop's first round reads the prompt.
    const Body* first = d_.node().body("init_decoder");
    if (!first) return state;
    check_body(*first, 3 + layers, 1 + layers);
    std::vector<ValueId> inputs{state.tokens, state.positions, state.mask};
    inputs.insert(inputs.end(), state.past.begin(), state.past.end());
    return with_first_round(std::move(state), inline_body(d_.graph(), d_.id(), *first, inputs));
  }

  /// Returns an empty cache [2, rows, heads, 0, size] for the decoder's input `past_i`.
  ValueId empty_past(const Type& type, ValueId sequences, size_t i) const {
    const bool known = type.has_rank() && type.rank() == 5 && (*type.shape)[2].is_const() && (*type.shape)[4].is_const();
    if (!known)
      throw Error(ErrorCode::invalid_model,
                  fmt::format("\"decoder\" declares past_{} as {}; expected [2, batch, heads, length, size] with heads and size as numbers",
                              i, to_string(type)));
    const ValueId rows = d_.op("Shape", {sequences}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
    const ValueId shape =
        d_.op("Concat", {d_.ints({2}), rows, d_.ints({(*type.shape)[2].value(), 0, (*type.shape)[4].value()})}, {{"axis", int64_t{0}}});
    return filled(Tensor(type.dtype == DType::undefined ? DType::float32 : type.dtype, Shape{1}), shape);
  }

  // Returns the initial state for a model with an encoder. Every round reads the encoder's outputs. If the encoder also returns logits,
  // these are the first round's. Whisper's encoder has no mask.
  SearchState start_of_encoder() {
    const Body* encoder = d_.node().body("encoder");
    if (!encoder)
      throw Error(ErrorCode::invalid_model,
                  fmt::format("the attribute \"encoder\" (a graph) is missing, which model_type = {} needs", type_));
    const size_t masks = type_ == kWhisper ? 0 : 1, layers = (decoder().graph->outputs.size() - 1) / 2;
    const bool computes_first = type_ == kWhisper || num_formal_inputs(*encoder) == 3;
    check_body(*encoder, 1 + masks + (computes_first ? 1 : 0), computes_first ? 2 + 4 * layers : 2 * layers);
    const bool reads_hidden = num_formal_inputs(decoder()) == 2 + masks + 4 * layers;
    check_body(decoder(), (reads_hidden ? 2 : 1) + masks + 4 * layers, 1 + 2 * layers);
    if (reads_hidden && !computes_first)
      throw Error(ErrorCode::invalid_model, "\"decoder\" reads encoder_hidden_states, and \"encoder\" does not give them");
    ValueId start = input(inputs_.decoder_ids);
    if (start == kNoValue) {
      const ValueId column = d_.op("Concat", {batch_, d_.ints({1})}, {{"axis", int64_t{0}}});
      start = filled(one_of(static_cast<int32_t>(d_.attributes().get_int("decoder_start_token_id", -1))), column);
    }
    start_length_ = d_.op("Squeeze", {d_.op("Shape", {start}, {{"start", int64_t{1}}})});
    std::vector<ValueId> inputs{ids_};
    if (masks > 0) inputs.push_back(mask_of_encoder()), read_by_decoder_.push_back(repeated(inputs.back()));
    if (computes_first) inputs.push_back(start);
    const std::vector<ValueId> encoded = inline_body(d_.graph(), d_.id(), *encoder, inputs);
    if (reads_hidden) read_by_decoder_.push_back(repeated(encoded[1]));
    for (size_t i = computes_first ? 2 + 2 * layers : 0; i < encoded.size(); ++i) read_by_decoder_.push_back(repeated(encoded[i]));
    SearchState state;
    state.sequences = repeated(start);
    takes_tokens_ = takes_one_token();
    if (takes_tokens_) state.tokens = state.sequences;
    start_search(state);
    for (size_t i = 0; i < 2 * layers; ++i) state.past.push_back(computes_first ? repeated(encoded[2 + i]) : empty_self_past(i));
    if (!computes_first) return state;
    std::vector<ValueId> outputs{repeated(encoded[0])};
    outputs.insert(outputs.end(), state.past.begin(), state.past.end());
    return with_first_round(std::move(state), outputs);
  }
  // Masks only the padding in front of the text. After the text, the padding token may be the token that ends the text.
  ValueId mask_of_encoder() const {
    if (const ValueId given = input(inputs_.attention_mask); given != kNoValue) return given;
    const ValueId words = d_.cast(d_.op("Not", {d_.op("Equal", {ids_, number32(d_, pad())})}), DType::int32);
    return d_.cast(d_.cast(d_.op("CumSum", {words, number(1)}), DType::boolean), DType::int32);
  }
  /// Returns true if the decoder reads only the last token, which it declares as input_ids [batch, 1]. Otherwise it reads the whole
  /// sequence in each round.
  bool takes_one_token() const {
    const Type& type = decoder().graph->type(decoder().graph->inputs[0]);
    return type.has_rank() && type.rank() == 2 && (*type.shape)[1].is_const(1);
  }
  /// Returns an empty cache [rows, heads, 0, size] for self-attention. Heads and size are those of the encoder's keys.
  ValueId empty_self_past(size_t i) const {
    const ValueId like = read_by_decoder_[1 + i];
    return d_.op("Slice", {like, d_.ints({0}), d_.ints({0}), d_.ints({2})});
  }

  SearchState with_first_round(SearchState state, const std::vector<ValueId>& outputs) {
    Place here{d_, [](ValueId value) { return value; }, number(0)};
    first_ = advance(here, state, outputs);
    return state;
  }

  // Adds nodes that compute the next round's state from the outputs of the decoder.
  Step advance(Place& p, SearchState& state, const std::vector<ValueId>& outputs) const {
    NodeWriter& w = p.w;
    ValueId logits = w.op("Gather", {outputs[0], w.constant(Tensor::scalar<int64_t>(-1))}, {{"axis", int64_t{1}}});
    if (const int64_t size = d_.attributes().get_int("vocab_size", -1); size > 0)
      logits = w.op("Slice", {logits, w.ints({0}), w.ints({size}), w.ints({1})});
    logits = w.cast(logits, DType::float32);
    if (search_ == Search::beam) logits = w.op("LogSoftmax", {logits}, {{"axis", int64_t{-1}}});
    auto outside = [&](ValueId value) { return value == kNoValue ? value : p.outside(value); };
    Attributes limits = d_.copied({"eos_token_id", "no_repeat_ngram_size", "temperature", "presence_penalty"});
    if (type_ == kWhisper) {
      std::vector<int64_t> tokens;
      for (std::string_view name : {"eos_token_id", "decoder_start_token_id", "translate_token_id", "transcribe_token_id",
                                    "start_of_lm_token_id", "no_timestamps_token_id", "beginning_timestamp_token_id"})
        tokens.push_back(d_.attributes().get_int(name, -1));
      if (tokens.back() >= 0) limits.set("timestamp_tokens", std::move(tokens));
    }
    const ValueId scores =
        w.op_n("SearchScores",
               {logits, state.sequences, p.round, outside(max_length_), outside(min_length_), outside(penalty_), outside(vocab_mask_),
                outside(prefix_mask_), outside(presence_mask_), outside(temperature_), outside(processor_)},
               1, std::move(limits), "treadle")[0];
    const Step step = search_ == Search::beam ? choose_beams(p, state, scores) : choose_token(p, state, scores);
    state.past.assign(outputs.begin() + 1, outputs.end());
    if (step.parents != kNoValue) {
      state.sequences = w.op("Gather", {state.sequences, step.parents});
      const int64_t axis = type_ == kGpt ? 1 : 0;
      for (ValueId& past : state.past) past = w.op("Gather", {past, step.parents}, {{"axis", axis}});
    }
    state.sequences = w.op("Concat", {state.sequences, step.tokens}, {{"axis", int64_t{1}}});
    if (state.tokens != kNoValue) state.tokens = step.tokens;
    if (state.mask != kNoValue) {
      const ValueId one = w.op("ConstantOfShape", {w.op("Shape", {step.tokens})}, {{"value", Datum(one_of<int32_t>(1))}});
      state.mask = w.op("Concat", {state.mask, one}, {{"axis", int64_t{1}}});
      state.positions = state.next_positions;
      state.next_positions = w.op("Add", {state.next_positions, one});
    }
    return step;
  }

  Step choose_token(Place& p, SearchState& state, ValueId scores) const {
    NodeWriter& w = p.w;
    Step step;
    ValueId chosen;
    if (search_ == Search::sampling) {
      const auto drawn = w.op_n("SampleTokens", {scores, p.round, seed_ == kNoValue ? seed_ : p.outside(seed_)}, 2,
                                d_.copied({"top_p", "filter_value", "min_tokens_to_keep", "custom"}), "treadle");
      chosen = drawn[0], step.shown = drawn[1];
    } else {
      chosen = w.cast(w.op("ArgMax", {scores}, {{"axis", int64_t{1}}, {"keepdims", int64_t{0}}}), DType::int32);
    }
    state.finished = w.op("Or", {state.finished, w.op("Equal", {chosen, number32(w, eos())})});
    step.tokens = w.op("Unsqueeze", {w.op("Where", {state.finished, number32(w, pad()), chosen}), w.ints({1})});
    const ValueId open = w.cast(w.op("Not", {state.finished}), DType::int32);
    step.goes_on = w.cast(w.op("ReduceMax", {open}, {{"keepdims", int64_t{0}}}), DType::boolean);
    return step;
  }

  Step choose_beams(Place& p, SearchState& state, ValueId scores) const {
    NodeWriter& w = p.w;
    const ValueId totals = w.op("Add", {scores, w.op("Unsqueeze", {state.scores, w.ints({1})})});
    const auto next = w.op_n("BeamStep",
                             {totals, state.sequences, state.found_scores, state.found_tokens, state.found_lengths, state.done,
                              length_penalty_ == kNoValue ? length_penalty_ : p.outside(length_penalty_)},
                             8, d_.copied({"eos_token_id", "pad_token_id", "early_stopping"}), "treadle");
    state.scores = next[0];
    state.found_scores = next[3], state.found_tokens = next[4], state.found_lengths = next[5], state.done = next[6];
    return {next[7], next[1], next[2], totals};
  }

  bool shows() const { return search_ == Search::beam ? d_.wants(2) : search_ == Search::sampling && d_.wants(1); }

  /// Adds the Loop, which runs the decoder until all sequences are finished. Returns `shown` of all rounds, [rounds, rows, tokens];
  /// kNoValue if it is not used.
  ValueId write_loop(SearchState& state) {
    Graph& graph = d_.graph();
    const bool has_first = first_.goes_on != kNoValue;
    // At least one round runs: if max_length allows none, this round reports the error.
    const ValueId most = d_.op("Squeeze", {d_.cast(max_length_, DType::int64)});
    rounds_ = d_.op("Max", {d_.op("Sub", {most, start_length_}), number(1)});
    std::vector<ValueId> operands{has_first ? d_.op("Sub", {rounds_, number(1)}) : rounds_, first_.goes_on};
    state.for_each([&](ValueId& value) { operands.push_back(value); });
    const auto carried = static_cast<int>(operands.size()) - 2;
    const NodeId loop = graph.add_node(
        {.op_type = "Loop", .inputs = operands, .name = d_.node().name, .num_outputs = carried + (shows() ? 1 : 0)}, d_.id());
    graph.node(loop).bodies.push_back(loop_body(loop, state, has_first));
    size_t i = 0;
    const std::vector<ValueId> results = graph.node(loop).outputs;
    state.for_each([&](ValueId& value) { value = results[i++]; });
    if (!shows()) return kNoValue;
    if (!has_first) return results[i];
    // If the Loop ran zero rounds, its stacked output has lost the other extents. They are restored from the first round's.
    const ValueId rounds = d_.op("Shape", {results[i]}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
    const ValueId shape = d_.op("Concat", {rounds, d_.op("Shape", {first_.shown})}, {{"axis", int64_t{0}}});
    return d_.op("Concat", {d_.op("Unsqueeze", {first_.shown, d_.ints({0})}), d_.op("Reshape", {results[i], shape})},
                 {{"axis", int64_t{0}}});
  }

  // Builds the body of the Loop: the decoder's graph, followed by a step of the search. Inputs that are the same in all rounds become
  // captures.
  Body loop_body(NodeId loop, const SearchState& outer, bool has_first) {
    Graph& graph = d_.graph();
    Body& decoder = *const_cast<Body*>(d_.node().body("decoder"));
    Body body{"body", std::move(decoder.graph), {}};
    Graph& inside = *body.graph;
    const std::vector<ValueId> old = std::exchange(inside.inputs, {});
    auto add_input = [&](std::string_view name, Type type = {}) { return inside.add_value(name, std::move(type), Value::Kind::input); };
    const size_t num_formal = old.size() - decoder.captures.size();
    std::vector<ValueId> captured;
    auto capture = [&](ValueId value, ValueId from) {
      captured.push_back(value);
      body.captures.emplace_back(value, graph.add_capture(loop, from));
    };
    for (size_t i = 0; i < num_formal; ++i)  // makes new symbols, as a file may use one for the lengths of prompt and token
      if (Type& type = inside.value(old[i]).type; type.shape)
        for (Dim& extent : *type.shape)
          if (!extent.is_const()) extent = inside.symbols().fresh_symbol("carried", true);
    SearchState state;
    size_t next = 1;
    (takes_tokens_ ? state.tokens : state.sequences) = old[0];
    if (type_ == kGpt) {
      state.positions = old[1], state.mask = old[2], next = 3;
    } else {
      const size_t before_past = num_formal - 2 * outer.past.size();
      for (; next < before_past; ++next) capture(old[next], read_by_decoder_[next - 1]);
    }
    for (size_t i = 0; i < outer.past.size(); ++i) state.past.push_back(old[next++]);
    for (; next < num_formal; ++next) capture(old[next], read_by_decoder_[next - 1 - outer.past.size()]);
    for (auto member : SearchState::kMembers)
      if (outer.*member != kNoValue && state.*member == kNoValue) state.*member = add_input("carried");
    for (size_t i = 0; i < decoder.captures.size(); ++i)
      capture(decoder.captures[i].first, d_.node().inputs[static_cast<size_t>(d_.node().num_formal_inputs + decoder.captures[i].second)]);

    inside.inputs = {add_input("round", Type::tensor(DType::int64, SymbolicShape{})),
                     add_input("condition", Type::tensor(DType::boolean, SymbolicShape{}))};
    state.for_each([&](ValueId& value) { inside.inputs.push_back(value); });
    NodeWriter w(inside, kNoNode, d_.node().name);
    std::map<ValueId, ValueId> places;
    auto outside = [&](ValueId value) {
      auto [at, added] = places.try_emplace(value, kNoValue);
      if (added) capture(at->second = add_input("captured"), value);
      return at->second;
    };
    Place place{w, outside, has_first ? w.op("Add", {inside.inputs[0], w.constant(Tensor::scalar<int64_t>(1))}) : inside.inputs[0]};
    const Step step = advance(place, state, std::vector<ValueId>(inside.outputs.begin(), inside.outputs.end()));
    std::vector<ValueId> outputs{step.goes_on};
    state.for_each([&](ValueId& value) { outputs.push_back(value); });
    if (shows()) outputs.push_back(step.shown);
    inside.outputs = OutputList(std::move(outputs));
    inside.output_names.clear(), inside.declared_outputs.clear();
    inside.inputs.insert(inside.inputs.end(), captured.begin(), captured.end());
    return body;
  }

  void give_sequences(const SearchState& state, ValueId shown) const {
    const ValueId most = d_.op("Reshape", {d_.cast(max_length_, DType::int64), d_.ints({1})});
    const ValueId padding = filled(one_of(static_cast<int32_t>(pad())), d_.op("Concat", {batch_, most}, {{"axis", int64_t{0}}}));
    const ValueId padded = d_.op("Concat", {state.sequences, padding}, {{"axis", int64_t{1}}});
    d_.give(0, d_.op("Slice", {padded, d_.ints({0}), most, d_.ints({1})}));
    if (shown != kNoValue) d_.give(1, d_.op("Gather", {shown, d_.constant(Tensor::scalar<int64_t>(-1))}));
  }

  void give_beams(const SearchState& state, ValueId shown) const {
    const ValueId returned = one(inputs_.returned, DType::int32);
    const auto best = d_.op_n(
        "BeamSequences",
        {state.scores, state.sequences, state.found_scores, state.found_tokens, state.found_lengths, state.done, length_penalty_, returned},
        2, d_.copied({"pad_token_id"}), "treadle");
    const ValueId end = d_.op("Reshape", {d_.cast(returned, DType::int64), d_.ints({1})});
    for (size_t i = 0; i < 2; ++i) d_.give(i, d_.op("Slice", {best[i], d_.ints({0}), end, d_.ints({1})}));
    if (shown == kNoValue) return;
    // Pads the scores with zeros for the rounds that were not needed.
    const ValueId done = d_.op("Shape", {shown}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
    const ValueId missing = d_.op("Sub", {d_.op("Reshape", {rounds_, d_.ints({1})}), done});
    const ValueId all = d_.op("Pad", {shown, d_.op("Concat", {d_.ints({0, 0, 0}), missing, d_.ints({0, 0})}, {{"axis", int64_t{0}}})});
    const ValueId tokens = d_.op("Shape", {shown}, {{"start", int64_t{2}}});
    const ValueId shape = d_.op("Concat", {d_.ints({-1}), batch_, beams_, tokens}, {{"axis", int64_t{0}}});
    d_.give(2, d_.op("Reshape", {all, shape}));
  }

  Decomposition& d_;
  const Search search_;
  const SearchInputs inputs_;
  const int64_t type_;
  bool takes_tokens_ = true;  // true: the decoder reads only the last token; false: the whole sequence
  ValueId ids_, max_length_, beams_, min_length_, penalty_, length_penalty_, seed_, vocab_mask_, prefix_mask_, presence_mask_, batch_,
      rows_ = kNoValue, rounds_ = kNoValue, processor_, temperature_, start_length_ = kNoValue;
  std::vector<ValueId> read_by_decoder_;  // inputs that the decoder reads in each round and that never change
  Step first_;
};

}  // namespace

void write_search(Decomposition& d, Search search, const SearchInputs& inputs) { SearchWriter(d, search, inputs).write(); }

}  // namespace treadle::ops
