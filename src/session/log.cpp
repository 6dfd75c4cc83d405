#include "session/log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "core/base/pattern.h"
#include "core/trace/recorder.h"
#include "passes/trace.h"
#include "session/runtime.h"
#include "treadle/error.h"

namespace treadle {
namespace {

constexpr double kMillisecond = 1e-3;  // in seconds

std::string time_now() {
  const auto now = std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now());
  const auto micros = (now - std::chrono::floor<std::chrono::seconds>(now)).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(now)), micros);
}

std::string json_line(const LogRecord& record) {
  nlohmann::ordered_json json{{"time", time_now()},
                              {"severity", log_level_name(record.level)},
                              {"category", log_category_name(record.category)},
                              {"message", record.text}};
  for (const LogField& field : record.fields) std::visit([&](const auto& value) { json[std::string(field.name)] = value; }, field.value);
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// Returns the categories that patterns, separated by commas, fit.
uint32_t categories_of(std::string_view patterns) {
  uint32_t found = 0;
  while (!patterns.empty()) {
    const size_t end = std::min(patterns.find(','), patterns.size());
    const std::string_view pattern = patterns.substr(0, end);
    uint32_t fits = 0;
    for (size_t c = 0; c < kNumLogCategories; ++c)
      if (matches(pattern, log_category_name(static_cast<LogCategory>(c)))) fits |= 1U << c;
    if (fits == 0) {
      std::vector<std::string_view> names;
      for (size_t c = 0; c < kNumLogCategories; ++c) names.push_back(log_category_name(static_cast<LogCategory>(c)));
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("no category of log messages fits \"{}\"; there are {}", pattern, fmt::join(names, ", ")));
    }
    found |= fits;
    patterns.remove_prefix(std::min(end + 1, patterns.size()));
  }
  return found;
}

// True once a program or the environment has decided about the log.
std::once_flag& decided() {
  static std::once_flag& flag = *new std::once_flag;
  return flag;
}

void set_log(std::function<void(LogSeverity, std::string_view)> callback, const LogFilter& filter) {
  const uint32_t categories = categories_of(filter.categories);
  set_log_sink([callback = std::move(callback), json = filter.json](const LogRecord& record) {
    callback(static_cast<LogSeverity>(record.level), json ? json_line(record) : record.text);
  });
  set_log_level(static_cast<LogLevel>(filter.lowest), categories);
}

// Appends lines to a file, each by one call of the system, so that several processes may write to it.
std::function<void(LogSeverity, std::string_view)> to_file(const std::string& path, bool json) {
  std::FILE* const opened = std::fopen(path.c_str(), "ae");
  if (opened == nullptr) throw Error(ErrorCode::io_error, "cannot be opened for writing");
  return [file = std::shared_ptr<std::FILE>(opened, std::fclose), json](LogSeverity severity, std::string_view message) {
    const std::string line = json ? fmt::format("{}\n", message)
                                  : fmt::format("{} {} {}\n", time_now(), log_level_name(static_cast<LogLevel>(severity)), message);
    std::fwrite(line.data(), 1, line.size(), file.get());
    std::fflush(file.get());
  };
}

void read_environment() {
  const char* const wish = std::getenv("TREADLE_LOG");
  const char* const path = std::getenv("TREADLE_LOG_FILE");
  if ((wish == nullptr || *wish == '\0') && (path == nullptr || *path == '\0')) return;
  std::string_view severity = wish == nullptr ? "" : wish;
  LogFilter filter;
  if (const size_t colon = severity.find(':'); colon != std::string_view::npos) {
    filter.categories = severity.substr(colon + 1);
    severity = severity.substr(0, colon);
  }
  try {
    bool known = severity.empty();
    for (int level = 0; level <= static_cast<int>(LogLevel::fatal); ++level)
      if (severity == log_level_name(static_cast<LogLevel>(level))) filter.lowest = static_cast<LogSeverity>(level), known = true;
    if (!known) throw Error(ErrorCode::invalid_argument, "a severity is expected: verbose, info, warning, error or fatal");
    if (path != nullptr && *path != '\0') {
      filter.json = std::string_view(path).ends_with(".jsonl");
      set_log(to_file(path, filter.json), filter);
    } else {
      set_log_level(static_cast<LogLevel>(filter.lowest), categories_of(filter.categories));
    }
  } catch (const Error& error) {
    TREADLE_LOG(warning, "TREADLE_LOG={} TREADLE_LOG_FILE={}: {}", wish == nullptr ? "" : wish, path == nullptr ? "" : path, error.what());
  }
}

