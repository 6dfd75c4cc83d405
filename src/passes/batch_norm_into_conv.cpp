// BatchNormalization(Conv(x, W, b)) -> Conv(x, W * s, (b - mean) * s + B) with s = scale / sqrt(var + epsilon), per output channel; the
// same for ConvTranspose. In inference only: training updates the statistics. The products are rounded once more than before.
#include <cmath>
#include <cstring>

#include "core/file.h"
#include "passes/matching.h"
#include "passes/rules.h"

namespace treadle::passes {
namespace {

// Elements of a constant float vector of `count` elements; empty if it is not one.
std::vector<double> constant_vector(const Graph& graph, ValueId id, int64_t count) {
  const Tensor* tensor = graph.constant_tensor(id);
  if (!tensor || tensor->num_elements() != count || tensor->shape().rank() != 1 || !tensor->is_contiguous()) return {};
  if (tensor->dtype() == DType::float32) return {tensor->span<float>().begin(), tensor->span<float>().end()};
  if (tensor->dtype() == DType::float64) return {tensor->span<double>().begin(), tensor->span<double>().end()};
  return {};
}

template <typename T>
Tensor vector_of(const std::vector<double>& values) {
  std::vector<T> rounded(values.begin(), values.end());
  return Tensor::vector<T>(rounded);
}

// Which of `W`'s output channels its elements belong to: W is [channels, ...] for Conv and [in, channels / group, ...] for ConvTranspose.
struct Channels {
  int64_t count, group;
  bool transposed;
  static std::optional<Channels> of(const Node& conv, const Shape& w) {
    if (w.rank() < 3) return std::nullopt;
    int64_t group = conv.attributes.get_int("group", 1);
    bool transposed = conv.is("ConvTranspose");
    if (group < 1 || w[0] % group != 0) return std::nullopt;
    return Channels{transposed ? w[1] * group : w[0], group, transposed};
  }
  int64_t operator()(const Shape& w, int64_t row) const {  // row: of [w[0] * w[1], the rest]
    int64_t first = row / w[1], second = row % w[1];
    return transposed ? first / (w[0] / group) * w[1] + second : first;
  }
};

template <typename T>
std::optional<Tensor> scaled(const Tensor& weights, const Channels& channels, const std::vector<double>& scale) {
  const Shape& shape = weights.shape();
  Tensor result(weights.dtype(), shape);
  int64_t rows = shape[0] * shape[1], length = shape.product(2, shape.rank());
  bool finite = true;
  for (int64_t row = 0; row < rows; ++row) {
    double s = scale[static_cast<size_t>(channels(shape, row))];
    for (int64_t i = row * length; i < (row + 1) * length; ++i) {
      T weight;  // of a file, which may put it at any address
      std::memcpy(&weight, weights.raw() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
      result.data<T>()[i] = static_cast<T>(weight * s);
      finite &= std::isfinite(result.data<T>()[i]);
    }
  }
  return finite ? std::optional(result) : std::nullopt;
}

class BatchNormIntoConv final : public Rule {
 public:
  std::string_view name() const override { return "batch-norm-into-conv"; }
  bool inference_only() const override { return true; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("BatchNormalization") || node.attributes.get_int("training_mode") != 0) return std::nullopt;
    for (size_t i = 1; i < node.outputs.size(); ++i)
      if (node.has_output(i)) return std::nullopt;
    const Node* conv = producer_of(graph, node.inputs[0]);
    if (!conv || (!conv->is("Conv") && !conv->is("ConvTranspose")) || !is_used_once(graph, node.inputs[0])) return std::nullopt;
    const Tensor* weights = graph.stored_tensor(conv->inputs[1]);
    if (!weights || !weights->is_contiguous()) return std::nullopt;
    auto channels = Channels::of(*conv, weights->shape());
    if (!channels || channels->count < 1) return std::nullopt;

    std::vector<double> scale = constant_vector(graph, node.inputs[1], channels->count),
                        offset = constant_vector(graph, node.inputs[2], channels->count);
    std::vector<double> mean = constant_vector(graph, node.inputs[3], channels->count),
                        variance = constant_vector(graph, node.inputs[4], channels->count);
    std::vector<double> bias(static_cast<size_t>(channels->count), 0);
    if (conv->has_input(2)) bias = constant_vector(graph, conv->inputs[2], channels->count);
    if (scale.empty() || offset.empty() || mean.empty() || variance.empty() || bias.empty()) return std::nullopt;
    const double epsilon = node.attributes.get_float("epsilon", 1e-5F);
    for (size_t c = 0; c < scale.size(); ++c) {
      scale[c] /= std::sqrt(variance[c] + epsilon);
      bias[c] = (bias[c] - mean[c]) * scale[c] + offset[c];
      if (!std::isfinite(scale[c]) || !std::isfinite(bias[c])) return std::nullopt;
    }
    std::optional<Tensor> new_weights;
    Tensor new_bias;
    if (weights->dtype() == DType::float32) {
      new_weights = scaled<float>(*weights, *channels, scale);
      new_bias = vector_of<float>(bias);
    } else if (weights->dtype() == DType::float64) {
      new_weights = scaled<double>(*weights, *channels, scale);
      new_bias = vector_of<double>(bias);
    }
    if (!new_weights) return std::nullopt;
    drop_mapped_pages(weights->raw(), weights->size_bytes());

    Patch patch;
    ValueId w = patch.constant(graph.value(conv->inputs[1]).name, *new_weights), b = patch.constant(conv->name + "/bias", new_bias);
    NodeSpec spec{.op_type = conv->op_type, .inputs = {conv->inputs[0], w, b}, .attributes = conv->attributes, .name = conv->name};
    patch.replace(node.outputs[0], patch.add(std::move(spec)));
    return patch;
  }
};

}  // namespace

std::unique_ptr<Rule> batch_norm_into_conv() { return std::make_unique<BatchNormIntoConv>(); }

}  // namespace treadle::passes
