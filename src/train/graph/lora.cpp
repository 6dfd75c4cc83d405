#include "train/graph/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "core/base/nearest.h"
#include "core/base/pattern.h"
#include "graph/infer.h"
#include "train/graph/random.h"
#include "train/graph/training_graph.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

/// A node (MatMul, Gemm or Conv) that multiplies its first input by a weight.
struct WeightUse {
  NodeId node = kNoNode;
  bool transposed = false;  // see Adapter::transposed
};
/// Weights that can get an adapter, by name. Only WeightUse nodes read them, so merging an adapter into a weight affects nothing else.
using Candidates = std::map<std::string, std::vector<WeightUse>>;

/// Returns the node if it multiplies by the weight, which has this type; nullopt if it uses the weight in another way.
std::optional<WeightUse> use_of(const Graph& graph, const Use& use, const Type& type, bool transposed) {
  const Node& node = graph.node(use.node);
  if (use.input != 1) return std::nullopt;
  if (is_product(node) && type.rank() == 2) return WeightUse{use.node, transposed != (node.attributes.get_int("transB") == 0)};
  if (node.is("Conv") && !transposed && node.attributes.get_int("group", 1) == 1) return WeightUse{use.node, false};
  return std::nullopt;
}

/// Returns all nodes that multiply by a weight or by its Transpose. Returns none if any node uses the weight differently.
std::vector<WeightUse> uses_of(const Graph& graph, ValueId weight, const Type& type, bool transposed) {
  std::vector<WeightUse> found;
  if (graph.is_output(weight)) return {};
  for (const Use& use : graph.value(weight).uses) {
    const Node& node = graph.node(use.node);
    if (node.is("Transpose") && type.rank() == 2 && !transposed && node.attributes.get_ints("perm") != std::vector<int64_t>{0, 1}) {
      const std::vector<WeightUse> behind = uses_of(graph, node.outputs[0], type, true);
      if (behind.empty()) return {};
      found.insert(found.end(), behind.begin(), behind.end());
      continue;
    }
    const std::optional<WeightUse> one = use_of(graph, use, type, transposed);
    if (!one || (!found.empty() && found[0].transposed != one->transposed)) return {};
    found.push_back(*one);
  }
  return found;
}

Candidates find_candidates(const Graph& graph, std::span<const std::string> initializers) {
  Candidates candidates;
  for (const std::string& name : initializers) {
    const ValueId id = graph.find_value(name);
    if (id == kNoValue) continue;
    const Type& type = graph.type(id);
    if (!type.is_tensor() || !type.is_static() || type.dtype != DType::float32 || type.rank() < 2) continue;
    if (type.static_shape().num_elements() == 0) continue;
    if (std::vector<WeightUse> uses = uses_of(graph, id, type, false); !uses.empty()) candidates.emplace(name, std::move(uses));
  }
  return candidates;
}

Candidates choose(const Graph& graph, const Candidates& all, const LoraOptions& options) {
  Candidates chosen;
  auto is_convolution = [&](const std::vector<WeightUse>& uses) { return !is_product(graph.node(uses[0].node)); };
  if (options.targets.empty()) {
    for (const auto& [name, uses] : all)
      if (!is_convolution(uses)) chosen.emplace(name, uses);
    if (chosen.empty())
      throw Error(
          ErrorCode::invalid_argument,
          "lora: no MatMul or Gemm multiplies by a float32 weight that adapters can be added to; name convolutions in lora_targets");
    return chosen;
  }
  for (const std::string& pattern : options.targets) {
    bool any = false;
    for (const auto& [name, uses] : all)
      if (matches(pattern, name) ||
          std::any_of(uses.begin(), uses.end(), [&](const WeightUse& use) { return matches(pattern, graph.node(use.node).name); }))
        chosen.emplace(name, uses), any = true;
    if (any) continue;
    std::vector<std::string> names;
    for (const auto& [name, uses] : all) names.push_back(name);
    throw Error(
        ErrorCode::not_found,
        fmt::format("lora_targets: \"{}\" matches no float32 weight that only MatMul, Gemm and Conv (one group) read, and no node that "
                    "reads one; the nearest: {}",
                    pattern, nearest_names(pattern, names)));
  }
  return chosen;
}

