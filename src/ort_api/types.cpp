// Functions for type infos, which are made from a model's declarations or from values.
#include <algorithm>
#include <utility>

#include "ort_api/api.h"

namespace treadle::ort {
namespace {

// Returns the dtype for a name in an ONNX type string, such as "float" for float32.
DType dtype_of_name(std::string_view name) {
  return name == "float" ? DType::float32 : name == "double" ? DType::float64 : dtype_from_name(name);
}

// Parses an ONNX type string, such as "tensor(float)" or "seq(map(int64,tensor(float)))".
std::unique_ptr<OrtTypeInfo> parse(std::string_view text) {
  auto made = std::make_unique<OrtTypeInfo>();
  const size_t open = text.find('(');
  if (open == std::string_view::npos || text.back() != ')') return made;
  const std::string_view kind = text.substr(0, open), inner = text.substr(open + 1, text.size() - open - 2);
  auto element = [&](std::string_view type) { made->element = parse(type); };
  if (kind == "tensor" || kind == "sparse_tensor") {
    made->type = kind == "tensor" ? ONNX_TYPE_TENSOR : ONNX_TYPE_SPARSETENSOR;
    made->tensor.dtype = number_of(dtype_of_name(inner));
    made->tensor.has_shape = false;
  } else if (kind == "seq") {
    made->type = ONNX_TYPE_SEQUENCE;
    element(inner);
  } else if (kind == "optional") {
    made->type = ONNX_TYPE_OPTIONAL;
    element(inner);
  } else if (kind == "map") {
    const size_t comma = inner.find(',');
    made->type = ONNX_TYPE_MAP;
    made->key_type = number_of(dtype_of_name(inner.substr(0, comma)));
    element(inner.substr(std::min(comma + 1, inner.size())));
  }
  return made;
}

template <typename View>
OrtStatus* view_as(ONNXType type, const OrtTypeInfo* info, const View** out) {
  return guarded([&] { required(out, "out") = required(info, "type_info").type == type ? reinterpret_cast<const View*>(info) : nullptr; });
}

template <typename View>
OrtStatus* copy_element(const View* view, OrtTypeInfo** out) {
  return guarded([&] {
    const std::shared_ptr<const OrtTypeInfo>& element = required(reinterpret_cast<const OrtTypeInfo*>(view), "type_info").element;
    required(out, "out") = element ? new OrtTypeInfo(*element) : new OrtTypeInfo();
  });
}

void add_kinds(OrtApi& table) {
  table.GetOnnxTypeFromTypeInfo = [](const OrtTypeInfo* info, ONNXType* out) {
    return guarded([&] { required(out, "out") = required(info, "type_info").type; });
  };
  table.CastTypeInfoToTensorInfo = [](const OrtTypeInfo* info, const OrtTensorTypeAndShapeInfo** out) {
    return guarded([&] {
      const ONNXType type = required(info, "type_info").type;
      required(out, "out") = type == ONNX_TYPE_TENSOR || type == ONNX_TYPE_SPARSETENSOR ? &info->tensor : nullptr;
    });
  };
  table.CastTypeInfoToMapTypeInfo = [](const OrtTypeInfo* info, const OrtMapTypeInfo** out) { return view_as(ONNX_TYPE_MAP, info, out); };
  table.CastTypeInfoToSequenceTypeInfo = [](const OrtTypeInfo* info, const OrtSequenceTypeInfo** out) {
    return view_as(ONNX_TYPE_SEQUENCE, info, out);
  };
  table.CastTypeInfoToOptionalTypeInfo = [](const OrtTypeInfo* info, const OrtOptionalTypeInfo** out) {
    return view_as(ONNX_TYPE_OPTIONAL, info, out);
  };
  table.GetMapKeyType = [](const OrtMapTypeInfo* info, ONNXTensorElementDataType* out) {
    return guarded([&] { required(out, "out") = required(reinterpret_cast<const OrtTypeInfo*>(info), "map_type_info").key_type; });
  };
  table.GetMapValueType = [](const OrtMapTypeInfo* info, OrtTypeInfo** out) { return copy_element(info, out); };
  table.GetSequenceElementType = [](const OrtSequenceTypeInfo* info, OrtTypeInfo** out) { return copy_element(info, out); };
  table.GetOptionalContainedTypeInfo = [](const OrtOptionalTypeInfo* info, OrtTypeInfo** out) { return copy_element(info, out); };
  table.GetDenotationFromTypeInfo = [](const OrtTypeInfo* info, const char** const text, size_t* length) {
    return guarded([&] {
      required(text, "denotation") = required(info, "type_info").denotation.c_str();
      required(length, "len") = info->denotation.size();
    });
  };
  table.ReleaseTypeInfo = [](OrtTypeInfo* info) { delete info; };
  // These functions do nothing, because such an info is a view that belongs to its OrtTypeInfo.
  table.ReleaseMapTypeInfo = [](OrtMapTypeInfo*) {};
  table.ReleaseSequenceTypeInfo = [](OrtSequenceTypeInfo*) {};
}

void add_tensor_info(OrtApi& table) {
  table.CreateTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo** out) {
    return guarded(
        [&] { required(out, "out") = new OrtTensorTypeAndShapeInfo{.dtype = 1, .dims = {}, .symbols = {}, .has_shape = false}; });
  };
  table.ReleaseTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo* info) { delete info; };
  table.SetTensorElementType = [](OrtTensorTypeAndShapeInfo* info, ONNXTensorElementDataType type) -> OrtStatus* {
    info->dtype = type;
    return nullptr;
  };
  table.SetDimensions = [](OrtTensorTypeAndShapeInfo* info, const int64_t* dims, size_t count) {
    return guarded([&] {
      for (size_t i = 0; i < count; ++i)
        if (dims[i] < -1)
          throw Error(ErrorCode::invalid_argument, "dim_values must be -1 (symbolic dimension) or larger, not " + std::to_string(dims[i]));
      info->dims.assign(dims, dims + count);
      info->symbols.resize(std::max(info->symbols.size(), count));
      info->dims.resize(info->symbols.size(), -1);  // keeps named axes, as ONNX Runtime does
      info->has_shape = true;
    });
  };
  table.SetSymbolicDimensions = [](OrtTensorTypeAndShapeInfo* info, const char** names, size_t count) {
    return guarded([&] {
      if (count > info->dims.size()) info->dims.resize(count, -1);
      info->has_shape = true;
      info->symbols.assign(info->dims.size(), {});
      for (size_t i = 0; i < count; ++i) info->symbols[i] = names[i] != nullptr ? names[i] : "";
    });
  };
  table.GetTensorElementType = [](const OrtTensorTypeAndShapeInfo* info, ONNXTensorElementDataType* out) -> OrtStatus* {
    *out = info->dtype;
    return nullptr;
  };
  table.GetDimensionsCount = [](const OrtTensorTypeAndShapeInfo* info, size_t* out) -> OrtStatus* {
    *out = info->dims.size();
    return nullptr;
  };
  table.GetDimensions = [](const OrtTensorTypeAndShapeInfo* info, int64_t* dims, size_t count) -> OrtStatus* {
    std::copy_n(info->dims.begin(), std::min(count, info->dims.size()), dims);
    return nullptr;
  };
  table.GetSymbolicDimensions = [](const OrtTensorTypeAndShapeInfo* info, const char** names, size_t count) -> OrtStatus* {
    for (size_t i = 0; i < std::min(count, info->symbols.size()); ++i) names[i] = info->symbols[i].c_str();
    return nullptr;
  };
  table.GetTensorShapeElementCount = [](const OrtTensorTypeAndShapeInfo* info, size_t* out) {
    return guarded([&] {
      if (!info->has_shape && info->dims.empty()) {
        required(out, "out") = 0;
        return;
      }
      for (int64_t extent : info->dims)
        if (extent < 0) throw StatusError(ORT_FAIL, "the shape has extents that are not known");
      required(out, "out") = static_cast<size_t>(shape_from(info->dims.data(), info->dims.size()).num_elements());
    });
  };
  table.TensorTypeAndShape_HasShape = [](const OrtTensorTypeAndShapeInfo* info) { return info->has_shape; };
}

}  // namespace

