// Writes models in ONNX Runtime's format (*.ort), which the library only reads.
#pragma once

#include <flatbuffers/flatbuffers.h>

#include <set>
#include <string>
#include <vector>

#include "onnx/model_def.h"

namespace treadle::onnx::test {

class OrtWriter {
 public:
  static std::string write(const ModelDef& model, const std::string& version = "6") { return OrtWriter().whole(model, version); }

 private:
  using Offset = flatbuffers::Offset<void>;
  using Texts = std::vector<std::string>;

  /// The fields of a table. Objects that they refer to are written before it.
  struct Fields {
    explicit Fields(flatbuffers::FlatBufferBuilder& b) : builder(b), start(b.StartTable()) {}
    Fields& offset(int field, flatbuffers::uoffset_t to) {
      if (to != 0) builder.AddOffset(place(field), Offset(to));
      return *this;
    }
    template <typename T>
    Fields& number(int field, T value) {
      builder.AddElement<T>(place(field), value, T{});
      return *this;
    }
    Offset end() { return Offset(builder.EndTable(start)); }
    static flatbuffers::voffset_t place(int field) { return static_cast<flatbuffers::voffset_t>(4 + 2 * field); }
    flatbuffers::FlatBufferBuilder& builder;
    flatbuffers::uoffset_t start;
  };

  flatbuffers::uoffset_t text(const std::string& value) { return builder_.CreateSharedString(value).o; }
  flatbuffers::uoffset_t texts(const Texts& values) {
    std::vector<flatbuffers::Offset<flatbuffers::String>> all;
    for (const std::string& value : values) all.push_back(builder_.CreateSharedString(value));
    return builder_.CreateVector(all).o;
  }
  template <typename T, typename Write>
  flatbuffers::uoffset_t each(const std::vector<T>& list, const Write& write) {
    std::vector<Offset> all;
    for (const T& element : list) all.push_back(write(element));
    return builder_.CreateVector(all).o;
  }

