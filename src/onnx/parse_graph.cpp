// Parses AttributeProto, NodeProto and GraphProto.
#include "onnx/parse_context.h"

namespace treadle::onnx {
namespace {

constexpr int kNumAttributeTypes = 15;

const char* name_of(AttributeType type) {
  constexpr const char* kNames[kNumAttributeTypes] = {"undefined",      "float",      "int",        "string",  "tensor", "graph",
                                                      "floats",         "ints",       "strings",    "tensors", "graphs", "sparse_tensor",
                                                      "sparse_tensors", "type_proto", "type_protos"};
  return kNames[static_cast<size_t>(type)];
}

/// Returns the attribute type whose value this field of AttributeProto contains.
AttributeType type_of_field(uint32_t field) {
  switch (field) {
    case 2: return AttributeType::f;
    case 3: return AttributeType::i;
    case 4: return AttributeType::s;
    case 5: return AttributeType::tensor;
    case 6: return AttributeType::graph;
    case 7: return AttributeType::floats;
    case 8: return AttributeType::ints;
    case 9: return AttributeType::strings;
    case 10: return AttributeType::tensors;
    case 11: return AttributeType::graphs;
    case 14: return AttributeType::type_proto;
    case 15: return AttributeType::type_protos;
    case 22: return AttributeType::sparse_tensor;
    case 23: return AttributeType::sparse_tensors;
    default: return AttributeType::undefined;
  }
}

/// Parses a message that occurs at most once, into an object behind a pointer.
template <typename T, typename Parse>
void parse_single(ParseContext& context, const WireReader& reader, const char* field, std::unique_ptr<T>& out, Parse parse) {
  context.count_message();
  if (!out) out = std::make_unique<T>();
  Place::Step step(context.place, field);
  parse(context, reader.message(), *out);
}

void parse_attribute_value(ParseContext& context, WireReader& reader, AttributeDef& out) {
  switch (reader.field()) {
    case 2: out.f = reader.float32(); break;
    case 3: out.i = reader.int64(); break;
    case 4: out.s = reader.bytes(); break;
    case 5: parse_single(context, reader, "t", out.t, parse_tensor); break;
    case 6: parse_single(context, reader, "g", out.g, parse_graph); break;
    case 7:
      if (out.floats.empty()) out.floats.reserve(reader.count_row());
      reader.row_fixed<float>([&](float value) { out.floats.push_back(value); });
      break;
    case 8:
      if (out.ints.empty()) out.ints.reserve(reader.count_row());
      reader.row_varint([&](uint64_t value) { out.ints.push_back(static_cast<int64_t>(value)); });
      break;
    case 9:
      if (out.strings.empty()) out.strings.reserve(reader.count_row());
      out.strings.emplace_back(reader.bytes());
      break;
    case 10: parse_element(context, reader, "tensors", out.tensors, parse_tensor); break;
    case 11: parse_element(context, reader, "graphs", out.graphs, parse_graph); break;
    case 14: parse_single(context, reader, "tp", out.tp, parse_type); break;
    case 15: parse_element(context, reader, "type_protos", out.type_protos, parse_type); break;
    case 22: parse_single(context, reader, "sparse_tensor", out.sparse_tensor, parse_sparse_tensor); break;
    case 23: parse_element(context, reader, "sparse_tensors", out.sparse_tensors, parse_sparse_tensor); break;
    default: break;
  }
}

/// Checks that the attribute's value fits its type. @param present  the type whose field occurred in the message; undefined: none
void check_attribute(const Place& place, AttributeDef& out, AttributeType present) {
  if (!out.ref_attr_name.empty()) {
    if (present != AttributeType::undefined)
      place.fail("refers to the function's attribute " + in_quotes(out.ref_attr_name) + " and holds a " + name_of(present) + " besides");
    return;
  }
  if (out.type == AttributeType::undefined) out.type = present;  // files older than IR version 2 do not state the type
  if (out.type == AttributeType::undefined) place.fail("an attribute without a type");
  if (present != AttributeType::undefined && present != out.type)
    place.fail(std::string("is said to be a ") + name_of(out.type) + " and holds a " + name_of(present));
  bool missing = (out.type == AttributeType::tensor && !out.t) || (out.type == AttributeType::graph && !out.g) ||
                 (out.type == AttributeType::sparse_tensor && !out.sparse_tensor) || (out.type == AttributeType::type_proto && !out.tp);
  if (missing) place.fail(std::string("is said to be a ") + name_of(out.type) + " and holds none");
}

}  // namespace

void parse_attribute(ParseContext& context, WireReader reader, AttributeDef& out) {
  AttributeType present = AttributeType::undefined;
  while (reader.next()) {
    switch (reader.field()) {
      case 1: out.name = reader.string(); continue;
      case 13: out.doc_string = reader.string(); continue;
      case 21: out.ref_attr_name = reader.string(); continue;
      case 20: {
        int32_t type = reader.int32();
        if (type < 0 || type >= kNumAttributeTypes)
          context.place.fail(ErrorCode::not_implemented, "an attribute of the type " + std::to_string(type) + ", which is not known");
        out.type = static_cast<AttributeType>(type);
        continue;
      }
      default: break;
    }
    AttributeType type = type_of_field(reader.field());
    if (type == AttributeType::undefined) continue;
    if (present != AttributeType::undefined && present != type)
      context.place.fail(std::string("holds a ") + name_of(present) + " and a " + name_of(type));
    present = type;
    parse_attribute_value(context, reader, out);
  }
  check_attribute(context.place, out, present);
}

void parse_node(ParseContext& context, WireReader reader, NodeDef& out) {
  while (reader.next()) {
    switch (reader.field()) {
      case 1: out.inputs.push_back(reader.string()); break;
      case 2: out.outputs.push_back(reader.string()); break;
      case 3: out.name = reader.string(); break;
      case 4: out.op_type = reader.string(); break;
      case 5:
        context.in_constant = out.op_type == "Constant";  // works because files store op_type before the attributes
        parse_element(context, reader, "attribute", out.attributes, parse_attribute);
        context.in_constant = false;
        break;
      case 6: out.doc_string = reader.string(); break;
      case 7: out.domain = reader.string(); break;
      case 8: out.overload = reader.string(); break;
      case 9: parse_property(context, reader.message(), out.metadata_props); break;
      case 10: out.device_configurations.emplace_back(reader.bytes()); break;
      default: break;
    }
  }
  if (out.op_type.empty()) context.place.fail("a node without an operator (op_type)");
}

namespace {

void parse_quantization_annotation(ParseContext& context, WireReader reader, QuantizationAnnotation& out) {
  while (reader.next()) {
    if (reader.field() == 1) out.tensor_name = reader.string();
    if (reader.field() == 2) parse_property(context, reader.message(), out.quant_parameter_tensor_names);
  }
}

}  // namespace

void parse_graph(ParseContext& context, WireReader reader, GraphDef& out) {
  Nesting nesting(context, context.graph_depth, "graphs");
  while (reader.next()) {
    switch (reader.field()) {
      case 1: parse_element(context, reader, "node", out.nodes, parse_node); break;
      case 2: out.name = reader.string(); break;
      case 5: parse_element(context, reader, "initializer", out.initializers, parse_initializer); break;
      case 10: out.doc_string = reader.string(); break;
      case 11: parse_element(context, reader, "input", out.inputs, parse_value_info); break;
      case 12: parse_element(context, reader, "output", out.outputs, parse_value_info); break;
      case 13: parse_element(context, reader, "value_info", out.value_info, parse_value_info); break;
      case 14: parse_element(context, reader, "quantization_annotation", out.quantization_annotation, parse_quantization_annotation); break;
      case 15: parse_element(context, reader, "sparse_initializer", out.sparse_initializers, parse_sparse_tensor); break;
      case 16: parse_property(context, reader.message(), out.metadata_props); break;
      default: break;
    }
  }
}

}  // namespace treadle::onnx
