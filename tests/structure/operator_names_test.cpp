// Properties of operators belong in OpDef: outside of src/ops, no list of names may say which operators are pointwise, move elements or
// have a state. A rule may name the operators of its own pattern. The test distinguishes the two by form:
//   - a braced list (a table, an array, the operand of a range-for) that holds two names or more is a list;
//   - a statement that compares with three names or more is a list: a pattern may meet one operator or another (MatMul or Gemm);
//   - three statements in a row that each begin with `if`, compare with a name and leave are a switch, which is a list.
// Names that make nodes (`.op_type = "Add"`, `b.op("Add", …)`) do not count. Operators of all domains count.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/op_def.h"

namespace {

namespace fs = std::filesystem;

constexpr const char* kOwnFolder = "ops";

// Lists that are permitted, each with the reason.
const std::map<std::string, std::string> kExcepted = {
    {"onnx/opset_history.cpp", "ONNX's own table: in which opset which operator changed, also operators that this build lacks"},
    {"onnx/export_opset.cpp", "values of attributes that ONNX added in a later opset, which concerns files only"},
    {"onnx/nchwc.cpp", "onnxruntime's operators over blocks of channels, which files have and no OpDef"},
    {"gpu/attention.cpp", "kernels of a device, with the operators that they are for"},
    {"gpu/found.cpp", "kernels of a device, with the operators that they are for"},
    {"gpu/integers.cpp", "kernels of a device, with the operators that they are for"},
    {"gpu/random.cpp", "kernels of a device, with the operators that they are for"},
    {"gpu/placing.cpp", "kernels of a device, with the operators that they are for"},
    {"gpu/chain.cpp", "kernels of a device, with the operators that they are for"},
    {"gpu/gpu_type.cpp", "fused operators that a device has kernels for"},
    {"gpu/products.cpp", "kernels of a device, with the operators that they are for"},
    {"gpu/rows.cpp", "kernels of a device, with the operators that they are for"},
    {"gpu/update.cpp", "kernels of a device, with the operators that they are for"},
    {"train/graph/optimizers.cpp", "optimisers by the names that trainers give them, with the operators that compute them"},
};

struct Token {
  enum class Kind { name, text, symbol } kind;
  std::string text;
  int line;
};

std::vector<Token> tokens_of(const std::string& source) {
  std::vector<Token> tokens;
  int line = 1;
  for (size_t i = 0; i < source.size();) {
    const char c = source[i];
    if (c == '\n') ++line;
    if (source.compare(i, 2, "//") == 0 || c == '#') {  // comments and directives do not name operators
      while (i < source.size() && source[i] != '\n') ++i;
    } else if (source.compare(i, 2, "/*") == 0) {
      const size_t end = source.find("*/", i);
      for (; i < end + 2 && i < source.size(); ++i) line += source[i] == '\n';
    } else if (c == '"' || c == '\'') {
      std::string text;
      for (++i; i < source.size() && source[i] != c; ++i) {
        if (source[i] == '\\') ++i;
        text += source[i];
      }
      ++i;
      tokens.push_back({Token::Kind::text, c == '"' ? text : "", line});
    } else if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
      std::string text;
      while (i < source.size() && (std::isalnum(static_cast<unsigned char>(source[i])) || source[i] == '_')) text += source[i++];
      tokens.push_back({Token::Kind::name, text, line});
    } else {
      const bool equality = source.compare(i, 2, "==") == 0 || source.compare(i, 2, "!=") == 0;
      if (!std::isspace(static_cast<unsigned char>(c))) tokens.push_back({Token::Kind::symbol, source.substr(i, equality ? 2 : 1), line});
      i += equality ? 2 : 1;
    }
  }
  return tokens;
}

bool is_operator(const Token& token) {
  static const std::set<std::string_view> names = [] {
    std::set<std::string_view> all;
    for (const treadle::OpDef& op : treadle::all_ops()) all.insert(op.name);
    return all;
  }();
  return token.kind == Token::Kind::text && names.contains(token.text);
}

