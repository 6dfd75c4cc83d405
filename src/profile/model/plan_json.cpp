// Converts a profile's plan to JSON and back, for files that are written while the profile is recorded.
#include <algorithm>
#include <utility>

#include "profile/model/json.h"
#include "profile/model/plan.h"

namespace treadle::profile {
namespace {

Document stored_operands(const std::vector<ProfiledOperand>& operands) {
  Document list = Document::array();
  for (const ProfiledOperand& operand : operands) {
    Document json{{"name", operand.name}, {"dtype", static_cast<int>(operand.dtype)}};
    if (operand.shape) json["shape"] = operand.shape->dims();
    if (operand.constant) json["constant"] = true;
    if (!operand.shares.empty()) json["shares"] = operand.shares;
    if (operand.row_step != 0) json["row_step"] = operand.row_step;
    if (!operand.value.empty()) json["value"] = operand.value;
    list.push_back(std::move(json));
  }
  return list;
}

DType dtype_of_number(const Document& json) {
  const int number = json;
  if (number < 0 || number > static_cast<int>(DType::float6e3m2))
    throw Error(ErrorCode::invalid_argument, "the recording is damaged: an unknown dtype");
  return static_cast<DType>(number);
}

std::vector<ProfiledOperand> operands_of(const Document& list) {
  std::vector<ProfiledOperand> operands;
  for (const Document& json : list) {
    ProfiledOperand operand{.name = json.at("name"), .dtype = dtype_of_number(json.at("dtype"))};
    if (json.contains("shape")) operand.shape = Shape(json.at("shape").get<std::vector<int64_t>>());
    operand.constant = json.value("constant", false);
    operand.shares = json.value("shares", "");
    operand.row_step = json.value("row_step", int64_t{0});
    operand.value = json.value("value", "");
    operands.push_back(std::move(operand));
  }
  return operands;
}

Document node_json(const ProfiledNode& node) {
  Document json{{"name", node.name}, {"op", node.op_type}, {"kernel", node.kernel}, {"forms", node.forms}, {"parent", node.parent}};
  json["sources"] = node.sources;
  if (!node.layers.empty()) json["layers"] = node.layers;
  json["passes"] = node.passes;
  for (const ProfiledUnusedKernel& unused : node.unused_kernels) json["unused_kernels"].push_back({unused.name, unused.why});
  json["inputs"] = stored_operands(node.inputs);
  json["outputs"] = stored_operands(node.outputs);
  if (node.flops) json["flops"] = *node.flops;
  if (node.bytes) json["bytes"] = *node.bytes;
  json["phase"] = node.phase;
  if (!node.forward.empty()) json["forward"] = node.forward;
  if (node.sequence >= 0) json["sequence"] = node.sequence;
  json["moves"] = node.moves;
  if (node.between_devices) json["between_devices"] = true;
  json["packed_bytes"] = node.packed_bytes;
  return json;
}

ProfiledNode node_of(const Document& json) {
  ProfiledNode node;
  node.name = json.at("name"), node.op_type = json.at("op"), node.kernel = json.at("kernel"), node.forms = json.at("forms");
  node.parent = json.at("parent");
  node.sources = json.at("sources").get<std::vector<std::string>>();
  node.layers = json.value("layers", std::vector<std::string>{});
  node.passes = json.at("passes").get<std::vector<std::string>>();
  for (const Document& unused : json.value("unused_kernels", Document::array()))
    node.unused_kernels.push_back({unused.at(0), unused.at(1)});
  node.inputs = operands_of(json.at("inputs"));
  node.outputs = operands_of(json.at("outputs"));
  if (json.contains("flops")) node.flops = json.at("flops").get<double>();
  if (json.contains("bytes")) node.bytes = json.at("bytes").get<double>();
  node.phase = json.at("phase"), node.moves = json.at("moves"), node.packed_bytes = json.at("packed_bytes");
  if (json.contains("forward")) node.forward = json.at("forward").get<std::vector<int32_t>>();
  node.sequence = json.value("sequence", int64_t{-1});
  node.between_devices = json.value("between_devices", false);
  return node;
}

Document usage_json(const MemoryUsage& usage) { return {usage.bytes, usage.peak_bytes, usage.num_allocations}; }
MemoryUsage usage_of(const Document& json) { return {json.at(0), json.at(1), json.at(2)}; }

Document statistics_json(const MemoryStatistics& statistics) {
  Document json = Document::array({usage_json(statistics.total)});
  for (const MemoryUsage& usage : statistics.classes) json.push_back(usage_json(usage));
  return json;
}

MemoryStatistics statistics_of(const Document& json) {
  MemoryStatistics statistics;
  statistics.total = usage_of(json.at(0));
  for (size_t c = 0; c < statistics.classes.size(); ++c) statistics.classes[c] = usage_of(json.at(c + 1));
  return statistics;
}

MemoryClass class_of(const Document& json) {
  const auto number = json.get<size_t>();
  if (number >= kNumMemoryClasses) throw Error(ErrorCode::invalid_argument, "the recording is damaged: an unknown class of memory");
  return static_cast<MemoryClass>(number);
}

Document buffers_json(const std::vector<ProfiledBuffer>& buffers) {
  Document list = Document::array();
  for (const ProfiledBuffer& b : buffers)
    list.push_back({b.name, static_cast<size_t>(b.memory_class), b.size_bytes, b.offset_bytes, b.first, b.last});
  return list;
}

// Checks that all indices are in range, since code that uses the plan relies on this.
void check_indices(const ProfilePlan& plan) {
  const auto num_nodes = static_cast<int32_t>(plan.profile.nodes.size());
  const auto damaged = [](bool is) {
    if (is) throw Error(ErrorCode::invalid_argument, "the recording is damaged: a node refers to one that is not there");
  };
  for (int32_t i = 0; i < num_nodes; ++i) {
    const int32_t parent = plan.profile.nodes[static_cast<size_t>(i)].parent;
    damaged(parent < -1 || parent >= i);
    for (int32_t forward : plan.profile.nodes[static_cast<size_t>(i)].forward) damaged(forward < 0 || forward >= num_nodes);
  }
  for (const auto& [record, node] : plan.node_of) damaged(node < 0 || node >= num_nodes);
  for (int32_t row : plan.device_rows.of_node) damaged(row < -1 || row >= static_cast<int32_t>(plan.device_rows.rows.size()));
  for (int32_t step : plan.profile.steps) damaged(step < 0 || step >= num_nodes);
  const auto num_steps = static_cast<int32_t>(plan.profile.steps.size());
  for (const ProfiledBuffer& b : plan.profile.buffers) damaged(b.first < 0 || b.first > b.last || b.last >= num_steps);
  for (size_t i = 0; i < plan.load.size(); ++i) damaged(plan.load[i].parent < -1 || plan.load[i].parent >= static_cast<int32_t>(i));
}

}  // namespace

std::string plan_to_json(const ProfilePlan& plan) {
  const Profile& p = plan.profile;
  Document json{{"run", plan.run},
                {"initialization", plan.initialization},
                {"account", plan.account},
                {"memory", plan.memory},
                {"kernel_phases", plan.kernel_phases},
                {"python_calls", plan.python_calls},
                {"ns_per_event", plan.ns_per_event},
                {"cpu", p.cpu},
                {"num_threads", p.num_threads},
                {"float32", p.float32},
                {"steps", p.steps},
                {"buffers", buffers_json(p.buffers)},
                {"report",
                 {p.memory.weight_bytes, p.memory.packed_bytes, p.memory.arena_bytes, p.memory.arena_lower_bound_bytes,
                  p.memory.arena_sum_bytes, p.memory.arena_in_order_bytes, p.memory.largest_node_bytes}},
                {"statistics", statistics_json(p.memory_statistics)},
                {"before", statistics_json(plan.memory_before)}};
  // Completes lists before it inserts them into `json`, because inserting a key may move the values of other keys.
  Document nodes = Document::array(), names = Document::array(), load = Document::array(), held = Document::array();
  for (const ProfiledNode& node : p.nodes) nodes.push_back(node_json(node));
  for (const auto& [record, node] : plan.node_of) names.push_back({record, node});
  for (const LoadPhase& phase : plan.load) load.push_back({phase.name, phase.parent, phase.start, phase.end});
  for (const MemoryHolding& holding : plan.held)
    held.push_back({holding.name, static_cast<size_t>(holding.memory_class), holding.size_bytes});
  if (!plan.device_rows.rows.empty()) {
    Document rows = Document::array();
    for (const DeviceRow& row : plan.device_rows.rows) rows.push_back({row.name, row.device, row.tells_times});
    json["device_rows"] = std::move(rows), json["row_of_node"] = plan.device_rows.of_node;
  }
  json["nodes"] = std::move(nodes), json["names"] = std::move(names), json["load"] = std::move(load), json["held"] = std::move(held);
  return to_text(json);
}

ProfilePlan plan_from_json(std::string_view text) {
  return reading([&] {
    const Document json = parse_json(text);
    ProfilePlan plan;
    Profile& p = plan.profile;
    plan.run = json.at("run"), plan.initialization = json.at("initialization"), plan.account = json.at("account");
    plan.memory = json.at("memory"), plan.kernel_phases = json.at("kernel_phases"), plan.python_calls = json.at("python_calls");
    plan.ns_per_event = json.at("ns_per_event");
    p.cpu = json.value("cpu", ""), p.float32 = json.value("float32", true);  // older files lack these fields
    constexpr int kMostThreads = 1 << 16;
    p.num_threads = std::clamp(json.value("num_threads", 0), 0, kMostThreads);
    p.steps = json.at("steps").get<std::vector<int32_t>>();
    for (const Document& b : json.at("buffers")) p.buffers.push_back({b.at(0), class_of(b.at(1)), b.at(2), b.at(3), b.at(4), b.at(5)});
    const Document& report = json.at("report");
    p.memory = {report.at(0), report.at(1), report.at(2), report.at(3), report.at(4), report.at(5), report.at(6)};
    p.memory_statistics = statistics_of(json.at("statistics"));
    plan.memory_before = statistics_of(json.at("before"));
    for (const Document& node : json.at("nodes")) p.nodes.push_back(node_of(node));
    for (const Document& name : json.at("names")) plan.node_of.emplace(name.at(0).get<uint32_t>(), name.at(1).get<int32_t>());
    for (const Document& phase : json.at("load")) plan.load.push_back({phase.at(0), phase.at(1), phase.at(2), phase.at(3)});
    for (const Document& holding : json.at("held")) plan.held.push_back({holding.at(0), class_of(holding.at(1)), holding.at(2)});
    for (const Document& row : json.value("device_rows", Document::array()))
      plan.device_rows.rows.push_back({row.at(0), row.at(1), row.at(2)});
    plan.device_rows.of_node = json.value("row_of_node", std::vector<int32_t>{});
    check_indices(plan);
    return plan;
  });
}

}  // namespace treadle::profile
