// Functions by which a custom operator's kernel and its shape inference read a node's attributes, operands and types.
#include <algorithm>
#include <cstring>

#include "ort_api/custom_operator.h"

namespace treadle::ort {
namespace {

const Node& node_of(const OrtKernelInfo* info) { return *required(info, "info").node.node; }

const Attribute& attribute_named(const OrtKernelInfo* info, const char* name) {
  const Attribute* found = node_of(info).attributes.find(chars_of(name, "name"));
  if (found == nullptr)
    throw StatusError(ORT_FAIL, "No attribute with this name is defined: the node \"" + node_of(info).name + "\" has no " + name);
  return *found;
}

template <typename T>
const T& attribute(const OrtKernelInfo* info, const char* name) {
  const Attribute& found = attribute_named(info, name);
  const T* value = std::get_if<T>(&found);
  if (value == nullptr)
    throw StatusError(ORT_FAIL, std::string("Attribute name and type don't match: ") + name + " is " + to_string(found));
  return *value;
}

// Returns the list that an attribute contains; an empty list if the attribute has another type.
template <typename T>
const std::vector<T>& list_attribute(const OrtKernelInfo* info, const char* name) {
  static const std::vector<T> none;
  const auto* values = std::get_if<std::vector<T>>(&attribute_named(info, name));
  return values != nullptr ? *values : none;
}

// Copies a list of numbers to the client's memory, in the same way as give_text() copies text.
template <typename T>
void give_list(const std::vector<T>& values, T* out, size_t* size) {
  const size_t room = std::exchange(required(size, "size"), values.size());
  if (out == nullptr) return;
  if (room < values.size())
    throw Error(ErrorCode::invalid_argument, std::to_string(values.size()) + " elements, there is room for " + std::to_string(room));
  std::copy(values.begin(), values.end(), out);
}

std::string name_at(const std::vector<const char*>& names, size_t index) {
  if (index >= names.size())
    throw Error(ErrorCode::invalid_argument, "index " + std::to_string(index) + " of " + std::to_string(names.size()));
  return names[index];
}

OrtTypeInfo* info_at(const std::vector<Type>& types, size_t index) {
  if (index >= types.size())
    throw Error(ErrorCode::invalid_argument, "index " + std::to_string(index) + " of " + std::to_string(types.size()));
  const Type& type = types[index];
  if (type.kind == Type::Kind::unknown) throw StatusError(ORT_INVALID_GRAPH, "::OrtKernelInfo operand does not have a type");
  auto made = std::make_unique<OrtTypeInfo>();
  if (type.is_tensor()) {
    made->type = ONNX_TYPE_TENSOR;
    made->tensor = tensor_type(type);
  }
  return made.release();
}

void add_kernel_attributes(OrtApi& table) {
  table.KernelInfoGetAttribute_float = [](const OrtKernelInfo* info, const char* name, float* out) {
    return guarded([&] { required(out, "out") = attribute<float>(info, name); });
  };
  table.KernelInfoGetAttribute_int64 = [](const OrtKernelInfo* info, const char* name, int64_t* out) {
    return guarded([&] { required(out, "out") = attribute<int64_t>(info, name); });
  };
  table.KernelInfoGetAttribute_string = [](const OrtKernelInfo* info, const char* name, char* out, size_t* size) {
    return guarded([&] { give_text(attribute<std::string>(info, name), out, size); });
  };
  table.KernelInfoGetAttributeArray_float = [](const OrtKernelInfo* info, const char* name, float* out, size_t* size) {
    return guarded([&] { give_list(list_attribute<float>(info, name), out, size); });
  };
  table.KernelInfoGetAttributeArray_int64 = [](const OrtKernelInfo* info, const char* name, int64_t* out, size_t* size) {
    return guarded([&] { give_list(list_attribute<int64_t>(info, name), out, size); });
  };
  table.KernelInfoGetAttributeArray_string = [](const OrtKernelInfo* info, const char* name, OrtAllocator* allocator, char*** out,
                                                size_t* size) {
    return guarded([&] {
      const auto& texts = list_attribute<std::string>(info, name);
      if (allocator == nullptr) throw StatusError(ORT_FAIL, "allocator must not be null");  // required even for an empty list
      required(size, "size") = texts.size();
      required(out, "out") = texts.empty() ? nullptr : static_cast<char**>(allocate(allocator, texts.size() * sizeof(char*)));
      for (size_t i = 0; i < texts.size(); ++i) (*out)[i] = copy_text(allocator, texts[i]);
    });
  };
  table.KernelInfoGetAttribute_tensor = [](const OrtKernelInfo* info, const char* name, OrtAllocator*, OrtValue** out) {
    return guarded([&] { required(out, "out") = new_value(attribute<Datum>(info, name).tensor().clone()); });
  };
}

void add_operands(OrtApi& table) {
  table.KernelInfo_GetInputCount = [](const OrtKernelInfo* info, size_t* out) {
    return guarded([&] { required(out, "out") = static_cast<size_t>(node_of(info).num_formal_inputs); });
  };
  table.KernelInfo_GetOutputCount = [](const OrtKernelInfo* info, size_t* out) {
    return guarded([&] { required(out, "out") = node_of(info).outputs.size(); });
  };
  table.KernelInfo_GetInputName = [](const OrtKernelInfo* info, size_t index, char* out, size_t* size) {
    return guarded([&] { give_text(name_at(required(info, "info").node.input_names, index), out, size); });
  };
  table.KernelInfo_GetOutputName = [](const OrtKernelInfo* info, size_t index, char* out, size_t* size) {
    return guarded([&] { give_text(name_at(required(info, "info").node.output_names, index), out, size); });
  };
  table.KernelInfo_GetInputTypeInfo = [](const OrtKernelInfo* info, size_t index, OrtTypeInfo** out) {
    return guarded([&] { required(out, "type_info") = info_at(required(info, "info").node.input_types, index); });
  };
  table.KernelInfo_GetOutputTypeInfo = [](const OrtKernelInfo* info, size_t index, OrtTypeInfo** out) {
    return guarded([&] { required(out, "type_info") = info_at(required(info, "info").node.output_types, index); });
  };
  table.KernelInfoGetConstantInput_tensor = [](const OrtKernelInfo* info, size_t index, int* is_constant, const OrtValue** out) {
    return guarded([&] {
      const auto& constants = required(info, "info").constants;
      const OrtValue* value = index < constants.size() ? constants[index].get() : nullptr;
      required(is_constant, "is_constant") = value != nullptr ? 1 : 0;
      required(out, "out") = value;
    });
  };
}

void add_node(OrtApi& table) {
  table.KernelInfo_GetNodeName = [](const OrtKernelInfo* info, char* out, size_t* size) {
    return guarded([&] { give_text(node_of(info).name, out, size); });
  };
  table.KernelInfo_GetOperatorDomain = [](const OrtKernelInfo* info, char* out, size_t* size) {
    return guarded([&] { give_text(required(info, "info").domain, out, size); });
  };
  table.KernelInfo_GetOperatorType = [](const OrtKernelInfo* info, char* out, size_t* size) {
    return guarded([&] { give_text(node_of(info).op_type, out, size); });
  };
  table.KernelInfo_GetOperatorSinceVersion = [](const OrtKernelInfo* info, int* out) {
    return guarded([&] { required(out, "since_version") = required(info, "info").since_version; });
  };
  table.KernelInfo_GetLogger = [](const OrtKernelInfo*, const OrtLogger** out) {
    return guarded([&] { required(out, "logger") = &silent_logger(); });
  };
  table.KernelInfoGetAllocator = [](const OrtKernelInfo*, OrtMemType, OrtAllocator** out) {
    return guarded([&] { required(out, "out") = &default_allocator(); });
  };
  table.KernelInfo_GetConfigEntries = [](const OrtKernelInfo*, OrtKeyValuePairs** out) {
    return guarded([&] { required(out, "out") = new OrtKeyValuePairs(); });
  };
  table.CopyKernelInfo = [](const OrtKernelInfo* info, OrtKernelInfo** out) {
    return guarded([&] { required(out, "info_copy") = new OrtKernelInfo(required(info, "info")); });
  };
  table.ReleaseKernelInfo = [](OrtKernelInfo* info) { delete info; };
}

template <typename T>
void read_one(const T& value, void* data, size_t length, size_t* out) {
  required(out, "out") = sizeof(T);
  if (length < sizeof(T)) throw Error(ErrorCode::invalid_argument, "the attribute takes " + std::to_string(sizeof(T)) + " bytes");
  std::memcpy(data, &value, sizeof(T));
}
template <typename T>
void read_list(const T* values, size_t count, void* data, size_t length, size_t* out) {
  required(out, "out") = count * sizeof(T);
  if (length < *out) throw Error(ErrorCode::invalid_argument, "the attribute takes " + std::to_string(*out) + " bytes");
  if (*out > 0) std::memcpy(data, values, *out);
}

Attribute attribute_from(const void* data, int count, OrtOpAttrType type) {
  const auto length = static_cast<size_t>(count);
  auto list = [&]<typename T>(const T* values) { return std::vector<T>(values, values + length); };
  switch (type) {
    case ORT_OP_ATTR_INT: return *static_cast<const int64_t*>(data);
    case ORT_OP_ATTR_FLOAT: return *static_cast<const float*>(data);
    case ORT_OP_ATTR_STRING: return std::string(static_cast<const char*>(data), length);
    case ORT_OP_ATTR_INTS: return list(static_cast<const int64_t*>(data));
    case ORT_OP_ATTR_FLOATS: return list(static_cast<const float*>(data));
    case ORT_OP_ATTR_STRINGS: {
      const auto* texts = static_cast<const char* const*>(data);
      return std::vector<std::string>(texts, texts + length);
    }
    default: throw StatusError(ORT_FAIL, "Attribute type not supported: " + std::to_string(type));
  }
}

void read_attribute(const Attribute& attribute, OrtOpAttrType type, void* data, size_t length, size_t* out) {
  const auto* number = std::get_if<int64_t>(&attribute);
  const auto* real = std::get_if<float>(&attribute);
  const auto* text = std::get_if<std::string>(&attribute);
  const auto* ints = std::get_if<std::vector<int64_t>>(&attribute);
  const auto* floats = std::get_if<std::vector<float>>(&attribute);
  if (type == ORT_OP_ATTR_INT && number != nullptr) return read_one(*number, data, length, out);
  if (type == ORT_OP_ATTR_FLOAT && real != nullptr) return read_one(*real, data, length, out);
  if (type == ORT_OP_ATTR_STRING && text != nullptr) return read_list(text->data(), text->size(), data, length, out);
  if (type == ORT_OP_ATTR_INTS && ints != nullptr) return read_list(ints->data(), ints->size(), data, length, out);
  if (type == ORT_OP_ATTR_FLOATS && floats != nullptr) return read_list(floats->data(), floats->size(), data, length, out);
  if (const auto* texts = std::get_if<std::vector<std::string>>(&attribute); type == ORT_OP_ATTR_STRINGS && texts != nullptr) {
    std::string all;  // all texts in one string, each followed by a NUL
    for (const std::string& one : *texts) all.append(one.c_str(), one.size() + 1);
    return read_list(all.data(), all.size(), data, length, out);
  }
  throw Error(ErrorCode::invalid_argument, "the attribute is " + to_string(attribute) + ", of another type");
}

void add_op_attributes(OrtApi& table) {
  table.CreateOpAttr = [](const char* name, const void* data, int count, OrtOpAttrType type, OrtOpAttr** out) {
    return guarded([&] {
      if (count < 0) throw Error(ErrorCode::invalid_argument, "a length of " + std::to_string(count));
      required(out, "op_attr") =
          new OrtOpAttr{chars_of(name, "name"), attribute_from(&required(static_cast<const char*>(data), "data"), count, type)};
    });
  };
  table.ReadOpAttr = [](const OrtOpAttr* op_attribute, OrtOpAttrType type, void* data, size_t length, size_t* out) {
    return guarded([&] { read_attribute(required(op_attribute, "op_attr").value, type, data, length, out); });
  };
  table.OpAttr_GetName = [](const OrtOpAttr* op_attribute, const char** out) {
    return guarded([&] { required(out, "name") = required(op_attribute, "attribute").name.c_str(); });
  };
  table.ReleaseOpAttr = [](OrtOpAttr* op_attribute) { delete op_attribute; };
}

void add_shape_inference(OrtApi& table) {
  table.ShapeInferContext_GetInputCount = [](const OrtShapeInferContext* context, size_t* out) {
    return guarded([&] { required(out, "out") = required(context, "context").inputs.size(); });
  };
  table.ShapeInferContext_GetInputTypeShape = [](const OrtShapeInferContext* context, size_t index, OrtTensorTypeAndShapeInfo** out) {
    return guarded([&] {
      const auto& inputs = required(context, "context").inputs;
      if (index >= inputs.size())
        throw StatusError(ORT_RUNTIME_EXCEPTION, "input " + std::to_string(index) + " of " + std::to_string(inputs.size()));
      required(out, "info") = inputs[index].get();
    });
  };
  table.ShapeInferContext_GetAttribute = [](const OrtShapeInferContext* context, const char* name, const OrtOpAttr** out) {
    return guarded([&] {
      const Attribute* found = required(context, "context").node.node->attributes.find(chars_of(name, "attr_name"));
      if (found == nullptr) throw Error(ErrorCode::invalid_argument, std::string("the node has no attribute ") + name);
      auto& kept = const_cast<OrtShapeInferContext*>(context)->attributes;  // keeps the attribute alive as long as the context
      kept.push_back(std::make_unique<OrtOpAttr>(OrtOpAttr{name, *found}));
      required(out, "attr") = kept.back().get();
    });
  };
  table.ShapeInferContext_SetOutputTypeShape = [](const OrtShapeInferContext* context, size_t index,
                                                  const OrtTensorTypeAndShapeInfo* info) {
    return guarded([&] {
      auto& outputs = const_cast<OrtShapeInferContext*>(&required(context, "context"))->outputs;
      if (index >= outputs.size())
        throw StatusError(ORT_RUNTIME_EXCEPTION, "output " + std::to_string(index) + " of " + std::to_string(outputs.size()));
      outputs[index] = std::make_unique<OrtTensorTypeAndShapeInfo>(required(info, "info"));
    });
  };
}

}  // namespace

void add_kernel_info(OrtApi& table) {
  add_kernel_attributes(table);
  add_operands(table);
  add_node(table);
  add_op_attributes(table);
  add_shape_inference(table);
}

}  // namespace treadle::ort
