// treadle operators
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "graph/op_def.h"

namespace treadle::cli {
namespace {

struct OperatorsOptions {
  bool json = false;
  std::string domain;
};

std::string_view domain_of(const OpDef& op) { return op.domain.empty() ? "ai.onnx" : op.domain; }

// What decides the kernel: the dtypes that kernels are for. A kernel for any dtype takes what the schema allows.
std::vector<std::string> dtypes_of(const OpDef& op) {
  std::vector<std::string> names;
  auto add = [&](std::string_view name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  };
  for (const KernelDef& kernel : op.kernels) {
    if (kernel.dtype != DType::undefined) {
      add(name_of(kernel.dtype));
      continue;
    }
    if (op.inputs.empty()) return {"any"};
    return {op.inputs.front().types.to_string()};
  }
  return names;
}

std::string_view realisation_of(const OpDef& op) {
  if (op.control_flow != ControlFlow::none) return "executor";
  if (op.kernels.empty()) return "decomposed";
  return op.decompose ? "kernel, or decomposed" : "kernel";
}

int list_operators(const OperatorsOptions& options) {
  auto list = nlohmann::json::array();
  for (const OpDef& op : all_ops()) {
    if (!options.domain.empty() && options.domain != domain_of(op)) continue;
    const std::vector<std::string> dtypes = dtypes_of(op);
    if (options.json) {
      list.push_back({{"domain", domain_of(op)},
                      {"name", op.name},
                      {"versions", op.since},
                      {"dtypes", dtypes},
                      {"realisation", realisation_of(op)},
                      {"gradient", op.gradient != nullptr}});
      continue;
    }
    fmt::print("{:16} {:28} {:24} {}{}  {}\n", domain_of(op), op.name, fmt::format("{}", fmt::join(op.since, ",")), realisation_of(op),
               op.gradient ? ", gradient" : "", fmt::join(dtypes, ", "));
  }
  if (options.json) fmt::print("{}\n", list.dump(1));
  return 0;
}

}  // namespace

Command add_operators(CLI::App& app) {
  auto options = std::make_shared<OperatorsOptions>();
  app.add_option("--domain", options->domain, "Only this domain: ai.onnx, ai.onnx.ml, com.microsoft ...");
  app.add_flag("--json", options->json, "Print JSON");
  app.footer("Each line: domain, operator, opset versions with a meaning of their own, how it is computed, dtypes of its kernels.");
  return [options] { return list_operators(*options); };
}

}  // namespace treadle::cli
