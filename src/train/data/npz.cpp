// Reads NumPy's .npz: a zip archive of .npy files, stored or deflated.

#include <fmt/format.h>

#include <cstring>
#include <string_view>

#include "core/base/crc32.h"
#include "core/base/utf8.h"
#include "core/files/file.h"
#include "core/files/npy.h"
#include "treadle/data.h"
#include "treadle/error.h"

#ifdef TREADLE_WITH_ZLIB
#include <zlib.h>
#endif

namespace treadle::train {
namespace {

[[noreturn]] void bad_npy(const std::string& where, std::string_view what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", where, printable(std::string(what))));
}

#ifdef TREADLE_WITH_ZLIB
std::shared_ptr<Storage> inflate_entry(std::string_view compressed, size_t size, const std::string& where) {
  constexpr size_t kMostPerByte = 1032;  // deflate's largest ratio: 258 bytes for two bits
  if (size / kMostPerByte > compressed.size())
    bad_npy(where, fmt::format("{} bytes cannot hold the {} that it counts", compressed.size(), size));
  auto out = Storage::allocate(size);
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw Error(ErrorCode::internal, "zlib cannot start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out->data());
  stream.avail_out = static_cast<uInt>(size);
  int result = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  if (result != Z_STREAM_END || stream.total_out != size) bad_npy(where, "an entry of the archive is damaged");
  return out;
}
#else
std::shared_ptr<Storage> inflate_entry(std::string_view, size_t, const std::string& where) {
  throw Error(ErrorCode::not_implemented,
              fmt::format("{}: it is deflated, and this build has no zlib; numpy.savez, without compression, writes what it reads", where));
}
#endif

constexpr uint16_t kEncrypted = 1;              // flag of a zip entry
constexpr uint16_t kStored = 0, kDeflated = 8;  // the compression methods of zip archives

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

// A zip archive ends with a record (PK\5\6) that points to the central directory, whose entries (PK\1\2) point to the files (PK\3\4).
NamedTensors read_npz(const std::string& path) {
  auto file = map_file(path);
  std::string_view bytes = contents(file);
  size_t end = bytes.rfind("PK\x05\x06");
  if (end == std::string_view::npos) bad_npy(path, "not a .npz file");
  auto count = read_at<uint16_t>(bytes, end + 10, path);
  size_t at = read_at<uint32_t>(bytes, end + 16, path);
  NamedTensors tensors;
  for (int i = 0; i < count; ++i) {
    if (read_at<uint32_t>(bytes, at, path) != 0x02014b50) bad_npy(path, "the archive's directory is damaged");
    const auto flags = read_at<uint16_t>(bytes, at + 8, path);
    const auto crc = read_at<uint32_t>(bytes, at + 16, path);
    auto method = read_at<uint16_t>(bytes, at + 10, path);
    size_t compressed = read_at<uint32_t>(bytes, at + 20, path), size = read_at<uint32_t>(bytes, at + 24, path);
    size_t name_length = read_at<uint16_t>(bytes, at + 28, path), extra = read_at<uint16_t>(bytes, at + 30, path),
           comment = read_at<uint16_t>(bytes, at + 32, path);
    size_t local = read_at<uint32_t>(bytes, at + 42, path);
    if (compressed == UINT32_MAX || size == UINT32_MAX || local == UINT32_MAX) bad_npy(path, "archives beyond 4 GiB are not supported");
    std::string name(slice(bytes, at + 46, name_length, path));
    if (!is_utf8(name)) bad_npy(path, "the name of an array is not in UTF-8");
    at += 46 + name_length + extra + comment;
    size_t data = local + 30 + read_at<uint16_t>(bytes, local + 26, path) + read_at<uint16_t>(bytes, local + 28, path);
    std::string_view packed = slice(bytes, data, compressed, path);
    if (name.size() > 4 && name.substr(name.size() - 4) == ".npy") name.resize(name.size() - 4);
    const std::string where = path + ":" + name;
    if ((flags & kEncrypted) != 0) bad_npy(where, "it is encrypted");
    std::shared_ptr<Storage> entry = file;
    if (method == kDeflated)
      entry = inflate_entry(packed, size, where), data = 0;
    else if (method != kStored)
      bad_npy(where, "an unknown compression");
    else if (size != compressed)
      bad_npy(where, fmt::format("it is stored as it is, in {} bytes, and has {}", compressed, size));
    if (crc32<CrcPolynomial::ieee>({entry->data() + data, size}) != crc) bad_npy(where, "it is damaged: it differs from its checksum");
    if (!tensors.emplace(name, parse_npy(entry, data, size, where)).second) bad_npy(where, "the archive has two of that name");
  }
  return tensors;
}

}  // namespace treadle::train