// Returns "run 3" or "run 3 (tag)".
std::string name_of(const HookedRun& run) {
  return run.tag.empty() ? fmt::format("run {}", run.run_id) : fmt::format("run {} ({})", run.run_id, run.tag);
}

// Formats and sends messages. Like TREADLE_LOG, it never throws: a message that cannot be made must not end the work that it is about.
template <typename Tell>
void try_to_tell(Tell&& tell) noexcept {
  try {
    tell();
  } catch (const std::exception&) {
  }
}

}  // namespace

void set_log_callback(std::function<void(LogSeverity, std::string_view)> callback, LogSeverity lowest) {
  set_log_callback(std::move(callback), LogFilter{.lowest = lowest});
}

void set_log_callback(std::function<void(LogSeverity, std::string_view)> callback, const LogFilter& filter) {
  std::call_once(decided(), [] {});
  if (callback) return set_log(std::move(callback), filter);
  set_log_sink({});
  set_log_level(LogLevel::warning);
}

void apply_log_environment() { std::call_once(decided(), read_environment); }

void log_ready(const Runtime& client, std::string_view model) noexcept {
  try_to_tell([&] {
    uint64_t ticks = 0;
    for (const LoadPhase& phase : client.load.phases())
      if (phase.parent < 0) ticks += phase.end - phase.start;
    const double ms = static_cast<double>(ticks) * Recorder::of_process().ns_per_tick() * 1e-6;
    const MemoryStatistics memory = client.memory.account->statistics();
    const size_t weights = memory[MemoryClass::weights].bytes, packed = memory[MemoryClass::packed].bytes;
    std::vector<std::string> devices;
    for (const auto& device : client.devices.all()) devices.push_back(device->name());
    const int threads = client.pool->num_threads();
    const auto id = static_cast<int64_t>(reinterpret_cast<uintptr_t>(&client));
    log_event(LogLevel::info, LogCategory::session,
              {{"client", client.name},
               {"id", id},
               {"model", model},
               {"ms", ms},
               {"threads", int64_t{threads}},
               {"weight_bytes", static_cast<int64_t>(weights)},
               {"packed_bytes", static_cast<int64_t>(packed)}},
              fmt::format("{} of \"{}\" is ready after {:.1f} ms: {} threads, {} bytes of weights, {} of packed weights, on {}",
                          client.name, model, ms, threads, weights, packed, fmt::join(devices, ", ")));
  });
}

void log_end(const Runtime& client) noexcept {
  try_to_tell([&] {
    const auto runs = static_cast<int64_t>(client.num_runs.load(std::memory_order_relaxed));
    const auto id = static_cast<int64_t>(reinterpret_cast<uintptr_t>(&client));
    log_event(LogLevel::info, LogCategory::session, {{"client", client.name}, {"id", id}, {"runs", runs}},
              fmt::format("{} ends after {} runs", client.name, runs));
  });
}

void log_run(const Runtime& client, const HookedRun& run) noexcept {
  try_to_tell([&] {
    log_event(LogLevel::verbose, LogCategory::run, {{"client", client.name}, {"run", static_cast<int64_t>(run.run_id)}, {"tag", run.tag}},
              fmt::format("{} of {} begins", name_of(run), client.name));
  });
}

