#include "device/vulkan/pipeline_file.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <filesystem>

#include "core/base/crc32.h"
#include "core/base/sha1.h"
#include "core/files/file.h"
#include "treadle/error.h"

namespace treadle::vulkan {
namespace {

// The file contains this magic text, a checksum of all that follows, the size of the key, the key (the identity), and the driver's bytes.
constexpr std::string_view kKind = "TRPIPE01";
constexpr size_t kHeader = 16;

std::string key_of(const std::string& identity) { return fmt::format("{} {}", TREADLE_VERSION, identity); }

uint32_t checksum(std::span<const std::byte> bytes) { return crc32<CrcPolynomial::castagnoli>(bytes); }

}  // namespace

PipelineFile::PipelineFile(const std::string& folder, const std::string& identity) : identity_(identity) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) throw Error(ErrorCode::io_error, fmt::format("the folder \"{}\" cannot be made: {}", folder, failed.message()));
  const std::string key = key_of(identity);
  path_ = (std::filesystem::path(folder) / fmt::format("{}.pipelines", sha1(std::as_bytes(std::span(key))))).string();
}

std::vector<std::byte> PipelineFile::read() const try {
  const std::shared_ptr<Storage> file = read_file(path_);
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(file->data()), file->size_bytes());
  const std::string key = key_of(identity_);
  const size_t begin = kHeader + key.size();
  if (bytes.size() <= begin || std::memcmp(bytes.data(), kKind.data(), kKind.size()) != 0) return {};
  uint32_t numbers[2];
  std::memcpy(numbers, bytes.data() + kKind.size(), sizeof(numbers));
  if (numbers[0] != checksum(bytes.subspan(kKind.size() + 4)) || numbers[1] != key.size()) return {};
  if (std::memcmp(bytes.data() + kHeader, key.data(), key.size()) != 0) return {};
  return {bytes.begin() + static_cast<std::ptrdiff_t>(begin), bytes.end()};
} catch (const Error&) {
  return {};
}

void PipelineFile::write(const std::string& path, const std::string& identity, std::span<const std::byte> contents) {
  const std::string key = key_of(identity);
  std::vector<std::byte> bytes(4);
  const auto size = static_cast<uint32_t>(key.size());
  std::memcpy(bytes.data(), &size, sizeof(size));
  for (const std::span<const std::byte> part : {std::as_bytes(std::span(key)), contents})
    bytes.insert(bytes.end(), part.begin(), part.end());
  const uint32_t sum = checksum(bytes);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(kKind)));
  file.write(std::as_bytes(std::span(&sum, 1)));
  file.write(bytes);
  file.commit();
}

}  // namespace treadle::vulkan
