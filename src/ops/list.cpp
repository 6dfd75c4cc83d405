// The registry: every family of operators, by name. An explicit list can be read, and a linker cannot drop it.
#include "ops/list.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>

#include "graph/custom_ops.h"
#include "graph/op_def.h"
#include "treadle/error.h"

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

// Nothing is ever taken out: graphs point to the definitions.
struct CustomRegistry {
  std::mutex mutex;
  std::deque<std::string> names;
  std::deque<OpDef> ops;
  std::unordered_map<std::string, const OpDef*> by_name;
};

CustomRegistry& custom_registry() {
  static auto* instance = new CustomRegistry();  // sessions may outlive static objects
  return *instance;
}

std::string key_of(std::string_view domain, std::string_view name) { return fmt::format("{}:{}", domain, name); }

const OpDef* find_built_in(const std::string& key) {
  auto found = registry().by_name.find(key);
  return found == registry().by_name.end() ? nullptr : found->second;
}

}  // namespace

const OpDef* find_op(std::string_view domain, std::string_view name) {
  const std::string key = key_of(domain, name);
  if (const OpDef* op = find_built_in(key)) return op;
  CustomRegistry& custom = custom_registry();
  std::lock_guard lock(custom.mutex);
  auto found = custom.by_name.find(key);
  return found == custom.by_name.end() ? nullptr : found->second;
}

const OpDef* add_custom_op(OpDef op) {
  const std::string key = key_of(op.domain, op.name);
  if (find_built_in(key)) throw Error(ErrorCode::invalid_argument, fmt::format("the operator {} is built in", key));
  CustomRegistry& custom = custom_registry();
  std::lock_guard lock(custom.mutex);
  op.name = custom.names.emplace_back(op.name);
  op.domain = custom.names.emplace_back(op.domain);
  return custom.by_name[key] = &custom.ops.emplace_back(std::move(op));
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
