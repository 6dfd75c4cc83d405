#include "tests/fuzz/sweep_run.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <map>
#include <memory>

#include "exec/run/frame.h"
#include "graph/contract.h"
#include "graph/evaluate.h"
#include "onnx/import.h"
#include "passes/pipeline.h"
#include "tests/exec/host_program.h"
#include "tests/fuzz/fenced.h"
#include "tests/sanitizers.h"
#include "treadle/error.h"

namespace treadle::fuzz {
namespace {

constexpr size_t kBytesBesideTheProgram = size_t{1} << 29;    // limit of the address space that a case may use
constexpr auto kTimeOfARun = std::chrono::milliseconds(300);  // ends loops that would run for ever

Datum fenced_datum(const Datum& datum) { return datum.is_tensor() ? Datum(fenced(datum.tensor())) : datum; }

// Returns an input's declared type, as a model's file would declare it.
Type declared(const SweepOperand& operand, SymbolTable& symbols) {
  Type type = Type::of(operand.value);
  if (!type.is_tensor() || operand.knowledge == Knowledge::shape) return type;
  if (operand.knowledge == Knowledge::rank_unknown) return Type::tensor(type.dtype);
  for (Dim& extent : *type.shape) extent = symbols.fresh_symbol("n", false);
  return type;
}

// Makes a body that returns its inputs as outputs, repeated as often as necessary.
std::unique_ptr<Graph> body_of(const Graph& outside, const SweepCase& c, const std::string& name) {
  auto body = std::make_unique<Graph>(outside.symbol_table());
  const bool loop = c.op->name == "Loop";
  const size_t num_inputs = c.op->name == "If" ? 0 : c.inputs.size(), num_outputs = c.outputs.size() + (loop ? 1 : 0);
  body->name = name;
  for (size_t i = 0; i < num_inputs; ++i) {
    const bool known = i < c.inputs.size() && c.inputs[i].value.is_tensor();
    body->add_input("in" + std::to_string(i), known && i % 2 ? Type::tensor(c.inputs[i].value.tensor().dtype()) : Type{});
  }
  for (size_t i = 0; i < num_outputs; ++i) {
    const ValueId condition = loop && i == 0 ? body->add_constant("condition", Tensor::scalar<bool>(true)) : kNoValue;
    ValueId from = condition;
    if (from == kNoValue && num_inputs > 0) from = body->inputs[(i + (loop ? 1 : 0)) % num_inputs];
    if (from == kNoValue) from = body->add_constant("one", Tensor::scalar<float>(1));
    body->outputs.push_back(body->node(body->add_node({.op_type = "Identity", .inputs = {from}})).outputs[0]);
    body->output_names.push_back(body->value(body->outputs.back()).name);
    body->declared_outputs.emplace_back();
  }
  return body;
}

std::shared_ptr<Graph> graph_of(const SweepCase& c, std::vector<Datum>& feeds) {
  auto graph = std::make_shared<Graph>(std::make_shared<SymbolTable>());
  Node node;
  node.name = "node";
  node.op = c.op;
  node.op_type = c.op->name;
  node.domain = c.op->domain;
  node.version = c.version;
  node.attributes = c.attributes;
  for (const SweepOperand& operand : c.inputs) {
    const std::string name = "x" + std::to_string(node.inputs.size());
    if (!operand.value.defined()) {
      node.inputs.push_back(kNoValue);
    } else if (operand.knowledge == Knowledge::constant && operand.value.is_tensor()) {
      node.inputs.push_back(graph->add_constant(name, fenced_datum(operand.value)));
    } else {
      node.inputs.push_back(graph->add_input(name, declared(operand, graph->symbols())));
      feeds.push_back(fenced_datum(operand.value));
    }
  }
  node.num_formal_inputs = static_cast<int>(node.inputs.size());
  for (const bool there : c.outputs) node.outputs.push_back(there ? graph->add_value("y" + std::to_string(node.outputs.size())) : kNoValue);
  for (const std::string& name : c.bodies) node.bodies.push_back({name, body_of(*graph, c, name), {}});
  const NodeId id = graph->append(std::move(node));
  for (const ValueId output : graph->node(id).outputs) {
    if (output == kNoValue) continue;
    graph->outputs.push_back(output);
    graph->output_names.push_back(graph->value(output).name);
    graph->declared_outputs.emplace_back();
  }
  complete_outputs(*graph, id);
  return graph;
}

// Runs the nodes with every value in separate memory that ends directly before an inaccessible page.
void run_fenced(const Graph& graph, std::span<const Datum> feeds) {
  std::map<ValueId, Datum> values;
  for (size_t i = 0; i < graph.inputs.size(); ++i) values[graph.inputs[i]] = feeds[i];
  Evaluator evaluator;
  evaluator.max_output_bytes = size_t{64} << 20;
  evaluator.allocate = [](DType dtype, const Shape& shape) { return fenced(dtype, shape); };
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    if (!node.bodies.empty() || node.op->barrier || node.op->control_flow != ControlFlow::none) return;
    std::vector<Datum> inputs;
    for (const ValueId input : node.inputs) {
      const bool constant = input != kNoValue && graph.value(input).is_constant();
      inputs.push_back(input == kNoValue ? Datum() : constant ? graph.value(input).constant : values[input]);
    }
    std::vector<DType> dtypes;
    for (const ValueId output : node.outputs) dtypes.push_back(output == kNoValue ? DType::undefined : graph.type(output).dtype);
    const KernelDef& kernel = select_kernel(graph, node);
    const std::unique_ptr<PackedState> packed = kernel.create ? kernel.create(CreateContext(graph, node)) : nullptr;
    const std::vector<Datum> made = evaluate_node(node, kernel, packed.get(), inputs, dtypes, evaluator);
    for (size_t i = 0; i < made.size(); ++i)
      if (node.outputs[i] != kNoValue) values[node.outputs[i]] = made[i];
  }
}

// Runs one way of computing the case, and catches errors, so that the other ways are still tried.
template <typename F>
Verdict verdict_of(F&& run) {
  try {
    run();
    return {};
  } catch (const Error& error) {
    return {error.code() == ErrorCode::internal ? Outcome::failed : Outcome::refused, error.what()};
  } catch (const std::exception& error) {
    return {Outcome::failed, std::string("no error of the library: ") + error.what()};
  }
}

}  // namespace

void limit_memory() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + kBytesBesideTheProgram;
  const rlimit none{0, 0}, room{bytes, bytes};
  setrlimit(RLIMIT_CORE, &none);
  if (!test::kSanitized) setrlimit(RLIMIT_AS, &room);  // the sanitizers' shadow memory takes terabytes of address space
}

Verdict run_case(const SweepCase& c) {
  std::shared_ptr<Graph> graph;
  std::vector<Datum> feeds;
  const Verdict made = verdict_of([&] {
    graph = graph_of(c, feeds);
    onnx::upgrade(*graph);
    c.optimized ? passes::optimize(*graph) : passes::canonicalize(*graph);
    verify(*graph);
  });
  if (made.outcome != Outcome::ran) return made;
  const Verdict whole = verdict_of([&] {
    exec::RunControl control;
    control.stop.deadline = std::chrono::steady_clock::now() + kTimeOfARun;
    std::vector<Datum> outputs(graph->outputs.size());
    testing::HostProgram(graph).run(feeds, outputs, control);
  });
  if (whole.outcome == Outcome::failed) return whole;
  const Verdict fences = verdict_of([&] { run_fenced(*graph, feeds); });
  return fences.outcome == Outcome::failed ? fences : whole;
}

}  // namespace treadle::fuzz
