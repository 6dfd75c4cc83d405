// The contents of an ONNX file as plain structs: ModelProto and everything in it (IR 14), with decoded tensors.
//
// The structs mirror the protobuf messages field by field and do not depend on Graph. Reading loses two things: fields that IR 14 does not
// define, and the difference between an absent and an empty string, list or type (which has no meaning in ONNX). Copies are deep, except
// that tensors share their elements: copy a tensor (Tensor::clone) before changing elements.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/properties.h"
#include "treadle/tensor.h"

namespace treadle::onnx {

/// The newest IR version of which all fields are known. Files of newer versions are rejected, instead of being read in part.
inline constexpr int64_t kMaxIrVersion = 14;

/// An optional owned object. Copying it copies the object.
template <typename T>
class Owned : public std::unique_ptr<T> {
 public:
  using std::unique_ptr<T>::unique_ptr;
  Owned(std::unique_ptr<T>&& from) noexcept : std::unique_ptr<T>(std::move(from)) {}
  Owned(const Owned& from) : std::unique_ptr<T>(from ? std::make_unique<T>(*from) : nullptr) {}
  Owned(Owned&&) noexcept = default;
  Owned& operator=(const Owned& from) { return *this = Owned(from); }
  Owned& operator=(Owned&&) noexcept = default;
  ~Owned() = default;
};

struct OpsetImport {
  std::string domain;  // "" and "ai.onnx" both mean the default domain
  int64_t version = 0;
};

/// The position of a tensor's elements in an external file, as declared in the model.
struct ExternalDataDef {
  std::string location;            // relative to the model's folder
  uint64_t offset = 0;             // offset in bytes
  std::optional<uint64_t> length;  // length in bytes; absent: as many bytes as the shape needs
  std::string checksum;            // SHA-1 of the file in 40 hexadecimal digits, which the reader verifies; other text is only stored
  Properties other;                // entries of external_data whose keys ONNX does not define
};

/// TensorProto. The reader always sets `dtype` and `shape`. It also sets `value`, except for external tensors that were not requested. The
/// writer uses `value` if it is defined, otherwise `dtype`, `shape` and `external`.
struct TensorDef {
  std::string name;
  DType dtype = DType::undefined;
  Shape shape;
  Tensor value;  // contiguous; may be a read-only view of the file
  bool is_external = false;
  ExternalDataDef external;
  std::string doc_string;
  Properties metadata_props;
};

/// SparseTensorProto. The reader has checked that indices are inside `dims` and that none occurs twice. They may be in any order.
struct SparseTensorDef {
  TensorDef values;   // [nnz]; its name is that of the sparse tensor
  TensorDef indices;  // int64, [nnz] (linear) or [nnz, rank]
  std::vector<int64_t> dims;
};

struct DimDef {
  enum class Kind : uint8_t { unknown, value, param };
  Kind kind = Kind::unknown;
  int64_t value = 0;  // as in the file; some exporters write -1 for an unknown extent
  std::string param;
  std::string denotation;
};

/// Corresponds to TypeProto.
struct TypeDef {
  enum class Kind : uint8_t { none, tensor, sparse_tensor, sequence, optional, map, opaque };
  Kind kind = Kind::none;                    // `none` if the file has no type
  DType elem_type = DType::undefined;        // of a tensor or sparse_tensor
  std::optional<std::vector<DimDef>> shape;  // of a tensor or sparse_tensor; absent: unknown rank
  DType key_type = DType::undefined;         // of a map
  Owned<TypeDef> elem;                       // type of elements of a sequence or optional, or of a map's values; null if absent
  std::string opaque;                        // an encoded TypeProto.Opaque
  std::string denotation;
};

struct ValueInfoDef {
  std::string name;
  TypeDef type;
  std::string doc_string;
  Properties metadata_props;
};

struct GraphDef;

/// Corresponds to AttributeProto.AttributeType, with the same numbers.
enum class AttributeType : uint8_t {
  undefined = 0,
  f = 1,
  i = 2,
  s = 3,
  tensor = 4,
  graph = 5,
  floats = 6,
  ints = 7,
  strings = 8,
  tensors = 9,
  graphs = 10,
  sparse_tensor = 11,
  sparse_tensors = 12,
  type_proto = 13,
  type_protos = 14,
};

/// AttributeProto. Only the member that belongs to `type` has a value. The reader has checked this, and that no such pointer is null.
struct AttributeDef {
  std::string name;
  std::string ref_attr_name;  // in a function: name of the function's attribute that provides the value; no member is set then
  std::string doc_string;
  AttributeType type = AttributeType::undefined;
  float f = 0;
  int64_t i = 0;
  std::string s;  // may contain any bytes
  Owned<TensorDef> t;
  Owned<GraphDef> g;
  Owned<SparseTensorDef> sparse_tensor;
  Owned<TypeDef> tp;
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::vector<std::string> strings;
  std::vector<TensorDef> tensors;
  std::vector<GraphDef> graphs;
  std::vector<SparseTensorDef> sparse_tensors;
  std::vector<TypeDef> type_protos;

  // Defined in model_def.cpp, because GraphDef is still incomplete here.
  AttributeDef();
  ~AttributeDef();
  AttributeDef(const AttributeDef&);
  AttributeDef(AttributeDef&&) noexcept;
  AttributeDef& operator=(const AttributeDef&);
  AttributeDef& operator=(AttributeDef&&) noexcept;
};

struct NodeDef {
  std::vector<std::string> inputs;   // "" means an omitted optional input
  std::vector<std::string> outputs;  // "" means an unused output
  std::string name;
  std::string op_type;
  std::string domain;
  std::string overload;
  std::vector<AttributeDef> attributes;
  std::string doc_string;
  Properties metadata_props;
  std::vector<std::string> device_configurations;  // encoded messages NodeDeviceConfigurationProto
};

/// TensorAnnotation: the quantization parameters of a value.
struct QuantizationAnnotation {
  std::string tensor_name;
  Properties quant_parameter_tensor_names;
};

struct GraphDef {
  std::string name;
  std::vector<NodeDef> nodes;
  std::vector<TensorDef> initializers;
  std::vector<SparseTensorDef> sparse_initializers;
  std::vector<ValueInfoDef> inputs;
  std::vector<ValueInfoDef> outputs;
  std::vector<ValueInfoDef> value_info;
  std::vector<QuantizationAnnotation> quantization_annotation;
  std::string doc_string;
  Properties metadata_props;
};

/// FunctionProto: a local function of the model, identified by (domain, name, overload).
struct FunctionDef {
  std::string name;
  std::string domain;
  std::string overload;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::vector<std::string> attributes;         // names of the required attributes, that is, those without a default
  std::vector<AttributeDef> attribute_protos;  // the attributes that have a default
  std::vector<NodeDef> nodes;
  std::vector<OpsetImport> opset_imports;
  std::vector<ValueInfoDef> value_info;
  std::string doc_string;
  Properties metadata_props;
};

struct ModelDef {
  // Stands for a missing version. ONNX Runtime uses the same value.
  static constexpr int64_t kNoVersion = std::numeric_limits<int64_t>::max();
  int64_t ir_version = 0;
  std::vector<OpsetImport> opset_imports;
  std::string producer_name;
  std::string producer_version;
  std::string domain;
  int64_t model_version = kNoVersion;
  std::string doc_string;
  GraphDef graph;
  Properties metadata_props;
  std::vector<FunctionDef> functions;
  std::vector<std::string> training_info;  // encoded messages TrainingInfoProto
  std::vector<std::string> configuration;  // encoded messages DeviceConfigurationProto
};

}  // namespace treadle::onnx
