// Writes training artifacts: builds and optimizes the graphs that a trainer would run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <set>

#include "core/base/checked.h"
#include "core/base/sha1.h"
#include "core/files/file.h"
#include "graph/op_def.h"
#include "onnx/export.h"
#include "onnx/import.h"
#include "onnx/serialize.h"
#include "ops/precision.h"
#include "session/model.h"
#include "train/artifacts/artifact_files.h"
#include "train/trainer/trainer_impl.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

ArtifactsDescription::NamedShapes shapes_of(const NamedTensors& tensors) {
  ArtifactsDescription::NamedShapes shapes;
  for (const auto& [name, tensor] : tensors) shapes.emplace_back(name, tensor.shape());
  return shapes;
}

// Returns an output's name in the ONNX file. An output that updates an input gets a name of its own, since names are unique in ONNX.
std::string name_in_file(const std::string& output, const Graph& graph) {
  return graph.find_value(output) == kNoValue ? output : output + "/updated";
}

// Exports a graph to ONNX. Values of kind `parameter` become graph inputs, since the checkpoint contains their elements.
onnx::ModelDef exported(Graph& graph, std::vector<std::string>& variables) {
  for (size_t i = 0; i < graph.num_values(); ++i) {
    const ValueId id{static_cast<uint32_t>(i)};
    Value& value = graph.value(id);
    if (value.kind != Value::Kind::parameter) continue;
    value.kind = Value::Kind::input;
    value.constant = Datum();
    variables.push_back(value.name);
    graph.inputs.push_back(id);
  }
  graph.metadata.clear();
  for (std::string& name : graph.output_names) name = name_in_file(name, graph);
  return onnx::export_model(graph, nullptr, {.value_info = false, .own_operators = true});
}

constexpr const char* kOwnDomain = "treadle";

// The operators and element types that a reduced build must have to run the models.
struct Required {
  std::map<std::string, std::set<std::string>> operators;  // operator types, by domain
  std::set<std::string_view> types;                        // element types, named as in ONNX Runtime's reduced builds
};

std::string_view type_name(DType dtype) {
  switch (dtype) {
    case DType::float32: return "float";
    case DType::float64: return "double";
    case DType::float16: return "MLFloat16";
    case DType::bfloat16: return "BFloat16";
    case DType::boolean: return "bool";
    case DType::string: return "string";
    case DType::int8: return "int8_t";
    case DType::int16: return "int16_t";
    case DType::int32: return "int32_t";
    case DType::int64: return "int64_t";
    case DType::uint8: return "uint8_t";
    case DType::uint16: return "uint16_t";
    case DType::uint32: return "uint32_t";
    case DType::uint64: return "uint64_t";
    default: return "";  // no kernel computes with this type
  }
}

void add_type(const Type& type, Required& all) {
  if (type.element) return add_type(*type.element, all);
  if (const std::string_view name = type_name(type.dtype); !name.empty()) all.types.insert(name);
}

// Adds the operators of all nodes, including those named in the steps of fused pointwise operators, such as "Add 0 1" or
// "com.microsoft:Gelu 0".
void add_required(const Graph& graph, Required& required) {
  auto& all = required.operators;
  for (size_t i = 0; i < graph.num_values(); ++i) add_type(graph.type(ValueId{static_cast<uint32_t>(i)}), required);
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    all[node.domain.empty() ? "ai.onnx" : node.domain].insert(node.op_type);
    // A node with reduced precision needs the type bfloat16, to which its kernels round operands.
    if (!ops::precision_of(node).empty()) required.types.insert(type_name(DType::bfloat16));
    if (node.is("FusedElementwise", kOwnDomain))
      for (const std::string& step : node.attributes.get_strings("steps")) {
        const std::string name = step.substr(0, step.find(' '));
        const size_t colon = name.find(':');
        all[colon == std::string::npos ? "ai.onnx" : name.substr(0, colon)].insert(colon == std::string::npos ? name
                                                                                                              : name.substr(colon + 1));
      }
    for (const Body& body : node.bodies) add_required(*body.graph, required);
  }
}

// Returns the list in the format of ONNX Runtime's reduced builds: lines DOMAIN;OPSET;OPERATOR,OPERATOR and one line with the element
// types.
std::string required_text(const Required& required) {
  std::string text = "# What a build needs that trains from this folder: cmake -DTREADLE_TRAINING_RUNTIME=ON -DTREADLE_OPERATORS=FILE\n";
  text += fmt::format("!globally_allowed_types;{}\n", fmt::join(required.types, ","));
  for (const auto& [domain, names] : required.operators)
    text += fmt::format("{};{};{}\n", domain, newest_opset(domain == "ai.onnx" ? "" : domain), fmt::join(names, ","));
  return text;
}

// Frozen weights that several models read. They are stored once, in a common file beside the models, as they may take gigabytes.
class SharedWeights {
 public:
  void add(const onnx::ModelDef& def) {
    std::set<std::string> here;
    onnx::each_initializer(def, [&](const onnx::TensorDef& tensor) {
      if (!may_lie_outside(tensor)) return;
      Weight& weight = weights_[digest(tensor.value)];
      weight.value = tensor.value;
      if (here.insert(digest(tensor.value)).second) ++weight.models;
    });
  }
  /// Assigns file offsets to the weights. Must be called after the last add(). @return the shared weights' digests; empty if there are none
  std::string settle() {
    std::string digests;
    size_t end = 0;
    for (auto& [content, weight] : weights_) {
      if (weight.models < 2) continue;
      const size_t size = weight.value.size_bytes();
      weight.offset = align_up(end, size >= usual_.external_alignment_threshold_bytes ? usual_.external_alignment : Storage::kAlignment);
      end = weight.offset + size;
      digests += content;
    }
    return digests;
  }
  onnx::Locate in_file(const std::string& name) {
    return [this, name](const onnx::TensorDef& tensor) -> std::optional<onnx::ExternalDataDef> {
      if (!may_lie_outside(tensor)) return std::nullopt;
      const Weight& weight = weights_.at(digest(tensor.value));
      if (weight.models < 2) return std::nullopt;
      onnx::ExternalDataDef where;
      where.location = name, where.offset = weight.offset, where.length = weight.value.size_bytes();
      return where;
    };
  }
  void write(const std::string& path) const {
    AtomicFile file(path);
    for (const auto& [content, weight] : weights_) {
      if (weight.models < 2) continue;
      file.write_zeros(weight.offset - file.size_bytes());
      file.write({weight.value.raw(), weight.value.size_bytes()});
    }
    file.commit();
  }

