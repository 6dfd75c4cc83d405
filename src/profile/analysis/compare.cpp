// Compares two profiles, and finds the changes that exceed measurement noise.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "profile/analysis/report_parts.h"
#include "treadle/error.h"
#include "treadle/profile_report.h"

namespace treadle {
namespace profile {
namespace {

// Compares two medians. Each true median lies in a known confidence interval, so the ends of both intervals bound their ratio.
TimeDifference compare(const std::optional<ProfileTimes>& before, const std::optional<ProfileTimes>& after, double tolerance) {
  TimeDifference result{.before_ms = before ? before->median : 0, .after_ms = after ? after->median : 0, .change = {}};
  if (!before || !after || !before->interval || !after->interval) return result;
  const auto [a_low, a_high] = *before->interval;
  const auto [b_low, b_high] = *after->interval;
  if (a_low <= 0) return result;
  result.change = {b_low / a_high - 1, b_high / a_low - 1};
  if (result.change->first >= -tolerance && result.change->second <= tolerance)
    result.verdict = Change::unchanged;
  else if (result.change->second < 0)
    result.verdict = Change::faster;
  else if (result.change->first > 0)
    result.verdict = Change::slower;
  return result;
}

// Returns the index of each node by its name. Nodes that share a name are distinguished by a number, in the report's order.
std::map<std::pair<std::string, int>, size_t> nodes_by_name(const ProfileReport& report) {
  std::map<std::pair<std::string, int>, size_t> result;
  std::map<std::string, int> seen;
  for (size_t i = 0; i < report.nodes.size(); ++i) {
    const std::string& name = report.nodes[i].name;
    result[{name, seen[name]++}] = i;
  }
  return result;
}

class Comparison {
 public:
  Comparison(const ProfileReport& before, const ProfileReport& after, double tolerance) : before_(before), after_(after) {
    made_.tolerance = tolerance;
    made_.run = compare(before.runs.ms, after.runs.ms, tolerance);
    match();
    compare_surroundings();
    compare_memory();
  }

  ProfileDifference take() { return std::move(made_); }

 private:
  void match() {
    const auto before = nodes_by_name(before_), after = nodes_by_name(after_);
    std::vector<size_t> rest_before, rest_after;
    for (const auto& [key, i] : before)
      if (const auto found = after.find(key); found != after.end())
        add(before_.nodes[i], after_.nodes[found->second]);
      else
        rest_before.push_back(i);
    for (const auto& [key, i] : after)
      if (!before.contains(key)) rest_after.push_back(i);
    match_by_sources(rest_before, rest_after);
    for (size_t i : rest_before) made_.only_before.push_back(before_.nodes[i].name);
    for (size_t i : rest_after) made_.only_after.push_back(after_.nodes[i].name);
    using Node = ProfileDifference::Node;
    auto weight = [](const Node& node) { return std::abs(node.after_ms - node.before_ms); };
    auto changed = [](const Node& node) { return node.verdict == Change::faster || node.verdict == Change::slower; };
    std::stable_sort(made_.nodes.begin(), made_.nodes.end(),
                     [&](const Node& a, const Node& b) { return changed(a) != changed(b) ? changed(a) : weight(a) > weight(b); });
  }

  void add(const NodeReport& old_node, const NodeReport& new_node) {
    const std::string &was = old_node.name, &is = new_node.name;
    ProfileDifference::Node& node = made_.nodes.emplace_back(ProfileDifference::Node{
        compare(old_node.ms, new_node.ms, made_.tolerance), was == is ? is : was + " -> " + is, new_node.op_type, {}});
    const auto note = [&](const char* what, const std::string& old_value, const std::string& new_value) {
      if (old_value != new_value)
        node.plan += fmt::format("{}{}: {} -> {}", node.plan.empty() ? "" : ", ", what, old_value.empty() ? "none" : old_value,
                                 new_value.empty() ? "none" : new_value);
    };
    note("op", old_node.op_type, new_node.op_type);
    note("kernel", old_node.kernel, new_node.kernel);
    note("forms", old_node.forms, new_node.forms);
    if (const std::string were = shapes_of(old_node), are = shapes_of(new_node); were != are) {
      node.plan += fmt::format("{}shapes {}, were {}", node.plan.empty() ? "" : ", ", are, were);
      ++made_.num_other_shapes;
    }
  }

  // Matches nodes whose names differ because optimizer passes made them. Two such nodes match if the first original node that they replace
  // is the same.
  void match_by_sources(std::vector<size_t>& rest_before, std::vector<size_t>& rest_after) {
    const auto first_source = [](const NodeReport& node) { return node.sources.empty() ? std::string() : node.sources.front(); };
    std::map<std::string, std::vector<size_t>> by_source;
    for (size_t i : rest_after) by_source[first_source(after_.nodes[i])].push_back(i);
    by_source.erase("");
    std::erase_if(rest_before, [&](size_t i) {
      const NodeReport& node = before_.nodes[i];
      const auto found = by_source.find(first_source(node));
      if (found == by_source.end() || found->second.empty()) return false;
      // Prefers a node with the same operator.
      const auto same =
          std::find_if(found->second.begin(), found->second.end(), [&](size_t j) { return after_.nodes[j].op_type == node.op_type; });
      const auto chosen = same == found->second.end() ? found->second.begin() : same;
      add(node, after_.nodes[*chosen]);
      std::erase(rest_after, *chosen);
      found->second.erase(chosen);
      return true;
    });
  }

  // Lists differences between the environments (processor, threads, options), because they may be the cause of all other changes.
  void compare_surroundings() {
    const auto add = [&](const char* title, const std::string& was, const std::string& is) {
      if (was != is) made_.environment.emplace_back(title, fmt::format("{} -> {}", was.empty() ? "none" : was, is.empty() ? "none" : is));
    };
    // Files of older versions lack some values. A missing value does not count as a difference.
    const auto add_known = [&](const char* title, const std::string& was, const std::string& is) {
      if (!was.empty() && !is.empty()) add(title, was, is);
    };
    const auto threads = [](const std::optional<int>& count) { return count ? std::to_string(*count) : std::string(); };
    const ProfileReport::Environment &a = before_.environment, &b = after_.environment;
    add_known("processor", a.cpu, b.cpu);
    add_known("threads", threads(a.threads), threads(b.threads));
    add("options", a.options, b.options);
    add_known("treadle", a.treadle, b.treadle);
    add("assumed extents", before_.assumed_extents, after_.assumed_extents);
  }

  void compare_memory() {
    if (!before_.memory || !after_.memory) return;
    for (const auto& [title, bytes] : {std::pair{"memory, peak", &MemorySection::peak_bytes},
                                       {"arena", &MemorySection::arena_bytes},
                                       {"packed weights", &MemorySection::packed_bytes}})
      made_.memory.push_back({title, {static_cast<double>((*before_.memory).*bytes), static_cast<double>((*after_.memory).*bytes)}});
  }

  const ProfileReport& before_;
  const ProfileReport& after_;
  ProfileDifference made_;
};

}  // namespace
}  // namespace profile

ProfileDifference compare_profiles(const ProfileReport& before, const ProfileReport& after, double tolerance) {
  if (!(tolerance >= 0)) throw Error(ErrorCode::invalid_argument, fmt::format("a tolerance of {}", tolerance));
  return profile::Comparison(before, after, tolerance).take();
}

}  // namespace treadle
