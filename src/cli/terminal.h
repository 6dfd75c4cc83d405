// What a terminal shows: aligned columns within its width, and colour where somebody looks.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace treadle::cli {

/// Columns of the terminal; 0 where the output goes to a file or a pipe, which have no width.
int terminal_width();

enum class Style { plain, bold, dim, good, bad };
/// The text with marks that for_terminal() makes a colour of: only on a terminal, and not if NO_COLOR is set (no-color.org).
std::string styled(std::string_view text, Style style, std::FILE* on = stdout);

/// What a terminal may be sent: colours where styled() asked for them, everything else as text (`printable`). Names and cells come from
/// files, and nothing in them drives the terminal.
std::string for_terminal(std::string text);

/// All that commands print goes through these.
void show_text(std::FILE* to, std::string text);
template <typename... Args>
void show_on(std::FILE* to, fmt::format_string<Args...> format, Args&&... args) {
  show_text(to, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void show(fmt::format_string<Args...> format, Args&&... args) {
  show_on(stdout, format, std::forward<Args>(args)...);
}
/// A document with a line end behind it, on standard output.
void show_json_text(std::string text);
template <typename Json>
void show_json(const Json& document, int indent = 2) {
  show_json_text(document.dump(indent, ' ', false, Json::error_handler_t::replace));
}
/// Goes back to the beginning of the line, and clears it.
void clear_line(std::FILE* on);
void clear_screen();

/// Rows of cells in aligned columns; numbers stand at the right. On a terminal the last column is cut to fit the width.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }
  /// With `indent` spaces before each line.
  std::string to_text(int indent = 0) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace treadle::cli
