// Two profiles side by side: what changed beyond the noise.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "profile/model/document.h"
#include "treadle/error.h"
#include "treadle/profile.h"

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
Compared compare(const Document& before, const Document& after, double tolerance) {
  Compared result{.before_ms = before.value("median", 0.0), .after_ms = after.value("median", 0.0)};
  if (!before.contains("interval") || !after.contains("interval")) return result;
  const double a_low = before.at("interval").at(0), a_high = before.at("interval").at(1), b_low = after.at("interval").at(0),
               b_high = after.at("interval").at(1);
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
std::map<std::pair<std::string, int>, size_t> nodes_by_name(const Document& document) {
  std::map<std::pair<std::string, int>, size_t> result;
  std::map<std::string, int> seen;
  for (size_t i = 0; i < document.at("nodes").size(); ++i) {
    const std::string name = document.at("nodes").at(i).value("name", "");
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
  Comparison(const Document& before, const Document& after, double tolerance) : before_(before), after_(after), tolerance_(tolerance) {
    run_ = compare(ms_of(before.at("runs")), ms_of(after.at("runs")), tolerance);
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
  static Document ms_of(const Document& json) { return json.value("ms", Document::object()); }

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
        add(before_.at("nodes").at(i), after_.at("nodes").at(found->second));
      else
        rest_before.push_back(i);
    for (const auto& [key, i] : after)
      if (!before.contains(key)) rest_after.push_back(i);
    match_by_sources(rest_before, rest_after);
    for (size_t i : rest_before) only_before_.push_back(before_.at("nodes").at(i).value("name", ""));
    for (size_t i : rest_after) only_after_.push_back(after_.at("nodes").at(i).value("name", ""));
    auto weight = [](const Row& row) { return std::abs(row.compared.after_ms - row.compared.before_ms); };
    auto changed = [](const Row& row) { return row.compared.change == Change::faster || row.compared.change == Change::slower; };
    std::stable_sort(rows_.begin(), rows_.end(),
                     [&](const Row& a, const Row& b) { return changed(a) != changed(b) ? changed(a) : weight(a) > weight(b); });
  }

  void add(const Document& old_node, const Document& new_node) {
    const std::string was = old_node.value("name", ""), is = new_node.value("name", "");
    Row row{was == is ? is : was + " -> " + is, new_node.value("op", ""), compare(ms_of(old_node), ms_of(new_node), tolerance_), {}};
    const auto note = [&](const std::string& what, const std::string& old_value, const std::string& new_value) {
      if (old_value != new_value)
        row.note += fmt::format("{}{}: {} -> {}", row.note.empty() ? "" : ", ", what, old_value.empty() ? "none" : old_value,
                                new_value.empty() ? "none" : new_value);
    };
    for (const char* field : {"op", "kernel", "forms"}) note(field, old_node.value(field, ""), new_node.value(field, ""));
    if (const std::string were = shapes_of(old_node), are = shapes_of(new_node); were != are) {
      row.note += fmt::format("{}shapes {}, were {}", row.note.empty() ? "" : ", ", are, were);
      ++num_other_shapes_;
    }
    rows_.push_back(std::move(row));
  }

  // Passes name what they make. Nodes with other names are the same if they stand for the same node of the model first.
  void match_by_sources(std::vector<size_t>& rest_before, std::vector<size_t>& rest_after) {
    const auto first_source = [](const Document& document, size_t i) {
      const Document sources = document.at("nodes").at(i).value("sources", Document::array());
      return sources.empty() ? std::string() : sources.front().get<std::string>();
    };
    std::map<std::string, std::vector<size_t>> by_source;
    for (size_t i : rest_after) by_source[first_source(after_, i)].push_back(i);
    by_source.erase("");
    std::erase_if(rest_before, [&](size_t i) {
      const auto found = by_source.find(first_source(before_, i));
      if (found == by_source.end() || found->second.empty()) return false;
      // Of several, that with the same operator.
      const std::string op = before_.at("nodes").at(i).value("op", "");
      const auto same = std::find_if(found->second.begin(), found->second.end(),
                                     [&](size_t j) { return after_.at("nodes").at(j).value("op", "") == op; });
      const auto chosen = same == found->second.end() ? found->second.begin() : same;
      add(before_.at("nodes").at(i), after_.at("nodes").at(*chosen));
      std::erase(rest_after, *chosen);
      found->second.erase(chosen);
      return true;
    });
  }

  // What both profiles were taken with, where it differs: a node that changed may have done so for that alone.
  std::vector<std::pair<std::string, std::string>> surroundings() const {
    std::vector<std::pair<std::string, std::string>> list;
    const Document a = before_.value("environment", Document::object()), b = after_.value("environment", Document::object());
    const auto text = [](const Document& json, const char* field) {
      if (!json.contains(field)) return std::string();
      return json.at(field).is_string() ? json.at(field).get<std::string>() : json.at(field).dump();
    };
    for (const auto& [field, title] :
         {std::pair{"cpu", "processor"}, {"threads", "threads"}, {"options", "options"}, {"treadle", "treadle"}})
      if (const std::string was = text(a, field), is = text(b, field);
          was != is && (std::string_view(field) == "options" || (!was.empty() && !is.empty())))
        list.emplace_back(title, fmt::format("{} -> {}", was.empty() ? "none" : was, is.empty() ? "none" : is));
    if (const std::string was = text(before_, "assumed_extents"), is = text(after_, "assumed_extents"); was != is)
      list.emplace_back("assumed extents", fmt::format("{} -> {}", was.empty() ? "none" : was, is.empty() ? "none" : is));
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
    std::vector<Bytes> list;
    const Document a = before_.value("memory", Document::object()), b = after_.value("memory", Document::object());
    for (const auto& [field, title] :
         {std::pair{"peak_bytes", "memory, peak"}, {"arena_bytes", "arena"}, {"packed_bytes", "packed weights"}})
      if (a.contains(field) && b.contains(field)) list.push_back({title, a.at(field), b.at(field)});
    return list;
  }

  const Document& before_;
  const Document& after_;
  const double tolerance_;
  Compared run_;
  std::vector<Row> rows_;
  std::vector<std::string> only_before_, only_after_;
  int64_t num_other_shapes_ = 0;
};

}  // namespace
}  // namespace profile

ProfileDifference compare_profiles(std::string_view before, std::string_view after, double tolerance, const ProfileTableOptions& options) {
  if (!(tolerance >= 0)) throw Error(ErrorCode::invalid_argument, fmt::format("a tolerance of {}", tolerance));
  return profile::reading([&] {
    const profile::Document a = profile::parse_document(before), b = profile::parse_document(after);
    const profile::Comparison comparison(a, b, tolerance);
    return ProfileDifference{comparison.run(), comparison.text(options),
                             comparison.json().dump(2, ' ', false, profile::Document::error_handler_t::replace)};
  });
}

}  // namespace treadle
