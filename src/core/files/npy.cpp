#include "core/files/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/base/checked.h"
#include "core/base/utf8.h"
#include "core/files/file.h"
#include "treadle/error.h"

namespace treadle {
namespace {

[[noreturn]] void bad_npy(const std::string& where, std::string_view what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", where, printable(std::string(what))));
}

struct DescrEntry {
  std::string_view descr;
  DType dtype;
};
constexpr DescrEntry kDescrs[] = {{"f4", DType::float32},   {"f8", DType::float64},    {"f2", DType::float16}, {"i1", DType::int8},
                                  {"i2", DType::int16},     {"i4", DType::int32},      {"i8", DType::int64},   {"u1", DType::uint8},
                                  {"u2", DType::uint16},    {"u4", DType::uint32},     {"u8", DType::uint64},  {"b1", DType::boolean},
                                  {"c8", DType::complex64}, {"c16", DType::complex128}};

void append_utf8(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6);
    text += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | code >> 12);
    text += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    text += static_cast<char>(0xF0 | (code >> 18 & 7));
    text += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    text += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    text += static_cast<char>(0x80 | (code & 0x3F));
  }
}

// Reads a field of the header, a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (1, 3), }.
std::string npy_field(const std::string& header, const std::string& key, const std::string& where) {
  size_t at = header.find("'" + key + "'");
  if (at == std::string::npos) bad_npy(where, "the header has no " + key);
  at = header.find(':', at);
  if (at == std::string::npos) bad_npy(where, "the header is cut off");
  at = header.find_first_not_of(' ', at + 1);
  size_t end = at == std::string::npos ? at : header[at] == '(' ? header.find(')', at) : header.find_first_of(",}", at);
  if (end == std::string::npos) bad_npy(where, "the header is cut off");
  return header.substr(at, end - at);
}

Tensor parse_npy_strings(std::string_view data, const Shape& shape, size_t width, const std::string& where) {
  if (width > data.size() / 4) bad_npy(where, "the file is cut off");
  if (width && data.size() / (width * 4) < static_cast<size_t>(shape.num_elements())) bad_npy(where, "the file is cut off");
  if (!width && shape.num_elements() > 0) bad_npy(where, "strings without characters");
  Tensor tensor(DType::string, shape);
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    std::string& text = tensor.data<std::string>()[i];
    for (size_t k = 0; k < width; ++k) {
      uint32_t code;
      std::memcpy(&code, data.data() + (static_cast<size_t>(i) * width + k) * 4, 4);
      if (code == 0) break;
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) bad_npy(where, fmt::format("{:#x} is no character", code));
      append_utf8(text, code);
    }
  }
  return tensor;
}

// Parses a number that consists of digits only.
int64_t npy_number(std::string_view text, const std::string& where) {
  int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || value < 0)
    bad_npy(where, fmt::format("the header has \"{}\" where a number should stand", text));
  return value;
}

// Parses a shape: "(3, 4)", "(3,)" or "()".
Shape npy_shape(std::string extents, const std::string& where) {
  std::erase(extents, ' ');
  if (extents.empty() || extents[0] != '(') bad_npy(where, "the header's shape is no tuple");
  Shape shape;
  for (size_t at = 1; at < extents.size();) {
    const size_t end = std::min(extents.find(',', at), extents.size());
    shape.push_back(npy_number(std::string_view(extents).substr(at, end - at), where));
    at = end + 1;
  }
  return shape;
}

void write_npy_bytes(const std::string& path, const std::string& descr, const Shape& shape, std::span<const std::byte> elements) {
  std::string extents;
  for (int64_t extent : shape) extents += std::to_string(extent) + ",";
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, extents);
  size_t total = align_up(10 + header.size() + 1, 64);
  header.resize(total - 10 - 1, ' ');
  header += '\n';
  std::string prefix("\x93NUMPY\x01\x00", 8);
  prefix += static_cast<char>(header.size() & 0xFF);
  prefix += static_cast<char>(header.size() >> 8);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(prefix)));
  file.write(std::as_bytes(std::span(header)));
  file.write(elements);
  file.commit();
}

