// What a terminal shows: aligned columns within its width, and colour where somebody looks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace treadle::cli {

/// Columns of the terminal; 0 where the output goes to a file or a pipe, which have no width.
int terminal_width();

enum class Style { plain, bold, dim, good, bad };
/// The text in a colour: only on a terminal, and not if NO_COLOR is set (no-color.org).
std::string styled(std::string_view text, Style style);

/// Rows of cells in aligned columns; numbers stand at the right. On a terminal the last column is cut to fit the width.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  /// With `indent` spaces before each line.
  std::string to_text(int indent = 0) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace treadle::cli
