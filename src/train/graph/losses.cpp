// Adds the built-in losses to a graph as nodes. Each is defined as in PyTorch, with the reduction "mean".
#include "train/graph/losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/base/nearest.h"
#include "graph/infer.h"
#include "train/graph/loss_graph.h"
#include "train/graph/training_graph.h"
#include "treadle/error.h"

namespace treadle::train {
/// Adds the nodes of a loss after a value.
class LossBuilder {
 public:
  /// @param with_weight  whether to compute the divisor of the mean, too.
  LossBuilder(Graph& graph, ValueId output, const TrainerOptions& options, bool with_weight)
      : g_(graph), x_(output), options_(options), wanted_weight_(with_weight) {}

  ValueId build() {
    const LossRow& row = row_of(options_.loss);
    const ValueId loss = row.build(*this);
    if (wanted_weight_ && weight_ == kNoValue)
      weight_ = row.labels == LossLabels::none || row.labels == LossLabels::of_model ? number(1) : size_of(x_);
    return loss;
  }
  ValueId weight() const { return weight_; }

  // Each of these functions adds one loss and returns it. If its mean is not over all of the output's elements, it sets `weight_`.

  ValueId softmax_cross_entropy() { return classes(/*scores=*/true); }
  ValueId negative_log_likelihood() { return classes(/*scores=*/false); }
  ValueId mean_squared_error() {
    const ValueId distance = difference();
    return mean(op("Mul", {distance, distance}));
  }
  ValueId l1() { return mean(op("Abs", {difference()})); }
  // Computes the mean of m (|d| - m / 2), where d is the difference and m = min(|d|, delta).
  ValueId huber() {
    const ValueId distance = op("Abs", {difference()}), near = op("Min", {distance, number(options_.huber_delta.value_or(1))});
    return mean(op("Mul", {near, op("Sub", {distance, op("Mul", {near, number(0.5)})})}));
  }
  ValueId binary_cross_entropy_with_logits() {
    const ValueId y = add_labels();
    return mean(op("Sub", {op("Softplus", {x_}), op("Mul", {x_, y})}));
  }
  // Counts y log y as 0 where y is 0, since log 0 is not finite.
  ValueId kl_divergence() {
    const ValueId y = add_labels();
    const ValueId some = op("Greater", {y, number(0)}), logarithm = op("Log", {op("Where", {some, y, number(1)})});
    const ValueId sum = op("ReduceSum", {op("Mul", {y, op("Sub", {logarithm, x_})})}, {{"keepdims", int64_t{0}}});
    return op("Div", {sum, weight_ = size_of_batch()});
  }
  ValueId ctc();
  ValueId output() {
    const Type& type = g_.type(x_);
    if (!type.is_static() || type.static_shape().num_elements() != 1 || type.dtype != DType::float32)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("a loss is one float32 number; \"{}\" is {}", g_.value(x_).name, to_string(type)));
    return type.rank() == 0 ? x_ : op("Reshape", {x_, ints({})});
  }
  ValueId graph() {
    x_ = add_loss_graph(g_, x_, options_);
    return output();
  }

 private:
  ValueId add_labels() { return g_.add_input(std::string(kLabels), g_.type(x_)); }
  ValueId difference() {
    const ValueId y = add_labels();
    return op("Sub", {x_, y});
  }
  ValueId size_of_batch() {
    return as_number(op("Gather", {op("Shape", {x_}), g_.add_constant(g_.unique_name("loss/batch"), Tensor::scalar<int64_t>(0))}));
  }

  ValueId op(std::string op_type, std::vector<ValueId> inputs, Attributes attributes = {}, std::string domain = "") {
    const std::string name = g_.unique_name("loss/" + op_type);
    const NodeId id = g_.add_node({.op_type = std::move(op_type),
                                   .inputs = std::move(inputs),
                                   .attributes = std::move(attributes),
                                   .domain = std::move(domain),
                                   .name = name});
    infer_node(g_, id);
    return g_.node(id).outputs[0];
  }
  ValueId number(double value) {
    const std::string name = g_.unique_name("loss/number");
    if (g_.type(x_).dtype == DType::float64) return g_.add_constant(name, Tensor::scalar(value));
    return g_.add_constant(name, Tensor::scalar(static_cast<float>(value)));
  }
  ValueId as_number(ValueId value) { return op("Cast", {value}, {{"to", static_cast<int64_t>(g_.type(x_).dtype)}}); }
  ValueId size_of(ValueId value) { return as_number(op("Size", {value})); }
  ValueId ints(const std::vector<int64_t>& values) { return g_.add_constant(g_.unique_name("loss/ints"), Tensor::vector<int64_t>(values)); }
  ValueId mean(ValueId value) { return op("ReduceMean", {value}, {{"keepdims", int64_t{0}}}); }