/// Inserts the nodes of one adapter directly after a node, to whose output they add the adapter's product.
class AdapterWriter {
 public:
  AdapterWriter(Graph& graph, NodeId node) : graph_(graph), node_(node), before_(graph.next(node)), base_(graph.node(node).outputs[0]) {}

  void write(const Adapter& adapter, const LoraOptions& options) {
    const Node& node = graph_.node(node_);
    const float scale = static_cast<float>(factor_of(options)) * (node.is("Gemm") ? node.attributes.get_float("alpha", 1) : 1.0F);
    ValueId x = node.inputs[0];
    if (node.attributes.get_int("transA") != 0) x = transposed(x);
    if (options.dropout > 0) x = op("Dropout", {x, constant(static_cast<float>(options.dropout))});
    const ValueId a = graph_.find_value(adapter.a), b = graph_.find_value(adapter.b);
    const bool is_convolution = node.is("Conv");
    ValueId narrow = is_convolution ? op("Conv", {x, a}, node.attributes) : op("MatMul", {x, transposed(a)});
    if (scale != 1) narrow = op("Mul", {narrow, constant(scale)});
    const ValueId change = is_convolution ? op("Conv", {narrow, b}) : op("MatMul", {narrow, transposed(b)});
    const ValueId sum = op("Add", {base_, change});
    graph_.replace_uses(base_, sum);
    graph_.set_input(graph_.value(sum).producer, 0, base_);
    // The sum takes over the name of the node's output, so that a loss which refers to this name reads the adapted value.
    const std::string name = graph_.value(base_).name;
    graph_.rename_value(base_, graph_.unique_name(name + "/base"));
    graph_.rename_value(sum, name);
  }

 private:
  ValueId op(const char* type, std::vector<ValueId> inputs, Attributes attributes = {}) {
    const NodeId id = graph_.add_node({.op_type = type,
                                       .inputs = std::move(inputs),
                                       .attributes = std::move(attributes),
                                       .name = graph_.unique_name(graph_.node(node_).name + "/lora")},
                                      before_);
    infer_node(graph_, id);
    return graph_.node(id).outputs[0];
  }
  ValueId transposed(ValueId matrix) { return op("Transpose", {matrix}, {{"perm", std::vector<int64_t>{1, 0}}}); }
  ValueId constant(float number) { return graph_.add_constant(graph_.unique_name("lora/constant"), Tensor::scalar(number)); }

  Graph& graph_;
  NodeId node_, before_;
  ValueId base_;
};

/// Returns the name that PEFT gives to an adapter: for "encoder.query.weight", it is "encoder.query.lora_A.weight".
std::string adapter_name(const std::string& weight, std::string_view part) {
  constexpr std::string_view kWeight = ".weight";
  const std::string_view stem = weight.ends_with(kWeight) ? std::string_view(weight).substr(0, weight.size() - kWeight.size()) : weight;
  return fmt::format("{}.lora_{}.weight", stem, part);
}

Adapter make_adapter(const std::string& weight, const Shape& shape, bool transposed, int64_t rank) {
  std::vector<int64_t> a(shape.dims().begin(), shape.dims().end());
  if (transposed) std::swap(a[0], a[1]);
  std::vector<int64_t> b(a.size(), 1);
  b[0] = a[0], b[1] = rank;
  a[0] = rank;
  return {weight, adapter_name(weight, "A"), adapter_name(weight, "B"), Shape(a), Shape(b), transposed};
}

void add_adapter_input(Graph& graph, const std::string& name, const Shape& shape) {
  if (graph.find_value(name) != kNoValue)
    throw Error(ErrorCode::invalid_argument, fmt::format("lora: the model has a value \"{}\" already, which is an adapter's name", name));
  graph.add_input(name, Type::tensor(DType::float32, SymbolicShape(shape.dims().begin(), shape.dims().end())));
}

