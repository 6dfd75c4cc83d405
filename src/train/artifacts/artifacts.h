// Training artifacts: a folder with a trainer's optimised graphs as ONNX files and a checkpoint. A library that opens them can train
// without the code that builds training graphs.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "onnx/import.h"
#include "train/graph/lora.h"
#include "train/run/trained_values.h"
#include "treadle/model.h"
#include "treadle/train.h"

namespace treadle::train {

/// Names of the files in the folder. Except for the checkpoint and the last file, they are ONNX models, which may use operators of the
/// treadle domain.

/// Forward and backward pass. Also the update, unless gradients are accumulated.
inline constexpr const char* kTrainingModel = "training_model.onnx";
inline constexpr const char* kOptimizerModel = "optimizer_model.onnx";     ///< the update, if gradients are accumulated
inline constexpr const char* kEvaluationModel = "eval_model.onnx";         ///< computes loss and outputs
inline constexpr const char* kInferenceModel = "inference_model.onnx";     ///< the model being trained, as Trainer::save() writes it
inline constexpr const char* kLossModel = "loss_model.onnx";               ///< the loss, if it was given as a model
inline constexpr const char* kFirstCheckpoint = "checkpoint.safetensors";  ///< values at the start of training
/// Lists operators and types for a reduced build of the library.
inline constexpr const char* kRequiredOperators = "required_operators.config";

/// Metadata key of each of these models. Its value identifies the artifacts that the model belongs to.
using onnx::kArtifactsKey;

/// The trainer's settings, which are stored in the training model's metadata and read from there.
struct ArtifactsDescription {
  using NamedShapes = std::vector<std::pair<std::string, Shape>>;

  TrainerOptions options;  ///< options that affect steps; of the session's options, only `precision`
  NamedShapes parameters;  ///< in the order of the trainer
  NamedShapes states;
  std::vector<Adapter> adapters;
  /// Inputs of the evaluation model that are parameters: kernels pack them again when they have changed.
  std::vector<std::string> variables;
  /// For each file, the trainer's names of its outputs. The names in the file differ, because an output cannot have an input's name.
  std::map<std::string, std::vector<std::string>> outputs;

  std::string to_json() const;
  /// @param loss_model  the loss, if it was given as a model.
  /// @throws Error(invalid_model) for text that to_json() did not write.
  static ArtifactsDescription from_json(const std::string& text, const std::optional<Model>& loss_model);
};

/// A folder of artifacts, opened for training.
class Artifacts {
 public:
  /// @param session  options of the new trainer; those that affect how graphs are built are refused.
  /// @throws Error(not_found) for a missing file; Error(invalid_model) if the files are no artifacts, or if they were not written together;
  /// Error(not_implemented) if another version of the library wrote them, as its operators may differ.
  Artifacts(const std::string& folder, const SessionOptions& session);

  const ArtifactsDescription& description() const { return description_; }
  const Model& model() const { return models_.at(kInferenceModel); }

  /// These functions return a new graph at each call. It is optimised already.
  std::unique_ptr<Graph> step() const { return graph(kTrainingModel); }
  std::unique_ptr<Graph> update() const { return graph(kOptimizerModel); }
  /// @param loss, outputs  which of the two the graph computes
  /// @param values         supplies the elements of the graph's parameters
  std::unique_ptr<Graph> evaluation(bool loss, bool outputs, const TrainedValues& values) const;

 private:
  std::unique_ptr<Graph> graph(const std::string& file, const TrainedValues* values = nullptr) const;
  void check_kept(const Graph& graph, const std::string& file) const;

  std::string folder_;
  std::map<std::string, Model> models_;  // the models, by file name
  ArtifactsDescription description_;
};

}  // namespace treadle::train
