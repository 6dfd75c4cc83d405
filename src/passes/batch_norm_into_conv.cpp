// BatchNormalization(Conv(x, W, b)) -> Conv(x, W * s, (b - mean) * s + B) with s = scale / sqrt(var + epsilon), per output channel. The
// same for ConvTranspose, and for Conv(x) * s, / s, + s and - s, where s is a constant per tensor or per channel. Inference only, because
// training updates the statistics. Rounds once more than before. If some operands are parameters, added nodes compute the new weights
// whenever parameters change.
#include <cmath>
#include <cstring>

#include "core/files/file.h"
#include "core/values/large_memory.h"
#include "graph/op_def.h"
#include "kernels/elementwise/chain.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

// Returns the elements of a constant float vector with `count` elements; empty if `id` is not such a constant.
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

// Tells the output channel of elements of W. W is [channels, ...] for Conv, and [in, channels / group, ...] for ConvTranspose.
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
  int64_t operator()(const Shape& w, int64_t row) const {  // row: index over the first two axes
    int64_t first = row / w[1], second = row % w[1];
    return transposed ? first / (w[0] / group) * w[1] + second : first;
  }
};

template <typename T>
std::optional<Tensor> scaled(const Tensor& weights, const Channels& channels, const std::vector<double>& scale) {
  const Shape& shape = weights.shape();
  Tensor result(weights.dtype(), shape, allocate_large(weights.size_bytes()));
  int64_t rows = shape[0] * shape[1], length = shape.product(2, shape.rank());
  bool finite = true;
  for (int64_t row = 0; row < rows; ++row) {
    double s = scale[static_cast<size_t>(channels(shape, row))];
    for (int64_t i = row * length; i < (row + 1) * length; ++i) {
      T weight;  // copied by memcpy, because tensors from files may be unaligned
      std::memcpy(&weight, weights.raw() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
      result.data<T>()[i] = static_cast<T>(weight * s);
      finite &= std::isfinite(result.data<T>()[i]);
    }
  }
  return finite ? std::optional(result) : std::nullopt;
}

/// A convolution with constant weights whose result only `y` reads, and the factor and bias for each output channel.
struct Rescaling {
  const Node* conv;
  const Tensor* weights;
  Channels channels;
  std::vector<double> scale, bias;

  static std::optional<Rescaling> of(const Graph& graph, ValueId y) {
    const Node* conv = producer_of(graph, y);
    if (!conv || (!conv->is("Conv") && !conv->is("ConvTranspose")) || !is_used_once(graph, y)) return std::nullopt;
    const Tensor* weights = graph.stored_tensor(conv->inputs[1]);
    if (!weights || !weights->is_contiguous()) return std::nullopt;
    auto channels = Channels::of(*conv, weights->shape());
    if (!channels || channels->count < 1) return std::nullopt;
    std::vector<double> bias(static_cast<size_t>(channels->count), 0);
    if (conv->has_input(2)) bias = constant_vector(graph, conv->inputs[2], channels->count);
    if (bias.empty()) return std::nullopt;
    return Rescaling{conv, weights, *channels, std::vector<double>(bias.size(), 1), std::move(bias)};
  }

  std::optional<Patch> patch(const Graph& graph, ValueId replaced) const {
    for (size_t c = 0; c < scale.size(); ++c)
      if (!std::isfinite(scale[c]) || !std::isfinite(bias[c])) return std::nullopt;
    std::optional<Tensor> new_weights;
    Tensor new_bias;
    if (weights->dtype() == DType::float32) {
      new_weights = scaled<float>(*weights, channels, scale);
      new_bias = vector_of<float>(bias);
    } else if (weights->dtype() == DType::float64) {
      new_weights = scaled<double>(*weights, channels, scale);
      new_bias = vector_of<double>(bias);
    }
    if (!new_weights) return std::nullopt;
    drop_mapped_pages(weights->raw(), weights->size_bytes());

    Patch patch;
    ValueId w = patch.constant(graph.value(conv->inputs[1]).name, *new_weights), b = patch.constant(conv->name + "/bias", new_bias);
    NodeSpec spec{.op_type = conv->op_type, .inputs = {conv->inputs[0], w, b}, .attributes = conv->attributes, .name = conv->name};
    patch.replace(replaced, patch.add(std::move(spec)));
    return patch;
  }
};

class BatchNormIntoConv final : public Rule {
 public:
  std::string_view name() const override { return "batch-norm-into-conv"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (node.is("BatchNormalization")) return normalization(graph, node);
    return node.op && node.op->chain.given && node.domain.empty() ? pointwise(graph, node) : std::nullopt;
  }

 private:
  static std::optional<Patch> normalization(const Graph& graph, const Node& node) {
    const auto refuse = [&](std::string_view reason) {
      declined(node, reason);
      return std::nullopt;
    };
    if (node.attributes.get_int("training_mode") != 0) return refuse("it is in training mode");
    for (size_t i = 1; i < node.outputs.size(); ++i)
      if (node.has_output(i)) return refuse("its statistics are read");
    std::optional<Rescaling> found = Rescaling::of(graph, node.inputs[0]);
    if (!found) {
      if (std::optional<Patch> patch = of_parameters(graph, node)) return patch;
      return refuse("no convolution with constant weights, whose result nobody else reads, is in front of it");
    }
    const int64_t count = found->channels.count;
    std::vector<double> scale = constant_vector(graph, node.inputs[1], count), offset = constant_vector(graph, node.inputs[2], count);
    std::vector<double> mean = constant_vector(graph, node.inputs[3], count), variance = constant_vector(graph, node.inputs[4], count);
    if (scale.empty() || offset.empty() || mean.empty() || variance.empty()) {
      if (std::optional<Patch> patch = of_parameters(graph, node)) return patch;
      return refuse("its statistics are no constants");
    }
    const double epsilon = node.attributes.get_float("epsilon", 1e-5F);
    for (size_t c = 0; c < scale.size(); ++c) {
      found->scale[c] = scale[c] / std::sqrt(variance[c] + epsilon);
      found->bias[c] = (found->bias[c] - mean[c]) * found->scale[c] + offset[c];
    }
    return found->patch(graph, node.outputs[0]);
  }

  // Used if some operands are parameters: adds nodes that compute the new weights; these nodes run only when parameters change. Declines if
  // there are many more weights than image elements, because then scaling the weights takes longer than normalizing in several runs.
  static std::optional<Patch> of_parameters(const Graph& graph, const Node& node) {
    constexpr int64_t kMostWeights = 4;  // maximum number of weights per pixel of a channel
    const Node* conv = producer_of(graph, node.inputs[0]);
    if (!conv || !conv->is("Conv") || !is_used_once(graph, node.inputs[0])) return std::nullopt;
    const Type& weights = graph.type(conv->inputs[1]);
    bool changes = false;
    auto is_known = [&](ValueId id) {
      changes |= !graph.value(id).is_constant();
      return is_stored(graph, id) && graph.type(id).is_static() && graph.type(id).dtype == DType::float32;
    };
    if (!is_known(conv->inputs[1]) || weights.rank() < 3 || (conv->has_input(2) && !is_known(conv->inputs[2]))) return std::nullopt;
    const int64_t channels = weights.static_shape()[0];
    for (size_t i = 1; i < 5; ++i)
      if (!is_known(node.inputs[i]) || graph.type(node.inputs[i]).static_shape() != Shape{channels}) return std::nullopt;
    if (!changes) return std::nullopt;
    const Type& image = graph.type(node.outputs[0]);
    int64_t pixels = 1;
    for (int axis = 0; image.has_rank() && axis < image.rank(); ++axis)
      if (const Dim& extent = (*image.shape)[static_cast<size_t>(axis)]; extent.is_const()) pixels *= extent.value();
    if (weights.static_shape().num_elements() > kMostWeights * pixels) return std::nullopt;

    Patch patch;
    auto add = [&](const char* op, std::vector<ValueId> inputs, const char* what) {
      return patch.add({.op_type = op, .inputs = std::move(inputs), .name = conv->name + what});
    };
    const ValueId epsilon = patch.constant(conv->name + "/epsilon", Tensor::scalar(node.attributes.get_float("epsilon", 1e-5F)));
    const ValueId deviation = add("Sqrt", {add("Add", {node.inputs[4], epsilon}, "/variance")}, "/deviation");
    const ValueId scale = add("Div", {node.inputs[1], deviation}, "/scale");
    std::vector<int64_t> column(static_cast<size_t>(weights.rank()), 1);
    column[0] = channels;
    const ValueId by_row = add("Reshape", {scale, patch.constant(conv->name + "/rows", Tensor::vector<int64_t>(column))}, "/row_scale");
    const ValueId center =
        conv->has_input(2) ? add("Sub", {conv->inputs[2], node.inputs[3]}, "/centre") : add("Neg", {node.inputs[3]}, "/centre");
    const ValueId bias = add("Add", {add("Mul", {center, scale}, "/scaled_centre"), node.inputs[2]}, "/bias");
    patch.replace(node.outputs[0], patch.add({.op_type = "Conv",
                                              .inputs = {conv->inputs[0], add("Mul", {conv->inputs[1], by_row}, "/scaled_weights"), bias},
                                              .attributes = conv->attributes,
                                              .name = conv->name}));
    return patch;
  }

  static std::optional<Patch> pointwise(const Graph& graph, const Node& node) {
    using kernels::ChainOp;
    const ChainOp op = node.op->chain.forward;
    if (op != ChainOp::mul && op != ChainOp::div && op != ChainOp::add && op != ChainOp::sub) return std::nullopt;
    const bool commutes = op == node.op->chain.reversed;
    for (size_t i = 0; i < (commutes ? 2U : 1U); ++i) {
      if (!graph.value(node.inputs[1 - i]).is_constant() || !graph.same_type_and_shape(node.inputs[i], node.outputs[0])) continue;
      std::optional<Rescaling> found = Rescaling::of(graph, node.inputs[i]);
      if (!found) continue;
      const std::vector<double> numbers =
          per_channel(graph, node.inputs[1 - i], graph.type(node.outputs[0]).rank(), found->channels.count, found->weights->dtype());
      if (numbers.empty()) continue;
      for (size_t c = 0; c < numbers.size(); ++c) {
        if (op == ChainOp::mul) found->scale[c] = numbers[c], found->bias[c] *= numbers[c];
        if (op == ChainOp::div) found->scale[c] = 1 / numbers[c], found->bias[c] /= numbers[c];
        if (op == ChainOp::add) found->bias[c] += numbers[c];
        if (op == ChainOp::sub) found->bias[c] -= numbers[c];
      }
      return found->patch(graph, node.outputs[0]);
    }
    return std::nullopt;
  }

  /// If a constant does not vary within the channels of an image of rank `rank`, returns one number per channel; otherwise empty.
  static std::vector<double> per_channel(const Graph& graph, ValueId id, int rank, int64_t channels, DType dtype) {
    const Tensor* tensor = graph.constant_tensor(id);
    if (!tensor || tensor->dtype() != dtype || !tensor->is_contiguous() || tensor->shape().rank() > rank) return {};
    for (int i = 0; i < tensor->shape().rank(); ++i) {
      const bool is_channel = i + rank - tensor->shape().rank() == 1;
      if (tensor->shape()[i] != 1 && !(is_channel && tensor->shape()[i] == channels)) return {};
    }
    std::vector<double> numbers(static_cast<size_t>(channels));
    for (size_t c = 0; c < numbers.size(); ++c) {
      const size_t at = tensor->num_elements() == 1 ? 0 : c;
      numbers[c] = dtype == DType::float32 ? double{tensor->data<float>()[at]} : dtype == DType::float64 ? tensor->data<double>()[at] : NAN;
    }
    return numbers;
  }
};

}  // namespace

Pass batch_norm_into_conv() {
  return rule_pass<BatchNormIntoConv>(
      kBasic, {.packed_weights = true},
      "BatchNormalization(Conv(x)), Conv(x) * constant … -> Conv(x) with other weights, outside of training");
}

}  // namespace treadle::passes
