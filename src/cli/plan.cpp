// treadle plan: plans offsets in an arena for buffers, which a CSV file in MiniMalloc's format lists.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/commands.h"
#include "cli/numbers.h"
#include "cli/terminal.h"
#include "core/base/utf8.h"
#include "core/files/file.h"
#include "treadle/error.h"
#include "treadle/memory.h"

namespace treadle::cli {
namespace {

struct PlanOptions {
  std::string input, output;
  bool json = false;
  memory::SearchOptions search{.alignment = 1, .time_limit_seconds = 60};
};

struct Table {
  std::vector<std::string> lines;  // the file's lines, including the header
  std::vector<memory::Buffer> buffers;
};

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  for (size_t start = 0; start <= line.size();) {
    size_t end = std::min(line.find(',', start), line.size());
    fields.push_back(line.substr(start, end - start));
    start = end + 1;
  }
  return fields;
}

template <typename T>
T number(const std::string& path, size_t line, const std::string& column, const std::string& text) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("{}, line {}: the {} \"{}\" is not a number in range", path, line, column, text));
  return value;
}

// Reads the columns `lower` and `upper` (a lifetime, without its end) and `size`, in any order. Other columns are copied to the output.
Table read_table(const std::string& path) {
  Table table;
  std::ifstream in(path);
  if (!in) throw Error(ErrorCode::not_found, "cannot read " + path);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) table.lines.push_back(line);
  }
  if (table.lines.empty()) throw Error(ErrorCode::invalid_argument, path + " has no header line");
  const std::vector<std::string> header = fields_of(table.lines[0]);
  auto column = [&](const char* name) {
    auto found = std::find(header.begin(), header.end(), name);
    if (found == header.end() && printable(table.lines[0]) != table.lines[0])
      throw Error(ErrorCode::invalid_argument, fmt::format("{} is no CSV file of buffers: its first line is not text", path));
    if (found == header.end())
      throw Error(ErrorCode::invalid_argument, fmt::format("{} has no column \"{}\"; its header is \"{}\"", path, name, table.lines[0]));
    return static_cast<size_t>(found - header.begin());
  };
  const size_t lower = column("lower"), upper = column("upper"), size = column("size");
  for (size_t i = 1; i < table.lines.size(); ++i) {
    const std::vector<std::string> fields = fields_of(table.lines[i]);
    if (fields.size() != header.size())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}, line {}: {} fields, the header has {}", path, i + 1, fields.size(), header.size()));
    table.buffers.push_back({.size_bytes = number<size_t>(path, i + 1, "size", fields[size]),
                             .first = number<int32_t>(path, i + 1, "lower", fields[lower]),
                             .last = number<int32_t>(path, i + 1, "upper", fields[upper])});
  }
  return table;
}

int plan(const PlanOptions& options) {
  const Table table = read_table(options.input);
  const auto start = std::chrono::steady_clock::now();
  const memory::ArenaPlan arena = memory::plan_arena_exactly(table.buffers, options.search);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!options.output.empty()) {
    std::string out = table.lines[0] + ",offset\n";
    for (size_t i = 1; i < table.lines.size(); ++i) out += fmt::format("{},{}\n", table.lines[i], arena.offsets[i - 1]);
    AtomicFile file(options.output);
    file.write(std::as_bytes(std::span(out)));
    file.commit();
  }
  const size_t capacity = options.search.capacity_bytes;
  const bool fits = capacity == 0 || arena.size_bytes <= capacity;
  if (options.json) {
    show_json(nlohmann::json{{"buffers", table.buffers.size()},
                             {"size_bytes", arena.size_bytes},
                             {"lower_bound_bytes", arena.lower_bound_bytes},
                             {"strategy", arena.strategy},
                             {"seconds", seconds},
                             {"fits", fits},
                             {"offsets", arena.offsets}});
    return fits ? 0 : 1;
  }
  const double bound = static_cast<double>(std::max<size_t>(arena.lower_bound_bytes, 1));
  show("{}\n  buffers      {}\n  height       {} bytes ({})\n  lower bound  {} bytes\n  gap          {:.3f} %\n  time         {:.3f} s\n",
       options.input, table.buffers.size(), arena.size_bytes, arena.strategy, arena.lower_bound_bytes,
       100.0 * static_cast<double>(arena.size_bytes - arena.lower_bound_bytes) / bound, seconds);
  if (fits) return 0;
  show("  does not fit {} bytes{}\n", capacity,
       arena.lower_bound_bytes > capacity ? ": no plan does" : "; a longer --time-limit may find a plan that does");
  return 1;
}

}  // namespace

Command add_plan(CLI::App& app) {
  app.description("Place buffers with lifetimes in one arena: a CSV file in, offsets out");
  auto options = std::make_shared<PlanOptions>();
  app.add_option("file", options->input, "CSV with the columns lower, upper (a half-open life) and size")->required();
  app.add_option("--capacity", options->search.capacity_bytes, "Bytes; any plan that fits will do. 0: the smallest arena")
      ->capture_default_str();
  app.add_option("-o,--output", options->output, "CSV to write: the input's columns and `offset`");
  app.add_flag("--json", options->json, "Print JSON");
  app.add_option("--alignment", options->search.alignment, "Bytes, a power of two")->check(at_least(1))->capture_default_str();
  app.add_option("--time-limit", options->search.time_limit_seconds, "Seconds")->check(at_least(0))->capture_default_str();
  app.footer(
      "Exit status 1 if the buffers were not fitted into the capacity.\nExample: treadle plan buffers.csv --capacity 1048576 -o plan.csv");
  return [options] { return plan(*options); };
}

}  // namespace treadle::cli
