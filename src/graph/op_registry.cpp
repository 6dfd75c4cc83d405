#include "graph/op_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "graph/custom_ops.h"
#include "treadle/error.h"

namespace treadle {
namespace {

struct OpName {
  std::string_view domain, name;
  bool operator==(const OpName&) const = default;
};
struct OpNameHash {
  size_t operator()(const OpName& op) const noexcept { return std::hash<std::string_view>()(op.name) + op.domain.size(); }
};
using OpsByName = std::unordered_map<OpName, const OpDef*, OpNameHash>;

const OpDef* find(const OpsByName& ops, const OpName& name) {
  auto found = ops.find(name);
  return found == ops.end() ? nullptr : found->second;
}

struct Registry {
  std::vector<OpDef> ops;
  OpsByName by_name;

  Registry() {
    std::vector<std::vector<OpDef>> families;
    std::vector<OpDef*> sorted;  // a definition has 600 bytes, so each is moved only once
    for (const OperatorFamily family : operator_families())
      for (OpDef& op : families.emplace_back(family())) sorted.push_back(&op);
    std::ranges::sort(sorted, {}, [](const OpDef* op) { return std::pair(op->domain, op->name); });
    ops.reserve(sorted.size());
    for (OpDef* op : sorted) ops.push_back(std::move(*op));
    by_name.reserve(ops.size());
    for (const OpDef& op : ops) by_name.emplace(OpName{op.domain, op.name}, &op);
  }
};

const Registry& registry() {
  static const Registry instance;
  return instance;
}

// Definitions are never removed, because graphs refer to them.
struct CustomRegistry {
  std::mutex mutex;
  std::deque<std::string> names;
  std::deque<OpDef> ops;
  OpsByName by_name;
};

CustomRegistry& custom_registry() {
  static auto* instance = new CustomRegistry();  // never freed, because sessions may outlive static objects
  return *instance;
}

}  // namespace

const OpDef* find_op(std::string_view domain, std::string_view name) {
  if (const OpDef* op = find(registry().by_name, {domain, name})) return op;
  CustomRegistry& custom = custom_registry();
  std::lock_guard lock(custom.mutex);
  return find(custom.by_name, {domain, name});
}

const OpDef* add_custom_op(OpDef op) {
  if (find(registry().by_name, {op.domain, op.name}))
    throw Error(ErrorCode::invalid_argument, fmt::format("the operator {}:{} is built in", op.domain, op.name));
  CustomRegistry& custom = custom_registry();
  std::lock_guard lock(custom.mutex);
  op.name = custom.names.emplace_back(op.name);
  op.domain = custom.names.emplace_back(op.domain);
  const OpDef& kept = custom.ops.emplace_back(std::move(op));
  return custom.by_name[{kept.domain, kept.name}] = &kept;
}

bool is_custom_op(const OpDef& op) {
  const auto& built_in = registry().ops;
  return &op < built_in.data() || &op >= built_in.data() + built_in.size();
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
