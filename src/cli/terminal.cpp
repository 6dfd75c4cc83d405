#include "cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>

#include "core/base/utf8.h"

namespace treadle::cli {
namespace {

// Returns the number of columns that a text takes. Continuation bytes of UTF-8 take none.
size_t columns_of(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string cut_to(const std::string& text, size_t columns) {
  if (columns_of(text) <= columns) return text;
  std::string part;
  size_t shown = 0;
  for (const char c : text) {
    const bool begins = (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    if (begins && ++shown >= columns) break;
    part += c;
  }
  return part + "…";
}

bool is_number(const std::string& text) { return !text.empty() && text.find_first_not_of("0123456789.,+-eE% ") == std::string::npos; }

// Returns a mark that surrounds styled text until for_terminal() replaces it. It is random, so that no text from a file can contain it.
const std::string& style_mark() {
  static const std::string mark = fmt::format("\x0e{:08x}", std::random_device{}());
  return mark;
}

}  // namespace

int terminal_width() {
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

std::string styled(std::string_view text, Style style, std::FILE* on) {
  const char* no_color = std::getenv("NO_COLOR");
  if (style == Style::plain || isatty(fileno(on)) == 0 || (no_color && *no_color)) return std::string(text);
  return fmt::format("{}{}{}{}{}", style_mark(), static_cast<int>(style), text, style_mark(), 0);
}

std::string for_terminal(std::string text) {
  static constexpr std::array<int, 5> kCodes = {0, 1, 2, 32, 31};
  const std::string& mark = style_mark();
  std::string shown;
  size_t from = 0;
  for (size_t at = text.find(mark); at != std::string::npos && at + mark.size() < text.size(); at = text.find(mark, from)) {
    shown += printable(text.substr(from, at - from));
    const auto style = static_cast<size_t>(text[at + mark.size()] - '0');
    shown += fmt::format("\x1b[{}m", kCodes.at(style));
    from = at + mark.size() + 1;
  }
  return shown + printable(from == 0 ? std::move(text) : text.substr(from));
}

void show_text(std::FILE* to, std::string text) {
  const std::string shown = for_terminal(std::move(text));
  std::fwrite(shown.data(), 1, shown.size(), to);
}

// Escapes DEL and U+0080 to U+009F. JSON libraries escape all other control characters, but not these.
void show_json_text(std::string text) {
  std::string shown;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
    if (byte(at) == 0x7F)
      shown += "\\u007f";
    else if (byte(at) == 0xC2 && byte(at + 1) < 0xA0)
      shown += fmt::format("\\u{:04x}", byte(++at));
    else
      shown += text[at];
  }
  show_text(stdout, shown + '\n');
}

void clear_line(std::FILE* on) { std::fputs("\r\x1b[K", on); }
void clear_screen() { std::fputs("\x1b[H\x1b[J", stdout); }

// Escapes control characters in the cells now, so that the widths of columns match the printed text.
void TextTable::add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = printable(std::move(cell));
  rows_.push_back(std::move(row));
}

std::string TextTable::to_text(int indent) const {
  std::vector<size_t> widths;
  std::vector<bool> right(header_.size(), true);
  for (const std::string& name : header_) widths.push_back(columns_of(name));
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], columns_of(row[i]));
      right[i] = right[i] && (is_number(row[i]) || row[i].empty());
    }
  const size_t last = header_.size() - 1;
  if (const int width = terminal_width(); width > 0) {
    size_t before = static_cast<size_t>(indent) + 2 * last;
    for (size_t i = 0; i < last; ++i) before += widths[i];
    constexpr size_t kLeast = 12;
    widths[last] = std::min(widths[last], std::max(kLeast, static_cast<size_t>(width) - std::min(before, static_cast<size_t>(width))));
  }
  auto line = [&](const std::vector<std::string>& row) {
    std::string text(static_cast<size_t>(indent), ' ');
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string cell = i == last ? cut_to(row[i], widths[i]) : row[i];
      const std::string gap(widths[i] - std::min(widths[i], columns_of(cell)), ' ');
      text += right[i] ? gap + cell : i == last ? cell : cell + gap;
      if (i != last) text += "  ";
    }
    return text;
  };
  std::string text = styled(line(header_), Style::bold) + '\n';
  for (const auto& row : rows_) text += line(row) + '\n';
  return text;
}

}  // namespace treadle::cli
