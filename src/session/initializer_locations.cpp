#include "session/initializer_locations.h"

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <span>

#include "onnx/parse.h"
#include "onnx/serialize.h"
#include "session/model.h"
#include "treadle/error.h"

namespace treadle {
namespace {

// Returns the model's initializers that are stored in external files, by name.
std::map<std::string, const onnx::TensorDef*> external_initializers(const onnx::ModelDef& def) {
  std::map<std::string, const onnx::TensorDef*> found;
  for (const onnx::TensorDef& tensor : def.graph.initializers)
    if (tensor.is_external && tensor.value.defined()) found[tensor.name] = &tensor;
  return found;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.size_bytes()) == 0;
}

onnx::ExternalDataDef external_data(const onnx::TensorDef& tensor, InitializerLocation where) {
  auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_argument, fmt::format("the location of initializer \"{}\", {} bytes at {} of \"{}\", {}", tensor.name,
                                                         where.size_bytes, where.offset_bytes, where.file, why));
  };
  if (tensor.value.dtype() == DType::string) refuse("is in a file, where strings cannot be");
  if (where.file.empty() || where.offset_bytes < 0) refuse("is none");
  if (where.size_bytes != static_cast<int64_t>(tensor.value.size_bytes()))
    refuse(fmt::format("has another size than the initializer, {} bytes", tensor.value.size_bytes()));
  onnx::ExternalDataDef data;
  data.location = std::move(where.file);
  data.offset = static_cast<uint64_t>(where.offset_bytes);
  data.length = static_cast<uint64_t>(where.size_bytes);
  return data;
}

}  // namespace

std::string optimized_model(const Session& session, const LocateInitializer& locate) {
  if (!locate) return session.optimized_model();
  const onnx::ModelDef& read = session.model().impl().def;
  const auto place = [&locate, known = external_initializers(read)](const onnx::TensorDef& tensor) -> std::optional<onnx::ExternalDataDef> {
    InitializerLocation was;
    const auto found = known.find(tensor.name);
    const bool is_as_read = found != known.end() && same_bytes(found->second->value, tensor.value);
    if (is_as_read)
      was = {found->second->external.location, static_cast<int64_t>(found->second->external.offset),
             static_cast<int64_t>(tensor.value.size_bytes())};
    std::optional<InitializerLocation> where = locate(tensor.name, tensor.value, is_as_read ? &was : nullptr);
    if (!where) return std::nullopt;
    return external_data(tensor, *std::move(where));
  };
  if (session.options().graph_optimization_level == GraphOptimizationLevel::disable_all && !session.model().impl().compiled)
    return onnx::serialize_model(read, place);
  const std::string bytes = session.optimized_model();
  return onnx::serialize_model(onnx::parse_model_bytes(std::as_bytes(std::span(bytes)), nullptr, {}), place);
}

}  // namespace treadle