void log_run_end(const Runtime& client, const HookedRun& run, double seconds, std::string_view error) noexcept {
  try_to_tell([&] {
    const double ms = seconds / kMillisecond;
    const LogLevel level = error.empty() ? LogLevel::verbose : LogLevel::info;
    if (!log_enabled(level, LogCategory::run)) return;
    const size_t held = client.memory.account->bytes();
    log_event(level, LogCategory::run,
              {{"client", client.name},
               {"run", static_cast<int64_t>(run.run_id)},
               {"tag", run.tag},
               {"ms", ms},
               {"held_bytes", static_cast<int64_t>(held)},
               {"error", error}},
              error.empty() ? fmt::format("{} of {} ends after {:.3f} ms; {} bytes are held", name_of(run), client.name, ms, held)
                            : fmt::format("{} of {} fails after {:.3f} ms: {}", name_of(run), client.name, ms, error));
  });
}

void log_compiled(const Runtime& client, std::span<const std::string> fetches, std::span<const std::string> fed, double seconds) noexcept {
  try_to_tell([&] {
    const double ms = seconds / kMillisecond;
    const std::string fetched = fmt::format("{}", fmt::join(fetches, ", ")), given = fmt::format("{}", fmt::join(fed, ", "));
    log_event(LogLevel::info, LogCategory::program, {{"client", client.name}, {"fetched", fetched}, {"fed", given}, {"ms", ms}},
              fmt::format("{} compiles a program in {:.1f} ms, because no run before fetched [{}] and fed [{}] in place of constants or "
                          "computed values",
                          client.name, ms, fetched, given));
  });
}

void log_evicted(const Runtime& client, std::span<const std::string> fetches, std::span<const std::string> fed, size_t most) noexcept {
  try_to_tell([&] {
    const std::string fetched = fmt::format("{}", fmt::join(fetches, ", ")), given = fmt::format("{}", fmt::join(fed, ", "));
    log_event(LogLevel::info, LogCategory::program, {{"client", client.name}, {"fetched", fetched}, {"fed", given}},
              fmt::format("{} drops the program that fetches [{}] and is fed [{}], because it keeps {} besides the main one", client.name,
                          fetched, given, most));
  });
}

void log_placement(const Runtime& client, std::string_view lines) noexcept {
  try_to_tell([&] {
    std::map<std::string, int64_t, std::less<>> nodes_on;
    while (!lines.empty()) {
      const std::string_view line = lines.substr(0, lines.find('\n'));
      lines.remove_prefix(std::min(line.size() + 1, lines.size()));
      std::array<std::string_view, 5> fields;  // device, operator, name, first output, and reason
      std::string_view rest = line;
      for (std::string_view& field : fields) {
        field = rest.substr(0, rest.find('\t'));
        rest.remove_prefix(std::min(field.size() + 1, rest.size()));
      }
      const auto& [device, op_type, node, output, reason] = fields;
      ++nodes_on[std::string(device)];
      if (!log_enabled(LogLevel::verbose, LogCategory::placement)) continue;
      log_event(
          LogLevel::verbose, LogCategory::placement,
          {{"client", client.name}, {"node", node}, {"operator", op_type}, {"output", output}, {"device", device}, {"reason", reason}},
          fmt::format("{} \"{}\" runs on {}{}{}", op_type, node.empty() ? output : node, device, reason.empty() ? "" : ": ", reason));
    }
    std::vector<std::string> counts;
    for (const auto& [device, nodes] : nodes_on) counts.push_back(fmt::format("{} nodes on {}", nodes, device));
    log_event(LogLevel::info, LogCategory::placement, {{"client", client.name}},
              fmt::format("{} has {}", client.name, fmt::join(counts, ", ")));
  });
}

void log_refusals(const Runtime& client, const passes::PassTrace& trace) noexcept {
  try_to_tell([&] {
    for (const auto& [node, refusals] : trace.all_refusals())
      for (const passes::Refusal& refusal : refusals)
        log_event(LogLevel::verbose, LogCategory::fusion,
                  {{"client", client.name}, {"node", node}, {"pass", refusal.pass}, {"reason", refusal.reason}},
                  fmt::format("{} leaves \"{}\" alone: {}", refusal.pass, node, refusal.reason));
  });
}

}  // namespace treadle
