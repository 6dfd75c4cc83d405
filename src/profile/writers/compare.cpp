// Two profiles side by side: what changed beyond the noise.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "profile/model/json.h"
#include "profile/writers/text_table.h"
#include "treadle/error.h"
#include "treadle/profile_report.h"

namespace treadle {
namespace profile {
namespace {

constexpr std::array<const char*, 4> kWords{"unchanged", "faster", "slower", "cannot tell"};
const char* word_of(Change change) { return kWords[static_cast<size_t>(change)]; }

struct Compared {
  Change change = Change::unclear;
  double before_ms = 0, after_ms = 0;
  std::optional<std::pair<double, double>> relative;  // what the change of the median is, as far as can be told
};

// The median of either lies in its interval: from the ends follows what the ratio can be.
Compared compare(const std::optional<ProfileTimes>& before, const std::optional<ProfileTimes>& after, double tolerance) {
  Compared result{.before_ms = before ? before->median : 0, .after_ms = after ? after->median : 0};
  if (!before || !after || !before->interval || !after->interval) return result;
  const auto [a_low, a_high] = *before->interval;
  const auto [b_low, b_high] = *after->interval;
  if (a_low <= 0) return result;
  result.relative = {b_low / a_high - 1, b_high / a_low - 1};
  if (result.relative->first >= -tolerance && result.relative->second <= tolerance)
    result.change = Change::unchanged;
  else if (result.relative->second < 0)
    result.change = Change::faster;
  else if (result.relative->first > 0)
    result.change = Change::slower;
  return result;
}

// Namesakes are told apart by their order.
std::map<std::pair<std::string, int>, size_t> nodes_by_name(const ProfileReport& report) {
  std::map<std::pair<std::string, int>, size_t> result;
  std::map<std::string, int> seen;
  for (size_t i = 0; i < report.nodes.size(); ++i) {
    const std::string& name = report.nodes[i].name;
    result[{name, seen[name]++}] = i;
  }
  return result;
}

struct Row {
  std::string name, op;
  Compared compared;
  std::string note;  // of the plan: another operator, kernel
};

class Comparison {
 public:
  Comparison(const ProfileReport& before, const ProfileReport& after, double tolerance)
      : before_(before), after_(after), tolerance_(tolerance) {
    run_ = compare(before.runs.ms, after.runs.ms, tolerance);
    match();
  }

  Change run() const { return run_.change; }

  std::string text(const ProfileTableOptions& options) const {
    std::string out = fmt::format("run: {}  {:.4f} -> {:.4f} ms{}\n", word_of(run_.change), run_.before_ms, run_.after_ms, range(run_));
    TextTable table({{"node", false, 40},
                     {"operator", false, 22},
                     {"before ms", true},
                     {"after ms", true},
                     {"change", true},
                     {"at 99 %", true},
                     {"verdict"},
                     {"plan"}});
    size_t shown = 0;
    for (const Row& row : rows_) {
      if (options.top > 0 && shown == static_cast<size_t>(options.top)) break;
      ++shown;
      const Compared& c = row.compared;
      table.add({row.name, row.op, fmt::format("{:.4f}", c.before_ms), fmt::format("{:.4f}", c.after_ms),
                 c.before_ms > 0 ? fmt::format("{:+.1f} %", 100 * (c.after_ms / c.before_ms - 1)) : "",
                 c.relative ? fmt::format("{:+.1f} to {:+.1f} %", 100 * c.relative->first, 100 * c.relative->second) : "",
                 word_of(c.change), row.note});
    }
    out += "\n" + table.to_text();
    if (shown < rows_.size()) out += fmt::format("  ... and {} more nodes: --top 0 shows all\n", rows_.size() - shown);
    out += fmt::format("\nnodes: {} faster, {} slower, {} unchanged (within {:.0f} %), {} where nobody can tell\n", count(Change::faster),
                       count(Change::slower), count(Change::unchanged), 100 * tolerance_, count(Change::unclear));
    if (num_other_shapes_ > 0) out += fmt::format("shapes: {} nodes have others, and do other work\n", num_other_shapes_);
    for (const auto& [what, change] : surroundings()) out += what + ": " + change + "\n";
    for (const std::string& name : only_before_) out += "only before: " + name + "\n";
    for (const std::string& name : only_after_) out += "only after:  " + name + "\n";
    for (const auto& [title, before, after] : memory())
      if (before != after) out += fmt::format("{}: {:.2f} -> {:.2f} MB\n", title, before / 1e6, after / 1e6);
    return out;
  }

  Document json() const {
    Document out{{"format", "treadle-profile-diff"}, {"version", 1}, {"tolerance", tolerance_}, {"run", json_of(run_)}};
    Document& nodes = out["nodes"] = Document::array();
    for (const Row& row : rows_) {
      Document node{{"name", row.name}, {"op", row.op}};
      node.update(json_of(row.compared));
      if (!row.note.empty()) node["plan"] = row.note;
      nodes.push_back(std::move(node));
    }
    for (const auto& [what, change] : surroundings()) out["environment"][what] = change;
    out["only_before"] = only_before_;
    out["only_after"] = only_after_;
    Document& bytes = out["memory"] = Document::object();
    for (const auto& [title, before, after] : memory()) bytes[title] = {before, after};
    return out;
  }

