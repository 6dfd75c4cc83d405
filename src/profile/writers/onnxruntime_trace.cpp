#include "profile/writers/onnxruntime_trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/devices/providers.h"

namespace treadle::profile {
namespace {

using OrtJson = nlohmann::ordered_json;

std::string ort_text(const OrtJson& json) { return json.dump(-1, ' ', false, OrtJson::error_handler_t::replace); }

std::string ort_type_name(DType dtype) {
  if (dtype == DType::float32) return "float";
  if (dtype == DType::float64) return "double";
  return std::string(treadle::name_of(dtype));
}

OrtJson type_shapes(const std::vector<ProfiledOperand>& operands) {
  OrtJson list = OrtJson::array();
  for (const ProfiledOperand& operand : operands)
    if (!operand.name.empty() && operand.shape) list.push_back({{ort_type_name(operand.dtype), operand.shape->dims()}});
  return list;
}

// Returns the total size in bytes of the operands; nullopt if the size is known only during a run.
std::optional<double> size_of(const std::vector<ProfiledOperand>& operands, bool constants) {
  double bytes = 0;
  for (const ProfiledOperand& operand : operands) {
    if (operand.name.empty() || operand.constant != constants) continue;
    if (!operand.shape) return std::nullopt;
    bytes += static_cast<double>(operand.shape->num_elements()) * bits_of(operand.dtype) / 8;
  }
  return bytes;
}

// Returns the provider that runs the nodes of a device. Devices that ONNX Runtime does not know are named as sessions name them, without a
// number: "sim".
std::string provider_name(const std::string& device) {
  const std::string_view provider = provider_of(device);
  return std::string(provider == kCpuProvider && device != "cpu" ? device.substr(0, device.find(':')) : provider);
}

class OrtWriter {
 public:
  explicit OrtWriter(const TraceView& view) : view_(view) {
    for (size_t i = 0; i < view.nodes->size(); ++i) {
      const DeviceRow* const row = view.device_rows ? view.device_rows->of(static_cast<int32_t>(i)) : nullptr;
      node_arguments_.push_back(arguments_of((*view.nodes)[i], i, row ? provider_name(row->device) : kCpuProvider));
      node_names_.push_back((*view.nodes)[i].name);
    }
  }

  std::string write() {
    out_ = "[\n";
    const std::vector<TraceRow> rows = rows_of(view_);
    parts_.resize(node_names_.size());
    for (const TraceRow& row : rows)
      for (const TraceSpan& span : row.spans)
        if (const int32_t node = span.record->kind == RecordKind::chunk ? view_.node_index(*span.record) : -1; node >= 0)
          parts_[static_cast<size_t>(node)].push_back({span.start_ns, row.thread->system_id});
    for (std::vector<Part>& parts : parts_) std::sort(parts.begin(), parts.end());
    for (const TraceRow& row : rows) write_row(row);
    if (out_.size() > 2) out_.resize(out_.size() - 2);  // removes the comma after the last event
    out_ += "\n]\n";
    return std::move(out_);
  }

 private:
  static OrtJson arguments_of(const ProfiledNode& node, size_t index, const std::string& provider) {
    const std::string number = std::to_string(index);
    OrtJson json{{"op_name", node.op_type},
                 {"provider", provider},
                 {"node_index", number},
                 {"graph_index", number},
                 {"exec_plan_index", number},
                 {"input_type_shape", type_shapes(node.inputs)},
                 {"output_type_shape", type_shapes(node.outputs)}};
    auto add = [&](const char* key, std::optional<double> bytes) {
      if (bytes) json[key] = fmt::format("{:.0f}", *bytes);
    };
    add("activation_size", size_of(node.inputs, /*constants=*/false));
    add("parameter_size", size_of(node.inputs, /*constants=*/true));
    add("output_size", size_of(node.outputs, /*constants=*/false));
    return json;
  }

