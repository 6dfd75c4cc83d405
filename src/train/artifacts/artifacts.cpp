// Reads training artifacts from a folder. Types are inferred again rather than trusted, as for any ONNX file.
#include "train/artifacts/artifacts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "onnx/import.h"
#include "passes/pipeline.h"
#include "session/model.h"
#include "session/options.h"
#include "session/refusals.h"
#include "train/artifacts/artifact_files.h"
#include "train/graph/joined_parameters.h"
#include "train/graph/optimizers.h"
#include "train/graph/training_graph.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

[[noreturn]] void throw_bad(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::invalid_model, fmt::format("{}: {}", path, what));
}

// Returns the metadata value of `key`. Throws if the model has no such key, because it is then no training artifact.
std::string text_in(const Model& model, const std::string& path, const char* key) {
  const auto& custom = model.metadata().custom;
  const auto found = custom.find(key);
  if (found == custom.end()) throw_bad(path, fmt::format("a model, but no training artifact of Treadle: its metadata lack \"{}\"", key));
  return found->second;
}

// Turns a graph input into a value of kind `parameter` (a weight that training changes), which refers to the trainer's tensor.
void make_parameter(Graph& graph, const std::string& name, const TrainedValues& values) {
  const ValueId id = graph.find_value(name);
  if (id == kNoValue || std::find(graph.inputs.begin(), graph.inputs.end(), id) == graph.inputs.end()) return;  // unused
  const NamedTensors& named = values.states.contains(name) ? values.states : values.parameters;
  const auto found = named.find(name);
  if (found == named.end()) throw Error(ErrorCode::invalid_model, fmt::format("\"{}\" is no parameter of the trainer", name));
  Value& value = graph.value(id);
  value.kind = Value::Kind::parameter;
  value.constant = found->second;
  value.type = Type::of(value.constant);
  std::erase(graph.inputs, id);
}

}  // namespace

Artifacts::Artifacts(const std::string& folder, const SessionOptions& session) : folder_(folder) {
  refuse_set("training from artifacts", complete(session));
  if (!std::filesystem::is_directory(folder)) throw Error(ErrorCode::not_found, fmt::format("{}: there is no such folder", folder));
  auto load = [&](const char* file) { models_.emplace(file, Model::load(artifact_path(folder, file))); };
  load(kTrainingModel);
  const std::string path = artifact_path(folder, kTrainingModel), id = text_in(models_.at(kTrainingModel), path, kArtifactsKey);
  if (const std::string version = text_in(models_.at(kTrainingModel), path, kArtifactsVersionKey); version != TREADLE_VERSION)
    throw Error(ErrorCode::not_implemented,
                fmt::format("{}: artifacts of Treadle {}; this is {}, whose operators may differ: write them again", path, version,
                            TREADLE_VERSION));
  auto without_key = [&](const char* file) {  // removes the key, so that saved models do not claim to be artifacts
    onnx::ModelDef def = models_.at(file).impl().def;
    erase_if(def.metadata_props, [](const auto& property) { return property.first == kArtifactsKey; });
    return make_model(std::move(def), artifact_path(folder, file));
  };
  std::optional<Model> loss;
  if (std::filesystem::exists(artifact_path(folder, kLossModel))) load(kLossModel), loss = without_key(kLossModel);
  try {
    description_ = ArtifactsDescription::from_json(text_in(models_.at(kTrainingModel), path, kArtifactsDescriptionKey), loss);
  } catch (const Error& error) {
    throw_bad(path, fmt::format("its description of the trainer: {}", error.what()));
  }
  load(kEvaluationModel), load(kInferenceModel);
  if (description_.options.accumulation_steps > 1) load(kOptimizerModel);
  for (const auto& [file, model] : models_)
    if (text_in(model, artifact_path(folder, file), kArtifactsKey) != id)
      throw_bad(artifact_path(folder, file), fmt::format("of other artifacts than {}", path));
  models_.insert_or_assign(kInferenceModel, without_key(kInferenceModel));
  const std::string precision = description_.options.session.precision;
  description_.options.session = session;
  description_.options.session.precision = precision;
}

void Artifacts::check_kept(const Graph& graph, const std::string& file) const {
  std::map<std::string, Shape> kept;
  auto keep = [&](const std::string& name, const Shape& shape) { kept.emplace(name, shape); };
  int64_t total = 0;
  for (const auto* named : {&description_.parameters, &description_.states})
    for (const auto& [name, shape] : *named) {
      keep(name, shape), keep(state_name(name, kGradient), shape);
      for (const std::string& what : state_names(description_.options)) keep(state_name(name, what), shape);
    }
  for (const auto& [name, shape] : description_.parameters) total += shape.num_elements();
  const std::string all(kAllParameters);
  keep(all, Shape{total});
  for (const std::string& what : state_names(description_.options)) keep(state_name(all, what), Shape{total});
  auto check = [&](ValueId id, const std::string& name) {
    const auto found = kept.find(name);
    if (found == kept.end()) return;
    const Type& type = graph.type(id);
    if (!type.is_tensor() || type.dtype != DType::float32 || !type.is_static() || type.static_shape() != found->second)
      throw_bad(artifact_path(folder_, file),
                fmt::format("\"{}\" is {}, the description of the trainer says f32{}", name, to_string(type), to_string(found->second)));
  };
  for (ValueId input : graph.inputs) check(input, graph.value(input).name);
  for (size_t i = 0; i < graph.outputs.size(); ++i) check(graph.outputs[i], graph.output_names[i]);
}

std::unique_ptr<Graph> Artifacts::graph(const std::string& file, const TrainedValues* values) const {
  try {
    std::unique_ptr<Graph> made = models_.at(file).impl().import();
    if (const auto missing = onnx::list_unsupported(*made); !missing.empty())
      throw Error(ErrorCode::not_implemented, fmt::format("this build lacks {}", fmt::join(missing, "; ")));
    if (values)
      for (const std::string& name : description_.variables) make_parameter(*made, name, *values);
    onnx::upgrade(*made);
    passes::canonicalize(*made);
    const auto names = description_.outputs.find(file);
    if (names == description_.outputs.end() || names->second.size() != made->outputs.size())
      throw Error(ErrorCode::invalid_model, "its outputs are not those of its description");
    made->output_names = names->second;
    made->declared_outputs.clear();
    check_kept(*made, file);
    return made;
  } catch (const Error& error) {
    const bool is_fault = error.code() == ErrorCode::invalid_argument;  // the file is the only argument, so the file is at fault
    throw Error(is_fault ? ErrorCode::invalid_model : error.code(), fmt::format("{}: {}", artifact_path(folder_, file), error.what()));
  }
}

std::unique_ptr<Graph> Artifacts::evaluation(bool loss, bool outputs, const TrainedValues& values) const {
  std::unique_ptr<Graph> made = graph(kEvaluationModel, &values);
  Outputs wanted;
  for (size_t i = 0; i < made->outputs.size(); ++i)
    if (i == 0 ? loss : outputs) wanted.emplace_back(made->output_names[i], made->outputs[i]);
  set_outputs(*made, wanted);
  return made;
}

}  // namespace treadle::train