  /// Brings scores (or log-probabilities) and labels into the layout of NegativeLogLikelihoodLoss: classes at axis 1. If the classes are
  /// the last axis, flattens scores to [M, classes] and labels to [M] instead. Adds the labels as an input.
  void bring_classes_forward(ValueId& labels) {
    Type type = g_.type(x_);
    if (!type.has_rank() || type.rank() < 2)
      throw Error(ErrorCode::invalid_argument, fmt::format("the loss's scores \"{}\" are {}; they have axes of a batch and of classes",
                                                           g_.value(x_).name, to_string(type)));
    const int rank = type.rank();
    int64_t axis = options_.class_axis;
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("class_axis is {}; \"{}\" is {}", options_.class_axis, g_.value(x_).name, to_string(type)));
    type.dtype = options_.int32_labels ? DType::int32 : DType::int64;
    const Dim classes = (*type.shape)[static_cast<size_t>(axis)];
    type.shape->erase(type.shape->begin() + axis);
    labels = g_.add_input(std::string(kLabels), type);
    if (axis == 1) return;
    if (axis == rank - 1 && classes.is_const()) {
      x_ = op("Reshape", {x_, ints({-1, classes.value()})});
      labels = op("Reshape", {labels, ints({-1})});
      return;
    }
    std::vector<int64_t> perm{axis == 0 ? 1 : 0, axis};
    for (int64_t i = 1; i < rank; ++i)
      if (i != axis && i != perm[0]) perm.push_back(i);
    x_ = op("Transpose", {x_}, {{"perm", perm}});
  }

  /// `counted` is 1 for each label that counts and 0 for ignored labels. `sum` adds up the class weights of the labels that count.
  struct LabelShares {
    ValueId counted = kNoValue, sum = kNoValue;
  };
  LabelShares label_shares(ValueId labels, ValueId class_weights) {
    ValueId counted = as_number(op("Equal", {labels, labels})), index = labels;
    if (options_.ignore_index) {
      const ValueId ignored = g_.add_constant(g_.unique_name("loss/ignored"),
                                              options_.int32_labels ? Tensor::scalar(static_cast<int32_t>(*options_.ignore_index))
                                                                    : Tensor::scalar<int64_t>(*options_.ignore_index));
      const ValueId is_ignored = op("Equal", {labels, ignored});
      counted = as_number(op("Not", {is_ignored}));
      const ValueId zero =
          g_.add_constant(g_.unique_name("loss/zero"), options_.int32_labels ? Tensor::scalar<int32_t>(0) : Tensor::scalar<int64_t>(0));
      index = op("Where", {is_ignored, zero, labels});
    }
    const ValueId share = class_weights != kNoValue ? op("Mul", {counted, op("Gather", {class_weights, index})}) : counted;
    return {counted, op("ReduceSum", {share}, {{"keepdims", int64_t{0}}})};
  }

  ValueId classes(bool scores) {
    ValueId labels = kNoValue;
    bring_classes_forward(labels);
    constexpr int64_t axis = 1;
    if (scores) x_ = op("LogSoftmax", {x_}, {{"axis", axis}});
    Attributes attributes;
    if (options_.ignore_index) attributes.set("ignore_index", *options_.ignore_index);
    std::vector<ValueId> inputs{x_, labels};
    if (!options_.class_weights.empty())
      inputs.push_back(g_.add_constant(g_.unique_name("loss/class_weights"), Tensor::vector<float>(options_.class_weights)));
    const ValueId likelihood = op("NegativeLogLikelihoodLoss", inputs, attributes);
    const double smoothing = options_.label_smoothing;
    const bool all_count = !options_.ignore_index && inputs.size() == 2;
    LabelShares shares;
    if (smoothing != 0 || (wanted_weight_ && !all_count)) shares = label_shares(labels, inputs.size() > 2 ? inputs[2] : kNoValue);
    if (wanted_weight_) weight_ = all_count ? size_of(labels) : shares.sum;
    if (smoothing == 0) return likelihood;
    const Dim count = (*g_.type(x_).shape)[static_cast<size_t>(axis)];
    if (!count.is_const())
      throw Error(ErrorCode::not_implemented,
                  fmt::format("label smoothing over the classes of \"{}\", whose number is not known", g_.value(x_).name));
    // Label smoothing adds a term that does not depend on the label: the negated log-probabilities of all classes, averaged over the labels
    // that are not ignored.
    ValueId all = x_;
    if (inputs.size() > 2) {
      std::vector<int64_t> shape(static_cast<size_t>(g_.type(x_).rank()), 1);
      shape[static_cast<size_t>(axis)] = -1;
      all = op("Mul", {all, op("Reshape", {inputs[2], ints(shape)})});
    }
    all = op("Neg", {op("ReduceSum", {all, ints({axis})}, {{"keepdims", int64_t{0}}})});
    // If all labels are ignored, the loss is NaN, as for NegativeLogLikelihoodLoss, and its gradients are zero.
    const ValueId some = op("Greater", {shares.sum, number(0)});
    ValueId spread = op("Div", {op("ReduceSum", {op("Mul", {all, shares.counted})}, {{"keepdims", int64_t{0}}}),
                                op("Where", {some, shares.sum, number(1)})});
    spread = op("Where", {some, spread, number(std::numeric_limits<double>::quiet_NaN())});
    return op("Add", {op("Mul", {likelihood, number(1 - smoothing)}),
                      op("Mul", {spread, number(smoothing / static_cast<double>(count.value()))})});
  }

  Graph& g_;
  ValueId x_;
  const TrainerOptions& options_;
  const bool wanted_weight_;
  ValueId weight_ = kNoValue;
};

