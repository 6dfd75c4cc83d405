#include "core/base/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace treadle {
namespace {

// The number of characters to insert, remove or replace (Levenshtein distance).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_names(std::string_view name, std::span<const std::string> names) {
  constexpr size_t kMost = 3;
  std::vector<std::pair<size_t, std::string_view>> found;
  for (const std::string& other : names) found.emplace_back(distance(name, other), other);
  std::sort(found.begin(), found.end());
  found.resize(std::min(found.size(), kMost));
  std::string text;
  for (size_t i = 0; i < found.size(); ++i) text.append(i == 0 ? "" : i + 1 < found.size() ? ", " : " or ").append(found[i].second);
  return text;
}

}  // namespace treadle
