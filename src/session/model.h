// What a Model holds.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiled/file.h"
#include "core/load_phases.h"
#include "graph/graph.h"
#include "onnx/model_def.h"
#include "onnx/parse.h"
#include "treadle/model.h"

namespace treadle {

class Session;
struct SessionOptions;

struct Model::Impl {
  onnx::ModelDef def;  // as read
  ModelMetadata metadata;
  std::vector<ValueInfo> inputs, outputs, overridable;
  std::string path;
  bool as_read = false;                            // `def` is all that the file at `path` says; false for one that was changed in memory
  std::shared_ptr<const compiled::File> compiled;  // instead of `def`, which is empty then
  LoadPhases load;                                 // reading it

  /// The graph as written, freshly imported. @throws Error(not_implemented) for a compiled model, which has it no more.
  std::unique_ptr<Graph> import() const;
};

/// What the model says of itself.
ModelMetadata metadata_of(const onnx::ModelDef& def);

/// @param path     of the file it comes from; may be empty.
/// @param as_read, load  as Model::Impl
Model make_model(onnx::ModelDef def, std::string path, bool as_read = false, const LoadPhases& load = {});

/// How these options want files to be read: `session.load_model_format`, mapped or not, shared or not.
onnx::ReadOptions reading_options(const SessionOptions& options);
/// As Model::load and Model::from_bytes, with all that can be said of the reading.
Model load_model(const std::string& path, const onnx::ReadOptions& read);
Model read_model(std::span<const std::byte> bytes, const std::string& model_dir, const onnx::ReadOptions& read);

/// Why a value that was given for an external initializer has not taken its place: there is none of that name, or it is not external. Empty
/// if all have.
std::string unused_value(const Model& model, const std::map<std::string, Tensor>& external_values);
/// Of the main graph, as optimized_model() has them.
std::vector<onnx::NodeDef> optimised_nodes(const Session& session);

ValueInfo to_value_info(const onnx::ValueInfoDef& def);

}  // namespace treadle