// Adds the CTC loss of scores and labels. Labels are [N, length]; scores are [N, classes, steps] or [N, steps, classes] (class_axis).
ValueId LossBuilder::ctc() {
  const Type& type = g_.type(x_);
  const int64_t axis = options_.class_axis < 0 ? options_.class_axis + 3 : options_.class_axis;
  if (!type.has_rank() || type.rank() != 3 || (axis != 1 && axis != 2))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the loss ctc is taken of scores with axes of a batch, of steps and of classes; \"{}\" is {}, class_axis is {}",
                            g_.value(x_).name, to_string(type), options_.class_axis));
  Type labels{.dtype = options_.int32_labels ? DType::int32 : DType::int64,
              .shape = SymbolicShape{(*type.shape)[0], g_.symbols().symbol("treadle.label_length")}};
  const ValueId label = g_.add_input(std::string(kLabels), labels);
  if (axis == 1) x_ = op("Transpose", {x_}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
  const ValueId logarithms = op("LogSoftmax", {x_}, {{"axis", int64_t{2}}});
  Attributes attributes{{"blank", options_.blank.value_or(0)}};
  if (options_.ignore_index) attributes.set("ignore_index", *options_.ignore_index);
  const ValueId loss = op("CtcLoss", {logarithms, label}, attributes, "treadle");
  weight_ = size_of_batch();
  return loss;
}

namespace {

using B = LossBuilder;
constexpr std::string_view kOfClasses[] = {"class_weights", "label_smoothing", "ignore_index", "class_axis", "int32_labels"},
                           kOfCtc[] = {"blank", "ignore_index", "class_axis", "int32_labels"}, kOfHuber[] = {"huber_delta"};
template <ValueId (B::*method)()>
ValueId added(B& builder) {
  return (builder.*method)();
}
constexpr LossRow kLosses[] = {
    {"softmax_cross_entropy", Loss::softmax_cross_entropy, LossLabels::classes, added<&B::softmax_cross_entropy>, kOfClasses},
    {"negative_log_likelihood", Loss::negative_log_likelihood, LossLabels::classes, added<&B::negative_log_likelihood>, kOfClasses},
    {"mean_squared_error", Loss::mean_squared_error, LossLabels::like_output, added<&B::mean_squared_error>},
    {"l1", Loss::l1, LossLabels::like_output, added<&B::l1>},
    {"huber", Loss::huber, LossLabels::like_output, added<&B::huber>, kOfHuber},
    {"binary_cross_entropy_with_logits", Loss::binary_cross_entropy_with_logits, LossLabels::like_output,
     added<&B::binary_cross_entropy_with_logits>},
    {"kl_divergence", Loss::kl_divergence, LossLabels::like_output, added<&B::kl_divergence>},
    {"ctc", Loss::ctc, LossLabels::classes, added<&B::ctc>, kOfCtc},
    {"output", Loss::output, LossLabels::none, added<&B::output>},
    {"graph", Loss::graph, LossLabels::of_model, added<&B::graph>},
};

}  // namespace

std::span<const LossRow> all_losses() { return kLosses; }

const LossRow& row_of(Loss loss) {
  for (const LossRow& row : kLosses)
    if (row.loss == loss) return row;
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no loss {}", static_cast<int>(loss)));
}

Loss loss_named(std::string_view name) {
  std::vector<std::string> names;
  for (const LossRow& row : kLosses) {
    if (row.name == name) return row.loss;
    names.emplace_back(row.name);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no loss \"{}\"; the nearest: {}; all: {}", name, nearest_names(name, names), fmt::join(names, ", ")));
}

ValueId add_loss(Graph& graph, ValueId output, const TrainerOptions& options, ValueId* weight) {
  LossBuilder builder(graph, output, options, weight != nullptr);
  const ValueId loss = builder.build();
  if (weight) *weight = builder.weight();
  return loss;
}

}  // namespace treadle::train
