#include "profile/chrome_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "core/file.h"

namespace treadle::profile {
namespace {

using Json = nlohmann::ordered_json;
using Sink = std::function<void(std::string_view)>;

constexpr std::array<const char*, kNumRecordKinds> kCategories = {"run",     "node", "chunk",   "copy",   "wait",
                                                                  "compile", "user", "instant", "counter"};

// Names come from models: whatever is not UTF-8 is replaced, or no viewer would read the file.
std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

class Writer {
 public:
  Writer(const Recording& recording, const Sink& sink) : recording_(recording), sink_(sink) {}

  void run() {
    sink_("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    event({{"ph", "M"}, {"name", "process_name"}, {"pid", kProcess}, {"args", {{"name", "treadle"}}}});
    for (const auto& thread : recording_.threads) write_thread(thread);
    Json other = {{"dropped_records", recording_.dropped}, {"start_unix_ns", recording_.start_unix_ns}};
    sink_("\n],\"otherData\":" + dump(other) + "}\n");
  }

 private:
  static constexpr int kProcess = 1;
  static constexpr int64_t kMaxRows = 100;  // of one thread; ids are thread * kMaxRows + row

  void event(const Json& json) {
    if (!first_) sink_(",\n");
    first_ = false;
    sink_(dump(json));
  }

  double microseconds(uint64_t ticks) const { return std::round(recording_.to_ns(ticks)) / 1000; }

  const RecordName& name_of(const Record& record) const {
    static const RecordName kUnknown{"(unknown)", {}, {}};
    return record.name < recording_.names.size() ? recording_.names[record.name] : kUnknown;
  }

  void write_thread(const Recording::Thread& thread) {
    std::vector<Record> records = thread.records;
    // An outer range before the inner ones that start with it.
    std::stable_sort(records.begin(), records.end(),
                     [](const Record& a, const Record& b) { return a.start != b.start ? a.start < b.start : a.end > b.end; });
    std::vector<std::vector<uint64_t>> rows;  // of each the ends of the ranges that are open
    for (const Record& record : records) write(record, thread, row_for(record, rows));
    for (size_t row = 0; row < std::max<size_t>(1, rows.size()); ++row) {
      std::string name = thread.name.empty() ? "thread" : thread.name;
      name += " " + std::to_string(thread.system_id) + (row > 0 ? " (overlapping " + std::to_string(row) + ")" : "");
      event({{"ph", "M"}, {"name", "thread_name"}, {"pid", kProcess}, {"tid", row_id(thread, row)}, {"args", {{"name", name}}}});
    }
  }

  static int64_t row_id(const Recording::Thread& thread, size_t row) {
    return int64_t{thread.index} * kMaxRows + std::min<int64_t>(static_cast<int64_t>(row), kMaxRows - 1);
  }

  // The first row on which the range nests.
  static size_t row_for(const Record& record, std::vector<std::vector<uint64_t>>& rows) {
    if (record.kind == RecordKind::instant || record.kind == RecordKind::counter) return 0;
    for (size_t row = 0;; ++row) {
      if (row == rows.size()) rows.emplace_back();
      auto& open = rows[row];
      while (!open.empty() && open.back() <= record.start) open.pop_back();
      if (!open.empty() && open.back() < record.end) continue;
      open.push_back(record.end);
      return row;
    }
  }

  void write(const Record& record, const Recording::Thread& thread, size_t row) {
    const RecordName& name = name_of(record);
    Json json = {{"name", name.text}, {"cat", kCategories[static_cast<size_t>(record.kind) % kCategories.size()]}, {"pid", kProcess}};
    json["ts"] = microseconds(record.start);
    if (record.kind == RecordKind::counter) {
      json["ph"] = "C";
      json["args"] = {{name.arg0_label.empty() ? "value" : name.arg0_label, record.arg0}};
      return event(json);
    }
    json["tid"] = row_id(thread, row);
    if (record.kind == RecordKind::instant) {
      json["ph"] = "i";
      json["s"] = "t";
    } else {
      json["ph"] = "X";
      json["dur"] = std::round(recording_.to_ns(record.end) - recording_.to_ns(record.start)) / 1000;
    }
    if (!name.arg0_label.empty()) json["args"][name.arg0_label] = record.arg0;
    if (!name.arg1_label.empty()) json["args"][name.arg1_label] = record.arg1;
    event(json);
  }

  const Recording& recording_;
  const Sink& sink_;
  bool first_ = true;
};

}  // namespace

std::string to_chrome_trace(const Recording& recording) {
  std::string text;
  Writer(recording, [&](std::string_view piece) { text += piece; }).run();
  return text;
}

void write_chrome_trace(const Recording& recording, const std::string& path) {
  AtomicFile file(path);
  Writer(recording, [&](std::string_view piece) { file.write(std::as_bytes(std::span(piece))); }).run();
  file.commit();
}

}  // namespace treadle::profile
