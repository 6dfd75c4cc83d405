// A small encoded model that contains every message and field of IR 14.
#pragma once

#include <string>

#include "tests/onnx/wire_builder.h"

namespace treadle::onnx::test {

inline std::string tensor_type(int elem_type, const std::string& shape) {
  return message([&](Writer& type) {
    type.add_message(1, message([&](Writer& t) {
                       t.add_int32(1, elem_type);
                       t.add_message(2, shape);
                     }));
    type.add_string(6, "IMAGE");
  });
}

/// Encodes the shape [2, "batch", unknown].
inline std::string three_dims() {
  return message([](Writer& s) {
    s.add_message(1, message([](Writer& d) { d.add_int64(1, 2); }));
    s.add_message(1, message([](Writer& d) {
                    d.add_string(2, "batch");
                    d.add_string(3, "DATA_BATCH");
                  }));
    s.add_message(1, std::string());
  });
}

inline std::string value_info(const std::string& name, const std::string& type) {
  return message([&](Writer& v) {
    v.add_string(1, name);
    v.add_message(2, type);
    v.add_string(3, "about " + name);
    v.add_message(4, entry("key", name));
  });
}

/// Encodes a type that contains another one: a sequence (field 4) or an optional (field 9).
inline std::string container_type(int field, const std::string& element) {
  return message([&](Writer& t) { t.add_message(static_cast<uint32_t>(field), message([&](Writer& c) { c.add_message(1, element); })); });
}

inline std::string map_type(int key_type, const std::string& value) {
  return message([&](Writer& t) {
    t.add_message(5, message([&](Writer& m) {
                    m.add_int32(1, key_type);
                    m.add_message(2, value);
                  }));
  });
}

/// Encodes a sparse float tensor with values at (0,1) and (2,3), dims [3,4].
inline std::string sparse_message() {
  return message([](Writer& s) {
    s.add_message(1, tensor_message(
                         {2}, 1,
                         [](Writer& t) {
                           t.add_bytes(4, raw_of({1.f, 2.f}));
                         },
                         "sparse"));
    const int64_t indices[] = {0, 1, 2, 3};
    s.add_message(2, tensor_message({2, 2}, 7, [&](Writer& t) { t.add_packed_int64(7, std::begin(indices), std::end(indices)); }));
    s.add_int64(3, 3);
    s.add_int64(3, 4);
  });
}

inline std::string subgraph(const std::string& name) {
  return message([&](Writer& g) {
    g.add_message(1, message([](Writer& n) {
                    n.add_string(1, "captured");
                    n.add_string(2, "inner");
                    n.add_string(4, "Identity");
                  }));
    g.add_string(2, name);
    g.add_message(12, message([](Writer& v) { v.add_string(1, "inner"); }));
  });
}

/// Encodes an attribute, named after its type's number, with one or two values.
inline std::string attribute_of(int type) {
  auto scalar = [](float v) { return tensor_message({}, 1, [&](Writer& t) { t.add_bytes(9, raw_of({v})); }); };
  return message([&](Writer& a) {
    a.add_string(1, "a" + std::to_string(type));
    switch (type) {
      case 1: a.add_float(2, 0.5f); break;
      case 2: a.add_int64(3, -7); break;
      case 3: a.add_bytes(4, std::string("b\0c", 3)); break;
      case 4: a.add_message(5, scalar(3)); break;
      case 5: a.add_message(6, subgraph("then")); break;
      case 6:
        a.add_float(7, 1.5f);
        a.add_float(7, -2);
        break;
      case 7:
        a.add_int64(8, int64_t{1} << 40);
        a.add_int64(8, -1);
        break;
      case 8:
        a.add_bytes(9, "x");
        a.add_bytes(9, "");
        break;
      case 9:
        a.add_message(10, scalar(1));
        a.add_message(10, scalar(2));
        break;
      case 10:
        a.add_message(11, subgraph("one"));
        a.add_message(11, subgraph("two"));
        break;
      case 11: a.add_message(22, sparse_message()); break;
      case 12: a.add_message(23, sparse_message()); break;
      case 13: a.add_message(14, tensor_type(1, three_dims())); break;
      case 14: a.add_message(15, container_type(4, tensor_type(7, ""))); break;
      default: break;
    }
    a.add_string(13, "doc");
    a.add_int32(20, type);
  });
}

inline std::string full_graph() {
  return message([](Writer& g) {
    g.add_message(1, message([](Writer& n) {
                    n.add_string(1, "x");
                    n.add_string(1, "");
                    n.add_string(1, "w");
                    n.add_string(2, "y");
                    n.add_string(3, "node");
                    n.add_string(4, "Op");
                    for (int type = 1; type <= 14; ++type) n.add_message(5, attribute_of(type));
                    n.add_string(6, "a node");
                    n.add_string(7, "my.domain");
                    n.add_string(8, "variant");
                    n.add_message(9, entry("k", "v"));
                    n.add_message(10, message([](Writer& d) { d.add_string(1, "config"); }));
                  }));
    g.add_string(2, "main");
    g.add_message(5, tensor_message(
                         {2, 3}, 1,
                         [](Writer& t) {
                           t.add_bytes(9, raw_of({0.f, 1.f, 2.f, 3.f, 4.f, 5.f}));
                           t.add_string(12, "weights");
                           t.add_message(16, entry("tk", "tv"));
                         },
                         "w"));
    g.add_message(5, tensor_message(
                         {2}, 8,
                         [](Writer& t) {
                           t.add_bytes(6, "hello");
                           t.add_bytes(6, "");
                         },
                         "names"));
    g.add_string(10, "the graph");
    g.add_message(11, value_info("x", tensor_type(1, three_dims())));
    g.add_message(11, value_info("seq", container_type(4, container_type(9, tensor_type(10, "")))));
    g.add_message(12, value_info("y", map_type(8, tensor_type(7, ""))));
    g.add_message(13, value_info("inner", message([](Writer& t) {
                                   t.add_message(8, message([](Writer& s) {
                                                   s.add_int32(1, 11);
                                                   s.add_message(2, three_dims());
                                                 }));
                                 })));
    g.add_message(13,
                  value_info("opaque", message([](Writer& t) { t.add_message(7, message([](Writer& o) { o.add_string(1, "dom"); })); })));
    g.add_message(14, message([](Writer& q) {
                    q.add_string(1, "w");
                    q.add_message(2, entry("SCALE_TENSOR", "s"));
                  }));
    g.add_message(15, sparse_message());
    g.add_message(16, entry("gk", "gv"));
  });
}

inline std::string full_model() {
  auto opset = [](const std::string& domain, int64_t version) {
    return message([&](Writer& o) {
      o.add_string(1, domain);
      o.add_int64(2, version);
    });
  };
  return message([&](Writer& m) {
    m.add_int64(1, 14);
    m.add_string(2, "maker");
    m.add_string(3, "1.2");
    m.add_string(4, "org.example");
    m.add_int64(5, 3);
    m.add_string(6, "a model");
    m.add_message(7, full_graph());
    m.add_message(8, opset("", 21));
    m.add_message(8, opset("my.domain", 1));
    m.add_message(14, entry("author", "somebody"));
    m.add_message(20, message([](Writer& t) { t.add_message(3, entry("a", "b")); }));
    m.add_message(25, message([&](Writer& f) {
                    f.add_string(1, "Twice");
                    f.add_string(4, "a");
                    f.add_string(5, "b");
                    f.add_string(6, "alpha");
                    f.add_message(7, message([](Writer& n) {
                                    n.add_string(1, "a");
                                    n.add_string(2, "b");
                                    n.add_string(4, "Elu");
                                    n.add_message(5, message([](Writer& a) {
                                                    a.add_string(1, "alpha");
                                                    a.add_int32(20, 1);
                                                    a.add_string(21, "alpha");
                                                  }));
                                  }));
                    f.add_string(8, "a function");
                    f.add_message(9, opset("", 21));
                    f.add_string(10, "my.domain");
                    f.add_message(11, attribute_of(2));
                    f.add_message(12, value_info("a", tensor_type(1, "")));
                    f.add_string(13, "variant");
                    f.add_message(14, entry("fk", "fv"));
                  }));
    m.add_message(26, message([](Writer& c) { c.add_string(1, "config"); }));
  });
}

}  // namespace treadle::onnx::test
