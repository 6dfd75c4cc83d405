// Rows of the table (data_bounds.h) for layers that get lengths, classes, positions and regions from data, and for operators on sequences.
#include <cmath>

#include "tests/ops/data_bounds.h"

namespace treadle::testing {
namespace {

using Numbers = std::vector<double>;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

int64_t from_front(int64_t index, int64_t extent) { return index < 0 ? index + extent : index; }

/// A recurrent layer with one feature. The inputs of the two steps are 1 and 2, and the first `v` steps count. All weights are 0 except the
/// candidate's input weight, 1.
BoundsCase layer_case(int gates, int candidate, int64_t v) {
  Tensor w(DType::float32, Shape{1, gates, 1}), r(DType::float32, Shape{1, gates, 1});
  for (int gate = 0; gate < gates; ++gate) w.data<float>()[gate] = gate == candidate ? 1.0F : 0.0F, r.data<float>()[gate] = 0;
  return {{counting({2, 1, 1}), w, r, Datum(), ints32({static_cast<int32_t>(v)})}, {{"hidden_size", int64_t{1}}}};
}
/// Returns the output of each step, 0 after the last one that counts.
Numbers steps_of(int64_t count, double (*next)(double x, double& state)) {
  Numbers y(2, 0);
  double state = 0;
  for (int64_t t = 0; t < count; ++t) y[static_cast<size_t>(t)] = next(static_cast<double>(t + 1), state);
  return y;
}
double rnn_step(double x, double&) { return std::tanh(x); }
double gru_step(double x, double& h) { return h = .5 * h + .5 * std::tanh(x); }
double lstm_step(double x, double& c) {
  c = .5 * c + .5 * std::tanh(x);
  return .5 * std::tanh(c);
}

std::vector<BoundsRow> recurrent_rows() {
  const struct {
    const char* name;
    int gates, candidate;
    double (*step)(double, double&);
  } kLayers[] = {{"RNN", 1, 0, rnn_step}, {"GRU", 3, 2, gru_step}, {"LSTM", 4, 3, lstm_step}};
  std::vector<BoundsRow> rows;
  for (const auto& layer : kLayers) {
    auto expected = [step = layer.step](int64_t v) { return steps_of(v, step); };
    auto make = [layer](int64_t v) { return layer_case(layer.gates, layer.candidate, v); };
    rows.push_back({"ai.onnx", layer.name, 4, make, 0, 2, Beyond::refused, expected});
  }
  auto keeping = [](int64_t v) {
    BoundsCase c = layer_case(4, 3, v);
    c.num_outputs = 4, c.num_compared = 1;
    return c;
  };
  rows.push_back({"treadle", "LSTMKeeping", 4, keeping, 0, 2, Beyond::refused, [](int64_t v) { return steps_of(v, lstm_step); }});
  rows.push_back({"ai.onnx", "ReverseSequence", 1,
                  [](int64_t v) {
                    return BoundsCase{{counting({3, 1}), ints({v})}};
                  },
                  0, 3, Beyond::refused,
                  [](int64_t v) {
                    Numbers y{1, 2, 3};
                    std::reverse(y.begin(), y.begin() + v);
                    return y;
                  }});
  return rows;
}

std::vector<BoundsRow> loss_rows() {
  auto labels = [](int64_t v) {
    return BoundsCase{{counting({1, 3}), ints({v}), tensor<float>({3}, {1, 2, 3})}, {{"reduction", std::string("none")}}};
  };
  auto normalized = [](int64_t v) {
    const double all = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0));
    return Numbers{static_cast<double>(v + 1) * (all - static_cast<double>(v + 1))};
  };
  auto flow = [](int64_t v) {
    return BoundsCase{{tensor<float>({1}, {5}), ints({v}), ints({1, 3}), tensor<float>({3}, {1, 2, 3})},
                      {{"reduction", std::string("none")}}};
  };
  auto at_label = [](int64_t v) {
    Numbers dx(3, 0);
    dx[static_cast<size_t>(v)] = -5.0 * static_cast<double>(v + 1);
    return dx;
  };
  return {
      {"ai.onnx", "NegativeLogLikelihoodLoss", 1, labels, 0, 2, Beyond::refused,
       [](int64_t v) { return Numbers{-static_cast<double>((v + 1) * (v + 1))}; }},
      {"ai.onnx", "SoftmaxCrossEntropyLoss", 1, labels, 0, 2, Beyond::refused, normalized},
      {"treadle", "NegativeLogLikelihoodLossGrad", 1, flow, 0, 2, Beyond::refused, at_label},
  };
}

