#include "tests/session/faults.h"

#include <algorithm>
#include <map>

#include "core/threads/thread_pool.h"
#include "graph/custom_ops.h"
#include "graph/gradient.h"
#include "graph/infer.h"

namespace treadle::testing {
namespace {

struct Faults {
  std::mutex mutex;
  int64_t id = -1;
  std::function<void()> action;
};
Faults& faults() {
  static auto* instance = new Faults;
  return *instance;
}

void act(int64_t id) {
  std::function<void()> action;
  {
    std::lock_guard lock(faults().mutex);
    if (faults().id != id) return;
    faults().id = -1;
    action = std::move(faults().action);
  }
  if (action) action();
}

struct Step {
  int64_t id, count;
  static Step bind(BindContext& c) { return {c.get_int("id"), c.num_elements(0)}; }
  void run(RunContext& c) const {
    act(id);
    for (int64_t i = 0; i < count; ++i) c.out<float>(0)[i] = c.in<float>(0)[i] + 1;
  }
};

// A kernel that works in chunks of three elements; one chunk has the fault.
struct WideStep {
  static constexpr int64_t kGrain = 3;
  int64_t id, count;
  static WideStep bind(BindContext& c) { return {c.get_int("id"), c.num_elements(0)}; }
  void run(RunContext& c) const {
    const float* x = c.in<float>(0);
    float* y = c.out<float>(0);
    const int64_t faulty = id % ((count + kGrain - 1) / kGrain);
    parallel_for(c.pool(), count, kGrain, [&](int64_t begin, int64_t end) {
      if (begin / kGrain == faulty) act(id);
      for (int64_t i = begin; i < end; ++i) y[i] = x[i] + 1;
    });
  }
};

struct Pass {
  int64_t id, count;
  static Pass bind(BindContext& c) { return {c.get_int("id"), c.num_elements(0)}; }
  void run(RunContext& c) const {
    act(id);
    std::copy_n(c.in<float>(0), count, c.out<float>(0));
  }
};

std::vector<ValueId> pass_on(GradientContext& g) {
  return {g.op("Pass", {g.grad_output(0)}, {{"id", g.attributes().get_int("id", 0) + 1}}, "test.fault")};
}

struct DynamicStep {
  static constexpr bool allocates = true;
  int64_t id, count;
  static DynamicStep bind(BindContext& c) { return {c.get_int("id"), c.num_elements(0)}; }
  void run(RunContext& c) const {
    act(id);
    Tensor y = c.allocate_output(0, Shape{count});
    for (int64_t i = 0; i < count; ++i) y.data<float>()[i] = c.in<float>(0)[i] + 1;
  }
};

// The costs are so high that parallel execution always pays.
Cost high_cost(const ShapeContext& /*context*/) { return {1e9, 0}; }

onnx::AttributeDef int_attribute(const std::string& name, int64_t value) {
  onnx::AttributeDef attribute;
  attribute.name = name;
  attribute.type = onnx::AttributeType::i;
  attribute.i = value;
  return attribute;
}

// Makes the body of a Loop with three Steps.
onnx::AttributeDef loop_body(int64_t id) {
  onnx::AttributeDef body;
  body.name = "body";
  body.type = onnx::AttributeType::graph;
  auto graph = std::make_unique<onnx::GraphDef>();
  graph->name = "body";
  graph->inputs.push_back(ModelBuilder::info("i", {}, DType::int64));
  graph->inputs.push_back(ModelBuilder::info("go", {}, DType::boolean));
  graph->inputs.push_back(ModelBuilder::info("state", {-1}, DType::float32));
  graph->outputs.push_back(ModelBuilder::info("go_on", {}, DType::boolean));
  graph->outputs.push_back(ModelBuilder::info("next", {-1}, DType::float32));
  onnx::NodeDef step, go;
  step.op_type = "Step";
  step.domain = "test.fault";
  step.inputs = {"state"};
  step.outputs = {"next"};
  step.attributes.push_back(int_attribute("id", id));
  go.op_type = "Identity";
  go.inputs = {"go"};
  go.outputs = {"go_on"};
  graph->nodes.push_back(std::move(step));
  graph->nodes.push_back(std::move(go));
  body.g = std::move(graph);
  return body;
}

float apply(const std::string& op, float a, float b) {
  if (op == "Step" || op == "WideStep" || op == "DynamicStep") return a + 1;
  if (op == "Loop") return a + 3;
  if (op == "Add") return a + b;
  if (op == "Sub") return a - b;
  if (op == "Max") return std::max(a, b);
  if (op == "Neg") return -a;
  return a;  // as Identity and Yield do
}

}  // namespace

void register_fault_operators() {
  static const bool once = [] {
    auto same = [](InferContext& c) { c.set_output(0, c.dtype(0), c.shape(0)); };
    OpDef step{.name = "Step", .domain = "test.fault", .since = {1}, .infer = same, .cost = high_cost, .kernels = {kernel<Step>()}};
    step.inputs = {{"x", kFloats}};
    step.outputs = {{"y", kFloats}};
    step.attributes = {{kAnyAttribute}};
    step.deterministic = false;  // without this, equal nodes would be merged
    OpDef dynamic = step;
    dynamic.name = "DynamicStep";
    dynamic.kernels = {kernel<DynamicStep>()};
    OpDef pass = step;
    pass.name = "Pass";
    pass.kernels = {kernel<Pass>()};
    step.gradient = pass_on;
    OpDef wide = step;
    wide.name = "WideStep";
    wide.kernels = {kernel<WideStep>()};
    for (OpDef* op : {&step, &wide, &dynamic, &pass}) add_custom_op(std::move(*op));
    return true;
  }();
  (void)once;
}

void set_fault(int64_t id, std::function<void()> action) {
  std::lock_guard lock(faults().mutex);
  faults().id = action ? id : -1;
  faults().action = std::move(action);
}

void* FaultyAllocator::allocate(size_t size_bytes, MemoryClass memory_class) {
  if (armed_.load()) {
    const int64_t left = until_failure_.fetch_sub(1);
    if (left == 0 || (left < 0 && all_.load())) return nullptr;
  }
  void* data = plain_allocator()->allocate(size_bytes, memory_class);
  if (data) ++live_;
  return data;
}

void FaultyAllocator::free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept {
  --live_;
  plain_allocator()->free(data, size_bytes, memory_class);
}

void FaultyAllocator::fail(int64_t first, bool all) {
  until_failure_ = first;
  all_ = all;
  armed_ = true;
}

void FaultyAllocator::work() { armed_ = false; }

RandomModel::RandomModel(std::mt19937& random, bool yields) {
  register_fault_operators();
  builder.def().opset_imports.push_back({"test.fault", 1});
  builder.input("x", {-1});
  auto pick = [&](size_t count) { return static_cast<size_t>(random() % count); };
  const size_t count = 4 + pick(10), yield_at = yields ? pick(count) : count;
  std::vector<bool> is_read(count + 1, false);
  for (size_t i = 0; i < count; ++i) {
    Operation made;
    static const char* const kOps[] = {"Step", "Step", "WideStep", "WideStep", "DynamicStep", "Add", "Sub", "Max", "Neg", "Loop"};
    made.op = i == yield_at ? "Yield" : kOps[pick(std::size(kOps))];
    const bool binary = made.op == "Add" || made.op == "Sub" || made.op == "Max";
    // Mostly reads recent values, so that chains and branches get long.
    for (int k = 0; k < (binary ? 2 : 1); ++k) made.inputs.push_back(i - std::min(i, pick(4)));
    std::vector<std::string> inputs;
    for (size_t input : made.inputs) {
      is_read[input] = true;
      inputs.push_back(input == 0 ? "x" : "v" + std::to_string(input));
    }
    const std::string output = "v" + std::to_string(i + 1);
    if (made.op == "Loop") {
      static const std::string kTrips = "trips";
      if (std::none_of(operations_.begin(), operations_.end(), [](const Operation& o) { return o.op == "Loop"; }))
        builder.constant(kTrips, Tensor::scalar<int64_t>(3));
      builder.node("Loop", {kTrips, "", inputs[0]}, {output});
      builder.last_node().attributes.push_back(loop_body(num_steps++));
    } else {
      const bool step = made.op == "Step" || made.op == "WideStep" || made.op == "DynamicStep";
      builder.node(made.op, inputs, {output}, made.op == "Yield" ? "stop" : "", step ? "test.fault" : made.op == "Yield" ? "treadle" : "");
      if (step) builder.last_node().attributes.push_back(int_attribute("id", num_steps++));
      if (const size_t group = pick(3)) builder.last_node().metadata_props.emplace_back("ctx_group", group == 1 ? "left" : "right");
    }
    operations_.push_back(std::move(made));
  }
  for (size_t v = 1; v <= count; ++v) {
    if (is_read[v] && v != count) continue;
    outputs_.push_back(v);
    output_names.push_back("v" + std::to_string(v));
    builder.output(output_names.back(), {-1});
  }
}

std::vector<std::vector<float>> RandomModel::expected(const std::vector<float>& x) const {
  std::vector<std::vector<float>> values{x};
  for (const Operation& operation : operations_) {
    std::vector<float> result;
    for (size_t i = 0; i < x.size(); ++i)
      result.push_back(apply(operation.op, values[operation.inputs[0]][i], values[operation.inputs.back()][i]));
    values.push_back(std::move(result));
  }
  std::vector<std::vector<float>> outputs;
  for (size_t v : outputs_) outputs.push_back(values[v]);
  return outputs;
}

}  // namespace treadle::testing
