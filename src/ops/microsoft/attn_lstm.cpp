// Implements AttnLSTM (com.microsoft 1): an LSTM that also reads, in each step, the context vector that attention to a memory gave in the
// previous step. Each direction is a Scan, whose body is one step of ONNX's LSTM followed by Bahdanau attention.
#include <fmt/format.h>

#include <limits>
#include <memory>
#include <string>

#include "ops/functions.h"
#include "ops/list.h"
#include "ops/microsoft/microsoft.h"

namespace treadle::ops {
namespace {

enum Input : size_t {
  kX,
  kW,
  kR,
  kB,
  kLengths,
  kInitialH,
  kInitialC,
  kP,
  kQueryWeights,
  kMemoryWeights,
  kV,
  kMemory,
  kMemoryLengths,
  kAttentionWeights
};

/// Returns the attributes for the LSTM of one direction, including the direction's activations and their parameters.
Attributes of_direction(const Decomposition& d, size_t direction, size_t directions) {
  constexpr size_t kActivations = 3;
  Attributes made = d.copied({"clip", "hidden_size", "input_forget"});
  const auto& names = d.attributes().get_strings("activations");
  if (names.empty()) return made;
  if (names.size() != kActivations * directions)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("activations has {} elements; expected {}", names.size(), kActivations * directions));
  // The lists alpha and beta have elements only for those functions that take such a parameter, in the order of the functions.
  const auto &alphas = d.attributes().get_floats("activation_alpha"), &betas = d.attributes().get_floats("activation_beta");
  size_t next_alpha = 0, next_beta = 0;
  std::vector<std::string> own;
  std::vector<float> own_alphas, own_betas;
  for (size_t i = 0; i < names.size(); ++i) {
    const ScalarFunction* function = find_function_ignoring_case(names[i]);
    if (!function) throw Error(ErrorCode::not_implemented, fmt::format("the activation \"{}\"", names[i]));
    const bool is_own = i / kActivations == direction;
    if (is_own) own.push_back(names[i]);
    if (!function->a.name.empty() && next_alpha < alphas.size() && is_own) own_alphas.push_back(alphas[next_alpha]);
    if (!function->b.name.empty() && next_beta < betas.size() && is_own) own_betas.push_back(betas[next_beta]);
    next_alpha += function->a.name.empty() ? 0 : 1, next_beta += function->b.name.empty() ? 0 : 1;
  }
  made.set("activations", std::move(own));
  if (!own_alphas.empty()) made.set("activation_alpha", std::move(own_alphas));
  if (!own_betas.empty()) made.set("activation_beta", std::move(own_betas));
  return made;
}

class AttentiveLstm {
 public:
  explicit AttentiveLstm(Decomposition& d) : d_(d) {
    const std::string_view direction = d.attributes().get_string("direction", "forward");
    if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
      throw Error(ErrorCode::invalid_argument, fmt::format("direction is \"{}\", not forward, reverse or bidirectional", direction));
    directions_ = direction == "bidirectional" ? 2 : 1, begins_reverse_ = direction == "reverse";
    for (size_t i = kQueryWeights; i <= kMemory; ++i)
      if (!d.has(i)) throw Error(ErrorCode::invalid_model, fmt::format("the input {} is missing: there is no attention without it", i));
    steps_ = d.op("Shape", {d.in(kX)}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
    batch_ = d.op("Shape", {d.in(kX)}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
    const ValueId every = d.op("Expand", {d.cast(steps_, DType::int32), batch_});
    lengths_ = d.has(kLengths) ? d.in(kLengths) : every;
    padding_ = padding_of_memory();
  }

  void write() {
    std::vector<ValueId> outputs[3];
    for (size_t i = 0; i < directions_; ++i) {
      const std::vector<ValueId> made = direction(i, begins_reverse_ || i == 1);
      outputs[0].push_back(d_.op("Unsqueeze", {made[0], d_.ints({1})}));
      outputs[1].push_back(made[1]), outputs[2].push_back(made[2]);
    }
    for (size_t i = 0; i < 3; ++i)
      d_.give(i, outputs[i].size() == 1 ? outputs[i][0] : d_.op("Concat", outputs[i], {{"axis", int64_t{i == 0 ? 1 : 0}}}));
    d_.finish();
  }

 private:
  /// Returns an operand's part for one direction, with or without the axis of directions; kNoValue if the operand is absent.
  ValueId part(size_t input, size_t direction, bool keep_axis) const {
    if (!d_.has(input)) return kNoValue;
    if (!keep_axis) return d_.op("Gather", {d_.in(input), d_.constant(Tensor::scalar(static_cast<int64_t>(direction)))});
    const auto at = static_cast<int64_t>(direction);
    return directions_ == 1 ? d_.in(input) : d_.op("Slice", {d_.in(input), d_.ints({at}), d_.ints({at + 1}), d_.ints({0})});
  }
  /// Returns a mask [batch, steps of the memory]: -infinity after the end of a sample's memory, and 0 before.
  ValueId padding_of_memory() const {
    if (!d_.has(kMemoryLengths)) return kNoValue;
    const ValueId places =
        d_.op("Range", {d_.constant(Tensor::scalar<int64_t>(0)),
                        d_.op("Squeeze", {d_.op("Shape", {d_.in(kMemory)}, {{"start", int64_t{1}}, {"end", int64_t{2}}})}),
                        d_.constant(Tensor::scalar<int64_t>(1))});
    const ValueId ends = d_.op("Unsqueeze", {d_.cast(d_.in(kMemoryLengths), DType::int64), d_.ints({1})});
    const ValueId none = d_.scalar(-std::numeric_limits<float>::infinity(), d_.in(kX));
    return d_.op("Where", {d_.op("Less", {places, ends}), d_.scalar(0, d_.in(kX)), none});
  }
  ValueId zeros(std::vector<ValueId> extents) const {
    return d_.op("Expand", {d_.scalar(0, d_.in(kX)), d_.op("Concat", std::move(extents), {{"axis", int64_t{0}}})});
  }
  ValueId reversed(ValueId x) const {
    return d_.op("ReverseSequence", {x, d_.cast(lengths_, DType::int64)}, {{"batch_axis", int64_t{1}}, {"time_axis", int64_t{0}}});
  }

  /// Adds the LSTM of one direction. Returns Y without the axis of directions, and Y_h and Y_c with this axis.
  std::vector<ValueId> direction(size_t index, bool reverse) const {
    Graph& graph = d_.graph();
    const ValueId hidden = d_.op("Shape", {d_.in(kR)}, {{"start", int64_t{2}}, {"end", int64_t{3}}});
    auto state = [&](size_t input) { return d_.has(input) ? part(input, index, true) : zeros({d_.ints({1}), batch_, hidden}); };
    // The last columns of W multiply the attention's context vector, the columns before them multiply the input.
    auto columns = [&](size_t input) { return d_.op("Shape", {d_.in(input)}, {{"start", int64_t{2}}, {"end", int64_t{3}}}); };
    const ValueId attended = zeros({batch_, d_.op("Sub", {columns(kW), columns(kX)})});
    const ValueId keys = d_.op("MatMul", {d_.in(kMemory), part(kMemoryWeights, index, false)});
    const ValueId times = d_.cast(
        d_.op("Range", {d_.constant(Tensor::scalar<int64_t>(0)), d_.op("Squeeze", {steps_}), d_.constant(Tensor::scalar<int64_t>(1))}),
        DType::int32);
    const ValueId weights[] = {part(kW, index, true), part(kR, index, true), part(kB, index, true), part(kP, index, true)};
    const ValueId query_weights = part(kQueryWeights, index, false), v = part(kV, index, false),
                  attention_weights = part(kAttentionWeights, index, false);
    const std::vector<ValueId> operands{state(kInitialH), state(kInitialC), attended, reverse ? reversed(d_.in(kX)) : d_.in(kX), times};
    const NodeId scan = graph.add_node(
        {.op_type = "Scan", .inputs = operands, .attributes = {{"num_scan_inputs", int64_t{2}}}, .name = d_.node().name, .num_outputs = 4},
        d_.id());
    Body body{"body", std::make_unique<Graph>(graph.symbol_table()), {}};
    Graph& inside = *body.graph;
    for (std::string_view name : {"h", "c", "attended", "x", "time"}) inside.add_input(name, {});
    std::vector<ValueId> captured;
    auto capture = [&](ValueId from) {
      if (from == kNoValue) return kNoValue;
      captured.push_back(inside.add_value("captured", {}, Value::Kind::input));
      body.captures.emplace_back(captured.back(), graph.add_capture(scan, from));
      return captured.back();
    };
    NodeWriter w(inside, kNoNode, d_.node().name);
    const ValueId read = w.op("Unsqueeze", {w.op("Concat", {inside.inputs[3], inside.inputs[2]}, {{"axis", int64_t{1}}}), w.ints({0})});
    // In steps after a sequence's end, the LSTM gets a sequence length of 0, which leaves the state unchanged.
    const ValueId left = w.op("Clip", {w.op("Sub", {capture(lengths_), inside.inputs[4]}), w.constant(Tensor::scalar<int32_t>(0)),
                                       w.constant(Tensor::scalar<int32_t>(1))});
    const auto cell = w.op_n("LSTM",
                             {read, capture(weights[0]), capture(weights[1]), capture(weights[2]), left, inside.inputs[0], inside.inputs[1],
                              capture(weights[3])},
                             3, of_direction(d_, index, directions_));
    const ValueId output = w.op("Squeeze", {cell[1], w.ints({0})});
    const ValueId query = w.op("Unsqueeze", {w.op("MatMul", {output, capture(query_weights)}), w.ints({1})});
    const ValueId alike = w.op("Tanh", {w.op("Add", {capture(keys), query})});
    ValueId scores = w.op("ReduceSum", {w.op("Mul", {alike, capture(v)}), w.ints({2})}, {{"keepdims", int64_t{0}}});
    if (padding_ != kNoValue) scores = w.op("Add", {scores, capture(padding_)});
    const ValueId aligned = w.op("Unsqueeze", {w.op("Softmax", {scores}, {{"axis", int64_t{-1}}}), w.ints({1})});
    ValueId context = w.op("Squeeze", {w.op("MatMul", {aligned, capture(d_.in(kMemory))}), w.ints({1})});
    if (d_.has(kAttentionWeights))
      context = w.op("MatMul", {w.op("Concat", {output, context}, {{"axis", int64_t{1}}}), capture(attention_weights)});
    inside.outputs = {cell[1], cell[2], context, w.op("Squeeze", {cell[0], w.ints({0, 1})})};
    inside.inputs.insert(inside.inputs.end(), captured.begin(), captured.end());
    graph.node(scan).bodies.push_back(std::move(body));
    const std::vector<ValueId> made = graph.node(scan).outputs;
    return {reverse ? reversed(made[3]) : made[3], made[0], made[1]};
  }

  Decomposition& d_;
  size_t directions_ = 1;
  bool begins_reverse_ = false;
  ValueId steps_, batch_, lengths_, padding_;
};

void decompose_attn_lstm(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  AttentiveLstm(d).write();
}

}  // namespace

std::vector<OpDef> microsoft_attn_lstm_ops() {
  const TypeSet floats{DType::float32, DType::float64}, lengths{DType::int32};
  auto given = [&](std::string_view name) { return Port{name, floats, "T"}; };
  auto perhaps = [&](std::string_view name) { return maybe(name, floats, "T"); };
  return {op("AttnLSTM",
             {given("X"), given("W"), given("R"), perhaps("B"), maybe("sequence_lens", lengths), perhaps("initial_h"), perhaps("initial_c"),
              perhaps("P"), perhaps("QW"), perhaps("MW"), perhaps("V"), perhaps("M"), maybe("memory_seq_lens", lengths), perhaps("AW")},
             {perhaps("Y"), perhaps("Y_h"), perhaps("Y_c")},
             {{"activation_alpha"},
              {"activation_beta"},
              {"activations"},
              {"clip"},
              {"direction", std::string_view("forward")},
              {"hidden_size"},
              {"input_forget", int64_t{0}}},
             decompose_attn_lstm)};
}

}  // namespace treadle::ops