std::vector<BoundsRow> region_rows() {
  auto two_images = [] { return tensor<float>({2, 1, 2, 2}, {3, 3, 3, 3, 5, 5, 5, 5}); };
  auto region = [two_images](int64_t v) { return BoundsCase{{Datum(two_images()), tensor<float>({1, 4}, {0, 0, 1, 1}), ints({v})}}; };
  auto of_image = [](int64_t v) { return Numbers{v == 0 ? 3.0 : 5.0}; };
  auto unpool = [](int64_t v) {
    return BoundsCase{{tensor<float>({1, 1, 2}, {7, 8}), tensor<int64_t>({1, 1, 2}, {v, 0})},
                      {{"kernel_shape", std::vector<int64_t>{2}}, {"strides", std::vector<int64_t>{2}}}};
  };
  auto placed = [](int64_t v) {
    Numbers y(4, 0);
    y[static_cast<size_t>(v)] = 7, y[0] = 8;
    return y;
  };
  auto unpool_to = [](int64_t v) {
    return BoundsCase{{tensor<float>({1, 1, 2}, {7, 8}), tensor<int64_t>({1, 1, 2}, {1, 3}), ints({1, 1, v})},
                      {{"kernel_shape", std::vector<int64_t>{2}}, {"strides", std::vector<int64_t>{2}}}};
  };
  auto at_origin = [](int64_t v) {
    Numbers y(static_cast<size_t>(v), 0);
    y[1] = 7, y[3] = 8;
    return y;
  };
  return {
      {"ai.onnx", "RoiAlign", 2, region, 0, 1, Beyond::refused, of_image},
      {"ai.onnx", "MaxUnpool", 1, unpool, 0, 3, Beyond::refused, placed, {1, 2}},
      {"ai.onnx", "MaxUnpool", 2, unpool_to, 4, 7, Beyond::too_large, at_origin},
  };
}

std::vector<BoundsRow> attention_like_rows() {
  auto valid_keys = [](int64_t v) {
    return BoundsCase{{filled({1, 1, 1, 1}, 1), filled({1, 1, 3, 1}, 0), counting({1, 1, 3, 1}), Datum(), Datum(), Datum(), ints({v})}};
  };
  auto mean = [](int64_t v) { return Numbers{v == 0 ? 0 : static_cast<double>(v + 1) / 2}; };
  auto position = [](int64_t v) {
    return BoundsCase{{tensor<float>({1, 1, 1, 2}, {1, 0}), tensor<float>({3, 1}, {1, 2, 3}), tensor<float>({3, 1}, {4, 5, 6}),
                       tensor<int64_t>({1, 1}, {v})}};
  };
  auto turned = [](int64_t v) { return Numbers{static_cast<double>(v + 1), static_cast<double>(v + 4)}; };
  return {
      {"ai.onnx", "Attention", 6, valid_keys, 0, 3, Beyond::refused, mean, {1, 2}},
      {"ai.onnx", "RotaryEmbedding", 3, position, 0, 2, Beyond::refused, turned},
  };
}

Datum three() {
  Sequence sequence{DType::float32, {}};
  for (const float x : {1.0F, 2.0F, 3.0F}) sequence.elements.emplace_back(tensor<float>({1}, {x}));
  return sequence;
}

}  // namespace

std::vector<BoundsRow> neural_rows() {
  std::vector<BoundsRow> all;
  for (auto* rows : {recurrent_rows, loss_rows, region_rows, attention_like_rows})
    for (BoundsRow& row : rows()) all.push_back(std::move(row));
  return all;
}

std::vector<BoundsRow> sequence_rows() {
  auto at = [](int64_t v) { return BoundsCase{{three(), scalar(v)}}; };
  auto inserted = [](int64_t v) {
    Numbers x{1, 2, 3};
    x.insert(x.begin() + from_front(v, 3), 9);
    return x;
  };
  auto erased = [](int64_t v) {
    Numbers x{1, 2, 3};
    x.erase(x.begin() + from_front(v, 3));
    return x;
  };
  auto all = [](int64_t) { return Numbers{1, 2, 3, 4, 5}; };
  return {
      {"ai.onnx", "SequenceAt", 1, at, -3, 2, Beyond::refused,
       [](int64_t v) { return Numbers{static_cast<double>(from_front(v, 3) + 1)}; }},
      {"ai.onnx", "SequenceInsert", 2,
       [](int64_t v) {
         return BoundsCase{{three(), tensor<float>({1}, {9}), scalar(v)}};
       },
       -3, 3, Beyond::refused, inserted},
      {"ai.onnx", "SequenceErase", 1, at, -3, 2, Beyond::refused, erased},
      {"ai.onnx",
       "SplitToSequence",
       1,
       [](int64_t v) {
         return BoundsCase{{counting({5}), scalar(v)}};
       },
       1,
       kMax,
       Beyond::refused,
       all,
       {2, 5, 6}},
      {"ai.onnx", "SplitToSequence", 1,
       [](int64_t v) {
         return BoundsCase{{counting({5}), ints({v, v < 0 || v > 5 ? 0 : 5 - v})}};
       },
       0, 5, Beyond::refused, all},
  };
}

}  // namespace treadle::testing
