// Writes values as bytes, for the description of a compiled model, and reads them with bounds checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/utf8.h"
#include "treadle/error.h"

namespace treadle::compiled {

class Writer {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  void count(size_t value) { put(static_cast<uint64_t>(value)); }
  void text(std::string_view value) {
    count(value.size());
    const auto* data = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), data, data + value.size());
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads values from bytes. Every function throws Error(invalid_model) for bytes that a Writer would not produce.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
    requires std::is_arithmetic_v<T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  bool flag() {
    const auto value = get<uint8_t>();
    if (value > 1) fail("a flag is neither 0 nor 1");
    return value != 0;
  }
  /// Reads an enumerator from 0 to `last`. All numbers in this range must be enumerators.
  template <typename E>
  E pick(E last) {
    const auto value = get<std::underlying_type_t<E>>();
    if (value < 0 || value > static_cast<std::underlying_type_t<E>>(last)) fail("a number stands for nothing");
    return static_cast<E>(value);
  }
  /// Reads the number of elements that follow. Throws if the remaining bytes cannot contain so many, with `least_bytes` or more for each.
  size_t count(size_t least_bytes = 1) {
    const auto value = get<uint64_t>();
    if (value > (bytes_.size() - at_) / least_bytes) fail("it counts more elements than it holds");
    return static_cast<size_t>(value);
  }
  std::string bytes() {
    const auto taken = take(count());
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  /// Reads a text and checks that it is UTF-8.
  std::string text() {
    std::string read = bytes();
    if (find_not_utf8(read) != std::string::npos) fail("a text in it is not UTF-8: \"" + read + "\"");
    return read;
  }
  /// Reads a name and checks that it is UTF-8.
  std::string name() {
    std::string text = this->text();
    if (!is_utf8(text)) fail("a name is not in UTF-8");
    return text;
  }
  size_t count_left() const { return bytes_.size() - at_; }
  bool at_end() const { return at_ == bytes_.size(); }

  [[noreturn]] static void fail(std::string_view what) {
    throw Error(ErrorCode::invalid_model, "the compiled model is damaged: " + std::string(what));
  }

 private:
  std::span<const std::byte> take(size_t size) {
    if (size > bytes_.size() - at_) fail("its description ends early");
    at_ += size;
    return bytes_.subspan(at_ - size, size);
  }
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

}  // namespace treadle::compiled
