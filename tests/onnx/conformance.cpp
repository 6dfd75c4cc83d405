// Runs ONNX's own test cases: `treadle_conformance [--list FILE] [--write FILE] [--optimize] [--device WHERE] FOLDER [SUBSTRING ...]`.
// FOLDER contains kind/case/model.onnx. --list FILE: exits with 1 if a case listed in FILE fails. --write FILE: writes the list of passing
// cases. --device gpu:0: runs on a GPU or its substitute (gpu/gpu_type.h); sim: on a simulated accelerator, which checks every access;
// several: nodes alternate between the host and two such accelerators; job: node by node, as under a memory limit.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/devices/device_registry.h"
#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"
#include "exec/placed/placed_program.h"
#include "exec/program/verify_switch.h"
#include "exec/run/frame.h"
#include "exec/verify/verify_plan.h"
#include "gpu/gpu_type.h"
#include "graph/graph.h"
#include "onnx/case_data.h"
#include "onnx/import.h"
#include "onnx/parse.h"
#include "onnx/random_case.h"
#include "passes/pipeline.h"
#include "session/devices.h"
#include "tests/exec/host_program.h"
#include "treadle/error.h"

namespace fs = std::filesystem;
using namespace treadle;

namespace {

struct Tolerance {
  double rtol = 1e-3, atol = 1e-7;
};

// Reads a file such as {"rtol": 0.001, "atol": 1e-07}.
Tolerance read_tolerance(const fs::path& path) {
  Tolerance tolerance;
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  auto number = [&](const char* key, double& value) {
    size_t at = text.find(key);
    if (at != std::string::npos) value = std::stod(text.substr(text.find(':', at) + 1));
  };
  number("\"rtol\"", tolerance.rtol);
  number("\"atol\"", tolerance.atol);
  // Near zero, the cases' own rounding errors exceed their absolute tolerance.
  tolerance.atol = std::max(tolerance.atol, 1e-5);
  return tolerance;
}

testing::ProtoKind kind_of(const Type& type) {
  if (type.kind == Type::Kind::sequence) return testing::ProtoKind::sequence;
  return type.kind == Type::Kind::optional ? testing::ProtoKind::optional : testing::ProtoKind::tensor;
}

bool is_gpu(const std::string& where) { return where.starts_with("gpu"); }

const DeviceType& gpu_type() {
  static const DeviceType type = [] {
    gpu::register_gpu_type();
    return *find_device_type("gpu");
  }();
  return type;
}

std::unique_ptr<exec::Executor> place_on_gpu(const testing::HostProgram& program, const std::string& where) {
  static const std::shared_ptr<Device> gpu = gpu_type().make({where, {}, {}});
  exec::PlacementRequest request{.default_device = 1};
  request.has_own_kernels = [](int device) { return device == 1; };
  return std::make_unique<exec::PlacedProgram>(program, std::vector<std::shared_ptr<Device>>{cpu_device(), gpu},
                                               exec::plan_streams(program, exec::place_instructions(program, request), 2, {}),
                                               std::make_shared<exec::DeviceMemory>(nullptr, /*limited=*/false));
}

// Returns the executor for --device; null for the host.
std::unique_ptr<exec::Executor> place(const testing::HostProgram& program, const std::string& where) {
  if (where.empty()) return nullptr;
  if (is_gpu(where)) return place_on_gpu(program, where);
  auto checker = std::make_shared<AccessChecker>();
  std::vector<std::shared_ptr<Device>> devices{SimDevice::create({.name = "cpu", .host_accessible = true, .checker = checker})};
  for (int d = 0; d < (where == "several" ? 2 : 1); ++d) devices.push_back(SimDevice::create({.checker = checker}));
  exec::DevicePlacement placement = exec::place_instructions(program, {.default_device = 1});
  if (where == "several")
    for (exec::InstructionId i : placement.of_instruction.ids())
      if (placement.of_instruction[i] != exec::DevicePlacement::kHost)
        placement.of_instruction[i] = static_cast<int>(index_of(i) * 2 + 1) % 3;
  const auto count = static_cast<int>(devices.size());
  auto memory = std::make_shared<exec::DeviceMemory>(nullptr, /*limited=*/where == "job");  // with a limit, runs go node by node
  return std::make_unique<exec::PlacedProgram>(program, devices, exec::plan_streams(program, placement, count, {.compute_streams = 2}),
                                               memory);
}

/// The outputs that one data set of a case expects.
struct Expectation {
  std::vector<Datum> feeds;
  std::vector<std::optional<Datum>> outputs;  // an element is empty if the output has no file
};

Expectation read_set(const fs::path& data, const Graph& graph, const std::vector<Type>& output_types) {
  Expectation set;
  for (size_t i = 0; i < graph.inputs.size(); ++i)
    set.feeds.push_back(testing::read_pb(data / ("input_" + std::to_string(i) + ".pb"), kind_of(graph.type(graph.inputs[i]))));
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    fs::path file = data / ("output_" + std::to_string(i) + ".pb");
    set.outputs.emplace_back();
    if (fs::exists(file)) set.outputs.back() = testing::read_pb(file, kind_of(output_types[i]));
  }
  return set;
}

using Run = std::function<std::vector<Datum>(const std::vector<Datum>& feeds, uint64_t run_id)>;