std::unique_ptr<OrtTypeInfo> type_of(const ValueInfo& info) {
  std::unique_ptr<OrtTypeInfo> made = parse(info.type);
  made->tensor.has_shape = info.has_rank;
  for (const auto& extent : info.shape) {
    const bool known = std::holds_alternative<int64_t>(extent);
    made->tensor.dims.push_back(known ? std::get<int64_t>(extent) : -1);
    made->tensor.symbols.push_back(known ? std::string() : std::get<std::string>(extent));
  }
  return made;
}

OrtTensorTypeAndShapeInfo tensor_type(DType dtype, const Shape& shape) {
  return {number_of(dtype), std::vector<int64_t>(shape.begin(), shape.end()), std::vector<std::string>(static_cast<size_t>(shape.rank())),
          true};
}

std::unique_ptr<OrtTypeInfo> type_of(const Datum& datum) {
  auto made = std::make_unique<OrtTypeInfo>();
  switch (datum.kind()) {
    case Datum::Kind::tensor:
      made->type = ONNX_TYPE_TENSOR;
      made->tensor = tensor_type(datum.tensor().dtype(), datum.tensor().shape());
      break;
    case Datum::Kind::sparse_tensor:
      made->type = ONNX_TYPE_SPARSETENSOR;
      made->tensor = tensor_type(datum.sparse_tensor().values.dtype(), datum.sparse_tensor().dense_shape);
      break;
    case Datum::Kind::sequence: {
      made->type = ONNX_TYPE_SEQUENCE;
      const Sequence& sequence = datum.sequence();
      std::unique_ptr<OrtTypeInfo> element = sequence.elements.empty() ? std::make_unique<OrtTypeInfo>() : type_of(sequence.elements[0]);
      if (sequence.elements.empty()) element->type = ONNX_TYPE_TENSOR, element->tensor.dtype = number_of(sequence.element_dtype);
      if (element->type == ONNX_TYPE_TENSOR) element->tensor = {element->tensor.dtype, {}, {}, false};  // elements may differ in shape
      made->element = std::move(element);
      break;
    }
    case Datum::Kind::map: {
      made->type = ONNX_TYPE_MAP;
      made->key_type = number_of(std::holds_alternative<std::vector<int64_t>>(datum.map().keys) ? DType::int64 : DType::string);
      auto element = std::make_unique<OrtTypeInfo>();
      element->type = ONNX_TYPE_TENSOR;
      element->tensor = {number_of(datum.map().values.dtype()), {}, {}, false};
      made->element = std::move(element);
      break;
    }
    case Datum::Kind::optional:
      made->type = ONNX_TYPE_OPTIONAL;
      if (datum.optional().value) made->element = type_of(*datum.optional().value);
      break;
    case Datum::Kind::none: break;
  }
  return made;
}

void add_types(OrtApi& table) {
  add_kinds(table);
  add_tensor_info(table);
}

}  // namespace treadle::ort
