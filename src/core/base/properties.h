// Key-value texts of a model, such as the metadata_props of nodes.
#pragma once

#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace treadle {

/// A list of key-value texts that keeps its order, and repeated keys. Copies share their entries until one of them is changed, since passes
/// copy the metadata of a node to the nodes that replace it, and exporters write kilobytes (stack traces) to each node.
class Properties {
 public:
  using value_type = std::pair<std::string, std::string>;
  using const_iterator = std::vector<value_type>::const_iterator;

  Properties() = default;
  Properties(std::initializer_list<value_type> entries) : entries_(std::make_shared<Entries>(entries)) {}

  const_iterator begin() const { return entries().begin(); }
  const_iterator end() const { return entries().end(); }
  size_t size() const { return entries().size(); }
  bool empty() const { return entries().empty(); }
  const value_type& operator[](size_t i) const { return entries()[i]; }

  template <typename... Args>
  value_type& emplace_back(Args&&... args) {
    return edit().emplace_back(std::forward<Args>(args)...);
  }
  void push_back(value_type entry) { edit().push_back(std::move(entry)); }
  void append(Properties more) {
    if (empty())
      entries_ = std::move(more.entries_);
    else
      edit().insert(edit().end(), more.begin(), more.end());
  }
  void clear() { entries_.reset(); }
  template <typename Predicate>
  friend void erase_if(Properties& properties, Predicate predicate) {
    if (!properties.empty()) std::erase_if(properties.edit(), predicate);
  }

  bool shares_with(const Properties& other) const { return entries_ == other.entries_; }
  friend bool operator==(const Properties& a, const Properties& b) { return a.shares_with(b) || a.entries() == b.entries(); }

 private:
  using Entries = std::vector<value_type>;

  const Entries& entries() const {
    static const Entries kNone;
    return entries_ ? *entries_ : kNone;
  }
  Entries& edit() {
    if (!entries_) {
      entries_ = std::make_shared<Entries>();
      entries_->reserve(4);
    } else if (entries_.use_count() > 1) {
      entries_ = std::make_shared<Entries>(*entries_);
    } else {
      std::atomic_thread_fence(std::memory_order_acquire);  // former sharers must have read the entries before they are changed here
    }
    return *entries_;
  }

  std::shared_ptr<Entries> entries_;
};

}  // namespace treadle
