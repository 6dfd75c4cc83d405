// Implements DynamicQuantizeLSTM (com.microsoft 1): an LSTM with 8-bit weights. The inputs are quantized to 8 bits, and in each step the
// states of the batch, as onnxruntime does on one thread. On several threads, onnxruntime quantizes parts of the batch separately.
#include <string>

#include "ops/list.h"
#include "ops/microsoft/microsoft.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kBytes{DType::uint8, DType::int8};

/// Returns the weights (input number `input`, [D, K, 4 * hidden]), dequantized and transposed to the layout of ONNX's LSTM, [D, 4 * hidden,
/// K]. Scales and zero points are [D] or [D, 4 * hidden].
ValueId weights(Decomposition& d, size_t input, size_t scale) {
  const ValueId directions = d.op("Shape", {d.in(input)}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
  const ValueId spread_shape = d.op("Concat", {directions, d.ints({1, -1})}, {{"axis", int64_t{0}}});
  auto spread = [&](size_t parameter) { return d.op("Reshape", {d.cast(d.in(parameter), DType::float32), spread_shape}); };
  ValueId centered = d.op("Sub", {d.cast(d.in(input), DType::float32), spread(scale + 1)});
  return d.op("Transpose", {d.op("Mul", {centered, spread(scale)})}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
}

void decompose_lstm(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const auto x = d.op_n("DynamicQuantizeLinear", {d.in(0)}, 3);
  auto outputs = d.op_n(
      "LSTMOfBytes",
      {d.op("DequantizeLinear", {x[0], x[1], x[2]}), weights(d, 1, 8), weights(d, 2, 10), d.in(3), d.in(4), d.in(5), d.in(6), d.in(7)}, 3,
      d.copied({"activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget"}), "treadle");
  for (size_t i = 0; i < outputs.size(); ++i) d.give(i, outputs[i]);
  d.finish();
}

}  // namespace

std::vector<OpDef> microsoft_lstm_ops() {
  const TypeSet floats{DType::float32};
  return {op("DynamicQuantizeLSTM",
             {{"X", floats},
              {"W", kBytes},
              {"R", kBytes},
              maybe("B", floats),
              maybe("sequence_lens", {DType::int32}),
              maybe("initial_h", floats),
              maybe("initial_c", floats),
              maybe("P", floats),
              {"W_scale", floats},
              {"W_zero_point", kBytes},
              {"R_scale", floats},
              {"R_zero_point", kBytes}},
             {maybe("Y", floats), maybe("Y_h", floats), maybe("Y_c", floats)},
             {{"activation_alpha"}, {"activation_beta"}, {"activations"}, {"clip"}, {"direction"}, {"hidden_size"}, {"input_forget"}},
             decompose_lstm)};
}

}  // namespace treadle::ops
