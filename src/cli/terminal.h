// Prints to terminals: colors, and tables that fit the terminal's width.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace treadle::cli {

/// Returns the width of the terminal in columns; 0 if the output is a file or a pipe.
int terminal_width();

enum class Style { plain, bold, dim, good, bad };
/// Marks text that for_terminal() will color. Returns it unmarked if `on` is no terminal, or if NO_COLOR is set (no-color.org).
std::string styled(std::string_view text, Style style, std::FILE* on = stdout);

/// Turns the marks of styled() into colors. Escapes all other control characters by printable(), because texts from files must not control
/// the terminal.
std::string for_terminal(std::string text);

/// Prints a text after for_terminal(). All commands print by this function and those below.
void show_text(std::FILE* to, std::string text);
template <typename... Args>
void show_on(std::FILE* to, fmt::format_string<Args...> format, Args&&... args) {
  show_text(to, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void show(fmt::format_string<Args...> format, Args&&... args) {
  show_on(stdout, format, std::forward<Args>(args)...);
}
/// Prints JSON text and a line end to standard output.
void show_json_text(std::string text);
template <typename Json>
void show_json(const Json& document, int indent = 2) {
  show_json_text(document.dump(indent, ' ', false, Json::error_handler_t::replace));
}
/// Moves the cursor to the beginning of the line and clears the line.
void clear_line(std::FILE* on);
void clear_screen();

/// A table with aligned columns. Numbers are right-aligned. On a terminal, the last column is cut to fit the terminal's width.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }
  /// Formats the table. Indents each line by `indent` spaces.
  std::string to_text(int indent = 0) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace treadle::cli