 private:
  static std::string range(const Compared& c) {
    return c.relative ? fmt::format("  ({:+.1f} to {:+.1f} %)", 100 * c.relative->first, 100 * c.relative->second) : "";
  }

  static Document json_of(const Compared& c) {
    Document out{{"verdict", word_of(c.change)}, {"before_ms", c.before_ms}, {"after_ms", c.after_ms}};
    if (c.relative) out["change"] = {c.relative->first, c.relative->second};
    return out;
  }

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
    for (size_t i : rest_before) only_before_.push_back(before_.nodes[i].name);
    for (size_t i : rest_after) only_after_.push_back(after_.nodes[i].name);
    auto weight = [](const Row& row) { return std::abs(row.compared.after_ms - row.compared.before_ms); };
    auto changed = [](const Row& row) { return row.compared.change == Change::faster || row.compared.change == Change::slower; };
    std::stable_sort(rows_.begin(), rows_.end(),
                     [&](const Row& a, const Row& b) { return changed(a) != changed(b) ? changed(a) : weight(a) > weight(b); });
  }

  void add(const NodeReport& old_node, const NodeReport& new_node) {
    const std::string &was = old_node.name, &is = new_node.name;
    Row row{was == is ? is : was + " -> " + is, new_node.op_type, compare(old_node.ms, new_node.ms, tolerance_), {}};
    const auto note = [&](const char* what, const std::string& old_value, const std::string& new_value) {
      if (old_value != new_value)
        row.note += fmt::format("{}{}: {} -> {}", row.note.empty() ? "" : ", ", what, old_value.empty() ? "none" : old_value,
                                new_value.empty() ? "none" : new_value);
    };
    note("op", old_node.op_type, new_node.op_type);
    note("kernel", old_node.kernel, new_node.kernel);
    note("forms", old_node.forms, new_node.forms);
    if (const std::string were = shapes_of(old_node), are = shapes_of(new_node); were != are) {
      row.note += fmt::format("{}shapes {}, were {}", row.note.empty() ? "" : ", ", are, were);
      ++num_other_shapes_;
    }
    rows_.push_back(std::move(row));
  }

  // Passes name what they make. Nodes with other names are the same if they stand for the same node of the model first.
  void match_by_sources(std::vector<size_t>& rest_before, std::vector<size_t>& rest_after) {
    const auto first_source = [](const NodeReport& node) { return node.sources.empty() ? std::string() : node.sources.front(); };
    std::map<std::string, std::vector<size_t>> by_source;
    for (size_t i : rest_after) by_source[first_source(after_.nodes[i])].push_back(i);
    by_source.erase("");
    std::erase_if(rest_before, [&](size_t i) {
      const NodeReport& node = before_.nodes[i];
      const auto found = by_source.find(first_source(node));
      if (found == by_source.end() || found->second.empty()) return false;
      // Of several, that with the same operator.
      const auto same =
          std::find_if(found->second.begin(), found->second.end(), [&](size_t j) { return after_.nodes[j].op_type == node.op_type; });
      const auto chosen = same == found->second.end() ? found->second.begin() : same;
      add(node, after_.nodes[*chosen]);
      std::erase(rest_after, *chosen);
      found->second.erase(chosen);
      return true;
    });
  }

  // What both profiles were taken with, where it differs: a node that changed may have done so for that alone.
  std::vector<std::pair<std::string, std::string>> surroundings() const {
    std::vector<std::pair<std::string, std::string>> list;
    const auto add = [&](const char* title, const std::string& was, const std::string& is) {
      if (was != is) list.emplace_back(title, fmt::format("{} -> {}", was.empty() ? "none" : was, is.empty() ? "none" : is));
    };
    // What older files lack is not known to differ.
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
    return list;
  }

  int64_t count(Change change) const {
    return std::count_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.compared.change == change; });
  }

  struct Bytes {
    std::string title;
    double before, after;
  };
  std::vector<Bytes> memory() const {
    if (!before_.memory || !after_.memory) return {};
    std::vector<Bytes> list;
    for (const auto& [title, bytes] : {std::pair{"memory, peak", &MemorySection::peak_bytes},
                                       {"arena", &MemorySection::arena_bytes},
                                       {"packed weights", &MemorySection::packed_bytes}})
      list.push_back({title, static_cast<double>((*before_.memory).*bytes), static_cast<double>((*after_.memory).*bytes)});
    return list;
  }

  const ProfileReport& before_;
  const ProfileReport& after_;
  const double tolerance_;
  Compared run_;
  std::vector<Row> rows_;
  std::vector<std::string> only_before_, only_after_;
  int64_t num_other_shapes_ = 0;
};

}  // namespace
}  // namespace profile

ProfileDifference compare_profiles(const ProfileReport& before, const ProfileReport& after, double tolerance,
                                   const ProfileTableOptions& options) {
  if (!(tolerance >= 0)) throw Error(ErrorCode::invalid_argument, fmt::format("a tolerance of {}", tolerance));
  const profile::Comparison comparison(before, after, tolerance);
  return {comparison.run(), comparison.text(options), profile::to_text(comparison.json(), 2)};
}

}  // namespace treadle
