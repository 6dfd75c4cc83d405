// Compares models as read. Returns the path of the first difference; "" if they are equal.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "onnx/model_def.h"
#include "treadle/error.h"

namespace treadle::onnx::test {

class Comparison {
 public:
  std::string difference;  // description of the first difference

  void models(const ModelDef& a, const ModelDef& b) {
    same("ir_version", a.ir_version, b.ir_version);
    same("producer_name", a.producer_name, b.producer_name);
    same("producer_version", a.producer_version, b.producer_version);
    same("domain", a.domain, b.domain);
    same("model_version", a.model_version, b.model_version);
    same("doc_string", a.doc_string, b.doc_string);
    same("metadata_props", a.metadata_props, b.metadata_props);
    same("training_info", a.training_info, b.training_info);
    same("configuration", a.configuration, b.configuration);
    lists("opset_imports", a.opset_imports, b.opset_imports, [this](auto& x, auto& y) { opsets(x, y); });
    within("graph", [&] { graphs(a.graph, b.graph); });
    lists("functions", a.functions, b.functions, [this](auto& x, auto& y) { functions(x, y); });
  }

 private:
  template <typename Body>
  void within(const std::string& step, Body body) {
    std::string outer = path_;
    path_ += (path_.empty() ? "" : ".") + step;
    body();
    path_ = outer;
  }
  void differ(const std::string& what) {
    if (difference.empty()) difference = path_ + "." + what;
  }
  template <typename T>
  void same(const char* what, const T& a, const T& b) {
    if (!(a == b)) differ(what);
  }
  template <typename T, typename Compare>
  void lists(const std::string& what, const std::vector<T>& a, const std::vector<T>& b, Compare compare) {
    if (a.size() != b.size()) return differ(what + ".size");
    for (size_t i = 0; i < a.size(); ++i) within(what + "[" + std::to_string(i) + "]", [&] { compare(a[i], b[i]); });
  }
  template <typename T, typename Compare>
  void pointers(const std::string& what, const std::unique_ptr<T>& a, const std::unique_ptr<T>& b, Compare compare) {
    if (!a != !b) return differ(what);
    if (a) within(what, [&] { compare(*a, *b); });
  }

  void opsets(const OpsetImport& a, const OpsetImport& b) {
    same("domain", a.domain, b.domain);
    same("version", a.version, b.version);
  }

  void tensors(const TensorDef& a, const TensorDef& b) {
    same("name", a.name, b.name);
    same("doc_string", a.doc_string, b.doc_string);
    same("metadata_props", a.metadata_props, b.metadata_props);
    same("dtype", a.dtype, b.dtype);
    same("shape", a.shape, b.shape);
    if (a.value.defined() != b.value.defined()) return differ("value");
    if (!a.value.defined()) {
      same("external.location", a.external.location, b.external.location);
      same("external.offset", a.external.offset, b.external.offset);
      same("external.length", a.external.length, b.external.length);
      same("external.checksum", a.external.checksum, b.external.checksum);
      return same("external.other", a.external.other, b.external.other);
    }
    for (const TensorDef* t : {&a, &b})
      if (t->value.dtype() != t->dtype || !(t->value.shape() == t->shape)) return differ("value");
    if (a.dtype == DType::string) {
      auto x = a.value.span<std::string>(), y = b.value.span<std::string>();
      if (!std::equal(x.begin(), x.end(), y.begin(), y.end())) differ("value");
    } else if (a.value.size_bytes() > 0 && std::memcmp(a.value.raw(), b.value.raw(), a.value.size_bytes()) != 0) {
      differ("value");  // compared bit by bit, so that a NaN equals itself
    }
  }

  void sparse_tensors(const SparseTensorDef& a, const SparseTensorDef& b) {
    within("values", [&] { tensors(a.values, b.values); });
    within("indices", [&] { tensors(a.indices, b.indices); });
    same("dims", a.dims, b.dims);
  }

  void dims(const DimDef& a, const DimDef& b) {
    same("kind", a.kind, b.kind);
    same("value", a.value, b.value);
    same("param", a.param, b.param);
    same("denotation", a.denotation, b.denotation);
  }

  void types(const TypeDef& a, const TypeDef& b) {
    same("kind", a.kind, b.kind);
    same("elem_type", a.elem_type, b.elem_type);
    same("key_type", a.key_type, b.key_type);
    same("opaque", a.opaque, b.opaque);
    same("denotation", a.denotation, b.denotation);
    if (a.shape.has_value() != b.shape.has_value()) return differ("shape");
    if (a.shape) lists("shape", *a.shape, *b.shape, [this](auto& x, auto& y) { dims(x, y); });
    pointers("elem", a.elem, b.elem, [this](auto& x, auto& y) { types(x, y); });
  }

  void value_infos(const ValueInfoDef& a, const ValueInfoDef& b) {
    same("name", a.name, b.name);
    within("type", [&] { types(a.type, b.type); });
    same("doc_string", a.doc_string, b.doc_string);
    same("metadata_props", a.metadata_props, b.metadata_props);
  }

