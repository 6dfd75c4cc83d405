#include "profile/writers/flame.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "profile/model/report_json.h"

namespace treadle::profile {
namespace {

// Returns a text as a frame of a collapsed stack. Replaces ";", which separates frames, and control characters such as line ends, which
// separate stacks.
std::string folded_frame(const std::string& text) {
  std::string frame = valid_utf8(text);
  for (char& c : frame)
    if (c == ';')
      c = ',';
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      c = ' ';
  return frame;
}

// Sums the times of calls with the same stack, for one row at a time.
class CallTree {
 public:
  explicit CallTree(const TraceView& view) : view_(view) {}

  void add(const TraceRow& row) {
    calls_.assign(1, {row.title(), 0, 0});
    children_.clear();
    uint32_t current = 0;
    replay(
        row,
        [&](const TraceSpan& span) {
          current = child_of(current, *span.record);
          calls_[current].self_ns += span.end_ns - span.start_ns;
        },
        [&](const TraceSpan& span) {
          current = calls_[current].parent;
          if (current != 0) calls_[current].self_ns -= span.end_ns - span.start_ns;
        });
    for (size_t i = 1; i < calls_.size(); ++i)
      if (calls_[i].self_ns > 0) lines_.push_back(fmt::format("{} {}\n", stack_of(i), calls_[i].self_ns));
  }

  std::string lines() {
    std::sort(lines_.begin(), lines_.end());
    std::string text;
    for (const std::string& line : lines_) text += line;
    return text;
  }

 private:
  struct Call {
    std::string frame;
    uint32_t parent;
    int64_t self_ns;
  };

  uint32_t child_of(uint32_t parent, const Record& record) {
    const uint64_t key = uint64_t{parent} << 32U | record.name;
    auto [found, is_new] = children_.try_emplace(key, static_cast<uint32_t>(calls_.size()));
    if (is_new) calls_.push_back({view_.name(record), parent, 0});
    return found->second;
  }

  std::string stack_of(size_t index) const {
    std::string text = folded_frame(calls_[index].frame);
    while (index != 0) {
      index = calls_[index].parent;
      text = folded_frame(calls_[index].frame) + ";" + text;
    }
    return text;
  }

  const TraceView& view_;
  std::vector<Call> calls_;
  std::unordered_map<uint64_t, uint32_t> children_;  // index of a call, by its parent's index and its name
  std::vector<std::string> lines_;
};

}  // namespace

std::string to_folded_stacks(const TraceView& view) {
  CallTree tree(view);
  for (const TraceRow& row : rows_of(view)) tree.add(row);
  return tree.lines();
}

std::string to_speedscope(const TraceView& view, const std::string& title) {
  std::string out = fmt::format(
      "{{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\"exporter\":\"treadle {}\",\"name\":{},"
      "\"shared\":{{\"frames\":[",
      TREADLE_VERSION, json_text(title));
  for (const RecordName& name : view.recording->names) out += "{\"name\":" + json_text(name.text) + "},";
  out += "{\"name\":\"(unknown)\"}]},\"profiles\":[";
  const size_t unknown = view.recording->names.size();
  bool first_row = true;
  for (const TraceRow& row : rows_of(view)) {
    // Marked points are written as ranges of length 0, because the format has no points.
    const auto is_shown = [](const TraceSpan& span) { return !is_point(*span.record) || span.record->kind == RecordKind::instant; };
    if (std::none_of(row.spans.begin(), row.spans.end(), is_shown)) continue;
    int64_t end = row.spans.front().end_ns;
    for (const TraceSpan& span : row.spans) end = std::max(end, span.end_ns);
    fmt::format_to(std::back_inserter(out),
                   "{}\n{{\"type\":\"evented\",\"name\":{},\"unit\":\"nanoseconds\",\"startValue\":{},\"endValue\":{},\"events\":[",
                   first_row ? "" : ",", json_text(row.title()), row.spans.front().start_ns, end);
    first_row = false;
    bool first = true;
    auto event = [&](char type, const TraceSpan& span, int64_t at) {
      fmt::format_to(std::back_inserter(out), "{}{{\"type\":\"{}\",\"frame\":{},\"at\":{}}}", first ? "" : ",\n", type,
                     std::min<size_t>(span.record->name, unknown), at);
      first = false;
    };
    const auto open = [&](const TraceSpan& span) { event('O', span, span.start_ns); };
    const auto close = [&](const TraceSpan& span) { event('C', span, span.end_ns); };
    replay(row, open, close, [&](const TraceSpan& mark) { open(mark), close(mark); });
    out += "]}";
  }
  return out + "\n]}\n";
}

}  // namespace treadle::profile
