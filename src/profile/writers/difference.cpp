// Prints the difference between two profiles on the terminal.
#include <fmt/format.h>

#include <algorithm>

#include "profile/model/report_json.h"
#include "profile/writers/text_table.h"
#include "treadle/profile_report.h"

namespace treadle {

std::string difference_to_table(const ProfileDifference& d, const ProfileTableOptions& options) {
  const auto range = [](const std::pair<double, double>& change) {
    return fmt::format("{:+.1f} to {:+.1f} %", 100 * change.first, 100 * change.second);
  };
  const auto count = [&](Change verdict) {
    return std::count_if(d.nodes.begin(), d.nodes.end(), [&](const ProfileDifference::Node& node) { return node.verdict == verdict; });
  };
  std::string out = fmt::format("run: {}  {:.4f} -> {:.4f} ms{}\n", profile::change_word(d.run.verdict), d.run.before_ms, d.run.after_ms,
                                d.run.change ? "  (" + range(*d.run.change) + ")" : "");
  profile::TextTable table({{"node", false, 40},
                            {"operator", false, 22},
                            {"before ms", true},
                            {"after ms", true},
                            {"change", true},
                            {"at 99 %", true},
                            {"verdict"},
                            {"plan"}});
  size_t shown = 0;
  for (const ProfileDifference::Node& node : d.nodes) {
    if (options.top > 0 && shown == static_cast<size_t>(options.top)) break;
    ++shown;
    table.add({node.name, node.op_type, fmt::format("{:.4f}", node.before_ms), fmt::format("{:.4f}", node.after_ms),
               node.before_ms > 0 ? fmt::format("{:+.1f} %", 100 * (node.after_ms / node.before_ms - 1)) : "",
               node.change ? range(*node.change) : "", std::string(profile::change_word(node.verdict)), node.plan});
  }
  out += "\n" + table.to_text();
  if (shown < d.nodes.size()) out += fmt::format("  ... and {} more nodes: --top 0 shows all\n", d.nodes.size() - shown);
  out += fmt::format("\nnodes: {} faster, {} slower, {} unchanged (within {:.0f} %), {} where nobody can tell\n", count(Change::faster),
                     count(Change::slower), count(Change::unchanged), 100 * d.tolerance, count(Change::unclear));
  if (d.num_other_shapes > 0) out += fmt::format("shapes: {} nodes have others, and do other work\n", d.num_other_shapes);
  for (const auto& [what, change] : d.environment) out += what + ": " + change + "\n";
  for (const std::string& name : d.only_before) out += "only before: " + name + "\n";
  for (const std::string& name : d.only_after) out += "only after:  " + name + "\n";
  for (const auto& [title, bytes] : d.memory)
    if (bytes.first != bytes.second) out += fmt::format("{}: {:.2f} -> {:.2f} MB\n", title, bytes.first / 1e6, bytes.second / 1e6);
  return out;
}

}  // namespace treadle
