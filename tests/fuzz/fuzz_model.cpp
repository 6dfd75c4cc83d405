// Any bytes as a model: reading, import, upgrade, inference, optimisation, lowering, binding; with TREADLE_FUZZ_SESSIONS=1 a session of it
// as well, and two runs with random feeds. Errors are fine; crashes, hangs and leaks are not.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "exec/program/binding.h"
#include "exec/program/program.h"
#include "exec/verify/verify_plan.h"
#include "onnx/import.h"
#include "onnx/parse.h"
#include "onnx/serialize.h"
#include "passes/pipeline.h"
#include "treadle/error.h"
#include "treadle/model.h"
#include "treadle/session.h"

namespace {

using namespace treadle;

constexpr size_t kMaxTensorBytes = 16U << 20U, kMaxSessionBytes = 256U << 20U;
constexpr int64_t kMaxElements = 1 << 14;
constexpr int64_t kDeadlineMs = 2000;

// Throws Error where the bytes are no model that can be run.
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
  exec::Program program(graph);
  // Every symbol is 2: extents, kernels and offsets are settled.
  std::vector<int64_t> symbols(program.num_expressions(), 2);
  program.bindings().get(program, symbols, 1);
}

// The feeds that a model asks for: declared extents or small ones, elements that are small, large, and no numbers.
class Feeds {
 public:
  explicit Feeds(uint32_t seed) : random_(seed) {}

  /// Nothing of an input that is no tensor of an ordinary dtype, or is too large.
  bool add(const ValueInfo& input) {
    if (!input.type.starts_with("tensor(")) return false;
    Shape shape;
    int64_t count = 1;
    const int free_rank = static_cast<int>(below(4));
    for (int d = 0; d < (input.has_rank ? static_cast<int>(input.shape.size()) : free_rank); ++d) {
      int64_t extent = extent_below_5();
      if (input.has_rank) {
        const auto& declared = input.shape[static_cast<size_t>(d)];
        if (const auto* fixed = std::get_if<int64_t>(&declared))
          extent = *fixed;
        else if (const auto& name = std::get<std::string>(declared); !name.empty())
          extent = symbols_.try_emplace(name, extent).first->second;
      }
      if (extent < 0 || extent > kMaxElements || (count *= extent) > kMaxElements || d >= kMaxRank) return false;
      shape.push_back(extent);
    }
    Tensor tensor(input.dtype, shape);
    if (!fill(tensor)) return false;
    feeds_[input.name] = tensor;
    return true;
  }
  const std::map<std::string, Datum>& all() const { return feeds_; }

 private:
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  int64_t extent_below_5() { return below(8) == 0 ? 0 : 1 + below(4); }

  template <typename T, typename F>
  static bool each(Tensor& tensor, F f) {
    for (T& element : tensor.span<T>()) element = static_cast<T>(f());
    return true;
  }
  bool fill(Tensor& tensor) {
    auto integer = [&] { return below(16) == 0 ? static_cast<int64_t>(random_()) - (int64_t{1} << 30) : int64_t{below(7)} - 2; };
    auto real = [&] {
      static constexpr double kHard[] = {0, -0.0, 1e30, -1e30, 1e-40, INFINITY, -INFINITY, NAN};
      return below(16) == 0 ? kHard[below(8)] : (static_cast<double>(below(2001)) - 1000) / 250;
    };
    switch (tensor.dtype()) {
      case DType::float32: return each<float>(tensor, real);
      case DType::float64: return each<double>(tensor, real);
      case DType::int64: return each<int64_t>(tensor, integer);
      case DType::int32: return each<int32_t>(tensor, integer);
      case DType::int16:
      case DType::uint16:
      case DType::float16:
      case DType::bfloat16:
      case DType::int8:
      case DType::uint8:
      case DType::uint32:
      case DType::uint64: {
        auto* bytes = static_cast<std::byte*>(tensor.raw());
        for (size_t i = 0; i < tensor.size_bytes(); ++i) bytes[i] = static_cast<std::byte>(random_());
        return true;
      }
      case DType::boolean: return each<bool>(tensor, [&] { return below(2); });
      case DType::string: return each<std::string>(tensor, [&] { return std::string(below(12), static_cast<char>('0' + below(40))); });
      default: return false;
    }
  }

  std::minstd_rand random_;
  std::map<std::string, int64_t> symbols_;
  std::map<std::string, Datum> feeds_;
};

void run(std::span<const std::byte> bytes) {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.verify_plans = true;
  options.memory_limit_bytes = kMaxSessionBytes;
  options.share_weights = false;
  const Session session(Model::from_bytes(bytes), options);
  uint32_t seed = 1;
  for (std::byte b : bytes) seed = seed * 31 + static_cast<uint32_t>(b);
  for (uint32_t turn = 0; turn < 2; ++turn) {
    Feeds feeds(seed + turn);
    for (const ValueInfo& input : session.inputs())
      if (!feeds.add(input)) return;
    RunOptions run_options;
    run_options.deadline_ms = kDeadlineMs;
    try {
      session.run(feeds.all(), {}, &run_options);
    } catch (const Error&) {
    }
  }
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