 private:
  struct Weight {
    Tensor value;
    int models = 0;
    size_t offset = 0;
  };
  bool may_lie_outside(const onnx::TensorDef& tensor) const {
    return tensor.value.defined() && tensor.value.dtype() != DType::string && tensor.value.size_bytes() >= usual_.external_threshold_bytes;
  }
  const std::string& digest(const Tensor& value) {
    std::string& known = digests_[{value.raw(), value.size_bytes()}];
    if (known.empty()) known = sha1({value.raw(), value.size_bytes()});
    return known;
  }

  const onnx::WriteOptions usual_;         // size limits and alignment, as for other external data
  std::map<std::string, Weight> weights_;  // by the digest of their elements
  std::map<std::pair<const std::byte*, size_t>, std::string> digests_;
};

// Prefix of the names of files with shared weights. The rest of a name identifies the artifacts that the file belongs to.
constexpr std::string_view kSharedWeights = "frozen_weights-";

void remove_other_weights(const std::string& folder, const std::string& kept) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kSharedWeights) && name != kept) std::filesystem::remove(entry.path());
  }
}

void set_property(onnx::ModelDef& def, const char* key, std::string value) {
  erase_if(def.metadata_props, [&](const auto& property) { return property.first == key; });
  def.metadata_props.emplace_back(key, std::move(value));
}

// Writes everything except the checkpoint. If writing fails, no incomplete file remains.
void write_models(const TrainerGraphs& trainer, const SessionOptions& session, const std::string& folder) {
  if (trainer.ranks)
    throw Error(ErrorCode::invalid_argument, "artifacts are of a trainer that runs alone: write them without a communicator");
  ArtifactsDescription description{.options = trainer.options, .states = shapes_of(trainer.values.states), .adapters = trainer.adapters};
  for (const std::string& name : trainer.trained) description.parameters.emplace_back(name, trainer.values.parameters.at(name).shape());

  Required required;
  std::vector<std::pair<const char*, onnx::ModelDef>> files;
  auto add = [&](const char* file, std::unique_ptr<Graph> graph) {
    description.outputs[file] = graph->output_names;
    if (!trainer.opened) optimize(*graph, session, nullptr);
    add_required(*graph, required);
    files.emplace_back(file, exported(*graph, description.variables));
  };
  add(kTrainingModel, trainer.step_graph(session, /*simplified=*/true));
  if (trainer.options.accumulation_steps > 1) add(kOptimizerModel, trainer.update_graph());
  add(kEvaluationModel, trainer.inference_graph({.loss = true, .outputs = true}));
  files.emplace_back(kInferenceModel, trainer.model.impl().def);
  if (trainer.options.loss_model) files.emplace_back(kLossModel, trainer.options.loss_model->impl().def);
  const std::unique_ptr<Graph> inference = trainer.model.impl().import();
  onnx::upgrade(*inference), add_required(*inference, required);

  SharedWeights shared;
  for (const auto& [file, def] : files) shared.add(def);
  const std::string shared_digests = shared.settle(), text = description.to_json();
  std::string digests = sha1(std::as_bytes(std::span(text))) + shared_digests;
  for (const auto& [file, def] : files) {
    const std::string bytes = onnx::serialize_model(def, shared.in_file(std::string(kSharedWeights)));
    digests += sha1(std::as_bytes(std::span(bytes)));
  }
  const std::string id = sha1(std::as_bytes(std::span(digests)));
  const std::string weights = shared_digests.empty() ? "" : fmt::format("{}{}.bin", kSharedWeights, id.substr(0, 12));
  std::filesystem::create_directories(folder);
  if (!weights.empty()) shared.write(artifact_path(folder, weights));
  for (auto& [file, def] : files) {
    set_property(def, kArtifactsKey, id);
    if (file == kTrainingModel) {
      set_property(def, kArtifactsVersionKey, TREADLE_VERSION);
      set_property(def, kArtifactsDescriptionKey, text);
    }
    onnx::WriteOptions options;
    if (!weights.empty()) options.locate = shared.in_file(weights);
    onnx::write_model_file(def, artifact_path(folder, file), options);
  }
  remove_other_weights(folder, weights);
  // Removes a loss model that earlier artifacts may have left in the folder.
  if (!trainer.options.loss_model) std::filesystem::remove(artifact_path(folder, kLossModel));
  AtomicFile list(artifact_path(folder, kRequiredOperators));
  const std::string names = required_text(required);
  list.write(std::as_bytes(std::span(names)));
  list.commit();
}

}  // namespace

void Trainer::write_artifacts(const std::string& folder) const {
  impl_->values.check_averages_unused("artifacts");
  write_models(impl_->graphs, impl_->options, folder);
  save_checkpoint(artifact_path(folder, kFirstCheckpoint));
}

}  // namespace treadle::train
