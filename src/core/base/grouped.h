// One list per id, all in one block of memory. The lists are filled first and read afterwards.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "core/base/ids.h"

namespace treadle {

/// A list of elements for each id, in the order of add(). Call add() for all elements, then group(), then read.
template <Id I, typename T>
class Grouped {
 public:
  explicit Grouped(size_t num_lists) : first_(num_lists + 1, 0) {}

  /// Adds an element to a list. @pre the lists have not been grouped yet
  void add(I list, T element) {
    ++first_[index_of(list) + 1];
    added_.emplace_back(list, std::move(element));
  }
  void group() {
    for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    std::vector<size_t> next(first_.begin(), first_.end() - 1);
    elements_.resize(added_.size());
    for (auto& [list, element] : added_) elements_[next[index_of(list)]++] = std::move(element);
    added_ = {};
  }
  /// Returns the elements of a list. @pre the lists have been grouped
  std::span<const T> operator[](I list) const {
    return std::span(elements_).subspan(first_[index_of(list)], first_[index_of(list) + 1] - first_[index_of(list)]);
  }

 private:
  std::vector<size_t> first_;  // index of each list's first element in `elements_`
  std::vector<std::pair<I, T>> added_;
  std::vector<T> elements_;
};

}  // namespace treadle
