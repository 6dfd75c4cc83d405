#include "onnx/wire.h"

#include <algorithm>

#include "core/base/utf8.h"
#include "treadle/out_of_memory.h"

namespace treadle::onnx {

std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 120;
  size_t end = std::min(text.size(), kLongest);
  // Moves `end` back while it is inside a UTF-8 character.
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80) --end;
  std::string result = "\"";
  for (char c : printable(std::string(text.substr(0, end)))) {
    if (c == '\n' || c == '\t')
      result += c == '\n' ? "\\x0a" : "\\x09";
    else
      result += c;
  }
  return result + (end < text.size() ? "…\"" : "\"");
}

std::string Place::text() const {
  std::string result;
  for (const Frame& frame : frames_) {
    if (!result.empty()) result += '.';
    result += frame.field;
    if (frame.index != kNoIndex) result += "[" + std::to_string(frame.index) + "]";
    if (frame.name && !frame.name->empty()) result += " " + in_quotes(*frame.name);
  }
  if (source_.empty()) return result.empty() ? "the model" : result;
  return result.empty() ? source_ : source_ + ", " + result;
}

void Place::fail_for_memory() const {
  OutOfMemory error("not enough memory");
  error.add_context("reading " + text());
  throw error;
}
void Place::fail(ErrorCode code, const std::string& message) const { throw Error(code, message).add_context("reading " + text()); }

void Place::fail(Fault::Kind kind, const std::string& message) const {
  Fault fault(kind, ErrorCode::invalid_model, message);
  fault.add_context("reading " + text());
  throw fault;
}

namespace {

const char* name_of(WireType type) {
  switch (type) {
    case WireType::varint: return "a varint";
    case WireType::fixed64: return "64 bits";
    case WireType::length_delimited: return "length-delimited";
    case WireType::fixed32: return "32 bits";
  }
  return "unknown";
}

}  // namespace

void WireReader::fail_type(WireType wanted) const {
  place_.fail("field " + std::to_string(field_) + " is " + name_of(type_) + " on the wire, not " + name_of(wanted));
}

uint64_t WireReader::decode(const char*& data, const char* end) const {
  try {
    return protozero::decode_varint(&data, end);
  } catch (const protozero::varint_too_long_exception&) {
    place_.fail("a varint of more than 10 bytes");
  } catch (const protozero::end_of_buffer_exception&) {
    place_.fail("cut off within a varint");
  }
}

size_t WireReader::count_row() const {
  const uint8_t key = short_key();
  size_t count = 1;
  if (key == 0) return count;
  for (const char* at = data_; at != end_ && static_cast<uint8_t>(*at) == key; ++count) {
    ++at;
    uint64_t length = type_ == WireType::fixed32 ? 4 : 8;
    if (type_ == WireType::varint || type_ == WireType::length_delimited) {
      uint64_t value = 0;
      for (int shift = 0;; shift += 7) {
        if (at == end_ || shift > 63) return count;
        const auto byte = static_cast<uint8_t>(*at++);
        value |= static_cast<uint64_t>(byte & 0x7F) << shift;
        if (byte < 0x80) break;
      }
      length = type_ == WireType::varint ? 0 : value;
    }
    if (length > static_cast<size_t>(end_ - at)) return count;
    at += length;
  }
  return count;
}

std::string WireReader::string() const {
  const std::string_view text = bytes();
  if (const size_t at = find_not_utf8(text); at != std::string_view::npos)
    place_.fail("field " + std::to_string(field_) + " is text that is not UTF-8, from byte " + std::to_string(at) +
                " on: " + in_quotes(text));
  return std::string(text);
}

bool WireReader::next() {
  if (data_ == end_) return false;
  uint64_t key = decode(data_, end_);
  uint64_t field = key >> 3;
  if (field == 0 || field >= (uint64_t{1} << 29))
    place_.fail("a field number of " + std::to_string(field) + ": not an ONNX file, or damaged");
  field_ = static_cast<uint32_t>(field);
  auto type = static_cast<uint8_t>(key & 7);
  if (type == 3 || type == 4 || type > 5)
    place_.fail("field " + std::to_string(field) + " has the wire type " + std::to_string(type) + ": not an ONNX file, or damaged");
  type_ = static_cast<WireType>(type);
  if (type_ == WireType::varint) {
    number_ = decode(data_, end_);
    return true;
  }
  uint64_t length = type_ == WireType::fixed32 ? 4 : type_ == WireType::fixed64 ? 8 : decode(data_, end_);
  auto left = static_cast<size_t>(end_ - data_);
  if (length > left)
    place_.fail("field " + std::to_string(field) + " needs " + std::to_string(length) + " bytes, " + std::to_string(left) +
                " are left: cut off or damaged");
  if (type_ == WireType::length_delimited) {
    view_ = {data_, static_cast<size_t>(length)};
  } else {
    number_ = 0;
    std::memcpy(&number_, data_, static_cast<size_t>(length));
  }
  data_ += length;
  return true;
}

}  // namespace treadle::onnx
