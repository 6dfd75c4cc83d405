#include "treadle/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <protozero/pbf_writer.hpp>
#include <span>

#include "core/base/crc32.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

// Numbers of the fields that a scalar needs, from tensorflow/core/util/event.proto and framework/summary.proto.
constexpr protozero::pbf_tag_type kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;  // numbers of the fields of the message Event
constexpr protozero::pbf_tag_type kValue = 1;                                                // number of a field of the message Summary
constexpr protozero::pbf_tag_type kTag = 1, kSimpleValue = 2;  // numbers of the fields of the message Summary.Value
constexpr const char* kVersion = "brain.Event:2";

// The masked CRC of TFRecord files. Rotating and adding a constant avoids the degenerate case of a CRC over bytes that contain their own
// CRC.
uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32<CrcPolynomial::castagnoli>(std::as_bytes(std::span(bytes)));
  return ((crc >> 15U) | (crc << 17U)) + 0xA282EAD8U;
}

template <typename T>
void append_little_endian(std::string& to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) to.push_back(static_cast<char>(value >> (8 * i) & 0xFFU));
}

double seconds_now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != 0 ? name : "localhost";
}

}  // namespace

EventFile::EventFile(const std::string& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  const std::string name = fmt::format("events.out.tfevents.{:.6f}.{}.{}", seconds_now(), host_name(), static_cast<int64_t>(getpid()));
  path_ = (std::filesystem::path(folder) / name).string();
  file_ = std::fopen(path_.c_str(), "wbe");
  if (!file_) throw Error(ErrorCode::io_error, fmt::format("cannot write the events \"{}\": {}", path_, std::strerror(errno)));
  std::string event;
  protozero::pbf_writer writer(event);
  writer.add_double(kWallTime, seconds_now());
  writer.add_string(kFileVersion, kVersion);
  write_record(event);
}

EventFile::~EventFile() {
  if (file_) std::fclose(file_);
}

void EventFile::write(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string event;
  protozero::pbf_writer writer(event);
  writer.add_double(kWallTime, seconds_now());
  writer.add_int64(kStep, step);
  {
    protozero::pbf_writer summary(writer, kSummary);
    for (const auto& [tag, number] : scalars) {
      protozero::pbf_writer value(summary, kValue);
      value.add_string(kTag, tag);
      value.add_float(kSimpleValue, static_cast<float>(number));
    }
  }
  write_record(event);
}

void EventFile::write_record(std::string_view bytes) {
  std::string record;
  append_little_endian(record, static_cast<uint64_t>(bytes.size()));
  append_little_endian(record, masked_crc32c(record));
  record.append(bytes);
  append_little_endian(record, masked_crc32c(bytes));
  if (std::fwrite(record.data(), 1, record.size(), file_) != record.size() || std::fflush(file_) != 0)
    throw Error(ErrorCode::io_error, fmt::format("cannot write the events \"{}\": {}", path_, std::strerror(errno)));
}

}  // namespace treadle::train
