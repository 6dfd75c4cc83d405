#include "profile/analysis/critical_path.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace treadle::profile {

// No node computes a view, so the predecessor for it is the last node that wrote the buffer which the view shares.
std::vector<std::vector<size_t>> predecessors_of(const Profile& profile) {
  std::vector<std::vector<size_t>> predecessors(profile.steps.size());
  std::unordered_map<std::string_view, size_t> maker, writer;
  for (size_t s = 0; s < profile.steps.size(); ++s) {
    const ProfiledNode& node = profile.nodes[static_cast<size_t>(profile.steps[s])];
    for (const ProfiledOperand& input : node.inputs) {
      const std::string_view bytes = input.shares.empty() ? input.name : input.shares;
      if (auto made = maker.find(input.name); made != maker.end())
        predecessors[s].push_back(made->second);
      else if (auto written = writer.find(bytes); written != writer.end())
        predecessors[s].push_back(written->second);
    }
    for (const ProfiledOperand& output : node.outputs) {
      maker[output.name] = s;
      writer[output.shares.empty() ? output.name : output.shares] = s;
    }
  }
  return predecessors;
}

CriticalPath critical_path(const Profile& profile, std::span<const double> node_ms) {
  const auto predecessors = predecessors_of(profile);
  const size_t n = profile.steps.size();
  auto time = [&](size_t step) { return node_ms[static_cast<size_t>(profile.steps[step])]; };
  std::vector<double> before(n, 0), behind(n, 0);  // duration of the longest chains before and after each step
  std::vector<size_t> last(n, n);
  CriticalPath path;
  path.slack_ms.assign(profile.nodes.size(), -1);
  size_t end = n;
  for (size_t s = 0; s < n; ++s) {
    path.all_ms += time(s);
    for (size_t p : predecessors[s])
      if (const double through = before[p] + time(p); through > before[s] || last[s] == n) before[s] = through, last[s] = p;
    if (end == n || before[s] + time(s) > before[end] + time(end)) end = s;
  }
  if (end == n) return path;
  path.ms = before[end] + time(end);
  for (size_t s = n; s-- > 0;) {
    for (size_t p : predecessors[s]) behind[p] = std::max(behind[p], behind[s] + time(s));
    path.slack_ms[static_cast<size_t>(profile.steps[s])] = std::max(0.0, path.ms - before[s] - time(s) - behind[s]);
  }
  for (size_t s = end; s != n; s = last[s]) path.nodes.push_back(profile.steps[s]);
  std::reverse(path.nodes.begin(), path.nodes.end());
  return path;
}

}  // namespace treadle::profile
