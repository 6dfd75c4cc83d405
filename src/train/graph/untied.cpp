#include "train/graph/untied.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/base/logging.h"
#include "core/base/nearest.h"
#include "core/base/pattern.h"
#include "session/model.h"
#include "train/graph/training_graph.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

using Names = std::set<std::string, std::less<>>;

bool is_weight(const onnx::TensorDef& def) { return def.dtype == DType::float32 && def.shape.rank() > 0 && def.value.defined(); }

bool is_identity(const onnx::NodeDef& node) {
  return node.op_type == "Identity" && node.domain.empty() && node.inputs.size() == 1 && node.outputs.size() == 1;
}

void add_names_read(const onnx::GraphDef& graph, Names& names);
void add_captures(const onnx::NodeDef& node, Names& names) {
  for (const onnx::AttributeDef& attribute : node.attributes) {
    if (attribute.g) add_names_read(*attribute.g, names);
    for (const onnx::GraphDef& body : attribute.graphs) add_names_read(body, names);
  }
}
void add_names_read(const onnx::GraphDef& graph, Names& names) {
  for (const onnx::NodeDef& node : graph.nodes) {
    names.insert(node.inputs.begin(), node.inputs.end());
    add_captures(node, names);
  }
  for (const onnx::ValueInfoDef& output : graph.outputs) names.insert(output.name);
}

/// Indices of the nodes that read a weight. Identity nodes count too, because exporters insert one for each copy of a merged weight.
struct Readers {
  std::vector<size_t> nodes;
  bool is_captured = false;  // a subgraph (such as a branch of If) reads the weight, too

  size_t size() const { return nodes.size() + (is_captured ? 1 : 0); }
};

std::map<std::string, Readers> readers_of(const onnx::GraphDef& graph) {
  std::map<std::string, Readers> found;
  for (const onnx::TensorDef& each : graph.initializers)
    if (is_weight(each)) found.emplace(each.name, Readers{});
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const onnx::NodeDef& node = graph.nodes[i];
    for (const std::string& name : Names(node.inputs.begin(), node.inputs.end()))
      if (auto weight = found.find(name); weight != found.end()) weight->second.nodes.push_back(i);
    Names captured;
    add_captures(node, captured);
    for (const std::string& name : captured)
      if (auto weight = found.find(name); weight != found.end()) weight->second.is_captured = true;
  }
  return found;
}

std::string label_of(const onnx::NodeDef& node) {
  if (is_identity(node) || node.name.empty()) return node.outputs.empty() ? node.op_type : node.outputs[0];
  return node.name;
}

/// Gives each reader of a shared weight, except for the first, a copy of the initializer.
class Separation {
 public:
  explicit Separation(onnx::GraphDef& graph) : graph_(graph) {
    add_names_read(graph, taken_);
    for (const onnx::NodeDef& node : graph.nodes) taken_.insert(node.outputs.begin(), node.outputs.end());
    for (const onnx::TensorDef& each : graph.initializers) taken_.insert(each.name);
  }

  void separate(const std::string& name, const Readers& readers) {
    const onnx::TensorDef& shared = *std::ranges::find(graph_.initializers, name, &onnx::TensorDef::name);
    const Tensor value = shared.value;
    // The first reader keeps the shared initializer, the others get copies. Identities come last: each becomes a copy under its output's
    // name, which is the name that the weight had before weights were tied.
    std::vector<size_t> nodes = readers.nodes;
    std::ranges::stable_partition(nodes, [&](size_t i) { return !is_identity(graph_.nodes[i]); });
    for (size_t k = readers.is_captured ? 0 : 1; k < nodes.size(); ++k) {
      onnx::NodeDef& node = graph_.nodes[nodes[k]];
      if (is_identity(node)) {
        add(node.outputs[0], value), replaced_.insert(nodes[k]);
        continue;
      }
      std::string own = fmt::format("{}/{}", name, label_of(node));
      while (taken_.contains(own)) own += "_";
      std::ranges::replace(node.inputs, name, own);
      add(own, value);
    }
  }

  /// Removes the Identity nodes whose outputs have become initializers, and adds the new initializers.
  void finish() {
    for (auto at = replaced_.rbegin(); at != replaced_.rend(); ++at)
      graph_.nodes.erase(graph_.nodes.begin() + static_cast<std::ptrdiff_t>(*at));
    std::ranges::move(made_, std::back_inserter(graph_.initializers));
  }

 private:
  void add(const std::string& name, const Tensor& value) {
    onnx::TensorDef& own = made_.emplace_back();
    own.name = name, own.dtype = value.dtype(), own.shape = value.shape(), own.value = value;
    taken_.insert(name);
  }

  onnx::GraphDef& graph_;
  Names taken_;
  std::set<size_t> replaced_;
  std::vector<onnx::TensorDef> made_;
};

bool has_equal_elements(const Tensor& value) {
  const auto elements = value.span<float>();
  return std::ranges::adjacent_find(elements, std::not_equal_to<>()) == elements.end();
}

}  // namespace

Model untied(const Model& model, const std::vector<std::string>& patterns) {
  if (patterns.empty()) return model;
  const std::map<std::string, Readers> readers = readers_of(model.impl().def.graph);
  std::set<std::string> chosen;
  std::vector<std::string> shared;
  for (const auto& [name, nodes] : readers)
    if (nodes.size() > 1) shared.push_back(name);
  for (const std::string& pattern : patterns) {
    bool is_known = false;
    for (const std::string& name : shared)
      if (matches(pattern, name)) is_known = true, chosen.insert(name);
    if (!is_known)
      throw Error(ErrorCode::not_found,
                  fmt::format("untied: \"{}\" is no float32 initializer that several nodes read; {}", pattern,
                              shared.empty() ? "the model has none" : fmt::format("the nearest: {}", nearest_names(pattern, shared))));
  }
  onnx::ModelDef def = model.impl().def;
  Separation separation(def.graph);
  for (const std::string& name : chosen) separation.separate(name, readers.at(name));
  separation.finish();
  def.ir_version = std::max<int64_t>(def.ir_version, 4);  // before IR version 4, each initializer also had to be a graph input
  return make_model(std::move(def), model.impl().path);
}

void warn_of_merged(const Model& model, const std::vector<std::string>& trained, const SessionOptions& session) {
  const onnx::GraphDef& graph = model.impl().def.graph;
  const std::map<std::string, Readers> readers = readers_of(graph);
  std::vector<std::string> merged;
  for (const onnx::TensorDef& each : graph.initializers) {
    auto found = readers.find(each.name);
    if (found == readers.end() || found->second.size() < 2 || std::ranges::find(trained, each.name) == trained.end()) continue;
    if (each.value.num_elements() > 1 && has_equal_elements(each.value))
      merged.push_back(fmt::format("\"{}\" ({} nodes)", each.name, found->second.size()));
  }
  if (merged.empty()) return;
  const size_t shown = std::min<size_t>(merged.size(), 5);
  const std::string more = merged.size() > shown ? fmt::format(" and {} more", merged.size() - shown) : "";
  const std::string text = fmt::format(
      "several nodes read, and train as one, {}{}: all elements of each are equal, and exporters write equal weights once. The "
      "option untied gives each node its own",
      fmt::join(merged.begin(), merged.begin() + static_cast<std::ptrdiff_t>(shown), ", "), more);
  if (session.on_warning) return session.on_warning(text);
  TREADLE_LOG(warning, "{}", text);
}

}  // namespace treadle::train