// Writes strings as UTF-32, each padded with zeros to the length of the longest.
void write_npy_strings(const std::string& path, const Tensor& tensor) {
  const Tensor dense = tensor.contiguous();
  std::vector<std::u32string> texts;
  size_t width = 1;
  for (const std::string& text : dense.span<std::string>()) {
    std::u32string& codes = texts.emplace_back();
    for (size_t at = 0; at < text.size();) {
      const CodePoint point = decode_utf8(text, at);
      codes += point.value;
      at += point.size_bytes;
    }
    width = std::max(width, codes.size());
  }
  std::vector<char32_t> elements(static_cast<size_t>(checked_mul(static_cast<int64_t>(texts.size()), static_cast<int64_t>(width))));
  for (size_t i = 0; i < texts.size(); ++i)
    std::copy(texts[i].begin(), texts[i].end(), elements.begin() + static_cast<std::ptrdiff_t>(i * width));
  write_npy_bytes(path, fmt::format("<U{}", width), tensor.shape(), std::as_bytes(std::span(elements)));
}

}  // namespace

Tensor parse_npy(const std::shared_ptr<Storage>& file, size_t offset, size_t size, const std::string& where) {
  const std::string_view bytes(reinterpret_cast<const char*>(file->data()) + offset, size);
  if (bytes.size() < 12 || bytes.substr(0, 6) != "\x93NUMPY") bad_npy(where, "not a .npy file");
  size_t length, start;
  if (bytes[6] == 1) {
    uint16_t value;
    std::memcpy(&value, bytes.data() + 8, 2);
    length = value, start = 10;
  } else {
    uint32_t value;
    std::memcpy(&value, bytes.data() + 8, 4);
    length = value, start = 12;
  }
  if (length > bytes.size() - start) bad_npy(where, "the header is cut off");
  const std::string header(bytes.substr(start, length));
  const std::string_view data = bytes.substr(start + length);
  std::string descr = npy_field(header, "descr", where);
  const Shape shape = npy_shape(npy_field(header, "shape", where), where);
  std::erase(descr, '\'');
  if (npy_field(header, "fortran_order", where) == "True" && shape.rank() > 1)
    bad_npy(where, "Fortran order is not supported; save a C-contiguous array");
  if (descr.size() > 2 && descr[1] == 'U')
    return parse_npy_strings(data, shape, static_cast<size_t>(npy_number(std::string_view(descr).substr(2), where)), where);
  if (descr.empty() || descr[0] == '>') bad_npy(where, "big-endian data is not supported");
  auto known =
      std::find_if(std::begin(kDescrs), std::end(kDescrs), [&](const DescrEntry& entry) { return descr.substr(1) == entry.descr; });
  if (known == std::end(kDescrs)) bad_npy(where, "the dtype " + descr + " is not supported");
  const size_t needed = size_bytes(known->dtype, shape.num_elements());
  if (data.size() < needed)
    bad_npy(where, fmt::format("{}{} needs {} bytes, the file has {}", short_name_of(known->dtype), to_string(shape), needed, data.size()));
  if (reinterpret_cast<uintptr_t>(data.data()) % (bits_of(known->dtype) / 8) == 0)
    return Tensor(known->dtype, shape, file, offset + start + length);
  Tensor tensor(known->dtype, shape);
  if (needed > 0) std::memcpy(tensor.raw(), data.data(), needed);
  return tensor;
}

void write_npy(const std::string& path, const Tensor& tensor) {
  if (tensor.dtype() == DType::string) return write_npy_strings(path, tensor);
  auto known = std::find_if(std::begin(kDescrs), std::end(kDescrs), [&](const DescrEntry& entry) { return entry.dtype == tensor.dtype(); });
  if (known == std::end(kDescrs)) throw Error(ErrorCode::not_implemented, fmt::format(".npy files have no {}", name_of(tensor.dtype())));
  char order = bits_of(tensor.dtype()) == 8 ? '|' : '<';
  Tensor dense = tensor.contiguous();
  write_npy_bytes(path, fmt::format("{}{}", order, known->descr), tensor.shape(), {dense.raw(), dense.size_bytes()});
}

}  // namespace treadle
