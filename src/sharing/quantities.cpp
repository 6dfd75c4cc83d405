#include "sharing/quantities.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "sharing/job_fields.h"
#include "sharing/job_table.h"
#include "treadle/error.h"

namespace treadle::sharing {
namespace {

[[noreturn]] void refuse(std::string_view text, std::string_view expected) {
  throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is given, {} is expected", text, expected));
}

// Parses the number at the beginning of the text, and removes it.
double leading_number(std::string_view& text, std::string_view expected) {
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) refuse(text, expected);
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace

double parse_percent(std::string_view text) {
  constexpr std::string_view kExpected = "a share from 0 to 100 %";
  std::string_view rest = text;
  const double percent = leading_number(rest, kExpected);
  if (!rest.empty() && rest != "%") refuse(text, kExpected);
  if (percent < 0 || percent > 100) refuse(text, kExpected);
  return percent;
}

uint64_t parse_bytes(std::string_view text) {
  constexpr std::string_view kExpected = "a size such as 1048576, 512MiB or 2GiB, or none";
  if (text == "none") return 0;
  std::string_view rest = text;
  double bytes = leading_number(rest, kExpected);
  constexpr std::string_view kUnits = "KMGT";
  if (!rest.empty() && rest != "B") {
    const size_t unit = kUnits.find(rest[0]);
    if (unit == std::string_view::npos || (rest.size() > 1 && rest.substr(1) != "iB" && rest.substr(1) != "B")) refuse(text, kExpected);
    bytes *= std::pow(rest.substr(1) == "B" ? 1000.0 : 1024.0, static_cast<double>(unit + 1));
  }
  if (bytes < 0 || bytes >= 9.2e18) refuse(text, kExpected);
  return static_cast<uint64_t>(bytes);
}

JobClass parse_class(std::string_view text) {
  if (text == "guaranteed") return JobClass::guaranteed;
  if (text == "opportunistic") return JobClass::opportunistic;
  refuse(text, "guaranteed or opportunistic");
}

std::string_view class_name(JobClass job_class) noexcept { return job_class == JobClass::guaranteed ? "guaranteed" : "opportunistic"; }

std::string format_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

void parse_change(std::string_view word, JobChange& change) {
  const size_t equals = word.find('=');
  const std::string_view key = word.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
  if (word == "suspend")
    change.suspended = true;
  else if (word == "resume")
    change.suspended = false;
  else if (key == "share")
    change.share_percent = parse_percent(value);
  else if (key == "memory")
    change.memory_limit_bytes = parse_bytes(value);
  else if (key == "host_memory")
    change.host_limit_bytes = parse_bytes(value);
  else if (key == "class")
    change.job_class = parse_class(value);
  else
    refuse(word, "share=PERCENT, memory=BYTES, host_memory=BYTES, class=CLASS, suspend or resume");
}

std::string format_status(const JobStatus& status) {
  std::string text;
  for_each_job_field([&](const auto& field) {
    const auto& value = status.*field.member;
    text += fmt::format("{}{}=", text.empty() ? "" : " ", field.name);
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, JobClass>)
      text += class_name(value);
    else if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, bool>)
      text += value ? "1" : "0";
    else
      text += fmt::format("{}", value);
  });
  return text;
}

std::string format_json(const JobStatus& status) {
  std::string text;
  for_each_job_field([&](const auto& field) {
    const auto& value = status.*field.member;
    text += fmt::format("{}\"{}\": ", text.empty() ? "{" : ", ", field.name);
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, JobClass>)
      text += json_text(class_name(value));
    else if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::string>)
      text += json_text(value);
    else
      text += fmt::format("{}", value);
  });
  return text + "}";
}

JobStatus parse_status(std::string_view line) {
  JobStatus status;
  for (size_t start = 0; start < line.size();) {
    const size_t end = std::min(line.find(' ', start), line.size());
    const std::string_view word = line.substr(start, end - start);
    start = end + 1;
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view key = word.substr(0, equals), value = word.substr(equals + 1);
    for_each_job_field([&](const auto& field) {
      if (key != field.name) return;
      auto& to = status.*field.member;
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(to)>, JobClass>)
        to = parse_class(value);
      else if constexpr (std::is_same_v<std::remove_cvref_t<decltype(to)>, std::string>)
        to = value;
      else if constexpr (std::is_same_v<std::remove_cvref_t<decltype(to)>, bool>)
        to = value != "0";
      else
        std::from_chars(value.data(), value.data() + value.size(), to);
    });
  }
  return status;
}

}  // namespace treadle::sharing
