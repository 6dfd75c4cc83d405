// A checked reader of protobuf's wire format: every misuse and every invalid byte is an Error that names the place in the model. protozero
// decodes the numbers. Its own reader is not used, as it has assertions that invalid files trigger, and truncates lengths to 32 bits.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <protozero/exception.hpp>
#include <protozero/varint.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/fault.h"

namespace treadle::onnx {

static_assert(std::endian::native == std::endian::little, "ONNX files are little-endian; this reader does not swap bytes");

/// The reader's place in the model, for errors: `graph.node[12] "conv1".attribute "pads"`.
class Place {
 public:
  /// Enters one level of the model while this object exists. `name` is read only when an error is reported, so it may be set later.
  class Step {
   public:
    Step(Place& place, const char* field, size_t index, const std::string* name) : place_(place) {
      place_.frames_.push_back({field, index, name});
    }
    Step(Place& place, const char* field) : Step(place, field, kNoIndex, nullptr) {}
    ~Step() { place_.frames_.pop_back(); }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    Place& place_;
  };

  /// Sets the file name that is printed before the place; it may be empty.
  void set_source(std::string source) { source_ = std::move(source); }
  std::string text() const;
  [[noreturn]] void fail(ErrorCode code, const std::string& message) const;
  [[noreturn]] void fail_for_memory() const;
  [[noreturn]] void fail(const std::string& message) const { fail(ErrorCode::invalid_model, message); }
  [[noreturn]] void fail(Fault::Kind kind, const std::string& message) const;
  [[noreturn]] void fail_outside(const std::string& message) const { fail(Fault::Kind::external_data, message); }

 private:
  static constexpr size_t kNoIndex = SIZE_MAX;
  struct Frame {
    const char* field;
    size_t index;
    const std::string* name;
  };
  std::string source_;
  std::vector<Frame> frames_;
};

/// Returns `text` in quotes, shortened and without control characters, as names in a file may contain anything.
std::string in_quotes(std::string_view text);

enum class WireType : uint8_t { varint = 0, fixed64 = 1, length_delimited = 2, fixed32 = 5 };

/// Reads the fields of one message. next() reads a whole field; the other functions return its value and check its wire type.
class WireReader {
 public:
  WireReader(std::string_view bytes, const Place& place) : data_(bytes.data()), end_(bytes.data() + bytes.size()), place_(place) {}

  /// Moves to the next field. Returns false at the end.
  bool next();
  uint32_t field() const noexcept { return field_; }

  uint64_t varint() const { return expect(WireType::varint), number_; }
  int64_t int64() const { return static_cast<int64_t>(varint()); }
  int32_t int32() const { return narrow(varint()); }
  float float32() const { return expect(WireType::fixed32), std::bit_cast<float>(static_cast<uint32_t>(number_)); }
  std::string_view bytes() const { return expect(WireType::length_delimited), view_; }
  /// Returns a UTF-8 string; use bytes() for arbitrary bytes. @throws Error(invalid_model) if it is not UTF-8
  std::string string() const;
  bool is_packed() const noexcept { return type_ == WireType::length_delimited; }
  /// Returns an upper bound of the number of values of a repeated field: the number of its bytes, or 8 for a single number.
  size_t payload_bytes() const noexcept { return type_ == WireType::length_delimited ? view_.size() : sizeof(uint64_t); }
  WireReader message() const { return WireReader(bytes(), place_); }

  /// Calls take(uint64_t) for each value of a repeated integer, packed or not.
  template <typename Take>
  void each_varint(Take take) const;
  /// Calls take(T) for each value of a repeated float or double, packed or not.
  template <typename T, typename Take>
  void each_fixed(Take take) const;

  /// Counts this field and those directly after it that have the same number and wire type: the length of a repeated field that is not
  /// packed. Reads no values; a truncated or damaged field ends the count.
  size_t count_row() const;
  /// Like each_varint() and each_fixed(), for an unpacked repeated field of many numbers. Also moves the reader to its last field.
  template <typename Take>
  void row_varint(Take take);
  template <typename T, typename Take>
  void row_fixed(Take take);

  /// Converts to int32 as protobuf does, by keeping the low half.
  static int32_t narrow(uint64_t value) noexcept { return static_cast<int32_t>(static_cast<uint32_t>(value)); }

 private:
  void expect(WireType type) const {
    if (type_ != type) fail_type(type);
  }
  [[noreturn]] void fail_type(WireType wanted) const;
  /// Returns the key byte of this field in the wire format if its number is below 16; 0 for larger numbers.
  uint8_t short_key() const noexcept { return field_ < 16 ? static_cast<uint8_t>(field_ << 3 | static_cast<uint32_t>(type_)) : 0; }
  uint64_t decode(const char*& data, const char* end) const;

  const char* data_;
  const char* end_;
  const Place& place_;
  uint32_t field_ = 0;
  WireType type_ = WireType::varint;
  uint64_t number_ = 0;    // value of a varint, fixed32 or fixed64 field
  std::string_view view_;  // value of a length-delimited field
};

template <typename Take>
void WireReader::each_varint(Take take) const {
  if (type_ == WireType::varint) return take(number_);
  std::string_view packed = bytes();
  const char* data = packed.data();
  const char* end = data + packed.size();
  while (data != end) take(decode(data, end));
}

template <typename T, typename Take>
void WireReader::each_fixed(Take take) const {
  if (type_ == (sizeof(T) == 4 ? WireType::fixed32 : WireType::fixed64)) {
    T value;
    std::memcpy(&value, &number_, sizeof(T));
    return take(value);
  }
  std::string_view packed = bytes();
  if (packed.size() % sizeof(T) != 0)
    place_.fail("field " + std::to_string(field_) + " packs " + std::to_string(packed.size()) + " bytes, not a multiple of " +
                std::to_string(sizeof(T)));
  for (size_t at = 0; at < packed.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, packed.data() + at, sizeof(T));
    take(value);
  }
}

template <typename Take>
void WireReader::row_varint(Take take) {
  each_varint(take);
  if (type_ != WireType::varint || short_key() == 0) return;
  while (data_ != end_ && static_cast<uint8_t>(*data_) == short_key()) {
    ++data_;
    if (data_ != end_ && static_cast<uint8_t>(*data_) < 0x80)
      number_ = static_cast<uint8_t>(*data_++);
    else
      number_ = decode(data_, end_);
    take(number_);
  }
}

template <typename T, typename Take>
void WireReader::row_fixed(Take take) {
  each_fixed<T>(take);
  if (type_ != (sizeof(T) == 4 ? WireType::fixed32 : WireType::fixed64) || short_key() == 0) return;
  while (static_cast<size_t>(end_ - data_) > sizeof(T) && static_cast<uint8_t>(*data_) == short_key()) {
    T value;
    std::memcpy(&value, data_ + 1, sizeof(T));
    data_ += 1 + sizeof(T);
    take(value);
  }
}

}  // namespace treadle::onnx
