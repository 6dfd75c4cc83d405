#include "tests/graphs/case.h"

#include <charconv>
#include <cmath>
#include <sstream>

namespace treadle::graphs {
namespace {

std::string number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr};
}

template <typename List, typename F>
std::string join(const List& list, const char* separator, F f) {
  std::string text;
  for (const auto& element : list) text += (text.empty() ? "" : separator) + f(element);
  return text;
}

std::string elements(const Array& a) {
  std::string text;
  for (size_t k = 0; k < a.size(); ++k)
    text += (k > 0 ? " " : "") + (a.texts() ? "\"" + a.s[k] + "\"" : a.floats() ? number(a.f[k]) : std::to_string(a.i[k]));
  return text;
}

std::string dims(const Dims& d) {
  return "[" + join(d, ",", [](int64_t extent) { return std::to_string(extent); }) + "]";
}

std::string type(const onnx::TypeDef& t) {
  if (t.kind == onnx::TypeDef::Kind::sequence) return "seq(" + type(*t.elem) + ")";
  std::string text(name_of(t.elem_type));
  if (!t.shape) return text;
  return text + " [" +
         join(*t.shape, ",",
              [](const onnx::DimDef& dim) {
                return dim.kind == onnx::DimDef::Kind::value   ? std::to_string(dim.value)
                       : dim.kind == onnx::DimDef::Kind::param ? dim.param
                                                               : "?";
              }) +
         "]";
}

std::string attribute(const onnx::AttributeDef& a) {
  switch (a.type) {
    case onnx::AttributeType::i: return std::to_string(a.i);
    case onnx::AttributeType::f: return number(a.f) + "f";
    case onnx::AttributeType::s: return "\"" + a.s + "\"";
    case onnx::AttributeType::ints: return dims(a.ints);
    case onnx::AttributeType::floats: {
      std::string list = "floats(";
      for (float value : a.floats) list += number(value) + "f, ";
      return list + ")";
    }
    case onnx::AttributeType::strings: {
      std::string list = "strings(";
      for (const std::string& value : a.strings) list += "\"" + value + "\", ";
      return list + ")";
    }
    case onnx::AttributeType::tensor: {
      const Array value = from_tensor(a.t->value);
      return std::string(name_of(value.dtype)) + dims(value.dims) + "{" + elements(value) + "}";
    }
    case onnx::AttributeType::type_proto: return "type(" + type(*a.tp) + ")";
    default: throw std::runtime_error("an attribute that has no text");
  }
}

std::string name_or_dash(const std::string& name) { return name.empty() ? "-" : name; }

void print(const onnx::GraphDef& graph, const std::string& indent, std::string& out) {
  for (const auto& input : graph.inputs) out += indent + "input " + input.name + " " + type(input.type) + "\n";
  for (const auto& c : graph.initializers) {
    const Array value = from_tensor(c.value);
    out +=
        indent + "constant " + c.name + " " + std::string(name_of(value.dtype)) + " " + dims(value.dims) + " = " + elements(value) + "\n";
  }
  for (const auto& node : graph.nodes) {
    out += indent + join(node.outputs, ", ", name_or_dash) + " = " + print_call(node) + "\n";
    for (const auto& a : node.attributes) {
      if (!a.g) continue;
      out += indent + "  " + a.name + " {\n";
      print(*a.g, indent + "    ", out);
      out += indent + "  }\n";
    }
  }
  for (const auto& output : graph.outputs) out += indent + "output " + output.name + " " + type(output.type) + "\n";
}

// Reads a line of a case's file, word by word.
class Line {
 public:
  Line(std::string_view rest, int number) : rest_(rest), number_(number) { skip(); }
  bool empty() const { return rest_.empty(); }
  bool take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    skip();
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) fail("expected " + std::string(token));
  }
  /// Reads a word, which ends before a space or one of ",()[]{}=".
  std::string word() {
    const size_t end = rest_.find_first_of(" ,()[]{}=");
    std::string result(rest_.substr(0, end));
    if (result.empty()) fail("a word is missing");
    rest_.remove_prefix(result.size());
    skip();
    return result;
  }
  std::string quoted() {
    const size_t end = rest_.find('"');
    std::string result(rest_.substr(0, end));
    rest_.remove_prefix(end);
    expect("\"");
    return result;
  }
  char peek() const { return rest_.empty() ? '\0' : rest_.front(); }
  Dims dims() {
    Dims result;
    expect("[");
    while (!take("]")) {
      result.push_back(std::stoll(word()));
      take(",");
    }
    return result;
  }
  Array elements(DType dtype, Dims shape) {
    Array result(dtype, std::move(shape));
    for (size_t k = 0; k < result.size(); ++k) {
      if (result.texts()) {
        expect("\"");
        result.s[k] = quoted();
      } else if (result.floats())
        result.f[k] = std::stod(word());
      else
        result.i[k] = std::stoll(word());
    }
    return result;
  }
  DType dtype() {
    const std::string name = word();
    if (dtype_from_name(name) == DType::undefined) fail("no dtype " + name);
    return dtype_from_name(name);
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw std::runtime_error("line " + std::to_string(number_) + ": " + why + " at '" + std::string(rest_) + "'");
  }

 private:
  void skip() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  std::string_view rest_;
  int number_;
};

