// Encodes AttributeProto, NodeProto, GraphProto, FunctionProto and ModelProto. Fields are in ascending order, as protobuf writes them.
#include "onnx/encode.h"
#include "onnx/wire.h"

namespace treadle::onnx {
namespace {

void encode_graph(const EncodeContext& context, const GraphDef& graph);

/// Writes each element of `list` as a message with the function `encode`.
template <typename T, typename Encode>
void encode_list(const EncodeContext& context, uint32_t field, const std::vector<T>& list, Encode encode) {
  for (const T& element : list) context.out.message(field, [&] { encode(context, element); });
}

/// Writes all strings, including empty ones, which mean omitted inputs.
void encode_strings(const EncodeContext& context, uint32_t field, const std::vector<std::string>& list) {
  for (const std::string& text : list) context.out.bytes(field, text);
}

template <typename T>
const T& held(const AttributeDef& attribute, const std::unique_ptr<T>& value) {
  if (!value) throw Error(ErrorCode::invalid_model, "the attribute " + in_quotes(attribute.name) + " has no value to write");
  return *value;
}

void encode_attribute_value(const EncodeContext& context, const AttributeDef& attribute) {
  WireWriter& out = context.out;
  switch (attribute.type) {
    case AttributeType::undefined: break;
    case AttributeType::f: out.float32(2, attribute.f); break;
    case AttributeType::i: out.int64(3, attribute.i); break;
    case AttributeType::s: out.bytes(4, attribute.s); break;
    case AttributeType::tensor: out.message(5, [&] { encode_tensor(context, held(attribute, attribute.t)); }); break;
    case AttributeType::graph: out.message(6, [&] { encode_graph(context, held(attribute, attribute.g)); }); break;
    case AttributeType::floats:
      for (float value : attribute.floats) out.float32(7, value);
      break;
    case AttributeType::ints:
      for (int64_t value : attribute.ints) out.int64(8, value);
      break;
    case AttributeType::strings: encode_strings(context, 9, attribute.strings); break;
    case AttributeType::tensors: encode_list(context, 10, attribute.tensors, encode_tensor); break;
    case AttributeType::graphs: encode_list(context, 11, attribute.graphs, encode_graph); break;
    case AttributeType::type_proto: out.message(14, [&] { encode_type(context, held(attribute, attribute.tp)); }); break;
    case AttributeType::type_protos: encode_list(context, 15, attribute.type_protos, encode_type); break;
    case AttributeType::sparse_tensor:
      out.message(22, [&] { encode_sparse_tensor(context, held(attribute, attribute.sparse_tensor)); });
      break;
    case AttributeType::sparse_tensors: encode_list(context, 23, attribute.sparse_tensors, encode_sparse_tensor); break;
  }
}

void encode_attribute(const EncodeContext& context, const AttributeDef& attribute) {
  WireWriter& out = context.out;
  out.string(1, attribute.name);
  if (attribute.ref_attr_name.empty()) encode_attribute_value(context, attribute);
  out.string(13, attribute.doc_string);
  if (attribute.type != AttributeType::undefined) out.varint(20, static_cast<uint64_t>(attribute.type));
  out.string(21, attribute.ref_attr_name);
}

void encode_node(const EncodeContext& context, const NodeDef& node) {
  WireWriter& out = context.out;
  encode_strings(context, 1, node.inputs);
  encode_strings(context, 2, node.outputs);
  out.string(3, node.name);
  out.string(4, node.op_type);
  encode_list(context, 5, node.attributes, encode_attribute);
  out.string(6, node.doc_string);
  out.string(7, node.domain);
  out.string(8, node.overload);
  encode_properties(context, 9, node.metadata_props);
  encode_strings(context, 10, node.device_configurations);
}

void encode_annotation(const EncodeContext& context, const QuantizationAnnotation& annotation) {
  context.out.string(1, annotation.tensor_name);
  encode_properties(context, 2, annotation.quant_parameter_tensor_names);
}

void encode_graph(const EncodeContext& context, const GraphDef& graph) {
  encode_list(context, 1, graph.nodes, encode_node);
  context.out.string(2, graph.name);
  encode_list(context, 5, graph.initializers, encode_tensor);
  context.out.string(10, graph.doc_string);
  encode_list(context, 11, graph.inputs, encode_value_info);
  encode_list(context, 12, graph.outputs, encode_value_info);
  encode_list(context, 13, graph.value_info, encode_value_info);
  encode_list(context, 14, graph.quantization_annotation, encode_annotation);
  encode_list(context, 15, graph.sparse_initializers, encode_sparse_tensor);
  encode_properties(context, 16, graph.metadata_props);
}

void encode_opset_import(const EncodeContext& context, const OpsetImport& opset) {
  context.out.bytes(1, opset.domain);
  context.out.int64(2, opset.version);
}

void encode_function(const EncodeContext& context, const FunctionDef& function) {
  WireWriter& out = context.out;
  out.string(1, function.name);
  encode_strings(context, 4, function.inputs);
  encode_strings(context, 5, function.outputs);
  encode_strings(context, 6, function.attributes);
  encode_list(context, 7, function.nodes, encode_node);
  out.string(8, function.doc_string);
  encode_list(context, 9, function.opset_imports, encode_opset_import);
  out.string(10, function.domain);
  encode_list(context, 11, function.attribute_protos, encode_attribute);
  encode_list(context, 12, function.value_info, encode_value_info);
  out.string(13, function.overload);
  encode_properties(context, 14, function.metadata_props);
}

}  // namespace

void encode_model(const EncodeContext& context, const ModelDef& model) {
  WireWriter& out = context.out;
  out.int64(1, model.ir_version);
  out.string(2, model.producer_name);
  out.string(3, model.producer_version);
  out.string(4, model.domain);
  if (model.model_version != ModelDef::kNoVersion) out.int64(5, model.model_version);
  out.string(6, model.doc_string);
  out.message(7, [&] { encode_graph(context, model.graph); });
  encode_list(context, 8, model.opset_imports, encode_opset_import);
  encode_properties(context, 14, model.metadata_props);
  encode_strings(context, 20, model.training_info);
  encode_list(context, 25, model.functions, encode_function);
  encode_strings(context, 26, model.configuration);
}

}  // namespace treadle::onnx