/// Returns the lists of names in the source, each by the line where it begins or ends.
std::map<int, std::string> lists_in(const std::string& source) {
  const std::vector<Token> tokens = tokens_of(source);
  std::map<int, std::string> found;
  struct Bracket {
    char kind;
    int names = 0;
    std::string text;
  };
  std::vector<Bracket> open{{'{', 0, ""}};
  std::set<std::string> compared;  // names with which the current statement compares
  bool leads = false;              // true if the statement begins with `if`, or follows a condition that does
  int in_a_row = 0;
  auto symbol = [&](size_t i, const char* text) {
    return i < tokens.size() && tokens[i].kind == Token::Kind::symbol && tokens[i].text == text;
  };
  auto end_statement = [&](int line) {
    if (compared.size() >= 3) {
      std::string names;
      for (const std::string& name : compared) names += " " + name;
      found[line] = "a statement compares with" + names;
    }
    in_a_row = compared.empty() || !leads ? 0 : in_a_row + 1;
    if (in_a_row >= 3) found[line] = "a switch over names, the last is " + *compared.begin();
    compared.clear();
    leads = false;
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Token& token = tokens[i];
    if (token.kind == Token::Kind::name && token.text == "if" && compared.empty()) leads = true;
    if (is_operator(token)) {
      Bracket& inner = open.back();
      const bool starts = i > 0 && (symbol(i - 1, "{") || symbol(i - 1, ","));
      const bool ends = symbol(i + 1, "}") || symbol(i + 1, ",");
      if (inner.kind == '{' && starts && ends) ++inner.names, inner.text += " " + token.text;
      const bool asked = i >= 2 && symbol(i - 1, "(") && (tokens[i - 2].text == "is" || tokens[i - 2].text == "is_op");
      const bool equal = i > 0 && (symbol(i - 1, "==") || symbol(i - 1, "!="));
      const bool turned = symbol(i + 1, "==") || symbol(i + 1, "!=");
      const bool second = i >= 3 && symbol(i - 1, ",") && i >= 4 && tokens[i - 4].text == "is_op";
      if (asked || equal || turned || second) compared.insert(token.text);
    }
    if (token.kind != Token::Kind::symbol) continue;
    if (token.text == "{" || token.text == "(" || token.text == "[") open.push_back({token.text[0], 0, ""});
    if ((token.text == "}" || token.text == ")" || token.text == "]") && open.size() > 1) {
      const Bracket closed = open.back();
      open.pop_back();
      if (closed.kind == '{' && closed.names > 0) {
        if (closed.names >= 2) {
          found[token.line] = "a braced list has" + closed.text;
        } else if (open.back().kind == '{') {  // the list is a row of a table
          open.back().names += closed.names;
          open.back().text += closed.text;
        }
      }
    }
    const bool statement_ends =
        token.text == ";" || ((token.text == "{" || token.text == "}") && !symbol(i + 1, ",") && !symbol(i + 1, ")"));
    if (token.text == ";") open.back().names = 0, open.back().text.clear();
    if (token.text == ";" || (statement_ends && open.back().kind == '{')) end_statement(token.line);
  }
  return found;
}

TEST(Structure, OperatorsAreListedInTheirOwnFilesOnly) {
  const fs::path root = fs::path(TREADLE_SOURCE_DIR) / "src";
  std::set<std::string> needless;
  for (const auto& [file, reason] : kExcepted) needless.insert(file);
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const fs::path path = fs::relative(entry.path(), root);
    const std::string extension = path.extension().string(), file = path.string();
    if (!entry.is_regular_file() || *path.begin() == kOwnFolder || (extension != ".cpp" && extension != ".h")) continue;
    std::ifstream in(entry.path());
    const auto found = lists_in({std::istreambuf_iterator<char>(in), {}});
    if (!found.empty()) needless.erase(file);
    if (kExcepted.contains(file)) continue;
    for (const auto& [line, what] : found) ADD_FAILURE() << "src/" << file << ":" << line << ": " << what << "; make it a field of OpDef";
  }
  for (const std::string& file : needless)
    ADD_FAILURE() << "src/" << file << " has no list of operators any more: take it out of the exceptions";
}

TEST(Structure, ListsOfOperatorsAreFound) {
  EXPECT_EQ(lists_in("constexpr std::string_view kNames[] = {\"Relu\", \"Exp\"};").size(), 1U);
  EXPECT_EQ(lists_in("const std::set<std::string> names{\"Relu\", \"Exp\"};").size(), 1U);
  EXPECT_EQ(lists_in("Row kRows[] = {{\"Relu\", 1},\n {\"Exp\", 2}};").size(), 1U);
  EXPECT_EQ(lists_in("for (auto name : {\"Mul\", \"Div\"}) f(name);").size(), 1U);
  EXPECT_EQ(lists_in("for (const char* type : {\"NhwcConv\", \"FusedAttention\"}) f(type);").size(), 1U) << "of any domain";
  EXPECT_EQ(lists_in("return node.is(\"Relu\") || node.is(\"Exp\") || node.is(\"Abs\");").size(), 1U);
  EXPECT_EQ(lists_in("if (op == \"Relu\") return 1;\nif (op == \"Exp\") return 2;\nif (op == \"Abs\") return 3;").size(), 1U);
}

TEST(Structure, HeadsOfRulesAreNoLists) {
  EXPECT_TRUE(lists_in("if (!node.is(\"MatMul\") && !node.is(\"Gemm\")) return std::nullopt;").empty());
  EXPECT_TRUE(lists_in("bool f() {\n if (!node.is(\"Mul\")) return false;\n const Node* add = producer(node);\n return add->is(\"Add\"); }")
                  .empty());
  EXPECT_TRUE(lists_in("patch.add({.op_type = \"Add\", .inputs = {patch.add({.op_type = \"Mul\", .inputs = {x, y}}), z}});").empty());
  EXPECT_TRUE(lists_in("// {\"Relu\", \"Exp\"}\nint x;").empty());
}

}  // namespace
