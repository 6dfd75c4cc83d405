#include "plugin/custom_operator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "graph/custom_ops.h"
#include "graph/gradient.h"
#include "ops/functions.h"
#include "ops/math/elementwise.h"
#include "plugin/host.h"
#include "treadle/error.h"

namespace treadle::plugin {
namespace {

constexpr int kMaxOperands = 64;

// All registered operators. A node finds its registration by its OpDef.
struct Registrations {
  std::mutex mutex;
  std::map<const OpDef*, treadle_operator> by_op;
  // Graphs contain pointers to the elements of these deques, so elements are never removed.
  std::deque<ScalarFunction> functions;
  std::deque<std::string> names;
  std::deque<treadle_operator> mapped;
};

Registrations& registrations() {
  static auto* instance = new Registrations();  // never destroyed, as sessions may outlive static objects
  return *instance;
}

treadle_operator callbacks_of(const Node& node) {
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  return all.by_op.at(node.op);
}

void infer_custom(InferContext& c) {
  const treadle_operator op = callbacks_of(c.node());
  if (!op.infer) return;
  std::vector<treadle_value_type> outputs(c.node().outputs.size());
  for (treadle_value_type& output : outputs) output.rank = -1;
  const treadle_node node = view_of(c);
  clear_failure();
  if (op.infer(op.user, &host(), &node, outputs.data()) == 0) throw Error(ErrorCode::invalid_argument, take_failure());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const treadle_value_type& output = outputs[i];
    if (output.dtype <= 0 || output.dtype >= kNumDTypes) continue;
    if (output.rank > TREADLE_PLUGIN_MAX_RANK)
      throw Error(ErrorCode::invalid_argument, fmt::format("output {} of rank {}", i, output.rank));
    if (output.rank < 0) {
      c.set_output_dtype(static_cast<int>(i), static_cast<DType>(output.dtype));
      continue;
    }
    SymbolicShape shape;
    for (int axis = 0; axis < output.rank; ++axis) {
      const auto known = node.known_extents.find({i, axis});
      if (known != node.known_extents.end())
        shape.push_back(known->second);
      else
        shape.push_back(output.dims[axis] < 0 ? c.data_dependent_dim(c.node().op_type) : Dim(output.dims[axis]));
    }
    c.set_output(static_cast<int>(i), static_cast<DType>(output.dtype), std::move(shape));
  }
}

struct CustomState final : PackedState {
  CustomState(const CreateContext& context) : node(context.node()), op(callbacks_of(context.node())) {
    if (!op.create) return;
    const treadle_node view = view_of(context);
    clear_failure();
    state = op.create(op.user, &host(), &view);
    if (std::string text = take_failure(); !state && !text.empty()) throw Error(ErrorCode::invalid_argument, std::move(text));
  }
  ~CustomState() override {
    if (op.destroy) op.destroy(op.user, state);
  }
  const Node& node;
  treadle_operator op;
  void* state = nullptr;
};

struct CustomKernel {
  static constexpr bool allocates = true;
  static std::unique_ptr<PackedState> create(const CreateContext& context) { return std::make_unique<CustomState>(context); }
  static CustomKernel bind(BindContext&) { return {}; }
  void run(RunContext& context) const {
    const auto& custom = context.packed<CustomState>();
    run_call(custom.node, context, custom.op.run, custom.op.user, custom.state);
  }
};

// Computes y[i] = f(x[i]) for float32, or for 16-bit floats, which are converted block by block.
template <typename T>
struct MapKernel {
  int64_t n;
  const ScalarFunction* function;

  static std::string declines(const CreateContext& c) { return c.node().attributes.size() == 0 ? "" : "the node has attributes"; }
  static MapKernel bind(BindContext& c) { return {c.num_elements(0), function_of(c.node())}; }
  void run(RunContext& c) const {
    const T* in = c.in<T>(0);
    T* out = c.out<T>(0);
    parallel_for(c.pool(), n, ops::kElementwiseGrain, [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<T, float>) {
        function->map(function->context, in + begin, out + begin, end - begin);
      } else {
        constexpr int64_t kBlock = 512;
        float block[kBlock];
        for (int64_t first = begin; first < end; first += kBlock) {
          const int64_t count = std::min(kBlock, end - first);
          kernels::widen(in + first, block, count);
          function->map(function->context, block, block, count);
          kernels::narrow(block, out + first, count);
        }
      }
    });
  }
};

