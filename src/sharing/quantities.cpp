#include "sharing/quantities.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

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
    bytes *= std::pow(1024.0, static_cast<double>(unit + 1));
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

std::string format_status(const JobStatus& s) {
  return fmt::format(
      "id={} name={} pid={} class={} share={} granted={} suspended={} running={} active={} threads={} runs={} run_ns={} idle_ns={} "
      "gave_way_ns={} "
      "last_step_ns={} average_step_ns={} memory_limit={} host_limit={} device_bytes={} host_bytes={} disk_bytes={} peak_bytes={} "
      "moved_bytes={} moves={} moving_ns={}",
      s.id, s.name, s.pid, class_name(s.job_class), s.share_percent, s.granted_percent, s.suspended ? 1 : 0, s.running, s.active, s.threads,
      s.runs, s.run_ns, s.idle_ns, s.gave_way_ns, s.last_step_ns, s.average_step_ns, s.memory_limit_bytes, s.host_limit_bytes,
      s.device_bytes, s.host_bytes, s.disk_bytes, s.peak_bytes, s.moved_bytes, s.moves, s.moving_ns);
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
    auto number = [&](auto& to) { std::from_chars(value.data(), value.data() + value.size(), to); };
    if (key == "id")
      number(status.id);
    else if (key == "name")
      status.name = value;
    else if (key == "pid")
      number(status.pid);
    else if (key == "class")
      status.job_class = parse_class(value);
    else if (key == "share")
      number(status.share_percent);
    else if (key == "granted")
      number(status.granted_percent);
    else if (key == "suspended")
      status.suspended = value != "0";
    else if (key == "running")
      number(status.running);
    else if (key == "active")
      number(status.active);
    else if (key == "peak_bytes")
      number(status.peak_bytes);
    else if (key == "threads")
      number(status.threads);
    else if (key == "runs")
      number(status.runs);
    else if (key == "run_ns")
      number(status.run_ns);
    else if (key == "idle_ns")
      number(status.idle_ns);
    else if (key == "gave_way_ns")
      number(status.gave_way_ns);
    else if (key == "last_step_ns")
      number(status.last_step_ns);
    else if (key == "average_step_ns")
      number(status.average_step_ns);
    else if (key == "memory_limit")
      number(status.memory_limit_bytes);
    else if (key == "host_limit")
      number(status.host_limit_bytes);
    else if (key == "disk_bytes")
      number(status.disk_bytes);
    else if (key == "device_bytes")
      number(status.device_bytes);
    else if (key == "host_bytes")
      number(status.host_bytes);
    else if (key == "moved_bytes")
      number(status.moved_bytes);
    else if (key == "moves")
      number(status.moves);
    else if (key == "moving_ns")
      number(status.moving_ns);
  }
  return status;
}

}  // namespace treadle::sharing