std::string judge(const Expectation& set, const Tolerance& tolerance, const Run& run) {
  const std::vector<Datum> outputs = run(set.feeds, 0);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!set.outputs[i]) continue;
    std::string difference = testing::compare(outputs[i], *set.outputs[i], tolerance.rtol, tolerance.atol);
    if (!difference.empty()) return "output " + std::to_string(i) + ": " + difference;
  }
  return {};
}

std::string judge_random(const std::string& name, const Expectation& set, const Run& run) {
  testing::RandomCase random(name, set.feeds);
  for (int i = 0; i < testing::RandomCase::kRuns; ++i) {
    std::string difference = random.add(run(set.feeds, static_cast<uint64_t>(i)), set.outputs);
    if (!difference.empty()) return difference;
  }
  return random.verdict();
}

// Runs a case. @return the reason for which it failed; empty if it passes
std::string run_case(const fs::path& root, const std::string& name, bool optimize, const std::string& where) {
  const fs::path folder = root / name;
  try {
    onnx::ModelDef model = onnx::parse_model_file((folder / "model.onnx").string());
    std::shared_ptr<Graph> graph = onnx::import_graph(model);
    std::vector<Type> output_types = graph->declared_outputs;
    onnx::upgrade(*graph);
    const auto gpu_kernel = [](const Graph& of, const Node& node) { return gpu_type().kernels->find(of, node); };
    if (optimize && is_gpu(where)) {
      const passes::DeviceForms forms = forms_of(gpu_type(), *graph, gpu_kernel);
      passes::optimize(*graph, {.device = &forms});
    } else if (optimize)
      passes::optimize(*graph);
    else
      passes::canonicalize(*graph);
    verify(*graph);
    exec::ProgramOptions options{.parallel = where == "sim" || where == "several", .pieces_in_place = where.empty() || where == "cpu"};
    if (is_gpu(where)) options.device_kernel = gpu_kernel;
    testing::HostProgram program(graph, options);
    std::unique_ptr<exec::Executor> placed = place(program, where);
    Tolerance tolerance = read_tolerance(folder / "tol.json");
    const Run run = [&](const std::vector<Datum>& feeds, uint64_t run_id) {
      std::vector<Datum> outputs(graph->outputs.size());
      if (placed)
        placed->run(feeds, outputs, {.run_id = run_id});
      else
        program.run(feeds, outputs, {.run_id = run_id});
      return outputs;
    };
    for (int set = 0; fs::exists(folder / ("test_data_set_" + std::to_string(set))); ++set) {
      fs::path data = folder / ("test_data_set_" + std::to_string(set));
      const Expectation expected = read_set(data, *graph, output_types);
      std::string difference = testing::RandomCase::is_random(name) ? judge_random(name, expected, run) : judge(expected, tolerance, run);
      if (!difference.empty()) return difference;
    }
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::vector<std::string> find_cases(const fs::path& folder, const std::vector<std::string>& filters) {
  std::vector<std::string> cases;
  for (const auto& kind : fs::directory_iterator(folder)) {
    if (!kind.is_directory()) continue;
    for (const auto& entry : fs::directory_iterator(kind)) {
      std::string name = kind.path().filename().string() + "/" + entry.path().filename().string();
      bool wanted = filters.empty() ||
                    std::any_of(filters.begin(), filters.end(), [&](const std::string& f) { return name.find(f) != std::string::npos; });
      if (wanted && fs::exists(entry.path() / "model.onnx")) cases.push_back(name);
    }
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  exec::set_verifies_plans(true);
  fs::path folder;
  std::string list, write;
  std::vector<std::string> filters;
  bool optimize = false;
  std::string where;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument == "--list" && i + 1 < argc)
      list = argv[++i];
    else if (argument == "--write" && i + 1 < argc)
      write = argv[++i];
    else if (argument == "--optimize")
      optimize = true;
    else if (argument == "--device" && i + 1 < argc)
      where = argv[++i];
    else if (folder.empty())
      folder = argument;
    else
      filters.push_back(argument);
  }
  std::set<std::string> must_pass;
  std::ifstream in(list);
  for (std::string line; std::getline(in, line);)
    if (!line.empty() && line[0] != '#') must_pass.insert(line);
  std::vector<std::string> passed;
  int failed = 0;
  for (const std::string& name : find_cases(folder, filters)) {
    if (!list.empty() && !must_pass.contains(name)) continue;
    std::string reason = run_case(folder, name, optimize, where);
    if (reason.empty()) {
      passed.push_back(name);
      must_pass.erase(name);
      continue;
    }
    ++failed;
    must_pass.erase(name);
    std::printf("FAIL %s: %s\n", name.c_str(), reason.c_str());
  }
  if (!list.empty() && filters.empty()) {
    for (const std::string& name : must_pass) {
      std::printf("FAIL %s: the case is not in the folder\n", name.c_str());
      ++failed;
    }
  }
  if (!write.empty()) {
    std::ofstream out(write);
    out << "# ONNX backend cases that pass. Made by: treadle_conformance --write THIS_FILE FOLDER\n";
    for (const std::string& name : passed) out << name << "\n";
  }
  std::printf("%zu passed, %d failed\n", passed.size(), failed);
  return failed > 0;
}