  void write_row(const TraceRow& row) {
    int64_t idle_since = row.spans.empty() ? 0 : row.spans.front().start_ns;
    for (size_t i = 0; i < row.spans.size(); ++i) {
      const TraceSpan& span = row.spans[i];
      const Record& record = *span.record;
      // Skips ranges within nodes, which the format lacks. How long a thread waited in a node becomes an argument of the node.
      if (record.kind == RecordKind::phase || record.kind == RecordKind::chunk || record.kind == RecordKind::pool) continue;
      const int32_t node = view_.node_index(record);
      if (node >= 0) {
        write_node(row, i, static_cast<size_t>(node), std::min(idle_since, span.start_ns));
        idle_since = span.end_ns;
      } else if (!is_point(record) || record.kind == RecordKind::instant) {
        if (record.kind == RecordKind::run) idle_since = span.start_ns;
        event("Session", record.kind == RecordKind::run ? "model_run" : view_.name(record), row, span.start_ns, span.end_ns, "{}");
      }
    }
  }

  static int64_t barrier_ns(const TraceRow& row, size_t node_span) {
    int64_t sum = 0;
    for (size_t i = node_span + 1; i < row.spans.size() && row.spans[i].start_ns < row.spans[node_span].end_ns; ++i)
      if (row.spans[i].record->kind == RecordKind::pool) sum += row.spans[i].end_ns - row.spans[i].start_ns;
    return sum;
  }

  void write_node(const TraceRow& row, size_t node_span, size_t node, int64_t idle_since) {
    const TraceSpan& span = row.spans[node_span];
    const std::string& name = node_names_[node];
    const std::string fence = ort_text({{"op_name", (*view_.nodes)[node].op_type}});
    event("Node", name + "_fence_before", row, idle_since, span.start_ns, fence);
    OrtJson arguments = node_arguments_[node];
    // Times are in microseconds, as in ONNX Runtime. Sub-threads are not listed here, because helper threads have their own rows.
    const int64_t wait_ns = barrier_ns(row, node_span);
    arguments["thread_scheduling_stats"] = {{"main_thread",
                                             {{"thread_pool_name", row.thread->name},
                                              {"thread_id", std::to_string(row.thread->system_id)},
                                              {"Run", (span.end_ns - span.start_ns - wait_ns) / 1000},
                                              {"Wait", wait_ns / 1000}}},
                                            {"sub_threads", helpers(node, span, row.thread->system_id)}};
    event("Node", name + "_kernel_time", row, span.start_ns, span.end_ns, ort_text(arguments));
    event("Node", name + "_fence_after", row, span.end_ns, span.end_ns, fence);
  }

  // Returns the other threads that computed parts of a node's call, with the number of their parts.
  OrtJson helpers(size_t node, const TraceSpan& call, int64_t thread) const {
    std::map<int64_t, int> parts_of;
    const std::vector<Part>& parts = parts_[node];
    for (auto part = std::lower_bound(parts.begin(), parts.end(), Part{call.start_ns, 0}); part != parts.end(); ++part) {
      if (part->first >= call.end_ns) break;
      if (part->second != thread) ++parts_of[part->second];
    }
    OrtJson threads = OrtJson::object();
    for (const auto& [helper, number] : parts_of) threads[std::to_string(helper)] = {{"num_run", number}};
    return threads;
  }

  void event(const char* category, const std::string& name, const TraceRow& row, int64_t start_ns, int64_t end_ns,
             const std::string& arguments) {
    fmt::format_to(std::back_inserter(out_),
                   "{{\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"dur\":{},\"ts\":{},\"ph\":\"X\",\"name\":{},\"args\":{}}},\n", category,
                   getpid(), row.thread->system_id, end_ns / 1000 - start_ns / 1000, start_ns / 1000, ort_text(name), arguments);
  }

  const TraceView& view_;
  std::vector<OrtJson> node_arguments_;
  std::vector<std::string> node_names_;
  using Part = std::pair<int64_t, int64_t>;  // begin of a part of a node's call that a helping thread computed, and the thread
  std::vector<std::vector<Part>> parts_;     // by node
  std::string out_;
};

}  // namespace

std::string to_onnxruntime_trace(const TraceView& view) { return OrtWriter(view).write(); }

}  // namespace treadle::profile
