// Artifacts: a trainer's graphs as ONNX files, optimised, and a checkpoint, in one folder. Who opens them trains without the parts of the
// library that make such graphs.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "onnx/import.h"
#include "train/lora.h"
#include "train/trained_values.h"
#include "treadle/model.h"
#include "treadle/train.h"

namespace treadle::train {

struct TrainerGraphs;

/// What the files of a folder are called. All but the last are ONNX models; operators of the treadle domain are among their nodes.
inline constexpr const char* kTrainingModel = "training_model.onnx";            ///< forward, backward and, without accumulation, update
inline constexpr const char* kOptimizerModel = "optimizer_model.onnx";          ///< with accumulation: the update
inline constexpr const char* kEvaluationModel = "eval_model.onnx";              ///< loss and outputs
inline constexpr const char* kInferenceModel = "inference_model.onnx";          ///< the model that is trained, as Trainer::save() writes it
inline constexpr const char* kLossModel = "loss_model.onnx";                    ///< of a trainer whose loss is a model: what it is fed
inline constexpr const char* kFirstCheckpoint = "checkpoint.safetensors";       ///< where training begins
inline constexpr const char* kRequiredOperators = "required_operators.config";  ///< for the build of a library that trains from it

/// In the metadata of each of these models.
using onnx::kArtifactsKey;

/// What the training model says of the trainer: the part of its metadata that is read back.
struct ArtifactsDescription {
  using NamedShapes = std::vector<std::pair<std::string, Shape>>;

  TrainerOptions options;  ///< what steps depend on; of the session's, `precision`
  NamedShapes parameters;  ///< in the trainer's order
  NamedShapes states;
  std::vector<Adapter> adapters;
  std::vector<std::string> variables;                       ///< inputs of the evaluation model that kernels pack when they have changed
  std::map<std::string, std::vector<std::string>> outputs;  ///< by file: names in the trainer; those in files cannot be inputs' names

  std::string to_json() const;
  /// @param loss_model  where the loss is one.
  /// @throws Error(invalid_model) for text that to_json() does not write.
  static ArtifactsDescription from_json(const std::string& text, const std::optional<Model>& loss_model);
};

/// A folder that has been read.
class Artifacts {
 public:
  /// @param session  of the trainer to be; refused are the options that have shaped the graphs already.
  /// @throws Error(not_found) for a file that is missing; Error(invalid_model) for files of other artifacts or no artifacts;
  ///         Error(not_implemented) for those of another version of the library, whose operators may differ.
  Artifacts(const std::string& folder, const SessionOptions& session);

  const ArtifactsDescription& description() const { return description_; }
  const Model& model() const { return models_.at(kInferenceModel); }

  /// Graphs of their own for every call, which need no optimiser.
  std::unique_ptr<Graph> step() const { return graph(kTrainingModel); }
  std::unique_ptr<Graph> update() const { return graph(kOptimizerModel); }
  /// @param loss, outputs  which of them are wanted
  /// @param values         whose elements those of kind parameter have
  std::unique_ptr<Graph> evaluation(bool loss, bool outputs, const TrainedValues& values) const;

 private:
  std::unique_ptr<Graph> graph(const std::string& file, const TrainedValues* values = nullptr) const;
  void check_kept(const Graph& graph, const std::string& file) const;

  std::string folder_;
  std::map<std::string, Model> models_;  // by file
  ArtifactsDescription description_;
};

/// Writes the graphs of a trainer that runs alone, and everything besides but the checkpoint. Files are complete or absent.
void write_artifact_models(const TrainerGraphs& trainer, const SessionOptions& session, const std::string& folder);

}  // namespace treadle::train