// Adds factor * B A to w. If adapter.transposed, w is stored as [inputs, outputs], and the product is added in this layout.
void add_product(const Adapter& adapter, float factor, const float* a, const float* b, float* w) {
  const int64_t outputs = adapter.b_shape[0], rank = adapter.b_shape[1], inputs = adapter.a_shape.num_elements() / rank;
  // The inner loop runs along contiguous elements of W: over inputs, or over outputs if W is transposed.
  std::vector<float> columns;
  if (adapter.transposed) {
    columns.resize(static_cast<size_t>(outputs * rank));
    for (int64_t n = 0; n < outputs; ++n)
      for (int64_t r = 0; r < rank; ++r) columns[static_cast<size_t>(r * outputs + n)] = b[n * rank + r];
  }
  const int64_t rows = adapter.transposed ? inputs : outputs, length = adapter.transposed ? outputs : inputs;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t r = 0; r < rank; ++r) {
      const float left = factor * (adapter.transposed ? a[r * inputs + i] : b[i * rank + r]);
      const float* right = adapter.transposed ? columns.data() + r * outputs : a + r * inputs;
      for (int64_t k = 0; k < length; ++k) w[i * length + k] += left * right[k];
    }
}

}  // namespace

bool is_product(const Node& node) { return node.is("MatMul") || node.is("Gemm"); }

double factor_of(const LoraOptions& options) {
  const auto rank = static_cast<double>(options.rank);
  return options.alpha.value_or(rank) / rank;
}

std::set<std::string> transposed_weights(const Graph& graph, std::span<const std::string> initializers) {
  std::set<std::string> transposed;
  for (const auto& [name, uses] : find_candidates(graph, initializers))
    if (uses[0].transposed) transposed.insert(name);
  return transposed;
}

std::vector<Adapter> add_adapters(Graph& graph, std::span<const std::string> initializers, const LoraOptions& options) {
  std::vector<Adapter> adapters;
  for (const auto& [weight, uses] : choose(graph, find_candidates(graph, initializers), options)) {
    const Shape shape = graph.type(graph.find_value(weight)).static_shape();
    const Adapter& adapter = adapters.emplace_back(make_adapter(weight, shape, uses[0].transposed, options.rank));
    add_adapter_input(graph, adapter.a, adapter.a_shape);
    add_adapter_input(graph, adapter.b, adapter.b_shape);
    for (const WeightUse& use : uses) AdapterWriter(graph, use.node).write(adapter, options);
  }
  return adapters;
}

NamedTensors initial_adapters(std::span<const Adapter> adapters, uint64_t seed) {
  NamedTensors made;
  RandomNumbers random(seed);
  for (const Adapter& adapter : adapters) {
    Tensor a(DType::float32, adapter.a_shape), b(DType::float32, adapter.b_shape);
    const float bound = 1 / std::sqrt(static_cast<float>(adapter.a_shape.num_elements() / adapter.a_shape[0]));
    for (float& element : a.span<float>()) element = static_cast<float>(random.uniform()) * bound;
    std::ranges::fill(b.span<float>(), 0.0F);
    made.emplace(adapter.a, std::move(a));
    made.emplace(adapter.b, std::move(b));
  }
  return made;
}

NamedTensors merge_adapters(const Model& model, std::span<const Adapter> adapters, double factor, const NamedTensors& parameters) {
  NamedTensors merged = parameters;
  for (const Adapter& adapter : adapters) {
    const auto trained = parameters.find(adapter.weight);
    Tensor weight = trained != parameters.end() ? trained->second.clone() : copy_initializers(model, {adapter.weight}).begin()->second;
    add_product(adapter, static_cast<float>(factor), parameters.at(adapter.a).data<float>(), parameters.at(adapter.b).data<float>(),
                weight.data<float>());
    merged.erase(adapter.a), merged.erase(adapter.b);
    merged.insert_or_assign(adapter.weight, std::move(weight));
  }
  return merged;
}

}  // namespace treadle::train
