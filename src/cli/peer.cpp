#include "cli/peer.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/ending.h"
#include "core/files/npy.h"
#include "treadle/data.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

// Times runs: every client has a function of its own, and takes requests until there are no more. Stands before the other scripts.
constexpr const char* kMeasure = R"(
import math, threading, time

def measure(job, make_run):
    runs, times, lock, ends = [make_run() for _ in range(job["clients"])], [], threading.Lock(), []
    for run in runs:
        for _ in range(1 + job["warmup"]):
            run()
    start, left = time.perf_counter(), [job["runs"]]
    def client(run):
        mine = []
        while True:
            with lock:
                done = job["runs"] - left[0]
                if left[0] == 0 or (done >= 5 and time.perf_counter() - start > job["most_seconds"]):
                    break
                left[0] -= 1
            began = time.perf_counter()
            run()
            mine.append(time.perf_counter() - began)
        with lock:
            times.extend(mine)
            ends.append(time.perf_counter())
    threads = [threading.Thread(target=client, args=(run,)) for run in runs[1:]]
    for thread in threads:
        thread.start()
    client(runs[0])
    for thread in threads:
        thread.join()
    times.sort()
    at = lambda p: times[max(math.ceil(p * len(times)), 1) - 1] * 1e3
    return {"median_ms": at(0.5), "p90_ms": at(0.9), "p99_ms": at(0.99), "runs_per_second": len(times) / (max(ends) - start)}
)";

// A script that reads inputs (one .npy file each, listed in job.json), runs the model, and writes the results. Names are passed in JSON, so
// that they need no quoting for a shell.
constexpr const char* kScript = R"(
import json, os, sys, time
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import numpy as np, onnxruntime as ort
folder = sys.argv[1]
job = json.load(open(os.path.join(folder, "job.json")))
def load(file):
    array = np.load(os.path.join(folder, file))
    return array.astype(object) if array.dtype.kind == "U" else array
feeds = {name: load(file) for name, file in job["feeds"].items()}
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
result = {"load_ms": load_ms, "version": ort.__version__, "files": {}}
if job["values"] is None:
    result |= measure(job, lambda: lambda: session.run(None, feeds))
else:
    outputs = session.run(names, feeds)
    for i, (name, value) in enumerate(zip(names, outputs)):
        if isinstance(value, np.ndarray):
            np.save(os.path.join(folder, f"out{i}.npy"), value.astype(str) if value.dtype == object else value)
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
compiled = core.compile_model(core.read_model(job["model"]), "CPU", settings)
compiled.create_infer_request()
load_ms = (time.perf_counter() - start) * 1e3
def make_run():
    request = compiled.create_infer_request()
    return lambda: request.infer(feeds)
result = {"load_ms": load_ms, "version": openvino.__version__.split("-")[0]} | measure(job, make_run)
json.dump(result, open(os.path.join(folder, "result.json"), "w"))
)";

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

nlohmann::json run_job(const Peer& peer, const TemporaryPath& folder, const std::string& python, const std::string& model,
                       const std::map<std::string, Datum>& feeds, const PeerLoad& load, const nlohmann::json& values) {
  nlohmann::json job{{"model", std::filesystem::absolute(model).string()},
                     {"threads", load.threads},
                     {"clients", load.clients},
                     {"warmup", load.warmup},
                     {"runs", load.runs},
                     {"most_seconds", load.most_seconds},
                     {"values", values},
                     {"feeds", nlohmann::json::object()}};
  for (const auto& [name, value] : feeds) {
    std::string file = fmt::format("in{}.npy", job["feeds"].size());
    write_npy((folder / file).string(), value.tensor());
    job["feeds"][name] = file;
  }
  std::ofstream(folder / "job.json") << job;
  std::ofstream(folder / "peer.py") << kMeasure << peer.script;
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
                    const PeerLoad& load) {
  const TemporaryPath folder = TemporaryPath::folder();
  nlohmann::json result = run_job(peer_named(peer), folder, python, model, feeds, load, nullptr);
  return {.load_ms = result["load_ms"],
          .median_ms = result["median_ms"],
          .p90_ms = result["p90_ms"],
          .p99_ms = result["p99_ms"],
          .runs_per_second = result["runs_per_second"],
          .version = result["version"]};
}

std::map<std::string, Tensor> run_onnxruntime(const std::string& python, const std::string& model,
                                              const std::map<std::string, Datum>& feeds, const std::vector<std::string>& values) {
  const TemporaryPath folder = TemporaryPath::folder();
  nlohmann::json result = run_job(peer_named("onnxruntime"), folder, python, model, feeds, {.threads = 1}, values);
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, file] : result["files"].items()) tensors[name] = train::map_npy((folder / file.get<std::string>()).string());
  return tensors;
}

}  // namespace treadle::cli