std::vector<ValueId> differentiate(GradientContext& g) {
  const treadle_operator op = callbacks_of(g.node());
  treadle_gradient gradient{g, view_of(g.graph(), g.node()), std::vector<ValueId>(g.node().inputs.size(), kNoValue)};
  clear_failure();
  if (op.gradient(op.user, &host(), &gradient) == 0) {
    std::string text = take_failure();
    throw Error(ErrorCode::invalid_argument, text.empty() ? "the plugin's gradient failed without a text" : text);
  }
  return std::move(gradient.inputs);
}

/// Sets the properties that the plugin declares in op.facts. Passes and planners use them.
void set_facts(OpDef& def, const treadle_operator& op, Registrations& all) {
  def.pointwise = (op.facts & TREADLE_POINTWISE) != 0;
  def.keeps_zeros = (op.facts & TREADLE_KEEPS_ZEROS) != 0;
  if (def.pointwise) def.half = HalfFloats::float32;
  if (op.gradient) def.gradient = differentiate;
  if (!op.map) return;
  if (!def.pointwise || op.min_inputs != 1 || op.max_inputs != 1 || op.num_outputs != 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}:{}: only a pointwise operator of one input and one output has a map", op.domain, op.op_type));
  const treadle_operator& kept = all.mapped.emplace_back(op);
  ScalarFunction& function = all.functions.emplace_back();
  function.name = all.names.emplace_back(op.op_type);
  function.domain = all.names.emplace_back(op.domain);
  function.step = kernels::ChainOp::unary;
  function.keeps_zero = def.keeps_zeros;
  function.context = &kept;
  function.map = [](const void* context, const float* x, float* y, int64_t count) {
    const auto& mapped = *static_cast<const treadle_operator*>(context);
    mapped.map(mapped.user, x, y, count);
  };
  def.functions = {&function, 1};
  def.step = [](const Graph& graph, const Node& node) {
    return node.attributes.size() == 0 ? ops::function_step(graph, node) : std::nullopt;
  };
  def.kernels.insert(def.kernels.begin(),
                     {kernel<MapKernel<float>>("map", DType::float32), kernel<MapKernel<Float16>>("map", DType::float16),
                      kernel<MapKernel<BFloat16>>("map", DType::bfloat16)});
  if (!op.run) def.kernels.pop_back();
  if (!op.infer) def.infer = ops::infer_same_as_input;
}

constexpr size_t kFirstVersion = offsetof(treadle_operator, facts);

}  // namespace

void register_operator(const treadle_operator& given, Presence first_output) {
  const treadle_operator op = of_any_version(given, kFirstVersion, "treadle_operator");
  if (!op.domain || !op.op_type || !*op.op_type || (!op.run && !op.map))
    throw Error(ErrorCode::invalid_argument, "an operator needs a domain, an op_type and a run or map callback");
  if (op.min_inputs < 0 || op.min_inputs > kMaxOperands || op.max_inputs > kMaxOperands || op.num_outputs < 1 ||
      op.num_outputs > kMaxOperands || (op.max_inputs >= 0 && op.max_inputs < op.min_inputs))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}:{}: {} to {} inputs and {} outputs; expected 0 to {}, ordered, and 1 to {}", op.domain, op.op_type,
                            op.min_inputs, op.max_inputs, op.num_outputs, kMaxOperands, kMaxOperands));
  OpDef def{.name = op.op_type, .domain = op.domain, .since = {1}, .infer = infer_custom, .kernels = {kernel<CustomKernel>("plugin")}};
  def.deterministic = op.deterministic != 0;
  def.attributes = {{kAnyAttribute}};
  // A variadic input that comes first needs at least one operand.
  const int fixed = op.max_inputs < 0 ? std::max(op.min_inputs, 1) : op.max_inputs;
  for (int i = 0; i < fixed; ++i)
    def.inputs.push_back({"input", kAllTensors, "", i < op.min_inputs ? Presence::required : Presence::optional});
  if (op.max_inputs < 0) def.inputs.push_back({"inputs", kAllTensors, "", Presence::variadic});
  for (int i = 0; i < op.num_outputs; ++i) def.outputs.push_back({"output", kAllTensors, "", i == 0 ? first_output : Presence::optional});
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  set_facts(def, op, all);
  all.by_op[add_custom_op(std::move(def))] = op;
}

}  // namespace treadle::plugin
