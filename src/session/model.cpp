#include "session/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <unordered_set>

#include "graph/infer.h"
#include "graph/type_text.h"
#include "onnx/export.h"
#include "onnx/import.h"
#include "onnx/parse.h"
#include "onnx/serialize.h"
#include "passes/pipeline.h"
#include "session/compile_cache.h"
#include "session/devices.h"
#include "session/support.h"
#include "treadle/error.h"

namespace treadle {
namespace {

std::string type_text(const onnx::TypeDef& def) {
  using Kind = onnx::TypeDef::Kind;
  switch (def.kind) {
    case Kind::tensor: return fmt::format("tensor({})", onnx_type_name(def.elem_type));
    case Kind::sparse_tensor: return fmt::format("sparse_tensor({})", onnx_type_name(def.elem_type));
    case Kind::sequence: return fmt::format("seq({})", def.elem ? type_text(*def.elem) : "");
    case Kind::optional: return fmt::format("optional({})", def.elem ? type_text(*def.elem) : "");
    case Kind::map: return fmt::format("map({},{})", onnx_type_name(def.key_type), def.elem ? type_text(*def.elem) : "");
    default: return "";
  }
}

// Makes a model of the definition that read() returns, and records how long read() took.
template <typename Read>
Model timed_model(std::string path, bool as_read, const Read& read) {
  LoadPhases phases;
  onnx::ModelDef def;
  {
    const LoadPhases::Scope scope(phases);
    const LoadPhases::Phase phase("read");
    def = read();
  }
  return make_model(std::move(def), std::move(path), as_read, phases);
}

}  // namespace

ModelMetadata metadata_of(const onnx::ModelDef& def) {
  ModelMetadata metadata;
  metadata.producer_name = def.producer_name;
  metadata.producer_version = def.producer_version;
  metadata.graph_name = def.graph.name;
  metadata.graph_description = def.graph.doc_string;
  metadata.domain = def.domain;
  metadata.description = def.doc_string;
  metadata.version = def.model_version;
  metadata.ir_version = def.ir_version;
  for (const auto& opset : def.opset_imports) metadata.opsets[opset.domain] = static_cast<int>(opset.version);
  for (const auto& [key, value] : def.metadata_props) metadata.custom[key] = value;
  return metadata;
}

Model make_model(onnx::ModelDef def, std::string path, bool as_read, const LoadPhases& load) {
  auto impl = std::make_shared<Model::Impl>();
  impl->metadata = metadata_of(def);
  std::unordered_set<std::string> initialized;
  for (const auto& tensor : def.graph.initializers) initialized.insert(tensor.name);
  for (const auto& tensor : def.graph.sparse_initializers) initialized.insert(tensor.values.name);
  for (const auto& input : def.graph.inputs) {
    if (!initialized.contains(input.name))
      impl->inputs.push_back(to_value_info(input));
    else if (def.ir_version >= 4)
      impl->overridable.push_back(to_value_info(input));
  }
  for (const auto& output : def.graph.outputs) impl->outputs.push_back(to_value_info(output));
  impl->path = std::move(path);
  impl->as_read = as_read;
  impl->load.add(load);
  impl->def = std::move(def);
  return Model(std::move(impl));
}

ValueInfo to_value_info(const onnx::ValueInfoDef& def) {
  ValueInfo info;
  info.name = def.name;
  info.type = type_text(def.type);
  info.dtype = def.type.elem_type;
  info.has_rank = def.type.shape.has_value();
  if (!info.has_rank) return info;
  for (const onnx::DimDef& dim : *def.type.shape) {
    if (dim.kind == onnx::DimDef::Kind::value && dim.value >= 0)
      info.shape.emplace_back(dim.value);
    else
      info.shape.emplace_back(dim.param);
  }
  return info;
}

void Model::Impl::need_original() const {
  if (compiled)
    throw Error(ErrorCode::not_implemented,
                fmt::format("\"{}\" is a compiled model: its graph is optimised for its inputs and outputs; what asks for the graph as "
                            "written (other fed or fetched values, monitors, devices, training, quantisation, files) needs the ONNX model",
                            path));
}

std::unique_ptr<Graph> Model::Impl::import() const {
  need_original();
  return onnx::import_graph(def);
}

std::unique_ptr<Graph> Model::Impl::held_graph() const { return compiled ? compiled->read().graph : import(); }

Model::Model(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

namespace {

onnx::ReadOptions read_options(const LoadOptions& options) {
  onnx::ReadOptions read;
  read.use_mmap = options.use_mmap;
  read.share = options.share_weights;
  read.external_files = options.external_files;
  return read;
}

}  // namespace

onnx::ReadOptions reading_options(const SessionOptions& options) {
  onnx::ReadOptions read;
  read.use_mmap = options.use_mmap;
  read.share = options.share_weights;
  if (const auto format = options.config.find("session.load_model_format"); format != options.config.end() && !format->second.empty())
    read.format = format->second == "ORT" ? onnx::ReadOptions::Format::ort : onnx::ReadOptions::Format::onnx;
  return read;
}

Model load_model(const std::string& path, const onnx::ReadOptions& read) {
  if (compiled::is_compiled(path)) return Model(open_compiled(path));
  return timed_model(path, /*as_read=*/read.external_values.empty(), [&] { return onnx::parse_model_file(path, read); });
}

Model read_model(std::span<const std::byte> bytes, const std::string& model_dir, const onnx::ReadOptions& read) {
  return timed_model({}, /*as_read=*/false, [&] { return onnx::parse_model_bytes(bytes, nullptr, model_dir, read); });
}

Model Model::load(const std::string& path, const LoadOptions& options) { return load_model(path, read_options(options)); }

Model Model::from_bytes(std::span<const std::byte> bytes, const std::string& model_dir, const LoadOptions& options) {
  return read_model(bytes, model_dir, read_options(options));
}

std::string unused_value(const Model& model, const std::map<std::string, Tensor>& external_values) {
  if (model.impl().compiled) return "";
  const auto& all = model.impl().def.graph.initializers;
  for (const auto& [name, value] : external_values) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const onnx::TensorDef& tensor) { return tensor.name == name; });
    if (found == all.end()) return "Failed to find existing initializer with name " + name + ".";
    if (found->value.raw() != value.raw()) return "Trying to replace non-external initializer with external data: " + name;
  }
  return "";
}