  void attributes(const AttributeDef& a, const AttributeDef& b) {
    same("name", a.name, b.name);
    same("ref_attr_name", a.ref_attr_name, b.ref_attr_name);
    same("doc_string", a.doc_string, b.doc_string);
    same("type", a.type, b.type);
    if (std::memcmp(&a.f, &b.f, sizeof(a.f)) != 0) differ("f");
    same("i", a.i, b.i);
    same("s", a.s, b.s);
    if (a.floats.size() != b.floats.size() || !std::equal(a.floats.begin(), a.floats.end(), b.floats.begin(),
                                                          [](float x, float y) { return std::memcmp(&x, &y, sizeof(x)) == 0; }))
      differ("floats");
    same("ints", a.ints, b.ints);
    same("strings", a.strings, b.strings);
    auto tensor = [this](auto& x, auto& y) { tensors(x, y); };
    auto sparse = [this](auto& x, auto& y) { sparse_tensors(x, y); };
    auto graph = [this](auto& x, auto& y) { graphs(x, y); };
    auto type = [this](auto& x, auto& y) { types(x, y); };
    pointers("t", a.t, b.t, tensor);
    pointers("g", a.g, b.g, graph);
    pointers("sparse_tensor", a.sparse_tensor, b.sparse_tensor, sparse);
    pointers("tp", a.tp, b.tp, type);
    lists("tensors", a.tensors, b.tensors, tensor);
    lists("graphs", a.graphs, b.graphs, graph);
    lists("sparse_tensors", a.sparse_tensors, b.sparse_tensors, sparse);
    lists("type_protos", a.type_protos, b.type_protos, type);
  }

  void nodes(const NodeDef& a, const NodeDef& b) {
    same("inputs", a.inputs, b.inputs);
    same("outputs", a.outputs, b.outputs);
    same("name", a.name, b.name);
    same("op_type", a.op_type, b.op_type);
    same("domain", a.domain, b.domain);
    same("overload", a.overload, b.overload);
    lists("attributes", a.attributes, b.attributes, [this](auto& x, auto& y) { attributes(x, y); });
    same("doc_string", a.doc_string, b.doc_string);
    same("metadata_props", a.metadata_props, b.metadata_props);
    same("device_configurations", a.device_configurations, b.device_configurations);
  }

  void graphs(const GraphDef& a, const GraphDef& b) {
    auto info = [this](auto& x, auto& y) { value_infos(x, y); };
    same("name", a.name, b.name);
    lists("nodes", a.nodes, b.nodes, [this](auto& x, auto& y) { nodes(x, y); });
    lists("initializers", a.initializers, b.initializers, [this](auto& x, auto& y) { tensors(x, y); });
    lists("sparse_initializers", a.sparse_initializers, b.sparse_initializers, [this](auto& x, auto& y) { sparse_tensors(x, y); });
    lists("inputs", a.inputs, b.inputs, info);
    lists("outputs", a.outputs, b.outputs, info);
    lists("value_info", a.value_info, b.value_info, info);
    lists("quantization_annotation", a.quantization_annotation, b.quantization_annotation, [this](auto& x, auto& y) {
      same("tensor_name", x.tensor_name, y.tensor_name);
      same("quant_parameter_tensor_names", x.quant_parameter_tensor_names, y.quant_parameter_tensor_names);
    });
    same("doc_string", a.doc_string, b.doc_string);
    same("metadata_props", a.metadata_props, b.metadata_props);
  }

  void functions(const FunctionDef& a, const FunctionDef& b) {
    same("name", a.name, b.name);
    same("domain", a.domain, b.domain);
    same("overload", a.overload, b.overload);
    same("inputs", a.inputs, b.inputs);
    same("outputs", a.outputs, b.outputs);
    same("attributes", a.attributes, b.attributes);
    lists("attribute_protos", a.attribute_protos, b.attribute_protos, [this](auto& x, auto& y) { attributes(x, y); });
    lists("nodes", a.nodes, b.nodes, [this](auto& x, auto& y) { nodes(x, y); });
    lists("opset_imports", a.opset_imports, b.opset_imports, [this](auto& x, auto& y) { opsets(x, y); });
    lists("value_info", a.value_info, b.value_info, [this](auto& x, auto& y) { value_infos(x, y); });
    same("doc_string", a.doc_string, b.doc_string);
    same("metadata_props", a.metadata_props, b.metadata_props);
  }

  std::string path_;
};

inline std::string first_difference(const ModelDef& a, const ModelDef& b) {
  Comparison comparison;
  comparison.models(a, b);
  return comparison.difference;
}

/// Returns the text of the Error that `body` throws, or "no error".
template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Returns the code of the Error that `body` throws, or ok.
template <typename Body>
ErrorCode code_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::ok;
}

}  // namespace treadle::onnx::test
