// The implementation of Model.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiled/file.h"
#include "core/trace/load_phases.h"
#include "graph/graph.h"
#include "onnx/model_def.h"
#include "onnx/parse.h"
#include "treadle/model.h"

namespace treadle {

class Session;
struct SessionOptions;

struct Model::Impl {
  onnx::ModelDef def;  // the model as read
  ModelMetadata metadata;
  std::vector<ValueInfo> inputs, outputs, overridable;
  std::string path;
  bool as_read = false;  // true if `def` is exactly what the file at `path` contains; false if it was changed in memory
  std::shared_ptr<const compiled::File> compiled;  // set for a compiled model, whose `def` is empty
  LoadPhases load;                                 // times of the parts of reading the model

  /// Imports the graph from `def`, before any pass.
  /// @throws Error(not_implemented) for a compiled model, which does not contain the original graph.
  std::unique_ptr<Graph> import() const;
  /// Throws unless the model has the original graph. For what reads `def` itself.
  /// @throws Error(not_implemented) for a compiled model
  void need_original() const;
  /// Returns the graph as read; for a compiled model the optimised one that it holds.
  std::unique_ptr<Graph> held_graph() const;
};

/// Returns the name, version, producer and other metadata that the model declares.
ModelMetadata metadata_of(const onnx::ModelDef& def);

/// Makes a model of a definition. @param path  file that the model comes from; may be empty.
/// @param as_read, load  values of these members of Model::Impl
Model make_model(onnx::ModelDef def, std::string path, bool as_read = false, const LoadPhases& load = {});

/// Returns the session's options that concern reading files: the format (`session.load_model_format`), and whether initializers are mapped
/// and shared.
onnx::ReadOptions reading_options(const SessionOptions& options);
/// Like Model::load and Model::from_bytes, with all options of reading.
Model load_model(const std::string& path, const onnx::ReadOptions& read);
Model read_model(std::span<const std::byte> bytes, const std::string& model_dir, const onnx::ReadOptions& read);

/// Returns an error text about values in `external_values` that replaced no external initializer, because no initializer has that name or
/// it is not external. Empty if all values were used.
std::string unused_value(const Model& model, const std::map<std::string, Tensor>& external_values);
/// A node as Session::optimized_model() writes it, and the device that it runs on ("cpu", "gpu:0").
struct AssignedNode {
  std::string name, domain, op_type, device;
};
/// Lists the nodes of Session::optimized_model(). Nodes of bodies come before the nodes of the graph around them. Constants are not listed.
std::vector<AssignedNode> assigned_nodes(const Session& session);

ValueInfo to_value_info(const onnx::ValueInfoDef& def);

}  // namespace treadle
