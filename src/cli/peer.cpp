#include "cli/peer.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/files/npy.h"
#include "treadle/data.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

// A script that reads inputs (one .npy file each, listed in job.json), runs the model, and writes the results. Names are passed in JSON, so
// that they need no quoting for a shell.
constexpr const char* kScript = R"(
import json, os, sys, time
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import numpy as np, onnxruntime as ort
folder = sys.argv[1]
job = json.load(open(os.path.join(folder, "job.json")))
feeds = {name: np.load(os.path.join(folder, file)) for name, file in job["feeds"].items()}
options = ort.SessionOptions()
options.log_severity_level = 3
if job["threads"]:
    options.intra_op_num_threads = job["threads"]
model = job["model"]
names = None
if job["values"] is not None:
    import onnx
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    loaded = onnx.load(model)
    have = {o.name for o in loaded.graph.output}
    wanted = job["values"] or sorted(have)
    made = {o for n in loaded.graph.node for o in n.output if o}
    names = [n for n in wanted if n in made or n in have]
    for name in names:
        if name not in have:
            loaded.graph.output.append(onnx.helper.ValueInfoProto(name=name))
    model = loaded.SerializeToString()
start = time.perf_counter()
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
load_ms = (time.perf_counter() - start) * 1e3
outputs = session.run(names, feeds)
result = {"load_ms": load_ms, "version": ort.__version__, "files": {}}
if job["values"] is None:
    times = []
    for _ in range(job["runs"]):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    result["median_ms"] = sorted(times)[len(times) // 2] * 1e3
else:
    for i, (name, value) in enumerate(zip(names, outputs)):
        if isinstance(value, np.ndarray) and value.dtype != object:
            np.save(os.path.join(folder, f"out{i}.npy"), value)
            result["files"][name] = f"out{i}.npy"
json.dump(result, open(os.path.join(folder, "result.json"), "w"))
)";

// A script that times OpenVINO. It requests float32, because OpenVINO's default precision is lower on CPUs with bfloat16 units.
constexpr const char* kOpenVinoScript = R"(
import json, os, sys, time
import numpy as np, openvino
folder = sys.argv[1]
job = json.load(open(os.path.join(folder, "job.json")))
feeds = {name: np.load(os.path.join(folder, file)) for name, file in job["feeds"].items()}
settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
if job["threads"]:
    settings["INFERENCE_NUM_THREADS"] = job["threads"]
start = time.perf_counter()
core = openvino.Core()
request = core.compile_model(core.read_model(job["model"]), "CPU", settings).create_infer_request()
load_ms = (time.perf_counter() - start) * 1e3
request.infer(feeds)
times = []
for _ in range(job["runs"]):
    start = time.perf_counter()
    request.infer(feeds)
    times.append(time.perf_counter() - start)
result = {"load_ms": load_ms, "version": openvino.__version__.split("-")[0], "median_ms": sorted(times)[len(times) // 2] * 1e3}
json.dump(result, open(os.path.join(folder, "result.json"), "w"))
)";

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "treadle-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw Error(ErrorCode::io_error, "cannot make a temporary folder");
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct Peer {
  std::string_view name, needs;
  const char* script;
};
constexpr Peer kPeers[] = {{"onnxruntime", "onnxruntime and onnx", kScript}, {"openvino", "openvino", kOpenVinoScript}};

const Peer& peer_named(std::string_view name) {
  for (const Peer& peer : kPeers)
    if (peer.name == name) return peer;
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no runtime \"{}\" to compare with", name));
}

nlohmann::json run_job(const Peer& peer, const ScratchFolder& folder, const std::string& python, const std::string& model,
                       const std::map<std::string, Datum>& feeds, int threads, int runs, const nlohmann::json& values) {
  nlohmann::json job{{"model", std::filesystem::absolute(model).string()},
                     {"threads", threads},
                     {"runs", runs},
                     {"values", values},
                     {"feeds", nlohmann::json::object()}};
  for (const auto& [name, value] : feeds) {
    std::string file = fmt::format("in{}.npy", job["feeds"].size());
    write_npy((folder / file).string(), value.tensor());
    job["feeds"][name] = file;
  }
  std::ofstream(folder / "job.json") << job;
  std::ofstream(folder / "peer.py") << peer.script;
  // `python` is a command of the user and may have arguments, so it is not quoted. The folder's name is ours and needs no escapes.
  std::string command = fmt::format("{} '{}' '{}' 2>&1", python, (folder / "peer.py").string(), folder.path().string());
  std::string said;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) throw Error(ErrorCode::io_error, "cannot start " + python);
  std::array<char, 4096> buffer;
  while (size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) said.append(buffer.data(), count);
  if (pclose(pipe) != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} did not run ({} needs {}; see --python):\n{}", peer.name, python, peer.needs, said));
  std::ifstream in(folder / "result.json");
  return nlohmann::json::parse(in);
}

}  // namespace

std::vector<std::string> peer_names() {
  std::vector<std::string> names;
  for (const Peer& peer : kPeers) names.emplace_back(peer.name);
  return names;
}

PeerTimes time_peer(const std::string& peer, const std::string& python, const std::string& model, const std::map<std::string, Datum>& feeds,
                    int threads, int runs) {
  ScratchFolder folder;
  nlohmann::json result = run_job(peer_named(peer), folder, python, model, feeds, threads, runs, nullptr);
  return {result["load_ms"], result["median_ms"], result["version"]};
}

std::map<std::string, Tensor> run_onnxruntime(const std::string& python, const std::string& model,
                                              const std::map<std::string, Datum>& feeds, const std::vector<std::string>& values) {
  ScratchFolder folder;
  nlohmann::json result = run_job(peer_named("onnxruntime"), folder, python, model, feeds, 1, 1, values);
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, file] : result["files"].items()) tensors[name] = train::map_npy((folder / file.get<std::string>()).string());
  return tensors;
}

}  // namespace treadle::cli
