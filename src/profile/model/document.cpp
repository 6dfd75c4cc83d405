#include "profile/model/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/json_depth.h"

namespace treadle::profile {
namespace {

// Code points, which are columns for all that names of nodes are made of but wide characters.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Names come from programs and models: a line stays a line, and a terminal is told nothing.
std::string printable(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const unsigned char next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    const bool is_c1 = c == 0xC2 && next >= 0x80 && next < 0xA0;  // U+0080 to U+009F
    if (c == '\n')
      result += "\\n";
    else if (c < 0x20 || c == 0x7F || is_c1)
      result += fmt::format("\\x{:02x}", is_c1 ? static_cast<unsigned char>(text[++i]) : c);
    else
      result += text[i];
  }
  return result;
}

// Both ends of a long name tell more than its middle: the layer it is in, and the operator.
std::string shortened(const std::string& text, size_t width) {
  if (width_of(text) <= width || width < 5) return text;
  const size_t head = (width - 2) / 3, tail = width - 2 - head;
  auto place = [&](size_t points) {
    size_t i = 0;
    for (; i < text.size(); ++i)
      if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 && points-- == 0) break;
    return i;
  };
  return text.substr(0, place(head)) + ".." + text.substr(place(width_of(text) - tail));
}

std::string shape_of(const Document& operand) {
  if (!operand.contains("shape")) return "?";
  std::string text;
  for (const auto& extent : operand.at("shape")) text += (text.empty() ? "" : "x") + std::to_string(extent.get<int64_t>());
  return text.empty() ? "scalar" : text;
}

size_t skip_spaces(std::string_view text, size_t i) { return std::min(text.find_first_not_of(" \t\r\n", i), text.size()); }

// Where the string that begins here ends, behind its quote.
size_t skip_string(std::string_view text, size_t i) {
  for (++i; i < text.size() && text[i] != '"'; ++i)
    if (text[i] == '\\') ++i;
  return std::min(i + 1, text.size());
}

// Of 1,000,000 events the timeline is nearly all of the text, and parsing it would take a second; only pages show it.
std::string without_timeline(std::string_view text) {
  size_t from = 0;  // of its value
  for (size_t i = 0, depth = 0; i < text.size();) {
    if (text[i] == '"') {
      const size_t end = skip_string(text, i), colon = skip_spaces(text, end);
      const bool is_key = depth == 1 && text.substr(i, end - i) == "\"timeline\"" && colon < text.size() && text[colon] == ':';
      const size_t value = is_key ? skip_spaces(text, colon + 1) : text.size();
      if (value < text.size() && text[value] == '{') from = value;
      i = end;
      continue;
    }
    if (text[i] == '{' || text[i] == '[') ++depth;
    if ((text[i] == '}' || text[i] == ']') && depth > 0 && --depth == 1 && from > 0)
      return std::string(text.substr(0, from)).append("null").append(text.substr(i + 1));
    ++i;
  }
  return std::string(text);
}

}  // namespace

Document parse_json(std::string_view text, bool throws) {
  if (!is_shallow_json(text)) throw Error(ErrorCode::invalid_argument, "the profile is damaged: it has lists in lists too deep");
  return Document::parse(text, nullptr, throws);
}

Document parse_document(std::string_view text) {
  return reading([&] { return checked_profile(parse_json(without_timeline(text), /*throws=*/false)); });
}

Document checked_profile(Document document) {
  if (!document.is_object() || document.value("format", "") != "treadle-profile")
    throw Error(ErrorCode::invalid_argument, "this is no profile: `treadle profile MODEL --json` writes one");
  if (document.value("version", 0) != 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("this is a profile of version {}; this build reads version 1", document.value("version", Document()).dump()));
  if (!document.contains("nodes") || !document["nodes"].is_array() || !document.contains("runs") || !document["runs"].is_object())
    throw Error(ErrorCode::invalid_argument, "the profile lacks its nodes or runs");
  for (const Document& node : document["nodes"])
    if (!node.is_object()) throw Error(ErrorCode::invalid_argument, "the profile is damaged: a node is no object");
  return document;
}

std::string shapes_of(const Document& node) {
  std::string text;
  for (const auto& input : node.value("inputs", Document::array()))
    if (!input.value("constant", false)) text += (text.empty() ? "" : ", ") + shape_of(input);
  std::string outputs;
  for (const auto& output : node.value("outputs", Document::array())) outputs += (outputs.empty() ? "" : ", ") + shape_of(output);
  return text == outputs ? outputs : text + " -> " + outputs;
}

std::string TextTable::to_text(const std::string& indent) const {
  std::vector<std::vector<std::string>> lines(1);
  for (const Column& column : columns_) lines[0].push_back(column.title);
  for (const auto& row : rows_) {
    lines.emplace_back();
    for (size_t c = 0; c < columns_.size(); ++c) lines.back().push_back(shortened(printable(row[c]), columns_[c].max_width));
  }
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& line : lines)
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], width_of(line[c]));
  std::string text;
  for (const auto& line : lines) {
    std::string out = indent;
    for (size_t c = 0; c < line.size(); ++c) {
      const std::string padding(widths[c] - width_of(line[c]), ' ');
      out += (c ? "  " : "") + (columns_[c].number ? padding + line[c] : line[c] + padding);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  }
  return text;
}

std::vector<size_t> sorted_nodes(const Document& document, std::string_view sort) {
  const Document& nodes = document["nodes"];
  std::vector<size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (sort == "order") return order;
  if (sort == "name") {
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return nodes[a].value("name", "") < nodes[b].value("name", ""); });
    return order;
  }
  static const std::vector<std::pair<std::string_view, const char*>> kFields{
      {"time", "mean_ms"}, {"calls", "calls"}, {"gflops", "gflops"}, {"bandwidth", "gb_per_s"}, {"peak", "of_peak"}};
  auto field = std::find_if(kFields.begin(), kFields.end(), [&](const auto& f) { return f.first == sort; });
  if (field == kFields.end())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("nodes are sorted by time, order, name, calls, gflops, bandwidth or peak, not by \"{}\"", sort));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return nodes[a].value(field->second, 0.0) > nodes[b].value(field->second, 0.0); });
  return order;
}

}  // namespace treadle::profile