class Parser {
 public:
  explicit Parser(const std::string& text) {
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines_.push_back(line);
  }

  Case parse() {
    Case result = empty_case();
    graph(result.model.graph, &result);
    return result;
  }

 private:
  void graph(onnx::GraphDef& g, Case* whole) {
    while (next_ < lines_.size()) {
      Line line(lines_[next_], static_cast<int>(next_) + 1);
      ++next_;
      if (line.empty() || line.peek() == '#') continue;
      if (line.take("}")) return;
      if (line.take("opset ")) {
        whole->model.opset_imports[0].version = std::stoll(line.word());
      } else if (line.take("input ")) {
        g.inputs.push_back(info(line));
      } else if (line.take("output ")) {
        g.outputs.push_back(info(line));
      } else if (line.take("constant ")) {
        const std::string name = line.word();
        const DType dtype = line.dtype();
        Dims shape = line.dims();
        line.expect("=");
        g.initializers.push_back(initializer(name, line.elements(dtype, std::move(shape))));
      } else if (line.take("feeds")) {
        whole->sets.emplace_back();
      } else if (line.take("feed ")) {
        const std::string name = line.word();
        Dims shape = line.dims();
        line.expect("=");
        DType dtype = DType::undefined;
        for (const auto& input : g.inputs)
          if (input.name == name) dtype = input.type.elem_type;
        if (dtype == DType::undefined || whole->sets.empty()) line.fail("a feed of no input");
        whole->sets.back()[name] = line.elements(dtype, std::move(shape));
      } else {
        node(line, g);
      }
    }
  }

  void node(Line& line, onnx::GraphDef& g) {
    onnx::NodeDef node;
    auto name = [&] {
      std::string word = line.word();
      return word == "-" ? std::string() : word;
    };
    do node.outputs.push_back(name());
    while (line.take(","));
    line.expect("=");
    node.op_type = line.word();
    if (const size_t at = node.op_type.find("::"); at != std::string::npos) {
      node.domain = node.op_type.substr(0, at);
      node.op_type = node.op_type.substr(at + 2);
    }
    line.expect("(");
    while (!line.take(")")) {
      node.inputs.push_back(name());
      line.take(",");
    }
    while (!line.empty()) node.attributes.push_back(attribute(line));
    while (next_ < lines_.size() && lines_[next_].ends_with(" {")) {
      Line head(lines_[next_], static_cast<int>(next_) + 1);
      ++next_;
      onnx::GraphDef inner;
      const std::string attribute_name = head.word();
      inner.name = attribute_name;
      graph(inner, nullptr);
      node.attributes.push_back(body(attribute_name, std::move(inner)));
    }
    node.name = node.outputs[0] + "_node";
    g.nodes.push_back(std::move(node));
  }

  static onnx::AttributeDef attribute(Line& line) {
    std::string name = line.word();
    line.expect("=");
    if (line.take("\"")) return text(name, line.quoted());
    if (line.peek() == '[') return integers(name, line.dims());
    if (line.take("strings(")) {
      std::vector<std::string> values;
      for (; !line.take(")"); line.expect(",")) {
        line.expect("\"");
        values.push_back(line.quoted());
      }
      return texts(name, std::move(values));
    }
    if (line.take("floats(")) {
      std::vector<float> values;
      for (; !line.take(")"); line.expect(",")) values.push_back(std::stof(line.word()));
      return reals(name, std::move(values));
    }
    if (line.take("type(")) {
      const bool is_sequence = line.take("seq(");
      auto result = type_of(name, line.dtype(), is_sequence);
      if (is_sequence) line.expect(")");
      line.expect(")");
      return result;
    }
    const std::string word = line.word();
    if (line.peek() == '[') {
      Dims shape = line.dims();
      line.expect("{");
      Array value = line.elements(dtype_from_name(word), std::move(shape));
      line.expect("}");
      return tensor(name, value);
    }
    if (word.ends_with("f")) return real(name, std::stof(word));
    return integer(name, std::stoll(word));
  }

