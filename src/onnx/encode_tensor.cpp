// Encodes TensorProto, SparseTensorProto, TypeProto, ValueInfoProto and key-value pairs.
#include "onnx/encode.h"
#include "onnx/wire.h"

namespace treadle::onnx {

void encode_properties(const EncodeContext& context, uint32_t field, const Properties& properties) {
  WireWriter& out = context.out;
  for (const auto& [key, value] : properties)
    out.message(field, [&, &key = key, &value = value] {
      out.bytes(1, key);
      out.bytes(2, value);
    });
}

namespace {

void encode_external(const EncodeContext& context, const ExternalDataDef& external) {
  Properties entries{{"location", external.location}, {"offset", std::to_string(external.offset)}};
  if (external.length) entries.emplace_back("length", std::to_string(*external.length));
  if (!external.checksum.empty()) entries.emplace_back("checksum", external.checksum);
  entries.append(external.other);
  encode_properties(context, 13, entries);
  context.out.varint(14, 1);
}

void encode_elements(WireWriter& out, const Tensor& value) {
  if (value.dtype() == DType::string) {
    const Tensor dense = value.contiguous();
    for (const std::string& text : dense.span<std::string>()) out.bytes(6, text);
    return;
  }
  out.begin_bytes(9, value.size_bytes());
  if (out.measuring()) return out.skip(value.size_bytes());
  const Tensor dense = value.contiguous();
  out.put(dense.raw(), dense.size_bytes());
}

}  // namespace

void encode_tensor(const EncodeContext& context, const TensorDef& tensor) {
  WireWriter& out = context.out;
  const Tensor& value = tensor.value;
  auto planned = context.external.find(&tensor);
  const ExternalDataDef* external = planned != context.external.end()        ? &planned->second
                                    : !value.defined() && tensor.is_external ? &tensor.external
                                                                             : nullptr;
  if (!external && !value.defined())
    throw Error(ErrorCode::invalid_model, "the tensor " + in_quotes(tensor.name) + " has no value to write");
  for (int64_t dim : value.defined() ? value.shape() : tensor.shape) out.int64(1, dim);
  out.varint(2, static_cast<uint64_t>(value.defined() ? value.dtype() : tensor.dtype));
  // Fields are in ascending order, as protobuf writes them: strings, name, bytes.
  bool strings = value.defined() && value.dtype() == DType::string;
  if (strings) encode_elements(out, value);
  out.string(8, tensor.name);
  if (!strings && !external) encode_elements(out, value);
  out.string(12, tensor.doc_string);
  if (external) encode_external(context, *external);
  encode_properties(context, 16, tensor.metadata_props);
}

void encode_sparse_tensor(const EncodeContext& context, const SparseTensorDef& sparse) {
  context.out.message(1, [&] { encode_tensor(context, sparse.values); });
  context.out.message(2, [&] { encode_tensor(context, sparse.indices); });
  for (int64_t dim : sparse.dims) context.out.int64(3, dim);
}

namespace {

void encode_dim(WireWriter& out, const DimDef& dim) {
  if (dim.kind == DimDef::Kind::value) out.int64(1, dim.value);
  if (dim.kind == DimDef::Kind::param) out.string(2, dim.param);
  out.string(3, dim.denotation);
}

void encode_tensor_type(WireWriter& out, const TypeDef& type) {
  if (type.elem_type != DType::undefined) out.varint(1, static_cast<uint64_t>(type.elem_type));
  if (!type.shape) return;
  out.message(2, [&] {
    for (const DimDef& dim : *type.shape) out.message(1, [&] { encode_dim(out, dim); });
  });
}

}  // namespace

void encode_type(const EncodeContext& context, const TypeDef& type) {
  WireWriter& out = context.out;
  auto element = [&](uint32_t field) {
    if (type.elem) out.message(field, [&] { encode_type(context, *type.elem); });
  };
  auto denotation = [&] { out.string(6, type.denotation); };
  switch (type.kind) {
    case TypeDef::Kind::none: denotation(); break;
    case TypeDef::Kind::tensor:
      out.message(1, [&] { encode_tensor_type(out, type); });
      denotation();
      break;
    case TypeDef::Kind::sequence:
      out.message(4, [&] { element(1); });
      denotation();
      break;
    case TypeDef::Kind::map:
      out.message(5, [&] {
        if (type.key_type != DType::undefined) out.varint(1, static_cast<uint64_t>(type.key_type));
        element(2);
      });
      denotation();
      break;
    case TypeDef::Kind::opaque:
      denotation();
      out.bytes(7, type.opaque);
      break;
    case TypeDef::Kind::sparse_tensor:
      denotation();
      out.message(8, [&] { encode_tensor_type(out, type); });
      break;
    case TypeDef::Kind::optional:
      denotation();
      out.message(9, [&] { element(1); });
      break;
  }
}

void encode_value_info(const EncodeContext& context, const ValueInfoDef& info) {
  WireWriter& out = context.out;
  out.string(1, info.name);
  if (info.type.kind != TypeDef::Kind::none || !info.type.denotation.empty()) out.message(2, [&] { encode_type(context, info.type); });
  out.string(3, info.doc_string);
  encode_properties(context, 4, info.metadata_props);
}

}  // namespace treadle::onnx
