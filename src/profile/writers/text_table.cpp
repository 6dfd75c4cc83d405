#include "profile/writers/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "treadle/error.h"

namespace treadle::profile {
namespace {

// Returns the number of columns that a text takes: its number of code points, which is right except for wide characters.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Escapes control characters: names come from programs and models, and must not break lines or control the terminal.
std::string printable(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const unsigned char next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    const bool is_c1 = c == 0xC2 && next >= 0x80 && next < 0xA0;  // U+0080 to U+009F are control characters, too
    if (c == '\n')
      result += "\\n";
    else if (c < 0x20 || c == 0x7F || is_c1)
      result += fmt::format("\\x{:02x}", is_c1 ? static_cast<unsigned char>(text[++i]) : c);
    else
      result += text[i];
  }
  return result;
}

// Shortens a long text in the middle, because the ends of a node's name (its layer and its operator) say most.
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

// Returns the number by which a node is sorted, or 0 if it has no such number.
double value_for(const NodeReport& node, std::string_view sort) {
  if (sort == "time") return node.mean_ms.value_or(0);
  if (sort == "calls") return node.calls.value_or(0);
  if (sort == "gflops") return node.gflops.value_or(0);
  if (sort == "bandwidth") return node.gb_per_s.value_or(0);
  if (sort == "peak") return node.of_peak.value_or(0);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("nodes are sorted by time, order, name, calls, gflops, bandwidth or peak, not by \"{}\"", sort));
}

}  // namespace

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

std::vector<size_t> sorted_nodes(const std::vector<NodeReport>& nodes, std::string_view sort) {
  std::vector<size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (sort == "order") return order;
  if (sort == "name") {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return nodes[a].name < nodes[b].name; });
    return order;
  }
  static_cast<void>(value_for({}, sort));  // throws for an unknown order, even if there are no nodes
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return value_for(nodes[a], sort) > value_for(nodes[b], sort); });
  return order;
}

}  // namespace treadle::profile