namespace {

// Appends nodes in onnxruntime's order: those of all bodies first. @param devices  device of each node, by the node's first output
void assign(const onnx::GraphDef& graph, const std::map<std::string, std::string>& devices, std::vector<AssignedNode>& nodes) {
  for (const onnx::NodeDef& node : graph.nodes) {
    std::map<std::string_view, const onnx::GraphDef*> bodies;  // sorted, so that "else_branch" comes first
    for (const onnx::AttributeDef& attribute : node.attributes)
      if (attribute.g) bodies.emplace(attribute.name, attribute.g.get());
    for (const auto& [name, body] : bodies) assign(*body, devices, nodes);
  }
  for (const onnx::NodeDef& node : graph.nodes) {
    if (node.op_type == "Constant" && node.domain.empty()) continue;
    // Exporters insert such an Identity if an output is a constant. In onnxruntime the output is the constant itself.
    const auto is_input = [&](const onnx::TensorDef& constant) { return constant.name == node.inputs[0]; };
    if (node.op_type == "Identity" && node.name.empty() && !node.inputs.empty() &&
        std::any_of(graph.initializers.begin(), graph.initializers.end(), is_input))
      continue;
    const auto found = node.outputs.empty() ? devices.end() : devices.find(field_of(node.outputs[0]));
    nodes.push_back({node.name, node.domain, node.op_type, found != devices.end() ? found->second : "cpu"});
  }
}

}  // namespace

std::vector<AssignedNode> assigned_nodes(const Session& session) {
  std::map<std::string, std::string> devices;  // device of each node, by its first output
  std::istringstream lines(session.to_text("devices"));
  for (std::string line; std::getline(lines, line);) {
    std::array<std::string, 4> fields;  // the fields device, operator, node and output of a line
    std::istringstream parts(line);
    for (std::string& field : fields) std::getline(parts, field, '\t');
    devices[fields[3]] = fields[0];
  }
  const std::string bytes = session.optimized_model();
  std::vector<AssignedNode> nodes;
  assign(onnx::parse_model_bytes(std::as_bytes(std::span(bytes)), nullptr, {}).graph, devices, nodes);
  return nodes;
}

std::vector<ValueInfo> Model::inputs() const { return impl_->inputs; }
std::vector<ValueInfo> Model::outputs() const { return impl_->outputs; }
std::vector<ValueInfo> Model::overridable_initializers() const { return impl_->overridable; }
const ModelMetadata& Model::metadata() const { return impl_->metadata; }
std::vector<std::string> Model::unsupported() const { return find_unsupported(*impl_); }

std::string Model::to_text(GraphState state) const {
  std::unique_ptr<Graph> graph = impl_->import();
  if (state == GraphState::optimized) {
    onnx::upgrade(*graph);
    passes::optimize(*graph);
  }
  return print(*graph);
}

void Model::save(const std::string& path, GraphState state, int opset) const {
  if (state == GraphState::as_read && !impl_->compiled) return onnx::write_model_file(impl_->def, path);
  std::unique_ptr<Graph> graph = impl_->import();
  onnx::upgrade(*graph);
  passes::optimize(*graph, {.keep_quantization = true, .for_file = true});
  onnx::write_model_file(onnx::export_model(*graph, &impl_->def, {.opset = opset}), path);
}

}  // namespace treadle
