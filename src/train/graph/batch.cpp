#include "train/graph/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "graph/op_def.h"
#include "onnx/import.h"
#include "session/model.h"
#include "train/graph/training_graph.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

/// Returns true if the value's first extent is a number and equals `extent`; if `extent` is 0, any number counts.
bool has_first(const onnx::ValueInfoDef& value, int64_t extent) {
  const auto& shape = value.type.shape;
  return value.type.kind == onnx::TypeDef::Kind::tensor && shape && !shape->empty() && (*shape)[0].kind == onnx::DimDef::Kind::value &&
         (extent == 0 || (*shape)[0].value == extent);
}

/// Returns the first fixed batch size among the inputs; 0 if there is none.
int64_t fixed_batch(const onnx::GraphDef& graph) {
  std::set<std::string> initializers;
  for (const onnx::TensorDef& each : graph.initializers) initializers.insert(each.name);
  for (const onnx::ValueInfoDef& input : graph.inputs)
    if (!initializers.contains(input.name) && has_first(input, 0)) return (*input.type.shape)[0].value;
  return 0;
}

std::string new_symbol(const onnx::GraphDef& graph) {
  std::set<std::string> taken;
  for (const onnx::ValueInfoDef& input : graph.inputs)
    if (input.type.shape)
      for (const onnx::DimDef& dim : *input.type.shape) taken.insert(dim.param);
  std::string name = "batch";
  while (taken.contains(name)) name += "_";
  return name;
}

void declare(onnx::ValueInfoDef& value, const std::string& symbol) {
  onnx::DimDef& dim = (*value.type.shape)[0];
  dim.kind = onnx::DimDef::Kind::param, dim.param = symbol;
}

Dim first_extent(const Graph& graph, ValueId value) {
  const Type& type = graph.type(value);
  return type.is_tensor() && type.has_rank() && type.rank() > 0 ? (*type.shape)[0] : Dim(0);
}

/// Replaces the first element of a constant shape by 0, so that Reshape copies this extent of its data. @return false, without a change, if
/// the element is not `batch`
bool copy_first(onnx::GraphDef& graph, const std::string& name, int64_t batch) {
  auto changed = [&](Tensor& shape) {
    if (shape.dtype() != DType::int64 || shape.num_elements() == 0 || shape.data<int64_t>()[0] != batch) return false;
    shape = shape.clone();
    shape.data<int64_t>()[0] = 0;
    return true;
  };
  for (onnx::TensorDef& initializer : graph.initializers)
    if (initializer.name == name) return changed(initializer.value);
  for (onnx::NodeDef& node : graph.nodes)
    if (node.op_type == "Constant" && !node.outputs.empty() && node.outputs[0] == name)
      for (onnx::AttributeDef& attribute : node.attributes)
        if (attribute.name == "value" && attribute.t) return changed(attribute.t->value);
  return false;
}

/// Changes Reshape nodes whose constant target shape begins with the batch size, so that they copy the extent from their data. @return true
/// if a shape was changed, so that types must be inferred again
bool copy_batch(const Graph& graph, onnx::GraphDef& def, const Dim& symbol, int64_t batch) {
  bool any = false;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!node.is("Reshape") || node.attributes.get_int("allowzero", 0) != 0 || !(first_extent(graph, node.inputs[0]) == symbol)) continue;
    any |= copy_first(def, graph.value(node.inputs[1]).name, batch);
  }
  return any;
}

/// Describes the first node that reads a value with the variable batch size and whose outputs have only fixed extents.
std::string describe_loss(const Graph& graph, const Dim& symbol) {
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const bool reads =
        std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v != kNoValue && first_extent(graph, v) == symbol; });
    const bool fixed = std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
      return v == kNoValue || (is_float(graph.type(v).dtype) && graph.type(v).is_static() && graph.type(v).rank() > 0);
    });
    if (reads && fixed) return fmt::format("{} gives {}", describe(node), to_string(graph.type(node.outputs[0])));
  }
  return "no single node does it";
}

}  // namespace

Model with_dynamic_batch(const Model& model, const TrainerOptions& options) {
  const int64_t batch = options.dynamic_batch ? fixed_batch(model.impl().def.graph) : 0;
  if (batch == 0) return model;
  onnx::ModelDef def = model.impl().def;
  const std::string symbol = new_symbol(def.graph);
  for (onnx::ValueInfoDef& input : def.graph.inputs)
    if (has_first(input, batch)) declare(input, symbol);
  std::vector<std::string> batched;
  for (onnx::ValueInfoDef& output : def.graph.outputs)
    if (has_first(output, batch)) batched.push_back(output.name), declare(output, symbol);
  def.graph.value_info.clear();
  try {
    while (true) {
      const std::unique_ptr<Graph> graph = upgraded_graph(make_model(def, {}));
      const auto input = std::find_if(graph->inputs.begin(), graph->inputs.end(), [&](ValueId v) {
        return std::any_of(def.graph.inputs.begin(), def.graph.inputs.end(), [&](const onnx::ValueInfoDef& each) {
          return each.name == graph->value(v).name && each.type.shape && !each.type.shape->empty() && (*each.type.shape)[0].param == symbol;
        });
      });
      const Dim extent = input == graph->inputs.end() ? Dim(batch) : first_extent(*graph, *input);
      if (copy_batch(*graph, def.graph, extent, batch)) continue;
      for (size_t i = 0; i < graph->output_names.size(); ++i)
        if (std::find(batched.begin(), batched.end(), graph->output_names[i]) != batched.end() &&
            first_extent(*graph, graph->outputs[i]).is_const())
          throw Error(ErrorCode::not_implemented,
                      fmt::format("the output \"{}\" still has it: {}", graph->output_names[i], describe_loss(*graph, extent)));
      return make_model(std::move(def), {});
    }
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("dynamic_batch: the model holds to its batch of {}: {}", batch, error.what()));
  }
}

}  // namespace treadle::train
