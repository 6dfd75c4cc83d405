// Uses any bytes as a model: reads, imports, upgrades, infers, optimises, lowers and binds it. With TREADLE_FUZZ_SESSIONS=1, it also makes
// a session and runs it twice with random feeds. Errors are allowed; crashes, hangs and leaks are not.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "exec/plan/binding.h"
#include "exec/program/program.h"
#include "exec/program/verify_switch.h"
#include "exec/verify/verify_plan.h"
#include "onnx/import.h"
#include "onnx/parse.h"
#include "onnx/serialize.h"
#include "passes/pipeline.h"
#include "tests/exec/host_program.h"
#include "tests/fuzz/feeds.h"
#include "treadle/error.h"
#include "treadle/model.h"
#include "treadle/session.h"

namespace {

using namespace treadle;

constexpr size_t kMaxTensorBytes = 16U << 20U, kMaxSessionBytes = 256U << 20U;
constexpr int64_t kDeadlineMs = 2000;

// @throws Error if the bytes are not a model that can be run.
void load(std::span<const std::byte> bytes) {
  onnx::ReadOptions options;
  options.max_tensor_bytes = kMaxTensorBytes;
  onnx::ModelDef model = onnx::parse_model_bytes(bytes, nullptr, {}, options);
  onnx::serialize_model(model);
  std::shared_ptr<Graph> graph = onnx::import_graph(model, {.max_nodes = 10'000});
  onnx::upgrade(*graph);
  passes::PipelineOptions pipeline;
  pipeline.max_folded_bytes = kMaxTensorBytes;
  passes::optimize(*graph, pipeline);
  verify(*graph);
  testing::HostProgram program(graph);
  // Binds with every symbol 2, which determines extents, kernels and offsets.
  std::vector<int64_t> symbols(program.extents().num_expressions, 2);
  program.plans().bindings().get(symbols, 1);
}

void run(std::span<const std::byte> bytes) {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.verify_plans = true;
  options.memory_limit_bytes = kMaxSessionBytes;
  options.share_weights = false;
  const Session session(Model::from_bytes(bytes), options);
  uint32_t seed = 1;
  for (std::byte b : bytes) seed = seed * 31 + static_cast<uint32_t>(b);
  fuzz::run_with_random_feeds(session, seed, 2, kDeadlineMs);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  exec::set_verifies_plans(true);
  static const bool runs_sessions = std::getenv("TREADLE_FUZZ_SESSIONS") != nullptr;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    load(bytes);
    if (runs_sessions) run(bytes);
  } catch (const Error&) {
  }
  return 0;
}
