// The registry: every family of operators, by name. An explicit list can be read, and a linker cannot drop it.
#include "ops/list.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "graph/op_def.h"

namespace treadle {
namespace {

struct Registry {
  std::vector<OpDef> ops;
  std::unordered_map<std::string, const OpDef*> by_name;

  Registry() {
    for (auto family : ops::kFamilies)
      for (OpDef& op : family()) ops.push_back(std::move(op));
    std::sort(ops.begin(), ops.end(),
              [](const OpDef& a, const OpDef& b) { return std::pair(a.domain, a.name) < std::pair(b.domain, b.name); });
    for (const OpDef& op : ops) by_name.emplace(std::string(op.domain) + ":" + std::string(op.name), &op);
  }
};

const Registry& registry() {
  static const Registry instance;
  return instance;
}

}  // namespace

const OpDef* find_op(std::string_view domain, std::string_view name) {
  auto found = registry().by_name.find(std::string(domain) + ":" + std::string(name));
  return found == registry().by_name.end() ? nullptr : found->second;
}

std::span<const OpDef> all_ops() { return registry().ops; }

int newest_opset(std::string_view domain) {
  if (domain.empty()) return 28;
  if (domain == "ai.onnx.ml") return 5;
  for (const OpDef& op : all_ops())
    if (op.domain == domain) return 1;
  return 0;
}

}  // namespace treadle
