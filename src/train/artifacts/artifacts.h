// Training artifacts: a folder with a trainer's optimized graphs as ONNX files and a checkpoint. From them, even a reduced build of the
// library can train that lacks the code for building training graphs.
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

/// Names of the files in the folder. All are ONNX models, except for the checkpoint and the operator list. The models may use operators
/// of Treadle's own domain.

/// Forward and backward pass. Includes the optimizer's update, unless several steps accumulate gradients for one update.
inline constexpr const char* kTrainingModel = "training_model.onnx";
inline constexpr const char* kOptimizerModel = "optimizer_model.onnx";     ///< the optimizer's update, if steps accumulate gradients
inline constexpr const char* kEvaluationModel = "eval_model.onnx";         ///< computes loss and outputs
inline constexpr const char* kInferenceModel = "inference_model.onnx";     ///< the model being trained, as Trainer::save() writes it
inline constexpr const char* kLossModel = "loss_model.onnx";               ///< the loss, if it was given as a model
inline constexpr const char* kFirstCheckpoint = "checkpoint.safetensors";  ///< values at the start of training
/// Lists the operators and element types that a reduced build of the library must contain.
inline constexpr const char* kRequiredOperators = "required_operators.config";

/// Metadata key that all models of the folder have, with the same value. Files with different values were not written together.
using onnx::kArtifactsKey;

/// The trainer's settings, which are stored in the training model's metadata.
struct ArtifactsDescription {
  using NamedShapes = std::vector<std::pair<std::string, Shape>>;

  TrainerOptions options;  ///< options that affect steps; in `options.session`, only `precision` counts
  NamedShapes parameters;  ///< names and shapes, in the trainer's order
  NamedShapes states;
  std::vector<Adapter> adapters;
  /// Names of the evaluation model's inputs that are weights. Kernels repack these weights after each change.
  std::vector<std::string> variables;
  /// For each file, the names that the trainer uses for its outputs. In the file, an output that updates an input has another name.
  std::map<std::string, std::vector<std::string>> outputs;

  std::string to_json() const;
  /// @param loss_model  the loss, if it was given as a model.
  /// @throws Error(invalid_model) for text that to_json() did not write.
  static ArtifactsDescription from_json(const std::string& text, const std::optional<Model>& loss_model);
};

/// A folder of training artifacts, opened for training.
class Artifacts {
 public:
  /// @param session  options of the new trainer. Options that affect how graphs are built are refused, because these graphs exist already.
  /// @throws Error(not_found) for a missing file; Error(invalid_model) if the files are no artifacts, or if they were not written together;
  /// Error(not_implemented) if another version of the library wrote the files, because its operators may differ.
  Artifacts(const std::string& folder, const SessionOptions& session);

  const ArtifactsDescription& description() const { return description_; }
  const Model& model() const { return models_.at(kInferenceModel); }

  /// Each call of these functions returns a new graph, which is optimized already.
  std::unique_ptr<Graph> step() const { return graph(kTrainingModel); }
  std::unique_ptr<Graph> update() const { return graph(kOptimizerModel); }
  /// @param loss, outputs  whether the graph computes the loss, and whether it computes the model's outputs
  /// @param values         supplies the elements of the graph's parameters
  std::unique_ptr<Graph> evaluation(bool loss, bool outputs, const TrainedValues& values) const;

 private:
  std::unique_ptr<Graph> graph(const std::string& file, const TrainedValues* values = nullptr) const;
  void check_kept(const Graph& graph, const std::string& file) const;

  std::string folder_;
  std::map<std::string, Model> models_;  // by file name
  ArtifactsDescription description_;
};

}  // namespace treadle::train
