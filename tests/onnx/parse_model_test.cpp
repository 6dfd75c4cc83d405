// Tests the reader with models built by hand: it must store every field in the right place, and errors must tell where the fault is.
#include <gtest/gtest.h>

#include "onnx/parse.h"
#include "tests/onnx/full_model.h"
#include "tests/onnx/model_difference.h"

namespace treadle::onnx::test {
namespace {

ModelDef parse(const std::string& bytes, const ReadOptions& options = {}) {
  return parse_model_bytes(bytes_of(bytes), nullptr, {}, options);
}

std::string error_of_model(const std::string& bytes, const ReadOptions& options = {}) {
  return error_of([&] { parse(bytes, options); });
}

TEST(OnnxParse, FillsEveryFieldOfModelAndGraph) {
  ModelDef m = parse(full_model());
  EXPECT_EQ(m.ir_version, 14);
  EXPECT_EQ(m.producer_name + m.producer_version + m.domain + m.doc_string, "maker1.2org.examplea model");
  EXPECT_EQ(m.model_version, 3);
  ASSERT_EQ(m.opset_imports.size(), 2u);
  EXPECT_EQ(m.opset_imports[1].domain, "my.domain");
  EXPECT_EQ(m.opset_imports[0].version, 21);
  EXPECT_EQ(m.metadata_props, (Properties{{"author", "somebody"}}));
  EXPECT_EQ(m.training_info, (std::vector<std::string>{message([](Writer& t) { t.add_message(3, entry("a", "b")); })}));
  EXPECT_EQ(m.configuration.size(), 1u);
  const GraphDef& g = m.graph;
  EXPECT_EQ(g.name + g.doc_string, "mainthe graph");
  EXPECT_EQ(g.metadata_props, (Properties{{"gk", "gv"}}));
  ASSERT_EQ(g.quantization_annotation.size(), 1u);
  EXPECT_EQ(g.quantization_annotation[0].tensor_name, "w");
  EXPECT_EQ(g.quantization_annotation[0].quant_parameter_tensor_names, (Properties{{"SCALE_TENSOR", "s"}}));
  ASSERT_EQ(g.initializers.size(), 2u);
  EXPECT_EQ(g.initializers[0].doc_string, "weights");
  EXPECT_EQ(g.initializers[0].metadata_props, (Properties{{"tk", "tv"}}));
  EXPECT_EQ(g.initializers[0].value.data<float>()[5], 5.f);
  EXPECT_EQ(g.initializers[1].value.data<std::string>()[0], "hello");
  ASSERT_EQ(g.sparse_initializers.size(), 1u);
  EXPECT_EQ(g.sparse_initializers[0].values.name, "sparse");
  EXPECT_EQ(g.sparse_initializers[0].dims, (std::vector<int64_t>{3, 4}));
}

TEST(OnnxParse, FillsEveryFieldOfANode) {
  ModelDef m = parse(full_model());
  const NodeDef& n = m.graph.nodes.at(0);
  EXPECT_EQ(n.inputs, (std::vector<std::string>{"x", "", "w"}));
  EXPECT_EQ(n.outputs, (std::vector<std::string>{"y"}));
  EXPECT_EQ(n.name + "/" + n.op_type + "/" + n.domain + "/" + n.overload + "/" + n.doc_string, "node/Op/my.domain/variant/a node");
  EXPECT_EQ(n.metadata_props, (Properties{{"k", "v"}}));
  EXPECT_EQ(n.device_configurations.size(), 1u);
  EXPECT_EQ(n.attributes.size(), 14u);
}

TEST(OnnxParse, ReadsEveryKindOfAttribute) {
  ModelDef m = parse(full_model());
  auto at = [&](int type) -> const AttributeDef& {
    const AttributeDef& a = m.graph.nodes.at(0).attributes.at(static_cast<size_t>(type - 1));
    EXPECT_EQ(static_cast<int>(a.type), type);
    EXPECT_EQ(a.name, "a" + std::to_string(type));
    EXPECT_EQ(a.doc_string, "doc");
    return a;
  };
  EXPECT_EQ(at(1).f, 0.5f);
  EXPECT_EQ(at(2).i, -7);
  EXPECT_EQ(at(3).s, std::string("b\0c", 3));
  EXPECT_EQ(at(4).t->value.data<float>()[0], 3.f);
  EXPECT_EQ(at(5).g->nodes.at(0).op_type, "Identity");
  EXPECT_EQ(at(6).floats, (std::vector<float>{1.5f, -2.f}));
  EXPECT_EQ(at(7).ints, (std::vector<int64_t>{int64_t{1} << 40, -1}));
  EXPECT_EQ(at(8).strings, (std::vector<std::string>{"x", ""}));
  EXPECT_EQ(at(9).tensors.at(1).value.data<float>()[0], 2.f);
  EXPECT_EQ(at(10).graphs.at(1).name, "two");
  EXPECT_EQ(at(11).sparse_tensor->indices.value.data<int64_t>()[3], 3);
  EXPECT_EQ(at(12).sparse_tensors.size(), 1u);
  EXPECT_EQ(at(13).tp->kind, TypeDef::Kind::tensor);
  EXPECT_EQ(at(14).type_protos.at(0).kind, TypeDef::Kind::sequence);
}

TEST(OnnxParse, ReadsEveryKindOfType) {
  ModelDef m = parse(full_model());
  const TypeDef& x = m.graph.inputs.at(0).type;
  EXPECT_EQ(x.kind, TypeDef::Kind::tensor);
  EXPECT_EQ(x.elem_type, DType::float32);
  EXPECT_EQ(x.denotation, "IMAGE");
  ASSERT_EQ(x.shape->size(), 3u);
  EXPECT_EQ((*x.shape)[0].kind, DimDef::Kind::value);
  EXPECT_EQ((*x.shape)[0].value, 2);
  EXPECT_EQ((*x.shape)[1].kind, DimDef::Kind::param);
  EXPECT_EQ((*x.shape)[1].param, "batch");
  EXPECT_EQ((*x.shape)[1].denotation, "DATA_BATCH");
  EXPECT_EQ((*x.shape)[2].kind, DimDef::Kind::unknown);
  const TypeDef& seq = m.graph.inputs.at(1).type;
  EXPECT_EQ(seq.kind, TypeDef::Kind::sequence);
  EXPECT_EQ(seq.elem->kind, TypeDef::Kind::optional);
  EXPECT_EQ(seq.elem->elem->elem_type, DType::float16);
  EXPECT_EQ(seq.elem->elem->shape->size(), 0u);
  const TypeDef& map = m.graph.outputs.at(0).type;
  EXPECT_EQ(map.kind, TypeDef::Kind::map);
  EXPECT_EQ(map.key_type, DType::string);
  EXPECT_EQ(map.elem->elem_type, DType::int64);
  EXPECT_EQ(m.graph.value_info.at(0).type.kind, TypeDef::Kind::sparse_tensor);
  EXPECT_EQ(m.graph.value_info.at(0).type.elem_type, DType::float64);
  EXPECT_EQ(m.graph.value_info.at(1).type.kind, TypeDef::Kind::opaque);
}

TEST(OnnxParse, FillsEveryFieldOfAFunction) {
  ModelDef m = parse(full_model());
  const FunctionDef& f = m.functions.at(0);
  EXPECT_EQ(f.name + "/" + f.domain + "/" + f.overload + "/" + f.doc_string, "Twice/my.domain/variant/a function");
  EXPECT_EQ(f.inputs, (std::vector<std::string>{"a"}));
  EXPECT_EQ(f.outputs, (std::vector<std::string>{"b"}));
  EXPECT_EQ(f.attributes, (std::vector<std::string>{"alpha"}));
  EXPECT_EQ(f.attribute_protos.at(0).i, -7);
  EXPECT_EQ(f.nodes.at(0).attributes.at(0).ref_attr_name, "alpha");
  EXPECT_EQ(f.opset_imports.at(0).version, 21);
  EXPECT_EQ(f.value_info.at(0).name, "a");
  EXPECT_EQ(f.metadata_props, (Properties{{"fk", "fv"}}));
}

TEST(OnnxParse, EveryTruncationIsAnErrorOrAModel) {
  std::string bytes = full_model();
  size_t errors = 0;
  for (size_t size = 0; size < bytes.size(); ++size) {
    // An exact copy of the part, so that an address sanitizer reports reads beyond its end.
    std::vector<char> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    errors += code_of([&] { parse_model_bytes(std::as_bytes(std::span(cut)), nullptr, {}); }) == ErrorCode::invalid_model;
  }
  EXPECT_GT(errors, bytes.size() * 9 / 10);  // bytes that are cut off between two fields are still a model
}

TEST(OnnxParse, EveryChangedByteIsAnErrorOrAModel) {
  std::string bytes = full_model();
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int value : {0, 1, 0x7f, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(value);
      ErrorCode code = code_of([&] { parse(changed); });
      EXPECT_TRUE(code == ErrorCode::ok || code == ErrorCode::invalid_model || code == ErrorCode::not_implemented ||
                  code == ErrorCode::resource_exhausted)
          << error_code_name(code) << " for byte " << at << " = " << value;
    }
  }
}

TEST(OnnxParse, AnErrorNamesItsPlace) {
  std::string bad = message([](Writer& a) {
    a.add_string(1, "pads");
    a.add_int32(20, 7);
    a.add_string(2, "a float is no string");
  });
  std::string error = error_of_model(model_with_attribute(bad));
  EXPECT_NE(error.find("graph.node[0] \"n\".attribute[0] \"pads\""), std::string::npos) << error;
  EXPECT_NE(error.find("field 2 is length-delimited on the wire, not 32 bits"), std::string::npos) << error;
}

TEST(OnnxParse, PackedAndUnpackedNumbersAreTheSame) {
  const int64_t values[] = {1, -2, 300};
  std::string packed = message([&](Writer& a) {
    a.add_string(1, "v");
    a.add_packed_int64(8, std::begin(values), std::end(values));
    a.add_int64(8, 4);
    a.add_int32(20, 7);
  });
  EXPECT_EQ(parse(model_with_attribute(packed)).graph.nodes[0].attributes[0].ints, (std::vector<int64_t>{1, -2, 300, 4}));
}

TEST(OnnxParse, RowsOfNumbersEndWhereAnotherFieldBegins) {
  std::string mixed = message([&](Writer& a) {
    a.add_string(1, "v");
    for (int64_t value : {int64_t{1}, int64_t{127}, int64_t{128}, int64_t{-1}}) a.add_int64(8, value);
    a.add_string(13, "between");
    const int64_t packed[] = {5, 6};
    a.add_packed_int64(8, std::begin(packed), std::end(packed));
    a.add_int64(8, 7);
    a.add_int32(20, 7);
  });
  EXPECT_EQ(parse(model_with_attribute(mixed)).graph.nodes[0].attributes[0].ints, (std::vector<int64_t>{1, 127, 128, -1, 5, 6, 7}));
  std::string floats = message([&](Writer& a) {
    a.add_string(1, "v");
    a.add_float(7, 1.5F);
    a.add_float(7, -2.0F);
    a.add_int32(20, 6);
    a.add_float(7, 3.0F);
  });
  EXPECT_EQ(parse(model_with_attribute(floats)).graph.nodes[0].attributes[0].floats, (std::vector<float>{1.5F, -2.0F, 3.0F}));
}

TEST(OnnxParse, ARowThatIsCutOffIsAnError) {
  // The last element is cut off after its key, or within its varint.
  for (std::string rest : {std::string("\x40"), std::string("\x40\xff\xff")}) {
    std::string cut = message([&](Writer& a) {
      a.add_string(1, "pads");
      a.add_int32(20, 7);
      a.add_int64(8, 1);
    });
    EXPECT_NE(error_of_model(model_with_attribute(cut + rest)).find("cut off within a varint"), std::string::npos);
  }
  std::string cut = message([&](Writer& a) {
    a.add_string(1, "values");
    a.add_int32(20, 6);
    a.add_float(7, 1);
  });
  EXPECT_NE(error_of_model(model_with_attribute(cut + "\x3d\x01\x02")).find("needs 4 bytes, 2 are left"), std::string::npos);
}

TEST(OnnxParse, UnknownFieldsAreSkipped) {
  std::string bytes = model_message(message([](Writer& g) {
    g.add_string(2, "g");
    g.add_string(1000, "from the future");
    g.add_fixed64(1001, 1);
    g.add_fixed32(1002, 1);
    g.add_int64(1003, -1);
  }));
  EXPECT_EQ(parse(bytes).graph.name, "g");
}

TEST(OnnxParse, AnAttributeMustHoldWhatItSays) {
  auto attribute = [](auto body) {
    return model_with_attribute(message([&](Writer& a) {
      a.add_string(1, "a");
      body(a);
    }));
  };
  auto typed = [&](int type, auto body) {
    return error_of_model(attribute([&](Writer& a) {
      a.add_int32(20, type);
      body(a);
    }));
  };
  EXPECT_NE(typed(1, [](Writer& a) { a.add_int64(3, 1); }).find("is said to be a float and holds a int"), std::string::npos);
  EXPECT_NE(typed(2,
                  [](Writer& a) {
                    a.add_int64(3, 1);
                    a.add_float(2, 1);
                  })
                .find("holds a int and a float"),
            std::string::npos);
  for (int type : {4, 5, 11, 13}) EXPECT_NE(typed(type, [](Writer&) {}).find("holds none"), std::string::npos);
  EXPECT_EQ(typed(2, [](Writer&) {}), "no error");  // proto3 does not write zeros
  EXPECT_NE(typed(99, [](Writer&) {}).find("type 99"), std::string::npos);
  EXPECT_NE(error_of_model(attribute([](Writer&) {})).find("without a type"), std::string::npos);
  EXPECT_NE(typed(2,
                  [](Writer& a) {
                    a.add_int64(3, 1);
                    a.add_string(21, "outer");
                  })
                .find("\"outer\""),
            std::string::npos);
  ModelDef old = parse(attribute([](Writer& a) { a.add_int64(3, 5); }));  // IR version 1 stores no types of attributes
  EXPECT_EQ(old.graph.nodes[0].attributes[0].type, AttributeType::i);
}

TEST(OnnxParse, NestingHasALimit) {
  auto nested = [](int depth) {
    std::string graph = message([](Writer& g) { g.add_string(2, "leaf"); });
    for (int i = 1; i < depth; ++i) {
      std::string attribute = message([&](Writer& a) {
        a.add_string(1, "body");
        a.add_message(6, graph);
        a.add_int32(20, 5);
      });
      graph = message([&](Writer& g) {
        g.add_message(1, message([&](Writer& n) {
                        n.add_string(4, "Loop");
                        n.add_message(5, attribute);
                      }));
      });
    }
    return model_message(graph);
  };
  EXPECT_EQ(error_of_model(nested(64)), "no error");
  EXPECT_NE(error_of_model(nested(65)).find("graphs nested more than 64 deep"), std::string::npos);
  EXPECT_EQ(error_of_model(nested(3), {.max_nesting_depth = 3}), "no error");
  EXPECT_NE(error_of_model(nested(4), {.max_nesting_depth = 3}), "no error");
  std::string type = tensor_type(1, "");
  for (int i = 0; i < 5000; ++i) type = container_type(4, type);
  EXPECT_NE(error_of_model(model_message(message([&](Writer& g) { g.add_message(11, value_info("x", type)); }))).find("types nested"),
            std::string::npos);
}

TEST(OnnxParse, TheNumberOfMessagesHasALimit) {
  std::string graph = message([](Writer& g) {
    for (int i = 0; i < 100; ++i) g.add_message(1, message([](Writer& n) { n.add_string(4, "Relu"); }));
  });
  EXPECT_EQ(error_of_model(model_message(graph), {.max_messages = 101}), "no error");
  EXPECT_EQ(code_of([&] { parse(model_message(graph), {.max_messages = 100}); }), ErrorCode::resource_exhausted);
}

TEST(OnnxParse, RefusesWhatIsNotAModel) {
  EXPECT_NE(error_of_model("").find("no graph"), std::string::npos);
  EXPECT_NE(error_of_model("# A text file\n"), "no error");
  EXPECT_NE(error_of_model(message([](Writer& m) { m.add_int64(1, 8); })).find("no graph"), std::string::npos);
  EXPECT_NE(error_of_model(message([](Writer& m) { m.add_message(7, std::string()); })).find("no IR version"), std::string::npos);
  EXPECT_EQ(code_of([] {
              parse(message([](Writer& m) {
                m.add_int64(1, kMaxIrVersion + 1);
                m.add_message(7, std::string());
              }));
            }),
            ErrorCode::not_implemented);
  std::string no_operator =
      model_message(message([](Writer& g) { g.add_message(1, message([](Writer& n) { n.add_string(3, "nameless"); })); }));
  EXPECT_NE(error_of_model(no_operator).find("node[0] \"nameless\""), std::string::npos);
}

TEST(OnnxParse, ALengthBeyond32BitsIsNotCutToThem) {
  // Field 2 (producer_name) with the length 2^32 + 1: a reader that keeps 32 bits would take one byte.
  std::string bytes = model_message("") + std::string("\x12\x81\x80\x80\x80\x10x", 7);
  EXPECT_NE(error_of_model(bytes).find("needs 4294967297 bytes, 1 are left"), std::string::npos) << error_of_model(bytes);
}

TEST(OnnxParse, BytesMustLieInTheirOwner) {
  std::string bytes = full_model();
  EXPECT_EQ(code_of([&] { parse_model_bytes(bytes_of(bytes), Storage::allocate(16), {}); }), ErrorCode::invalid_argument);
}

TEST(OnnxParse, NamesInErrorsAreShortAndPrintable) {
  std::string name = std::string("evil\n\x1b[31m") + std::string(1000, 'x');
  std::string error = error_of_model(model_with_attribute(message([&](Writer& a) { a.add_string(1, name); })));
  EXPECT_NE(error.find("evil\\x0a\\x1b[31mxxx"), std::string::npos) << error;
  EXPECT_LT(error.size(), 400u);
}

}  // namespace
}  // namespace treadle::onnx::test
