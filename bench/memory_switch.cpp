// Measures the cost of a memory limit that changes during a run. Before a certain node, the run holds 24 values of 1 MB that later nodes
// read, and the program lowers the limit to fewer values. The program prints, over many runs, the time until the node begins (median and
// worst), the bytes that the run moved, wrote to a file or read back, and the time that one copy of as many bytes takes in this process.
//   bench_memory_switch [--runs 200]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graph/custom_ops.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "onnx/model_def.h"
#include "onnx/serialize.h"
#include "sharing/job_table.h"
#include "treadle/treadle.hpp"

using namespace treadle;

namespace {

constexpr int kAlive = 24;
constexpr int64_t kElements = 262'144;
constexpr size_t kValueBytes = kElements * sizeof(float);

size_t limit_of(int values) { return static_cast<size_t>(values) * kValueBytes; }

std::function<void()> on_first, on_second;

// The kernel of a Mark node. The first Mark node calls `on_first` when it has copied its input, and the second one calls `on_second` before
// it copies. Between the two calls, no kernel runs: the time passes in the runtime.
struct Mark {
  bool second;
  int64_t count;
  static Mark bind(BindContext& c) { return {c.get_int("second") != 0, c.num_elements(0)}; }
  void run(RunContext& c) const {
    if (second) on_second();
    std::copy_n(c.in<float>(0), count, c.out<float>(0));
    if (!second) on_first();
  }
};

void register_mark() {
  OpDef mark{.name = "Mark",
             .domain = "bench",
             .since = {1},
             .infer = [](InferContext& c) { c.set_output(0, c.dtype(0), c.shape(0)); },
             .kernels = {kernel<Mark>()}};
  mark.inputs = {{"x", kFloats}};
  mark.outputs = {{"y", kFloats}};
  mark.attributes = {{kAnyAttribute}};
  mark.deterministic = false;
  add_custom_op(std::move(mark));
}

Model there_and_back() {
  onnx::ModelDef model;
  model.ir_version = 10;
  model.opset_imports = {{"", 21}, {"bench", 1}};
  const auto value = [](const std::string& name) {
    onnx::ValueInfoDef info;
    info.name = name;
    info.type.kind = onnx::TypeDef::Kind::tensor;
    info.type.elem_type = DType::float32;
    onnx::DimDef dim;
    dim.kind = onnx::DimDef::Kind::value;
    dim.value = kElements;
    info.type.shape = std::vector<onnx::DimDef>{dim};
    return info;
  };
  const auto add = [&](const char* op, std::vector<std::string> inputs, const std::string& output) {
    onnx::NodeDef node;
    node.op_type = op;
    node.inputs = std::move(inputs);
    node.outputs = {output};
    // The run must not recompute values when memory is short, because the benchmark is to measure only moves and copies.
    node.metadata_props = {{"treadle.recompute", "never"}};
    if (node.op_type == "Mark") {
      node.domain = "bench";
      onnx::AttributeDef second;
      second.name = "second";
      second.type = onnx::AttributeType::i;
      second.i = output == "b";
      node.attributes.push_back(std::move(second));
    }
    model.graph.nodes.push_back(std::move(node));
  };
  model.graph.name = "there and back";
  model.graph.inputs.push_back(value("x"));
  for (int i = 0; i < kAlive; ++i) add("Neg", {i == 0 ? "x" : fmt::format("v{}", i - 1)}, fmt::format("v{}", i));
  add("Mark", {fmt::format("v{}", kAlive - 1)}, "a");
  add("Mark", {"a"}, "b");
  for (int i = kAlive; i-- > 0;)
    add("Add", {i == kAlive - 1 ? "b" : fmt::format("s{}", i + 1), fmt::format("v{}", i)}, fmt::format("s{}", i));
  model.graph.outputs.push_back(value("s0"));
  const std::string bytes = onnx::serialize_model(model);
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

double copy_us(size_t bytes) {
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes, std::byte{2});
  std::vector<double> times;
  for (int i = 0; i < 15; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    from[static_cast<size_t>(i)] = to[bytes - 1];
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 2 && std::string(argv[1]) == "--runs" ? std::atoi(argv[2]) : 200;
  register_mark();
  const Tensor x(DType::float32, {kElements});
  std::fill_n(x.data<float>(), kElements, 1.0F);
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  options.memory_limit_bytes = limit_of(1000);
  options.job = std::make_shared<Job>(JobOptions{.name = "bench"});
  Session session(there_and_back(), options);
  const std::map<std::string, Datum> feeds{{"x", x}};
  fmt::print("values in the limit before and behind | median us | worst us | MB moved | one copy of them us\n");
  for (const auto& [before, behind] : {std::pair{60, 30}, {30, 60}, {60, 1000}, {1000, 60}, {60, 16}, {16, 60}, {28, 16}, {16, 28}}) {
    std::vector<double> times;
    uint64_t moved = 0, moved_before = 0;
    std::chrono::steady_clock::time_point start;
    const auto moved_bytes = [&] { return options.job->status().moved_bytes; };
    on_first = [&, limit = limit_of(behind)] {
      moved_before = moved_bytes();
      start = std::chrono::steady_clock::now();
      session.set_memory_limit(limit);
    };
    on_second = [&] {
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
      moved = moved_bytes() - moved_before;
    };
    for (int i = 0; i < runs + 3; ++i) {
      session.set_memory_limit(limit_of(before));
      session.run(feeds);
    }
    times.erase(times.begin(), times.begin() + 3);  // the first three runs do not count, because they also make memory plans
    std::sort(times.begin(), times.end());
    fmt::print("{} to {} | {:.0f} | {:.0f} | {:.1f} | {:.0f}\n", before, behind, times[times.size() / 2], times.back(),
               static_cast<double>(moved) / 1e6, moved > 0 ? copy_us(moved) : 0);
  }
  return 0;
}
