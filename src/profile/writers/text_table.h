// Formats tables as text.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "profile/analysis/report_parts.h"
#include "treadle/profile_report.h"

namespace treadle::profile {

/// A text table. Each column is as wide as its widest cell. Texts are left-aligned and numbers right-aligned.
class TextTable {
 public:
  struct Column {
    std::string title;
    bool number = false;
    size_t max_width = 1000;  ///< longer texts are shortened in the middle
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string to_text(const std::string& indent = "  ") const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Returns the nodes' indices, sorted as `sort` says ("time", "calls", ...). @throws Error(invalid_argument) for an unknown order.
std::vector<size_t> sorted_nodes(const std::vector<NodeReport>& nodes, std::string_view sort);

}  // namespace treadle::profile
