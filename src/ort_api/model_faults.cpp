// Reports errors in a model, or in session options, by the statuses that ONNX Runtime has for them.
#include <algorithm>
#include <filesystem>

#include "core/base/fault.h"
#include "graph/op_def.h"
#include "onnx/parse.h"
#include "ort_api/api.h"
#include "session/model.h"

namespace treadle::ort {
namespace {

// Reports a model with an unsupported operator. The status is INVALID_GRAPH for an operator in ONNX's domain, or in a domain that the model
// does not import; otherwise FAIL.
[[noreturn]] void refuse_operators(const Error& error, const Model& model) {
  const onnx::ModelDef& def = model.impl().def;
  for (const onnx::OpsetImport& opset : def.opset_imports)
    if (opset.domain.empty() || opset.domain == "ai.onnx") {
      if (opset.version > newest_opset("")) throw StatusError(ORT_FAIL, error.what());
      if (opset.version < 1) throw StatusError(ORT_INVALID_GRAPH, std::string("This is an invalid model. ") + error.what());
    }
  for (const onnx::NodeDef& node : def.graph.nodes) {
    const bool is_onnx = node.domain.empty() || node.domain == "ai.onnx";
    const bool is_local = std::any_of(def.functions.begin(), def.functions.end(), [&](const onnx::FunctionDef& function) {
      return function.name == node.op_type && function.domain == node.domain;
    });
    if (is_local || find_op(is_onnx ? "" : node.domain, node.op_type) != nullptr) continue;
    const bool is_imported = std::any_of(def.opset_imports.begin(), def.opset_imports.end(),
                                         [&](const onnx::OpsetImport& opset) { return opset.domain == node.domain; });
    if (is_onnx)
      throw StatusError(ORT_INVALID_GRAPH, "This is an invalid model. No Op registered for " + node.op_type + ": " + error.what());
    if (!is_imported)
      throw StatusError(ORT_INVALID_GRAPH, "This is an invalid model. No opset import for domain '" + node.domain + "': " + error.what());
    throw StatusError(ORT_FAIL, "Fatal error: " + node.domain + ":" + node.op_type + " is not a registered function/op: " + error.what());
  }
  throw;
}

}  // namespace

// A node that violates its operator's schema has the status INVALID_GRAPH. Operands that do not fit a node, and errors between nodes, have
// the status FAIL.
void refuse_graph(const Error& error, const Model& model) {
  if (const auto* fault = dynamic_cast<const Fault*>(&error)) {
    const std::string text = fault->words().empty() ? error.what() : fault->words() + " " + error.what();
    if (fault->kind() == Fault::Kind::schema) throw StatusError(ORT_INVALID_GRAPH, "This is an invalid model. " + text);
    if (fault->kind() == Fault::Kind::unmade_value)
      throw StatusError(ORT_INVALID_ARGUMENT,
                        std::string("Invalid model. Node input is not a graph input, initializer, or output: ") + error.what());
    throw StatusError(ORT_FAIL, "Type Error: " + text);
  }
  if (error.code() == ErrorCode::invalid_model && error.context().empty())
    throw StatusError(ORT_FAIL, std::string("This is an invalid model. Error: ") + error.what());
  if (error.code() == ErrorCode::not_implemented && !model.impl().compiled) refuse_operators(error, model);
  if (error.code() == ErrorCode::invalid_argument && !error.context().empty()) throw StatusError(ORT_FAIL, error.what());
  throw;
}

void check_severity(int level, const char* option) {
  if (level > ORT_FATAL) throw StatusError(ORT_FAIL, std::string("Invalid ") + option + " " + std::to_string(level) + ": 0 to 4 expected");
}

void check_model_file(const std::string& path) {
  const std::filesystem::path file(path);
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    throw StatusError(onnx::has_ort_extension(path) ? ORT_INVALID_ARGUMENT : ORT_NO_SUCHFILE,
                      "Load model from " + file.string() + " failed: the file doesn't exist");
  if (std::filesystem::is_directory(file, ignored))
    throw Error(ErrorCode::invalid_argument, "The model path is a directory: " + file.string());
  if (std::filesystem::is_regular_file(file, ignored) && std::filesystem::is_empty(file, ignored) && !onnx::has_ort_extension(path))
    throw Error(ErrorCode::invalid_argument, "No graph was found in the protobuf: " + file.string() + " is empty");
}

void check_model_bytes(size_t length) {
  if (length == 0) throw Error(ErrorCode::invalid_argument, "No graph was found in the protobuf, of no bytes");
}

// Reports an error of loading a model. ONNX Runtime has different statuses for different kinds of errors.
void refuse_model(const Error& error) {
  if (const auto* fault = dynamic_cast<const Fault*>(&error)) {
    if (fault->kind() == Fault::Kind::no_graph)
      throw StatusError(ORT_INVALID_ARGUMENT, std::string("No graph was found in the protobuf: ") + error.what());
    throw StatusError(ORT_FAIL, error.what());  // external data, an .ort file, or the IR version
  }
  switch (error.code()) {
    case ErrorCode::invalid_model: throw StatusError(ORT_INVALID_PROTOBUF, error.what());
    case ErrorCode::not_found:  // external data is missing
    case ErrorCode::not_implemented: throw StatusError(ORT_FAIL, error.what());
    case ErrorCode::invalid_argument:
      if (!error.context().empty()) throw StatusError(ORT_FAIL, error.what());  // a value does not fit its declaration
      throw;
    default: throw;
  }
}

}  // namespace treadle::ort
