// A model, as read from an ONNX file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "treadle/datum.h"
#include "treadle/export.h"

namespace treadle {

/// An input or output, as the model declares it.
struct ValueInfo {
  std::string name;
  /// The type in ONNX Runtime's notation: "tensor(float)", "seq(tensor(int64))", "map(int64,tensor(float))", "optional(tensor(float))".
  std::string type;
  DType dtype = DType::undefined;  ///< dtype of a tensor's elements
  /// An extent is an integer, the name of a symbol, or empty text if unknown. If the rank is unknown, `has_rank` is false and `shape`
  /// empty.
  std::vector<std::variant<int64_t, std::string>> shape;
  bool has_rank = false;
};

struct ModelMetadata {
  std::string producer_name, producer_version, graph_name, graph_description, domain, description;
  int64_t version = 0, ir_version = 0;
  std::map<std::string, int> opsets;
  std::map<std::string, std::string> custom;
};

struct LoadOptions {
  bool use_mmap = true;       ///< map files and use weights in place; false: read them into memory
  bool share_weights = true;  ///< models of the process share tensors of equal content; mapped tensors are not compared
  /// External data that is already in memory: maps a location in the model to the file's contents, which are used in place.
  std::map<std::string, std::shared_ptr<Storage>> external_files;
};

enum class GraphState : uint8_t {
  as_read,    ///< as it was read; writing it gives the same model again
  optimized,  ///< changed by the passes that are valid on every machine
};

/// An ONNX model. Immutable and cheap to copy. Sessions of one Model share its weights.
class TREADLE_API Model {
 public:
  /// Reads a model file. @throws Error(not_found, io_error, invalid_model, not_implemented, resource_exhausted)
  static Model load(const std::string& path, const LoadOptions& options = {});
  /// Reads a model. @param model_dir  folder of external data; empty: external data is an error
  static Model from_bytes(std::span<const std::byte> bytes, const std::string& model_dir = {}, const LoadOptions& options = {});

  std::vector<ValueInfo> inputs() const;
  std::vector<ValueInfo> outputs() const;
  std::vector<ValueInfo> overridable_initializers() const;
  const ModelMetadata& metadata() const;

  /// Lists all reasons why this build cannot run the model: missing operators, and nodes with an unsupported attribute, dtype or shape.
  /// Empty if it can.
  std::vector<std::string> unsupported() const;
  /// Returns the graph as text.
  std::string to_text(GraphState state = GraphState::as_read) const;
  /// Writes the model atomically.
  /// @param opset  version of ai.onnx in which an optimized graph is written; 0: the lowest that is sufficient
  void save(const std::string& path, GraphState state = GraphState::as_read, int opset = 0) const;

  struct Impl;
  explicit Model(std::shared_ptr<const Impl> impl);
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace treadle
