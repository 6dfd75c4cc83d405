#include "onnx/serialize.h"

#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "core/files/file.h"
#include "onnx/encode.h"
#include "onnx/parse.h"
#include "onnx/wire.h"

namespace treadle::onnx {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxMessageBytes = 0x7fffffff;  // protobuf's limit, since other readers use signed 32-bit lengths

/// Runs `encode` twice: first to measure the number of bytes, then to write to the sink that `open` returns for this number.
template <typename Encode, typename Open>
void encode_twice(const ExternalPlan& external, Encode encode, Open open) {
  std::vector<size_t> lengths;
  WireWriter measure(lengths);
  encode(EncodeContext{measure, external});
  size_t size = measure.size_bytes();
  if (size > kMaxMessageBytes)
    throw Error(ErrorCode::invalid_argument, "the model takes " + std::to_string(size) + " bytes, a protobuf file holds at most " +
                                                 std::to_string(kMaxMessageBytes) + ": put its tensors into an external data file");
  WireWriter writer(lengths, open(size));
  encode(EncodeContext{writer, external});
}

template <typename Encode>
std::string encode_to_string(const ExternalPlan& external, Encode encode) {
  std::string result;
  encode_twice(external, encode, [&](size_t size) {
    result.reserve(size);
    return [&](std::span<const std::byte> bytes) { result.append(reinterpret_cast<const char*>(bytes.data()), bytes.size()); };
  });
  return result;
}

using Visit = std::function<void(const TensorDef&)>;

void each_initializer(const std::vector<NodeDef>& nodes, const std::vector<TensorDef>& initializers, const Visit& visit) {
  for (const TensorDef& tensor : initializers) visit(tensor);
  for (const NodeDef& node : nodes) {
    for (const AttributeDef& attribute : node.attributes) {
      if (attribute.g) each_initializer(attribute.g->nodes, attribute.g->initializers, visit);
      for (const GraphDef& graph : attribute.graphs) each_initializer(graph.nodes, graph.initializers, visit);
    }
  }
}

ExternalPlan plan_located(const ModelDef& model, const Locate& locate) {
  ExternalPlan external;
  if (locate)
    each_initializer(model, [&](const TensorDef& tensor) {
      if (!tensor.value.defined()) return;
      if (std::optional<ExternalDataDef> where = locate(tensor)) external[&tensor] = std::move(*where);
    });
  return external;
}

struct ExternalLayout {
  ExternalPlan plan;
  std::vector<const TensorDef*> order;  // sorted by offset; of tensors with the same memory, only one is listed
};

ExternalLayout plan_external(const ModelDef& model, const WriteOptions& options) {
  ExternalLayout layout;
  std::map<std::pair<const std::byte*, size_t>, size_t> placed;  // maps the memory of a tensor to its offset in the file
  size_t end = 0;
  each_initializer(model, [&](const TensorDef& tensor) {
    const Tensor& value = tensor.value;
    if (!value.defined()) {
      if (tensor.is_external && tensor.external.location == options.external_data_file)
        throw Error(ErrorCode::invalid_argument, "the tensor " + in_quotes(tensor.name) + " was not loaded from " +
                                                     in_quotes(tensor.external.location) + ", which would be overwritten");
      return;
    }
    size_t size = value.size_bytes();
    if (value.dtype() == DType::string || size == 0 || size < options.external_threshold_bytes) return;
    bool large = size >= options.external_alignment_threshold_bytes;
    size_t offset = align_up(end, large ? options.external_alignment : options.aligns_others ? Storage::kAlignment : 1);
    auto key = std::pair(value.raw(), size);
    auto known = value.is_contiguous() ? placed.find(key) : placed.end();
    if (known != placed.end()) {
      offset = known->second;
    } else {
      layout.order.push_back(&tensor);
      end = offset + size;
      if (value.is_contiguous()) placed.emplace(key, offset);
    }
    layout.plan[&tensor] = {.location = options.external_data_file, .offset = offset, .length = size};
  });
  return layout;
}

void check_options(const WriteOptions& options, const fs::path& model_path) {
  const std::string& name = options.external_data_file;
  if (name.empty()) return;
  if (options.locate) throw Error(ErrorCode::internal, "tensors go to one file, or lie in others");
  if (name == "." || name == ".." || name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
    throw Error(ErrorCode::invalid_argument, "external_data_file is a file name without a folder, not " + in_quotes(name));
  if (model_path.filename() == name)
    throw Error(ErrorCode::invalid_argument, "the model and its external data cannot both be " + in_quotes(name));
  size_t alignment = options.external_alignment;
  if (alignment < Storage::kAlignment || (alignment & (alignment - 1)) != 0)
    throw Error(ErrorCode::invalid_argument, "external_alignment is " + std::to_string(alignment) +
                                                 "; it must be a power of two of at least " + std::to_string(Storage::kAlignment));
}

void write_external(const ExternalLayout& layout, AtomicFile& file) {
  for (const TensorDef* tensor : layout.order) {
    file.write_zeros(layout.plan.at(tensor).offset - file.size_bytes());
    const Tensor dense = tensor->value.contiguous();
    file.write({dense.raw(), dense.size_bytes()});
  }
  file.close();
}

}  // namespace

void each_initializer(const ModelDef& model, const Visit& visit) {
  each_initializer(model.graph.nodes, model.graph.initializers, visit);
  for (const FunctionDef& function : model.functions) each_initializer(function.nodes, {}, visit);
}

WriteOptions beside_optimized(const std::string& external_data_file, size_t external_threshold_bytes) {
  return {.locate = {},
          .external_data_file = external_data_file,
          .external_threshold_bytes = external_threshold_bytes,
          .external_alignment_threshold_bytes = size_t{1} << 20,
          .aligns_others = false};
}

std::string serialize_model(const ModelDef& model, const Locate& locate) {
  return encode_to_string(plan_located(model, locate), [&](const EncodeContext& context) { encode_model(context, model); });
}

std::string serialize_tensor(const TensorDef& tensor) {
  return encode_to_string({}, [&](const EncodeContext& context) { encode_tensor(context, tensor); });
}

void write_model_file(const ModelDef& model, const std::string& path, const WriteOptions& options) {
  fs::path model_path(path);
  if (has_ort_extension(path))
    throw Error(ErrorCode::not_implemented, "cannot write " + in_quotes(path) +
                                                ": ONNX Runtime's own format (.ort) is read, not written; " +
                                                "choose a name that ends in .onnx");
  check_options(options, model_path);
  ExternalLayout layout{plan_located(model, options.locate), {}};
  if (!options.external_data_file.empty()) layout = plan_external(model, options);
  // Both files are completely on disk before the first of them replaces an old file.
  std::optional<AtomicFile> data_file;
  std::optional<AtomicFile> model_file;
  encode_twice(
      layout.plan, [&](const EncodeContext& context) { encode_model(context, model); },
      [&](size_t) {
        if (!layout.order.empty()) {
          data_file.emplace((model_path.parent_path() / options.external_data_file).string());
          write_external(layout, *data_file);
        }
        model_file.emplace(path);
        return [&](std::span<const std::byte> bytes) { model_file->write(bytes); };
      });
  model_file->close();
  if (data_file) data_file->commit();
  model_file->commit();
}

}  // namespace treadle::onnx
