// What an ONNX file says, as plain structs: ModelProto and all that it holds (IR 14), with tensors already decoded.
//
// The structs mirror the protobuf messages field by field; nothing here knows the graph. Two things are lost on reading: fields that
// IR 14 does not name, and the difference between an absent and an empty string, list or type (no meaning in ONNX hangs on it).
// Copies are deep, but for the elements of tensors, which they share: who changes some of these makes them his own (Tensor::clone) first.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/properties.h"
#include "treadle/tensor.h"

namespace treadle::onnx {

/// The newest IR version whose fields are all known here; a file of a newer one is refused rather than half read.
inline constexpr int64_t kMaxIrVersion = 14;

/// What a struct owns and may be without: a copy owns a copy.
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
  std::string domain;  // "" and "ai.onnx" are the same
  int64_t version = 0;
};

/// Where the elements of a tensor lie, as the model states it.
struct ExternalDataDef {
  std::string location;            // relative to the model's folder
  uint64_t offset = 0;             // bytes
  std::optional<uint64_t> length;  // bytes; absent: what the shape needs
  std::string checksum;            // SHA-1 of the file as 40 hexadecimal digits, which the reader verifies; other text is kept
  Properties other;                // keys that ONNX does not define
};

/// TensorProto. The reader fills `dtype` and `shape` always, and `value` unless the data is external and was not asked for.
/// The writer takes `value` where it is defined and `dtype`, `shape` and `external` otherwise.
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

/// SparseTensorProto. The reader has checked that the indices are inside `dims` and ascend strictly.
struct SparseTensorDef {
  TensorDef values;   // [nnz]; its name is the name of the whole
  TensorDef indices;  // int64, [nnz] (linear) or [nnz, rank]
  std::vector<int64_t> dims;
};

struct DimDef {
  enum class Kind : uint8_t { unknown, value, param };
  Kind kind = Kind::unknown;
  int64_t value = 0;  // as written: some exporters put -1 for "unknown"
  std::string param;
  std::string denotation;
};

/// TypeProto.
struct TypeDef {
  enum class Kind : uint8_t { none, tensor, sparse_tensor, sequence, optional, map, opaque };
  Kind kind = Kind::none;                    // none: the file gives no type
  DType elem_type = DType::undefined;        // tensor and sparse_tensor
  std::optional<std::vector<DimDef>> shape;  // tensor and sparse_tensor; absent: unknown rank
  DType key_type = DType::undefined;         // map
  Owned<TypeDef> elem;                       // sequence, optional, and the value of a map; may be null where the file omits it
  std::string opaque;                        // the encoded TypeProto.Opaque
  std::string denotation;
};

struct ValueInfoDef {
  std::string name;
  TypeDef type;
  std::string doc_string;
  Properties metadata_props;
};

struct GraphDef;

/// AttributeProto.AttributeType, with its numbers.
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

/// AttributeProto. Only the member that `type` names holds a value; the reader has checked that, and that a pointer it names is set.
struct AttributeDef {
  std::string name;
  std::string ref_attr_name;  // inside a function: the function's attribute that gives the value; then no member holds one
  std::string doc_string;
  AttributeType type = AttributeType::undefined;
  float f = 0;
  int64_t i = 0;
  std::string s;  // bytes
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

  // Here the graph's struct is incomplete: defined in model_def.cpp.
  AttributeDef();
  ~AttributeDef();
  AttributeDef(const AttributeDef&);
  AttributeDef(AttributeDef&&) noexcept;
  AttributeDef& operator=(const AttributeDef&);
  AttributeDef& operator=(AttributeDef&&) noexcept;
};

struct NodeDef {
  std::vector<std::string> inputs;   // "": the optional input is left out
  std::vector<std::string> outputs;  // "": nobody wants it
  std::string name;
  std::string op_type;
  std::string domain;
  std::string overload;
  std::vector<AttributeDef> attributes;
  std::string doc_string;
  Properties metadata_props;
  std::vector<std::string> device_configurations;  // encoded NodeDeviceConfigurationProto
};

/// TensorAnnotation: the quantisation parameters of a value.
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

/// FunctionProto: a model-local function, identified by (domain, name, overload).
struct FunctionDef {
  std::string name;
  std::string domain;
  std::string overload;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::vector<std::string> attributes;         // required, no default
  std::vector<AttributeDef> attribute_protos;  // with their defaults
  std::vector<NodeDef> nodes;
  std::vector<OpsetImport> opset_imports;
  std::vector<ValueInfoDef> value_info;
  std::string doc_string;
  Properties metadata_props;
};

struct ModelDef {
  static constexpr int64_t kNoVersion = std::numeric_limits<int64_t>::max();  // which ONNX Runtime tells of a model without one
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
  std::vector<std::string> training_info;  // encoded TrainingInfoProto
  std::vector<std::string> configuration;  // encoded DeviceConfigurationProto
};

}  // namespace treadle::onnx
