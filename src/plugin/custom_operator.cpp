#include "plugin/custom_operator.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>

#include "graph/custom_ops.h"
#include "plugin/host.h"
#include "treadle/error.h"

namespace treadle::plugin {
namespace {

constexpr int kMaxOperands = 64;

// A node finds the registration that it was made with by its OpDef.
struct Registrations {
  std::mutex mutex;
  std::map<const OpDef*, treadle_operator> by_op;
};

Registrations& registrations() {
  static auto* instance = new Registrations();  // sessions may outlive static objects
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
    for (int axis = 0; axis < output.rank; ++axis)
      shape.push_back(output.dims[axis] < 0 ? c.data_dependent_dim(c.node().op_type) : Dim(output.dims[axis]));
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

}  // namespace

void register_operator(const treadle_operator& op) {
  if (op.size != sizeof(treadle_operator))
    throw Error(ErrorCode::invalid_argument, fmt::format("treadle_operator::size is {}, expected {}", op.size, sizeof(treadle_operator)));
  if (!op.domain || !op.op_type || !*op.op_type || !op.run)
    throw Error(ErrorCode::invalid_argument, "an operator needs a domain, an op_type and a run callback");
  if (op.min_inputs < 0 || op.min_inputs > kMaxOperands || op.max_inputs > kMaxOperands || op.num_outputs < 1 ||
      op.num_outputs > kMaxOperands || (op.max_inputs >= 0 && op.max_inputs < op.min_inputs))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}:{}: {} to {} inputs and {} outputs; expected 0 to {}, ordered, and 1 to {}", op.domain, op.op_type,
                            op.min_inputs, op.max_inputs, op.num_outputs, kMaxOperands, kMaxOperands));
  OpDef def{.name = op.op_type, .domain = op.domain, .since = {1}, .infer = infer_custom, .kernels = {kernel<CustomKernel>("plugin")}};
  def.deterministic = op.deterministic != 0;
  def.attributes = {{kAnyAttribute}};
  const int fixed = op.max_inputs < 0 ? op.min_inputs : op.max_inputs;
  for (int i = 0; i < fixed; ++i)
    def.inputs.push_back({"input", kAllTensors, "", i < op.min_inputs ? Presence::required : Presence::optional});
  if (op.max_inputs < 0) def.inputs.push_back({"inputs", kAllTensors, "", Presence::variadic});
  for (int i = 0; i < op.num_outputs; ++i)
    def.outputs.push_back({"output", kAllTensors, "", i == 0 ? Presence::required : Presence::optional});
  Registrations& all = registrations();
  std::lock_guard lock(all.mutex);
  all.by_op[add_custom_op(std::move(def))] = op;
}

}  // namespace treadle::plugin
