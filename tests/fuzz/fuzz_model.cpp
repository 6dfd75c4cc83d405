// Any bytes as a model: reading, import, upgrade, inference, optimisation, lowering, binding. Errors are fine; crashes, hangs and leaks are
// not.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/binding.h"
#include "exec/program.h"
#include "exec/verify_plan.h"
#include "onnx/import.h"
#include "onnx/parse.h"
#include "onnx/serialize.h"
#include "passes/pipeline.h"
#include "treadle/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace treadle;
  constexpr size_t kMaxTensorBytes = 16U << 20U;
  exec::set_verifies_plans(true);
  try {
    onnx::ReadOptions options;
    options.max_tensor_bytes = kMaxTensorBytes;
    onnx::ModelDef model = onnx::parse_model_bytes({reinterpret_cast<const std::byte*>(data), size}, nullptr, {}, options);
    onnx::serialize_model(model);
    std::shared_ptr<Graph> graph = onnx::import_graph(model, {.max_nodes = 10'000});
    onnx::upgrade(*graph);
    passes::PipelineOptions pipeline;
    pipeline.max_folded_bytes = kMaxTensorBytes;
    passes::optimize(*graph, pipeline);
    verify(*graph);
    exec::Program program(graph);
    // Every symbol is 2: extents, kernels and offsets are settled, nothing runs.
    std::vector<int64_t> symbols(program.num_expressions(), 2);
    program.bindings().get(program, symbols, 1);
  } catch (const Error&) {
  }
  return 0;
}
