#include "profile/writers/chrome_trace.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/trace/memory_events.h"

namespace treadle::profile {
namespace {

using ChromeJson = nlohmann::ordered_json;

// The categories that PyTorch's traces use, by RecordKind. Runs appear as profiler steps.
constexpr std::array<const char*, kNumRecordKinds> kChromeCategories = {"user_annotation",
                                                                        "cpu_op",
                                                                        "cpu_op",
                                                                        "cpu_op",
                                                                        "overhead",
                                                                        "user_annotation",
                                                                        "user_annotation",
                                                                        "cpu_instant_event",
                                                                        "counter",
                                                                        "cpu_instant_event",
                                                                        "cpu_instant_event",
                                                                        "kernel_phase",
                                                                        "python_function",
                                                                        "cpu_op",
                                                                        "thread_pool",
                                                                        "layer",
                                                                        "user_annotation"};

// Formats JSON. Replaces bytes that are not UTF-8, since texts come from models, and viewers reject files with invalid UTF-8.
std::string chrome_text(const ChromeJson& json) { return json.dump(-1, ' ', false, ChromeJson::error_handler_t::replace); }

// Writes a time in microseconds, with three decimals for the nanoseconds.
void append_microseconds(std::string& out, int64_t ns) {
  fmt::format_to(std::back_inserter(out), "{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
}

// Returns the C++ name of a type, which PyTorch's traces use.
std::string chrome_type_name(DType dtype) {
  if (dtype == DType::float32) return "float";
  if (dtype == DType::float64) return "double";
  if (dtype == DType::int64) return "long int";
  if (dtype == DType::int32) return "int";
  return std::string(treadle::name_of(dtype));
}

class ChromeWriter {
 public:
  explicit ChromeWriter(const TraceView& view)
      : view_(view), correlations_(view), gradients_(view, correlations_.size() + 1), pid_(getpid()) {
    for (const RecordName& name : view.recording->names) names_.push_back(chrome_text(name.text));
    if (view.nodes)
      for (const ProfiledNode& node : *view.nodes) node_arguments_.push_back(arguments_of(node));
  }

  std::string write() {
    const Recording& recording = *view_.recording;
    // Loading came before the profile, so its times are negative. Perfetto drops events with negative times, so all times are shifted.
    const std::vector<TraceRow> rows = rows_of(view_);
    for (const TraceRow& row : rows)
      if (!row.spans.empty()) first_ns_ = std::min(first_ns_, row.spans.front().start_ns);
    out_ = fmt::format(
        "{{\"schemaVersion\":1,\"deviceProperties\":[],\"distributedInfo\":{{\"backend\":\"treadle\",\"rank\":0,\"world_size\":1}},"
        "\"record_shapes\":1,\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":{},\"treadle\":{{\"dropped_records\":{},\"clock_pairs\":{}}"
        "},\"traceEvents\":["
        "\n",
        recording.start_unix_ns + first_ns_, recording.dropped, clock_pairs());
    metadata("process_name", 0, "treadle");
    for (const TraceRow& row : rows) {
      metadata("thread_name", row.id(), row.title());
      for (const TraceSpan& span : row.spans) event(span, row);
    }
    out_.resize(out_.size() - 2);  // removes the comma after the last event
    out_ += "\n]}\n";
    return std::move(out_);
  }

 private:
  // Returns, as JSON, pairs of a time in the trace and the wall-clock time at that moment, both in nanoseconds.
  std::string clock_pairs() const {
    ChromeJson pairs = ChromeJson::array();
    for (const ClockAnchor& anchor : view_.recording->anchors)
      pairs.push_back({std::llround(view_.recording->to_ns(anchor.ticks)) - first_ns_, anchor.unix_ns});
    return chrome_text(pairs);
  }

  static std::string arguments_of(const ProfiledNode& node) {
    ChromeJson dims = ChromeJson::array(), types = ChromeJson::array(), strides = ChromeJson::array(), concrete = ChromeJson::array();
    for (const ProfiledOperand& operand : node.inputs) {
      dims.push_back(operand.shape ? ChromeJson(operand.shape->dims()) : ChromeJson::array());
      types.push_back(operand.dtype == DType::undefined ? "" : chrome_type_name(operand.dtype));
      strides.push_back(operand.strides());
      concrete.push_back(operand.value);
    }
    ChromeJson json{
        {"Input Dims", dims}, {"Input type", types}, {"Input Strides", strides}, {"Concrete Inputs", concrete}, {"op", node.op_type}};
    if (!node.kernel.empty()) json["kernel"] = node.kernel;
    if (!node.sources.empty()) json["sources"] = node.sources;
    if (node.sequence >= 0) json["Sequence number"] = node.sequence;
    if (node.flops) json["flops"] = *node.flops;
    if (node.bytes) json["bytes"] = *node.bytes;
    const std::string text = chrome_text(json);
    return "," + text.substr(1, text.size() - 2);
  }

  void metadata(const char* what, int64_t tid, const std::string& name) {
    out_ += chrome_text({{"ph", "M"}, {"name", what}, {"pid", pid_}, {"tid", tid}, {"args", {{"name", name}}}}) + ",\n";
  }

  void event(const TraceSpan& span, const TraceRow& row) {
    const Record& record = *span.record;
    static const std::string kUnknown = "\"(unknown)\"";
    const std::string& name = record.name < names_.size() ? names_[record.name] : kUnknown;
    auto to = std::back_inserter(out_);
    const int64_t correlation = correlations_.of(record);
    if (correlation > 0 && record.kind != RecordKind::launch) return device_event(span, row, name, correlation);
    const bool is_counter = record.kind == RecordKind::counter, is_run = record.kind == RecordKind::run;
    fmt::format_to(to, "{{\"ph\":\"{}\",\"cat\":\"{}\",",
                   is_counter         ? 'C'
                   : is_point(record) ? 'i'
                                      : 'X',
                   kChromeCategories[static_cast<size_t>(record.kind) % kChromeCategories.size()]);
    if (is_run)
      fmt::format_to(to, "\"name\":\"ProfilerStep#{}\"", num_runs_++);
    else
      fmt::format_to(to, "\"name\":{}",
                     record.kind == RecordKind::memory          ? "\"[memory]\""
                     : record.kind == RecordKind::out_of_memory ? "\"[OutOfMemory]\""
                                                                : name);
    fmt::format_to(to, ",\"pid\":{},\"tid\":{},\"ts\":", pid_, row.id());
    append_microseconds(out_, span.start_ns - first_ns_);
    if (!is_point(record)) {
      out_ += ",\"dur\":";
      append_microseconds(out_, span.end_ns - span.start_ns);
    }
    if (is_point(record) && !is_counter) out_ += ",\"s\":\"t\"";
    out_ += ",\"args\":{";
    arguments(record, is_run ? name : std::string());
    out_ += "}},\n";
    if (correlation > 0) launch_event(span, row, correlation);
    for (int64_t number : gradients_.from(record)) arrow("s", "", "fwdbwd", span, row, number);
    for (int64_t number : gradients_.to(record)) arrow("f", "\"bp\":\"e\",", "fwdbwd", span, row, number);
  }

  // Writes a launch in CUDA's terms, which tools for PyTorch traces expect: a CUDA runtime call inside of the node, and the begin of an
  // arrow to the device's activity.
  void launch_event(const TraceSpan& span, const TraceRow& row, int64_t correlation) {
    const bool is_copy = correlations_.activity(correlation)->kind == RecordKind::copy;
    auto to = std::back_inserter(out_);
    fmt::format_to(to, "{{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":",
                   is_copy ? "cudaMemcpyAsync" : "cudaLaunchKernel", pid_, row.id());
    append_microseconds(out_, span.start_ns - first_ns_);
    out_ += ",\"dur\":";
    append_microseconds(out_, span.end_ns - span.start_ns);
    fmt::format_to(to, ",\"args\":{{\"External id\":{},\"correlation\":{}}}}},\n", num_events_, correlation);
    arrow("s", "", "ac2g", span, row, correlation);
  }

  void device_event(const TraceSpan& span, const TraceRow& row, const std::string& name, int64_t correlation) {
    auto to = std::back_inserter(out_);
    const bool is_copy = span.record->kind == RecordKind::copy;
    fmt::format_to(to, "{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":", is_copy ? "gpu_memcpy" : "kernel", name,
                   pid_, row.id());
    append_microseconds(out_, span.start_ns - first_ns_);
    out_ += ",\"dur\":";
    append_microseconds(out_, span.end_ns - span.start_ns);
    fmt::format_to(to, ",\"args\":{{\"correlation\":{},\"device\":0,\"context\":0,\"stream\":{}", correlation, row.thread->index + 1);
    if (const int64_t waited = view_.waited_ns(*span.record); waited > 0) fmt::format_to(to, ",\"waited_ns\":{}", waited);
    if (const int32_t node = view_.node_index(*span.record); node >= 0) out_ += node_arguments_[static_cast<size_t>(node)];
    out_ += "}},\n";
    arrow("f", "\"bp\":\"e\",", "ac2g", span, row, correlation);
  }

  void arrow(const char* phase, const char* bound, const char* kind, const TraceSpan& span, const TraceRow& row, int64_t number) {
    fmt::format_to(std::back_inserter(out_),
                   "{{\"ph\":\"{}\",{}\"cat\":\"{}\",\"name\":\"{}\",\"id\":{},\"pid\":{},\"tid\":{},\"ts\":", phase, bound, kind, kind,
                   number, pid_, row.id());
    append_microseconds(out_, span.start_ns - first_ns_);
    out_ += "},\n";
  }

  void arguments(const Record& record, const std::string& run_name) {
    static const RecordName kNoLabels;
    const RecordName& labels = record.name < view_.recording->names.size() ? view_.recording->names[record.name] : kNoLabels;
    auto to = std::back_inserter(out_);
    if (record.kind == RecordKind::counter) {
      fmt::format_to(to, "{}:{}", chrome_text(labels.arg0_label.empty() ? "value" : labels.arg0_label), record.arg0);
      return;
    }
    if (is_of_memory(record)) {
      fmt::format_to(to, "\"Addr\":{},\"Bytes\":{},\"Device Type\":0,\"Device Id\":-1,\"class\":\"{}\",\"holder\":{}",
                     BlockRecord::number_of(record.arg1), record.arg0, memory_class_name(BlockRecord::class_of(record.arg1)),
                     record.name < names_.size() ? names_[record.name] : "\"\"");
      return;
    }
    fmt::format_to(to, "\"External id\":{},\"Ev Idx\":{}", num_events_ + 1, num_events_);
    ++num_events_;
    if (!run_name.empty()) fmt::format_to(to, ",\"range\":{}", run_name);
    if (!labels.arg0_label.empty()) fmt::format_to(to, ",{}:{}", chrome_text(labels.arg0_label), record.arg0);
    if (!labels.arg1_label.empty()) fmt::format_to(to, ",{}:{}", chrome_text(labels.arg1_label), record.arg1);
    if (const int64_t thread = gradients_.forward_thread(record); thread >= 0) fmt::format_to(to, ",\"Fwd thread id\":{}", thread);
    if (const int64_t waited = view_.waited_ns(record); waited > 0) fmt::format_to(to, ",\"waited_ns\":{}", waited);
    const int32_t node = view_.node_index(record);
    if (node >= 0) out_ += node_arguments_[static_cast<size_t>(node)];
  }

  const TraceView& view_;
  const Correlations correlations_;
  const GradientArrows gradients_;
  const int pid_;
  std::vector<std::string> names_, node_arguments_;  // both as JSON text
  std::string out_;
  int64_t first_ns_ = 0;  // smallest time of all rows; never above 0, the start of the profile
  int64_t num_runs_ = 0, num_events_ = 0;
};

}  // namespace

std::string to_chrome_trace(const TraceView& view) { return ChromeWriter(view).write(); }

}  // namespace treadle::profile
