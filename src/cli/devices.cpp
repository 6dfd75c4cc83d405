// Implements the command `treadle devices`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "core/base/cpu_info.h"
#include "gpu/gpu_type.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

std::string state_of(const gpu::Gpu& gpu) {
  if (!gpu.lacks.empty()) return "cannot be used: it lacks " + gpu.lacks;
  return gpu.is_software ? "computes on the CPU; taken only if it is named with its number" : "ready";
}

int list_devices(bool as_json) {
  std::vector<gpu::Gpu> gpus;
  std::string why_none;
  try {
    gpus = gpu::list_gpus();
    if (gpus.empty()) why_none = "Vulkan finds no device";
  } catch (const Error& error) {
    why_none = error.message();
  }
  if (as_json) {
    auto list = nlohmann::json::array({{{"name", "cpu"}, {"model", cpu_info().model_name}}});
    for (const gpu::Gpu& gpu : gpus)
      list.push_back({{"name", gpu.name},
                      {"model", gpu.model},
                      {"memory_bytes", gpu.memory_bytes},
                      {"is_software", gpu.is_software},
                      {"lacks", gpu.lacks}});
    show_json(list);
    return 0;
  }
  TextTable table({"device", "model", "memory GB", ""});
  table.add({"cpu", cpu_info().model_name, "", "ready"});
  for (const gpu::Gpu& gpu : gpus)
    table.add({gpu.name, gpu.model, fmt::format("{:.1f}", static_cast<double>(gpu.memory_bytes) / 1e9), state_of(gpu)});
  show("{}", table.to_text());
  if (!why_none.empty()) show("no GPU: {}\n", why_none);
  return 0;
}

}  // namespace

Command add_devices(CLI::App& app) {
  app.description("List the devices on which this machine runs models");
  app.footer(
      "  treadle devices\n"
      "  treadle run model.onnx --option device=gpu     # the first GPU that is not an emulation on the CPU\n"
      "  treadle run model.onnx --option device=gpu:1   # the one that is listed under this name\n"
      "Plugins bring further devices (docs/add-a-device.md).");
  auto as_json = std::make_shared<bool>(false);
  app.add_flag("--json", *as_json, "Print JSON");
  return [as_json] { return list_devices(*as_json); };
}

}  // namespace treadle::cli
