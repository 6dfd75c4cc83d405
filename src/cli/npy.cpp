#include "cli/npy.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "core/checked.h"
#include "core/file.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

[[noreturn]] void bad_npy(const std::string& where, std::string_view what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", where, what));
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

// The header is a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (1, 3), }.
std::string field(const std::string& header, const std::string& key, const std::string& where) {
  size_t at = header.find("'" + key + "'");
  if (at == std::string::npos) bad_npy(where, "the header has no " + key);
  at = header.find(':', at);
  if (at == std::string::npos) bad_npy(where, "the header is cut off");
  at = header.find_first_not_of(' ', at + 1);
  size_t end = at == std::string::npos ? at : header[at] == '(' ? header.find(')', at) : header.find_first_of(",}", at);
  if (end == std::string::npos) bad_npy(where, "the header is cut off");
  return header.substr(at, end - at);
}

Tensor parse_strings(std::string_view data, const Shape& shape, size_t width, const std::string& where) {
  Tensor tensor(DType::string, shape);
  if (data.size() / (width ? width * 4 : 1) < static_cast<size_t>(tensor.num_elements()) && width) bad_npy(where, "the file is cut off");
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    std::string& text = tensor.data<std::string>()[i];
    for (size_t k = 0; k < width; ++k) {
      uint32_t code;
      std::memcpy(&code, data.data() + (static_cast<size_t>(i) * width + k) * 4, 4);
      if (code == 0) break;
      append_utf8(text, code);
    }
  }
  return tensor;
}

Tensor parse_npy(std::string_view bytes, const std::string& where) {
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
  std::string header(bytes.substr(start, length));
  std::string_view data = bytes.substr(start + length);
  std::string descr = field(header, "descr", where), extents = field(header, "shape", where);
  std::erase(descr, '\'');
  Shape shape;
  for (size_t at = 1; at < extents.size();) {
    size_t digits = extents.find_first_of("0123456789", at);
    if (digits == std::string::npos) break;
    size_t used = 0;
    shape.push_back(std::stoll(extents.substr(digits), &used));
    at = digits + used;
  }
  if (field(header, "fortran_order", where) == "True" && shape.rank() > 1)
    bad_npy(where, "Fortran order is not supported; save a C-contiguous array");
  if (descr.size() > 2 && descr[1] == 'U') return parse_strings(data, shape, std::stoul(descr.substr(2)), where);
  if (descr.empty() || descr[0] == '>') bad_npy(where, "big-endian data is not supported");
  auto known =
      std::find_if(std::begin(kDescrs), std::end(kDescrs), [&](const DescrEntry& entry) { return descr.substr(1) == entry.descr; });
  if (known == std::end(kDescrs)) bad_npy(where, "the dtype " + descr + " is not supported");
  Tensor tensor(known->dtype, shape);
  if (data.size() < tensor.size_bytes())
    bad_npy(where, fmt::format("{} needs {} bytes, the file has {}", describe(tensor), tensor.size_bytes(), data.size()));
  std::memcpy(tensor.raw(), data.data(), tensor.size_bytes());
  return tensor;
}

std::string inflate_entry(std::string_view compressed, size_t size, const std::string& where) {
  std::string out(size, '\0');
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw Error(ErrorCode::internal, "zlib cannot start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  int result = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  if (result != Z_STREAM_END || stream.total_out != size) bad_npy(where, "an entry of the archive is damaged");
  return out;
}

template <typename T>
T read_at(std::string_view bytes, size_t offset, const std::string& where) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) bad_npy(where, "the archive is cut off");
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string_view slice(std::string_view bytes, size_t offset, size_t length, const std::string& where) {
  if (offset > bytes.size() || bytes.size() - offset < length) bad_npy(where, "the archive is cut off");
  return bytes.substr(offset, length);
}

std::string_view contents(const std::shared_ptr<Storage>& file) {
  return {reinterpret_cast<const char*>(file->data()), file->size_bytes()};
}

}  // namespace

Tensor read_npy(const std::string& path) { return parse_npy(contents(read_file(path)), path); }

// The zip format: the end record (PK\5\6) points to the central directory, whose entries (PK\1\2) point to the files (PK\3\4).
std::map<std::string, Tensor> read_npz(const std::string& path) {
  auto file = read_file(path);
  std::string_view bytes = contents(file);
  size_t end = bytes.rfind("PK\x05\x06");
  if (end == std::string_view::npos) bad_npy(path, "not a .npz file");
  auto count = read_at<uint16_t>(bytes, end + 10, path);
  size_t at = read_at<uint32_t>(bytes, end + 16, path);
  std::map<std::string, Tensor> tensors;
  for (int i = 0; i < count; ++i) {
    if (read_at<uint32_t>(bytes, at, path) != 0x02014b50) bad_npy(path, "the archive's directory is damaged");
    auto method = read_at<uint16_t>(bytes, at + 10, path);
    size_t compressed = read_at<uint32_t>(bytes, at + 20, path), size = read_at<uint32_t>(bytes, at + 24, path);
    size_t name_length = read_at<uint16_t>(bytes, at + 28, path), extra = read_at<uint16_t>(bytes, at + 30, path),
           comment = read_at<uint16_t>(bytes, at + 32, path);
    size_t local = read_at<uint32_t>(bytes, at + 42, path);
    if (compressed == UINT32_MAX || size == UINT32_MAX || local == UINT32_MAX) bad_npy(path, "archives beyond 4 GiB are not supported");
    std::string name(slice(bytes, at + 46, name_length, path));
    at += 46 + name_length + extra + comment;
    size_t data = local + 30 + read_at<uint16_t>(bytes, local + 26, path) + read_at<uint16_t>(bytes, local + 28, path);
    std::string_view packed = slice(bytes, data, compressed, path);
    if (name.size() > 4 && name.substr(name.size() - 4) == ".npy") name.resize(name.size() - 4);
    std::string where = path;
    where.append(":").append(name);
    if (method == 0)
      tensors.emplace(name, parse_npy(packed, where));
    else if (method == 8)
      tensors.emplace(name, parse_npy(inflate_entry(packed, size, where), where));
    else
      bad_npy(where, "an unknown compression");
  }
  return tensors;
}

void write_npy(const std::string& path, const Tensor& tensor) {
  auto known = std::find_if(std::begin(kDescrs), std::end(kDescrs), [&](const DescrEntry& entry) { return entry.dtype == tensor.dtype(); });
  if (known == std::end(kDescrs)) throw Error(ErrorCode::not_implemented, fmt::format(".npy files have no {}", name_of(tensor.dtype())));
  std::string shape;
  for (int64_t extent : tensor.shape()) shape += std::to_string(extent) + ",";
  char order = bits_of(tensor.dtype()) == 8 ? '|' : '<';
  std::string header = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}", order, known->descr, shape);
  size_t total = align_up(10 + header.size() + 1, 64);
  header.resize(total - 10 - 1, ' ');
  header += '\n';
  std::string prefix("\x93NUMPY\x01\x00", 8);
  prefix += static_cast<char>(header.size() & 0xFF);
  prefix += static_cast<char>(header.size() >> 8);
  Tensor dense = tensor.contiguous();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(prefix)));
  file.write(std::as_bytes(std::span(header)));
  file.write({dense.raw(), dense.size_bytes()});
  file.commit();
}

}  // namespace treadle::cli
