// Implements the command `treadle operators`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

struct OperatorsOptions {
  bool json = false;
  std::string domain;
};

std::string_view domain_of(const OpDef& op) { return op.domain.empty() ? "ai.onnx" : op.domain; }

// Returns the dtypes that the operator's kernels support. A kernel for all dtypes supports those that the operator's schema allows.
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

std::string_view realization_of(const OpDef& op) {
  if (op.control_flow != ControlFlow::none) return "executor";
  if (op.kernels.empty()) return "decomposed";
  return op.decompose ? "kernel, or decomposed" : "kernel";
}

std::string_view presence_of(const Port& port) {
  switch (port.presence) {
    case Presence::required: return "required";
    case Presence::optional: return "optional";
    default: return "variadic";
  }
}

nlohmann::json contract_of(const std::vector<Port>& ports) {
  auto list = nlohmann::json::array();
  for (const Port& port : ports)
    list.push_back({{"name", port.name},
                    {"types", port.types.to_string()},
                    {"type_name", port.type_name},
                    {"presence", presence_of(port)},
                    {"least_rank", port.ranks.least},
                    {"most_rank", port.ranks.most}});
  return list;
}

nlohmann::json contract_of(const AttributeDef& def) {
  nlohmann::json contract = {{"name", def.name}, {"required", std::holds_alternative<AttributeDef::Required>(def.value)}};
  if (const auto* integer = std::get_if<int64_t>(&def.value)) contract["default"] = *integer;
  if (const auto* number = std::get_if<float>(&def.value)) contract["default"] = *number;
  if (const auto* text = std::get_if<std::string_view>(&def.value)) contract["default"] = *text;
  if (def.allowed.least != INT64_MIN) contract["least"] = def.allowed.least;
  if (def.allowed.most != INT64_MAX) contract["most"] = def.allowed.most;
  if (!def.allowed.words.empty()) contract["words"] = def.allowed.words;
  if (def.allowed.dtypes != TypeSet{}) contract["dtypes"] = def.allowed.dtypes.to_string();
  return contract;
}

nlohmann::json description_of(const OpDef& op) {
  auto attributes = nlohmann::json::array();
  for (const AttributeDef& def : op.attributes) attributes.push_back(contract_of(def));
  return {{"domain", domain_of(op)},
          {"name", op.name},
          {"versions", op.since},
          {"dtypes", dtypes_of(op)},
          {"realisation", realization_of(op)},
          {"gradient", op.gradient != nullptr},
          {"inputs", contract_of(op.inputs)},
          {"outputs", contract_of(op.outputs)},
          {"attributes", attributes}};
}

int list_operators(const OperatorsOptions& options) {
  auto list = nlohmann::json::array();
  TextTable table({"domain", "operator", "versions", "computed by", "dtypes"});
  for (const OpDef& op : all_ops()) {
    if (!options.domain.empty() && options.domain != domain_of(op)) continue;
    if (options.json) {
      list.push_back(description_of(op));
      continue;
    }
    table.add({std::string(domain_of(op)), std::string(op.name), fmt::format("{}", fmt::join(op.since, ",")),
               fmt::format("{}{}", realization_of(op), op.gradient ? ", gradient" : ""),
               fmt::format("{}", fmt::join(dtypes_of(op), ", "))});
  }
  if (list.empty() && table.empty())
    throw Error(ErrorCode::not_found,
                fmt::format("this build has no operators of the domain \"{}\"; it has ai.onnx, ai.onnx.ml and others: "
                            "`treadle operators` lists all",
                            options.domain));
  if (options.json)
    show_json(list, 1);
  else
    show_text(stdout, table.to_text());
  return 0;
}

}  // namespace

Command add_operators(CLI::App& app) {
  app.description("List the operators of this build: versions, dtypes, gradients");
  auto options = std::make_shared<OperatorsOptions>();
  app.add_option("--domain", options->domain, "Only this domain: ai.onnx, ai.onnx.ml, com.microsoft ...");
  app.add_flag("--json", options->json, "Print JSON");
  app.footer("Versions are the opsets that changed what the operator means; dtypes are those of its kernels.");
  return [options] { return list_operators(*options); };
}

}  // namespace treadle::cli
