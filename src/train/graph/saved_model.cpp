// Writes a model with the trained values of its initializers.
#include <algorithm>

#include "core/files/file.h"
#include "onnx/serialize.h"
#include "session/model.h"
#include "train/graph/training_graph.h"

namespace treadle::train {

const onnx::TensorDef* find_initializer(const Model& model, const std::string& name) {
  const auto& initializers = model.impl().def.graph.initializers;
  auto found = std::find_if(initializers.begin(), initializers.end(), [&](const onnx::TensorDef& def) { return def.name == name; });
  return found == initializers.end() ? nullptr : &*found;
}

namespace {

onnx::ModelDef copy_with(const Model& model, std::span<const NamedTensors* const> values, const Metadata& metadata) {
  onnx::ModelDef def = model.impl().def;
  for (onnx::TensorDef& initializer : def.graph.initializers)
    for (const NamedTensors* named : values)
      if (auto found = named->find(initializer.name); found != named->end()) initializer.value = found->second;
  for (const auto& [key, value] : metadata) {
    erase_if(def.metadata_props, [&key = key](const auto& property) { return property.first == key; });
    def.metadata_props.emplace_back(key, value);
  }
  return def;
}

}  // namespace

NamedTensors copy_initializers(const Model& model, const std::vector<std::string>& names) {
  NamedTensors copies;
  for (const std::string& name : names) {
    const Tensor& value = find_initializer(model, name)->value;
    copies.emplace(name, value.clone());
    drop_mapped_pages(value.raw(), value.size_bytes());  // training uses the copy, so the pages of the mapped file may go
  }
  drop_waiting_pages();
  return copies;
}

std::string encode_with(const Model& model, std::span<const NamedTensors* const> values, const Metadata& metadata) {
  return onnx::serialize_model(copy_with(model, values, metadata));
}

void save_with(const Model& model, std::span<const NamedTensors* const> values, const Metadata& metadata, const std::string& path) {
  onnx::write_model_file(copy_with(model, values, metadata), path);
}

}  // namespace treadle::train