  static onnx::ValueInfoDef info(Line& line) {
    const std::string name = line.word();
    const bool is_sequence = line.take("seq(");
    onnx::ValueInfoDef result = declare(name, line.dtype(), is_sequence);
    if (is_sequence) line.expect(")");
    if (line.take("[")) {
      result.type.shape.emplace();
      while (!line.take("]")) {
        onnx::DimDef dim;
        const std::string word = line.word();
        if (word == "?") {
        } else if (std::isdigit(static_cast<unsigned char>(word[0])) != 0) {
          dim.kind = onnx::DimDef::Kind::value;
          dim.value = std::stoll(word);
        } else {
          dim.kind = onnx::DimDef::Kind::param;
          dim.param = word;
        }
        result.type.shape->push_back(dim);
        line.take(",");
      }
    }
    return result;
  }

  std::vector<std::string> lines_;
  size_t next_ = 0;
};

onnx::AttributeDef attribute_of(std::string name, onnx::AttributeType type) {
  onnx::AttributeDef result;
  result.name = std::move(name);
  result.type = type;
  return result;
}

}  // namespace

std::string print_call(const onnx::NodeDef& node) {
  std::string text = (node.domain.empty() ? "" : node.domain + "::") + node.op_type + "(" + join(node.inputs, ", ", name_or_dash) + ")";
  for (const auto& a : node.attributes)
    if (!a.g) text += " " + a.name + "=" + attribute(a);
  return text;
}

std::string print(const Case& c) {
  std::string out = "opset " + std::to_string(c.model.opset_imports[0].version) + "\n";
  print(c.model.graph, "", out);
  for (const Feeds& feeds : c.sets) {
    out += "feeds\n";
    for (const auto& [name, value] : feeds) out += "feed " + name + " " + dims(value.dims) + " = " + elements(value) + "\n";
  }
  return out;
}

Case parse(const std::string& text) { return Parser(text).parse(); }

onnx::AttributeDef integer(std::string name, int64_t value) {
  auto result = attribute_of(std::move(name), onnx::AttributeType::i);
  result.i = value;
  return result;
}

onnx::AttributeDef integers(std::string name, std::vector<int64_t> values) {
  auto result = attribute_of(std::move(name), onnx::AttributeType::ints);
  result.ints = std::move(values);
  return result;
}

onnx::AttributeDef real(std::string name, float value) {
  auto result = attribute_of(std::move(name), onnx::AttributeType::f);
  result.f = value;
  return result;
}

onnx::AttributeDef text(std::string name, std::string value) {
  auto result = attribute_of(std::move(name), onnx::AttributeType::s);
  result.s = std::move(value);
  return result;
}

onnx::AttributeDef reals(std::string name, std::vector<float> values) {
  auto result = attribute_of(std::move(name), onnx::AttributeType::floats);
  result.floats = std::move(values);
  return result;
}

onnx::AttributeDef texts(std::string name, std::vector<std::string> values) {
  auto result = attribute_of(std::move(name), onnx::AttributeType::strings);
  result.strings = std::move(values);
  return result;
}

onnx::AttributeDef tensor(std::string name, const Array& value) {
  auto result = attribute_of(std::move(name), onnx::AttributeType::tensor);
  result.t = std::make_unique<onnx::TensorDef>(initializer("", value));
  return result;
}

onnx::AttributeDef type_of(std::string name, DType dtype, bool is_sequence) {
  auto result = attribute_of(std::move(name), onnx::AttributeType::type_proto);
  result.tp = std::make_unique<onnx::TypeDef>(declare("", dtype, is_sequence).type);
  return result;
}

onnx::AttributeDef body(std::string name, onnx::GraphDef graph) {
  auto result = attribute_of(std::move(name), onnx::AttributeType::graph);
  result.g = std::make_unique<onnx::GraphDef>(std::move(graph));
  return result;
}

onnx::TensorDef initializer(std::string name, const Array& value) {
  onnx::TensorDef result;
  result.name = std::move(name);
  result.value = to_tensor(value);
  result.dtype = value.dtype;
  result.shape = result.value.shape();
  return result;
}

onnx::ValueInfoDef declare(std::string name, DType dtype, bool is_sequence) {
  onnx::ValueInfoDef result;
  result.name = std::move(name);
  onnx::TypeDef tensor_type;
  tensor_type.kind = onnx::TypeDef::Kind::tensor;
  tensor_type.elem_type = dtype;
  if (is_sequence) {
    result.type.kind = onnx::TypeDef::Kind::sequence;
    result.type.elem = std::make_unique<onnx::TypeDef>(std::move(tensor_type));
  } else {
    result.type = std::move(tensor_type);
  }
  return result;
}

Case empty_case() {
  Case result;
  result.model.ir_version = 10;
  result.model.opset_imports.push_back({"", 21});
  result.model.graph.name = "graph";
  return result;
}

}  // namespace treadle::graphs
