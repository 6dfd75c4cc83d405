// Tables in text, and how they name nodes.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "treadle/profile_report.h"

namespace treadle::profile {

/// Columns are as wide as their widest cell; text is left-aligned, numbers are right-aligned.
class TextTable {
 public:
  struct Column {
    std::string title;
    bool number = false;
    size_t max_width = 1000;  ///< longer text loses its middle
  };
  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string to_text(const std::string& indent = "  ") const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// "1x64x56x56"; "scalar"; "?" where only the run knows it.
std::string shape_of(const ProfiledOperand& operand);
/// "1x64x56x56 -> 1x64x28x28": computed inputs and outputs of a node, for people.
std::string shapes_of(const PlannedNode& node);

/// Indices of the nodes in the order asked for. @throws Error(invalid_argument) for an unknown order.
std::vector<size_t> sorted_nodes(const std::vector<NodeReport>& nodes, std::string_view sort);

}  // namespace treadle::profile
