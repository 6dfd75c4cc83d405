// A model as read from an ONNX file.
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

/// An input or output as the model declares it.
struct ValueInfo {
  std::string name;
  /// As ONNX Runtime writes it: "tensor(float)", "seq(tensor(int64))", "map(int64,tensor(float))", "optional(tensor(float))".
  std::string type;
  DType dtype = DType::undefined;  ///< of a tensor's elements
  /// An extent is an integer, a symbol's name, or empty text if it is unknown. Empty with `has_rank` false: unknown rank.
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
  bool share_weights = true;  ///< tensors that are in memory and not mapped are held once by all models of the process that have them
  /// External data that is in memory already: the location that the model names → the file's contents, used in place.
  std::map<std::string, std::shared_ptr<Storage>> external_files;
};

/// Immutable and cheap to copy; sessions made of one Model share its weights.
class TREADLE_API Model {
 public:
  /// @throws Error(not_found, io_error, invalid_model, not_implemented, resource_exhausted)
  static Model load(const std::string& path, const LoadOptions& options = {});
  /// @param model_dir  where external data is looked for; empty: external data is an error.
  static Model from_bytes(std::span<const std::byte> bytes, const std::string& model_dir = {}, const LoadOptions& options = {});

  std::vector<ValueInfo> inputs() const;
  std::vector<ValueInfo> outputs() const;
  std::vector<ValueInfo> overridable_initializers() const;
  const ModelMetadata& metadata() const;

  /// Everything that keeps this build from running the model, at once: operators that it lacks, and nodes with an attribute, a dtype or a
  /// shape that it does not take. Empty if it can run the model.
  std::vector<std::string> unsupported() const;
  /// The graph as text, as read or after the graph optimiser.
  std::string to_text(bool optimised = false) const;
  /// Writes the model: as read (a round trip), or optimised. The file is complete or absent.
  /// @param opset  of ai.onnx for an optimised graph; 0: the lowest that suffices.
  void save(const std::string& path, bool optimised = false, int opset = 0) const;

  struct Impl;
  explicit Model(std::shared_ptr<const Impl> impl);
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace treadle