  Offset property(const Properties::value_type& entry) {
    const auto key = text(entry.first), value = text(entry.second);
    return Fields(builder_).offset(0, key).offset(1, value).end();
  }
  Offset dim(const DimDef& def) {
    const auto denotation = text(def.denotation), param = text(def.param);
    const Offset value =
        Fields(builder_).number<int64_t>(1, def.value).offset(2, param).number<int8_t>(0, static_cast<int8_t>(def.kind)).end();
    return Fields(builder_).offset(0, value.o).offset(1, denotation).end();
  }
  Offset type(const TypeDef& def) {
    using Kind = TypeDef::Kind;
    const auto denotation = text(def.denotation);
    flatbuffers::uoffset_t value = 0;
    uint8_t kind = 0;
    if (def.kind == Kind::tensor) {
      kind = 1;
      flatbuffers::uoffset_t shape = 0;
      if (def.shape) {
        const auto dims = each(*def.shape, [&](const DimDef& one) { return dim(one); });
        shape = Fields(builder_).offset(0, dims).end().o;
      }
      value = Fields(builder_).number(0, static_cast<int32_t>(def.elem_type)).offset(1, shape).end().o;
    } else if (def.kind == Kind::sequence) {
      kind = 2;
      const auto element = type(*def.elem).o;
      value = Fields(builder_).offset(0, element).end().o;
    } else if (def.kind == Kind::map) {
      kind = 3;
      const auto element = type(*def.elem).o;
      value = Fields(builder_).number(0, static_cast<int32_t>(def.key_type)).offset(1, element).end().o;
    }
    return Fields(builder_).offset(0, denotation).offset(2, value).number(1, kind).end();
  }
  Offset value_info(const ValueInfoDef& def) {
    const auto name = text(def.name), doc = text(def.doc_string), of_type = type(def.type).o;
    return Fields(builder_).offset(0, name).offset(1, doc).offset(2, of_type).end();
  }
  Offset tensor(const TensorDef& def) {
    const auto name = text(def.name), doc = text(def.doc_string);
    const auto dims = builder_.CreateVector(std::vector<int64_t>(def.shape.begin(), def.shape.end())).o;
    const Tensor plain = def.value.contiguous();
    flatbuffers::uoffset_t raw = 0, strings = 0;
    if (def.dtype == DType::string)
      strings = texts(Texts(plain.data<std::string>(), plain.data<std::string>() + plain.num_elements()));
    else
      raw = builder_.CreateVector(reinterpret_cast<const uint8_t*>(plain.raw()), plain.size_bytes()).o;
    return Fields(builder_)
        .offset(0, name)
        .offset(1, doc)
        .offset(2, dims)
        .number(3, static_cast<int32_t>(def.dtype))
        .offset(4, raw)
        .offset(5, strings)
        .end();
  }
  Offset sparse_tensor(const SparseTensorDef& def) {
    const auto values = tensor(def.values).o, indices = tensor(def.indices).o, dims = builder_.CreateVector(def.dims).o;
    return Fields(builder_).offset(0, values).offset(1, indices).offset(2, dims).end();
  }
  Offset attribute(const AttributeDef& def) {
    const auto name = text(def.name), doc = text(def.doc_string), s = text(def.s);
    const auto t = def.t ? tensor(*def.t).o : 0, g = def.g ? graph(*def.g).o : 0;
    const auto floats = builder_.CreateVector(def.floats).o, ints = builder_.CreateVector(def.ints).o, strings = texts(def.strings);
    const auto tensors = each(def.tensors, [&](const TensorDef& one) { return tensor(one); });
    const auto graphs = each(def.graphs, [&](const GraphDef& one) { return graph(one); });
    Fields fields(builder_);
    fields.number(4, def.i).offset(0, name).offset(1, doc).number(2, static_cast<int32_t>(def.type)).number(3, def.f);
    fields.offset(5, s).offset(6, t).offset(7, g).offset(8, floats).offset(9, ints).offset(10, strings);
    return fields.offset(11, tensors).offset(12, graphs).end();
  }
  Offset node(const NodeDef& def) {
    const auto name = text(def.name), doc = text(def.doc_string), domain = text(def.domain), op = text(def.op_type);
    const auto inputs = texts(def.inputs), outputs = texts(def.outputs);
    const auto attributes = each(def.attributes, [&](const AttributeDef& one) { return attribute(one); });
    Fields fields(builder_);
    fields.offset(0, name).offset(1, doc).offset(2, domain).offset(5, op).offset(8, inputs).offset(9, outputs);
    return fields.offset(10, attributes).end();
  }
  Offset graph(const GraphDef& def) {
    const auto initializers = each(def.initializers, [&](const TensorDef& one) { return tensor(one); });
    const auto sparse = each(def.sparse_initializers, [&](const SparseTensorDef& one) { return sparse_tensor(one); });
    std::vector<ValueInfoDef> known;
    std::set<std::string> seen;
    for (const auto* list : {&def.inputs, &def.outputs, &def.value_info})
      for (const ValueInfoDef& info : *list)
        if (seen.insert(info.name).second) known.push_back(info);
    const auto values = each(known, [&](const ValueInfoDef& one) { return value_info(one); });
    const auto nodes = each(def.nodes, [&](const NodeDef& one) { return node(one); });
    const auto inputs = texts(names(def.inputs)), outputs = texts(names(def.outputs));
    Fields fields(builder_);
    fields.offset(0, initializers).offset(1, values).offset(2, nodes).offset(5, inputs).offset(6, outputs).offset(7, sparse);
    return fields.end();
  }
  static Texts names(const std::vector<ValueInfoDef>& list) {
    Texts all;
    for (const ValueInfoDef& info : list) all.push_back(info.name);
    return all;
  }
  std::string whole(const ModelDef& def, const std::string& version) {
    const auto opsets = each(def.opset_imports, [&](const OpsetImport& opset) {
      const auto domain = text(opset.domain);
      return Fields(builder_).number(1, opset.version).offset(0, domain).end();
    });
    std::vector<Properties::value_type> entries(def.metadata_props.begin(), def.metadata_props.end());
    const auto properties = each(entries, [&](const Properties::value_type& entry) { return property(entry); });
    const auto producer = text(def.producer_name), producer_version = text(def.producer_version), domain = text(def.domain);
    const auto doc = text(def.doc_string), graph_doc = text(def.graph.doc_string), main = graph(def.graph).o;
    Fields fields(builder_);
    fields.number(0, def.ir_version).number(5, def.model_version).offset(1, opsets).offset(2, producer).offset(3, producer_version);
    const Offset model = fields.offset(4, domain).offset(6, doc).offset(7, main).offset(8, graph_doc).offset(9, properties).end();
    const auto told = text(version);
    builder_.Finish(Fields(builder_).offset(0, told).offset(1, model.o).end(), "ORTM");
    return {reinterpret_cast<const char*>(builder_.GetBufferPointer()), builder_.GetSize()};
  }

  flatbuffers::FlatBufferBuilder builder_;
};

}  // namespace treadle::onnx::test
