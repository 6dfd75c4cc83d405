#include "session/run_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/fault.h"
#include "core/base/nearest.h"
#include "core/base/pattern.h"
#include "session/options.h"
#include "treadle/error.h"

namespace treadle {
namespace {

void check_output(const Executable& executable, std::string_view option, const std::string& name, std::span<const Datum> bound) {
  const auto names = std::span(executable.output_names).first(executable.num_fetched);
  const size_t k = position_of(names, name);
  if (k == names.size())
    throw Error(ErrorCode::invalid_argument,
                names.empty() ? fmt::format("{}: \"{}\" is no output of this run, which fetches none", option, name)
                              : fmt::format("{}: \"{}\" is no output of this run; is it {}?", option, name, nearest_names(name, names)));
  if (k < bound.size() && bound[k].defined())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: the output \"{}\" is bound to memory; leave out the option, or bind the name alone", option, name));
}

std::vector<std::string> values_of(const Executable& executable) {
  std::vector<std::string> names = executable.output_names;
  names.insert(names.end(), executable.input_names.begin(), executable.input_names.end());
  for (size_t v = 0; v < executable.graph->num_values(); ++v)
    names.push_back(executable.graph->value(ValueId{static_cast<uint32_t>(v)}).name);
  std::erase(names, std::string());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

void check_pattern(std::string_view what, const std::string& pattern, std::span<const std::string> names, std::string_view of) {
  if (pattern == "*" || std::any_of(names.begin(), names.end(), [&](const std::string& name) { return matches(pattern, name); })) return;
  std::vector<std::string> different(names.begin(), names.end());  // duplicates: a name may occur before and after the passes
  std::ranges::sort(different);
  different.erase(std::ranges::unique(different).begin(), different.end());
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} \"{}\" matches no {}; is it {}?", what, pattern, of, nearest_names(pattern, different)));
}

void throw_no_input(std::string_view name, std::span<const std::string> inputs) {
  throw Fault(Fault::Kind::unknown_input, ErrorCode::invalid_argument,
              fmt::format("Invalid input name: {}: there is no input \"{}\"; the inputs are: {}", name, name, fmt::join(inputs, ", ")));
}

void add_nodes(const Graph& graph, std::vector<std::string>& names) {
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    names.push_back(graph.node(id).name);
    for (const Body& body : graph.node(id).bodies) add_nodes(*body.graph, names);
  }
}

bool names_nodes(const std::string& precision) { return precision.find('=') != std::string::npos; }

void check_precision_patterns(const std::string& precision, std::span<const std::string> nodes) {
  for (size_t begin = 0; begin < precision.size();) {
    const size_t end = std::min(precision.find(';', begin), precision.size());
    const std::string entry = precision.substr(begin, end - begin);
    begin = end + 1;
    if (const size_t equals = entry.rfind('='); equals != std::string::npos)
      check_pattern("the option precision: the pattern", entry.substr(0, equals), nodes, "node");
  }
}

void check_names(const Executable& executable, const RunOptions* options, const Monitor* monitor, std::span<const Datum> bound) {
  if (monitor && !executable.watches_any()) check_pattern("the monitor's pattern", monitor->pattern, values_of(executable), "value");
  if (!options) return;
  for (const auto& [key, value] : options->config) run_option_table().check_key(key);
  for (const auto& [name, allocator] : options->output_allocators) check_output(executable, "output_allocators", name, bound);
  for (const auto& [name, device] : options->output_devices) check_output(executable, "output_devices", name, bound);
  if (options->dump_folder.empty()) {
    if (options->dump_pattern == RunOptions().dump_pattern) return;
    throw Error(ErrorCode::invalid_argument, "dump_pattern names nodes to dump, but no dump_folder says where to");
  }
  std::vector<std::string> nodes;
  add_nodes(*executable.graph, nodes);
  check_pattern("dump_pattern", options->dump_pattern, nodes, "node of the optimised graph");
}

}  // namespace treadle
