// Makes small models as bytes, also malicious ones, without the library's reader and writer.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "tests/onnx/wire_builder.h"

namespace treadle::testing {

using onnx::test::message;
using onnx::test::Writer;

enum ElementType : int { kFloat = 1, kInt64 = 7, kString = 8, kBool = 9 };

/// An extent: a number, or the name of a symbol.
using DimText = std::variant<int64_t, std::string>;

inline std::string tensor_type(int element, const std::vector<DimText>& dims) {
  return message([&](Writer& type) {
    type.add_message(1, message([&](Writer& tensor) {
                       tensor.add_int32(1, element);
                       tensor.add_message(2, message([&](Writer& shape) {
                                            for (const DimText& dim : dims)
                                              shape.add_message(1, message([&](Writer& d) {
                                                                  if (const auto* extent = std::get_if<int64_t>(&dim))
                                                                    d.add_int64(1, *extent);
                                                                  else
                                                                    d.add_string(2, std::get<std::string>(dim));
                                                                }));
                                          }));
                     }));
  });
}

inline std::string value_info(const std::string& name, int element, const std::vector<DimText>& dims) {
  return message([&](Writer& w) {
    w.add_string(1, name);
    w.add_message(2, tensor_type(element, dims));
  });
}

inline std::string int_attribute(const std::string& name, int64_t value) {
  return message([&](Writer& w) {
    w.add_string(1, name);
    w.add_int64(3, value);
    w.add_int32(20, 2);
  });
}

inline std::string graph_attribute(const std::string& name, const std::string& graph) {
  return message([&](Writer& w) {
    w.add_string(1, name);
    w.add_message(6, graph);
    w.add_int32(20, 5);
  });
}

inline std::string tensor_attribute(const std::string& name, const std::string& tensor) {
  return message([&](Writer& w) {
    w.add_string(1, name);
    w.add_message(5, tensor);
    w.add_int32(20, 4);
  });
}

inline std::string node(const std::string& op, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs,
                        const std::vector<std::string>& attributes = {}, const std::string& domain = {}) {
  return message([&](Writer& w) {
    for (const auto& input : inputs) w.add_string(1, input);
    for (const auto& output : outputs) w.add_string(2, output);
    w.add_string(3, outputs.empty() ? op : "make_" + outputs[0]);
    w.add_string(4, op);
    for (const auto& attribute : attributes) w.add_message(5, attribute);
    if (!domain.empty()) w.add_string(7, domain);
  });
}

inline std::string int64_tensor(const std::string& name, const std::vector<int64_t>& values, bool scalar = false) {
  return message([&](Writer& w) {
    if (!scalar) w.add_int64(1, static_cast<int64_t>(values.size()));
    w.add_int32(2, kInt64);
    w.add_packed_int64(7, values.begin(), values.end());
    w.add_string(8, name);
  });
}

/// The parts of a GraphProto, each of them encoded.
struct GraphParts {
  std::vector<std::string> nodes, initializers, inputs, outputs, sparse_initializers;
};

inline std::string graph(const GraphParts& parts, const std::string& name = "g") {
  return message([&](Writer& w) {
    for (const auto& part : parts.nodes) w.add_message(1, part);
    w.add_string(2, name);
    for (const auto& part : parts.initializers) w.add_message(5, part);
    for (const auto& part : parts.inputs) w.add_message(11, part);
    for (const auto& part : parts.outputs) w.add_message(12, part);
    for (const auto& part : parts.sparse_initializers) w.add_message(15, part);
  });
}

/// Encodes a model of IR 10 with ai.onnx of opset 22 or another, ai.onnx.preview 1, and functions of the domain "local".
inline std::string model(const std::string& graph, const std::vector<std::string>& functions = {}, int64_t version = 22) {
  auto opset = [](const std::string& domain, int64_t version) {
    return message([&](Writer& o) {
      o.add_string(1, domain);
      o.add_int64(2, version);
    });
  };
  return message([&](Writer& w) {
    w.add_int64(1, 10);
    w.add_message(7, graph);
    w.add_message(8, opset("", version));
    w.add_message(8, opset("ai.onnx.preview", 1));
    if (!functions.empty()) w.add_message(8, opset("local", 1));
    for (const auto& function : functions) w.add_message(25, function);
  });
}

inline std::string function(const std::string& name, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs,
                            const std::vector<std::string>& nodes) {
  return message([&](Writer& w) {
    w.add_string(1, name);
    for (const auto& input : inputs) w.add_string(4, input);
    for (const auto& output : outputs) w.add_string(5, output);
    for (const auto& each : nodes) w.add_message(7, each);
    for (const char* domain : {"", "local"})
      w.add_message(9, message([&](Writer& o) {
                      o.add_string(1, domain);
                      o.add_int64(2, *domain ? 1 : 22);
                    }));
    w.add_string(10, "local");
  });
}

}  // namespace treadle::testing
