// Parses TypeProto, ValueInfoProto and key-value pairs.
#include "onnx/parse_context.h"

namespace treadle::onnx {

DType parse_dtype(const ParseContext& context, int32_t number) {
  if (number < 0) context.place.fail("the element type " + std::to_string(number));
  if (number >= kNumDTypes)
    context.place.fail(ErrorCode::not_implemented, "the element type " + std::to_string(number) + " is not known; the last known one is " +
                                                       std::to_string(kNumDTypes - 1));
  return static_cast<DType>(number);
}

DType parse_map_key(const ParseContext& context, int32_t number) {
  const DType dtype = parse_dtype(context, number);
  if (!is_integer(dtype) && dtype != DType::string)
    context.place.fail("a map's keys must be integers or strings, not " + std::string(name_of(dtype)));
  return dtype;
}

void parse_property(ParseContext&, WireReader reader, Properties& out) {
  auto& [key, value] = out.emplace_back();
  while (reader.next()) {
    if (reader.field() == 1) key = reader.string();
    if (reader.field() == 2) value = reader.string();
  }
}

namespace {

void parse_dim(WireReader reader, DimDef& out) {
  while (reader.next()) {
    switch (reader.field()) {
      case 1:
        out.kind = DimDef::Kind::value;
        out.value = reader.int64();
        out.param.clear();
        break;
      case 2:
        out.param = reader.string();
        out.kind = out.param.empty() ? DimDef::Kind::unknown : DimDef::Kind::param;
        out.value = 0;
        break;
      case 3: out.denotation = reader.string(); break;
      default: break;
    }
  }
}

void parse_tensor_type(ParseContext& context, WireReader reader, TypeDef& out) {
  while (reader.next()) {
    if (reader.field() == 1) out.elem_type = parse_dtype(context, reader.int32());
    if (reader.field() != 2) continue;
    if (!out.shape) out.shape.emplace();
    for (WireReader shape = reader.message(); shape.next();) {
      if (shape.field() != 1) continue;
      context.count_message();
      if (out.shape->empty()) out.shape->reserve(4);
      Place::Step step(context.place, "shape.dim", out.shape->size(), nullptr);
      parse_dim(shape.message(), out.shape->emplace_back());
    }
  }
}

/// Parses the element type of a sequence or optional (field 1), or the value type of a map (field 2; field 1 is its key type).
void parse_container_type(ParseContext& context, WireReader reader, uint32_t field, TypeDef& out) {
  out.elem.reset();
  while (reader.next()) {
    if (field == 2 && reader.field() == 1) out.key_type = parse_map_key(context, reader.int32());
    if (reader.field() != field) continue;
    context.count_message();
    if (!out.elem) out.elem = std::make_unique<TypeDef>();
    parse_type(context, reader.message(), *out.elem);
  }
}

}  // namespace

void parse_type(ParseContext& context, WireReader reader, TypeDef& out) {
  Nesting nesting(context, context.type_depth, "types");
  while (reader.next()) {
    TypeDef::Kind kind = TypeDef::Kind::none;
    switch (reader.field()) {
      case 1: kind = TypeDef::Kind::tensor; break;
      case 4: kind = TypeDef::Kind::sequence; break;
      case 5: kind = TypeDef::Kind::map; break;
      case 7: kind = TypeDef::Kind::opaque; break;
      case 8: kind = TypeDef::Kind::sparse_tensor; break;
      case 9: kind = TypeDef::Kind::optional; break;
      case 6: out.denotation = reader.string(); continue;
      default: continue;
    }
    if (kind != out.kind) {  // only one kind applies, that of the last field
      TypeDef fresh;
      fresh.kind = kind;
      fresh.denotation = std::move(out.denotation);
      out = std::move(fresh);
    }
    if (kind == TypeDef::Kind::tensor || kind == TypeDef::Kind::sparse_tensor)
      parse_tensor_type(context, reader.message(), out);
    else if (kind == TypeDef::Kind::opaque)
      out.opaque = reader.bytes();
    else
      parse_container_type(context, reader.message(), kind == TypeDef::Kind::map ? 2 : 1, out);
  }
}

void parse_value_info(ParseContext& context, WireReader reader, ValueInfoDef& out) {
  while (reader.next()) {
    switch (reader.field()) {
      case 1: out.name = reader.string(); break;
      case 2: {
        Place::Step step(context.place, "type");
        parse_type(context, reader.message(), out.type);
        break;
      }
      case 3: out.doc_string = reader.string(); break;
      case 4: parse_property(context, reader.message(), out.metadata_props); break;
      default: break;
    }
  }
}

}  // namespace treadle::onnx
