// Makes indices distinct types, so that the index of a slot cannot be used for an instruction, and defines containers that accept only one
// type of index.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace treadle {

/// Requires an enum such as `enum class SlotId : int32_t {}`. Ids count from 0; -1 (`kNoSlot`) means none and sorts first.
template <typename T>
concept Id = std::is_enum_v<T> && std::same_as<std::underlying_type_t<T>, int32_t>;

/// Returns the id as an index for containers that are not made for ids. @pre the id is not none
template <Id I>
constexpr size_t index_of(I id) {
  return static_cast<size_t>(id);
}
template <Id I>
constexpr I id_at(size_t index) {
  return static_cast<I>(static_cast<int32_t>(index));
}

/// The ids from `first` to `last`, without `last`.
template <Id I>
class IdRange {
 public:
  class Iterator {
   public:
    using iterator_category = std::bidirectional_iterator_tag;
    using value_type = I;
    using difference_type = ptrdiff_t;
    using pointer = const I*;
    using reference = I;

    Iterator() = default;
    explicit Iterator(I id) : id_(id) {}
    I operator*() const { return id_; }
    Iterator& operator++() {
      id_ = static_cast<I>(static_cast<int32_t>(id_) + 1);
      return *this;
    }
    Iterator& operator--() {
      id_ = static_cast<I>(static_cast<int32_t>(id_) - 1);
      return *this;
    }
    Iterator operator++(int) { return std::exchange(*this, std::next(*this)); }
    Iterator operator--(int) { return std::exchange(*this, std::prev(*this)); }
    bool operator==(const Iterator&) const = default;

   private:
    I id_{};
  };
  struct Reversed {
    std::reverse_iterator<Iterator> first, last;
    auto begin() const { return first; }
    auto end() const { return last; }
  };

  IdRange(I first, I last) : first_(first), last_(last) {}
  Iterator begin() const { return Iterator(first_); }
  Iterator end() const { return Iterator(last_); }
  Reversed reversed() const { return {std::reverse_iterator(end()), std::reverse_iterator(begin())}; }

 private:
  I first_, last_;
};

/// A std::span indexed by ids.
template <Id I, typename T>
class IdSpan : private std::span<T> {
  using Base = std::span<T>;

 public:
  using Base::begin, Base::end, Base::data, Base::size, Base::empty, Base::front, Base::back;
  using iterator = typename Base::iterator;
  IdSpan() = default;
  explicit IdSpan(Base elements) : Base(elements) {}

  T& operator[](I id) const { return Base::operator[](index_of(id)); }
  IdRange<I> ids() const { return {I{}, id_at<I>(size())}; }
  /// Returns the id of an element. @pre `element` is in this span
  I id_of(const T& element) const { return id_at<I>(static_cast<size_t>(&element - data())); }
};

/// A std::vector indexed by ids.
template <Id I, typename T>
class IdVector : private std::vector<T> {
  using Base = std::vector<T>;

 public:
  using Base::assign, Base::reserve, Base::resize, Base::clear, Base::push_back, Base::emplace_back, Base::pop_back, Base::insert,
      Base::erase;
  using Base::Base;
  using Base::begin, Base::end, Base::rbegin, Base::rend, Base::size, Base::empty, Base::front, Base::back;
  using typename Base::const_iterator;
  using typename Base::const_reference;
  using typename Base::iterator;
  using typename Base::reference;
  using typename Base::value_type;
  IdVector() = default;
  explicit IdVector(Base elements) : Base(std::move(elements)) {}

  reference operator[](I id) { return Base::operator[](index_of(id)); }
  const_reference operator[](I id) const { return Base::operator[](index_of(id)); }
  auto data() { return Base::data(); }
  auto data() const { return Base::data(); }
  IdRange<I> ids() const { return {I{}, next_id()}; }
  /// Returns the id of the element that will be added next.
  I next_id() const { return id_at<I>(size()); }
  I add(T element) {
    const I id = next_id();
    push_back(std::move(element));
    return id;
  }
  /// Returns the id of an element. @pre `element` is in this vector
  I id_of(const T& element) const { return id_at<I>(static_cast<size_t>(&element - data())); }
  operator IdSpan<I, const T>() const { return IdSpan<I, const T>(std::span<const T>(*this)); }
  operator IdSpan<I, T>() { return IdSpan<I, T>(std::span<T>(*this)); }
  bool operator==(const IdVector&) const = default;
};

}  // namespace treadle
