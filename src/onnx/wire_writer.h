// Writes protobuf's wire format in two passes: the first measures every message, the second writes. In the file, each message is preceded
// by its length; as the lengths are known in the second pass, nothing needs to be moved or buffered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <protozero/varint.hpp>
#include <span>
#include <string_view>
#include <vector>

namespace treadle::onnx {

class WireWriter {
 public:
  using Sink = std::function<void(std::span<const std::byte>)>;

  /// Makes a writer that only measures. It stores the lengths of all messages in `lengths`, in the order in which the messages begin.
  explicit WireWriter(std::vector<size_t>& lengths) : lengths_(lengths) {}
  /// Makes a writer that writes bytes. `lengths` must come from a measuring pass over the same structs.
  WireWriter(std::vector<size_t>& lengths, Sink sink) : lengths_(lengths), sink_(std::move(sink)) {}

  size_t size_bytes() const noexcept { return size_; }

  void varint(uint32_t field, uint64_t value) {
    key(field, 0);
    number(value);
  }
  void int64(uint32_t field, int64_t value) { varint(field, static_cast<uint64_t>(value)); }
  void float32(uint32_t field, float value) {
    key(field, 5);
    put(&value, sizeof(value));
  }
  void bytes(uint32_t field, std::string_view value) {
    begin_bytes(field, value.size());
    put(value.data(), value.size());
  }
  /// Writes a string, but not an empty one: ONNX does not distinguish empty and absent strings.
  void string(uint32_t field, std::string_view value) {
    if (!value.empty()) bytes(field, value);
  }
  template <typename Body>
  void message(uint32_t field, Body body) {
    if (sink_) {
      begin_bytes(field, lengths_[next_++]);
      return body();
    }
    size_t slot = lengths_.size(), outer = size_;
    lengths_.push_back(0);
    size_ = 0;
    body();
    lengths_[slot] = size_;
    size_ += outer;
    begin_bytes(field, lengths_[slot]);
  }
  bool measuring() const noexcept { return !sink_; }
  /// Counts `size` bytes in a measuring pass, in place of put().
  void skip(size_t size) noexcept { size_ += size; }
  void begin_bytes(uint32_t field, size_t size) {
    key(field, 2);
    number(size);
  }
  void put(const void* data, size_t size) {
    size_ += size;
    if (sink_ && size > 0) sink_({static_cast<const std::byte*>(data), size});
  }

 private:
  void key(uint32_t field, uint32_t wire_type) { number(field << 3 | wire_type); }
  void number(uint64_t value) {
    char buffer[protozero::max_varint_length];
    put(buffer, static_cast<size_t>(protozero::add_varint_to_buffer(buffer, value)));
  }

  std::vector<size_t>& lengths_;
  size_t next_ = 0, size_ = 0;
  Sink sink_;
};

}  // namespace treadle::onnx
