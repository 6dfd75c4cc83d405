#include "profile/writers/perfetto_trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/trace/memory_events.h"

namespace treadle::profile {
namespace {

// Field numbers of Perfetto's protobuf messages, one namespace per message.
namespace packet {
constexpr uint32_t kClockSnapshot = 6, kTimestamp = 8, kSequence = 10, kTrackEvent = 11, kInterned = 12, kFlags = 13, kDefaults = 59,
                   kTrackDescriptor = 60;
constexpr uint64_t kStateCleared = 1, kNeedsState = 2;
}  // namespace packet
namespace track_event {
constexpr uint32_t kCategory = 3, kAnnotation = 4, kType = 9, kName = 10, kTrack = 11, kCounterValue = 30, kFlow = 47, kLastFlow = 48;
constexpr uint64_t kBegin = 1, kEnd = 2, kInstant = 3, kCounter = 4;
}  // namespace track_event
namespace interned {
constexpr uint32_t kCategories = 1, kEventNames = 2, kAnnotationNames = 3, kAnnotationStrings = 29;
constexpr uint32_t kIid = 1, kText = 2;
}  // namespace interned
namespace annotation {
constexpr uint32_t kNameIid = 1, kInt = 4, kStringIid = 17;
}  // namespace annotation

constexpr std::array<const char*, kNumRecordKinds> kPerfettoCategories = {"run",    "node",    "chunk",   "copy",   "wait",   "compile",
                                                                          "user",   "instant", "counter", "memory", "memory", "phase",
                                                                          "python", "launch",  "pool",    "layer",  "user"};

constexpr size_t kMaxVarint = 10;
size_t encode(uint64_t value, char* bytes) {
  size_t n = 0;
  for (; value >= 0x80; value >>= 7) bytes[n++] = static_cast<char>(value | 0x80);
  bytes[n++] = static_cast<char>(value);
  return n;
}

// Builds the encoding of a protobuf message.
class Message {
 public:
  void varint(uint64_t value) {
    char bytes[kMaxVarint];
    text_.append(bytes, encode(value, bytes));
  }
  void number(uint32_t field, uint64_t value) {
    varint(field << 3U);
    varint(value);
  }
  void bytes(uint32_t field, std::string_view value) {
    varint(field << 3U | 2U);
    varint(value.size());
    text_ += value;
  }
  void fixed64(uint32_t field, uint64_t value) {
    varint(field << 3U | 1U);
    for (int byte = 0; byte < 8; ++byte) text_ += static_cast<char>(value >> (8 * byte) & 255U);
  }
  void clear() { text_.clear(); }
  bool empty() const { return text_.empty(); }
  const std::string& text() const { return text_; }
  std::string& text() { return text_; }

 private:
  std::string text_;
};

// Assigns numbers, from 1, to texts. Packets refer to texts by these numbers, so that each text is written once.
class InternedTexts {
 public:
  explicit InternedTexts(uint32_t field) : field_(field) {}
  uint64_t number(const std::string& text, Message& additions) {
    auto [found, is_new] = numbers_.try_emplace(text, numbers_.size() + 1);
    if (is_new) {
      Message entry;
      entry.number(interned::kIid, found->second);
      entry.bytes(interned::kText, valid_utf8(text));
      additions.bytes(field_, entry.text());
    }
    return found->second;
  }

 private:
  uint32_t field_;
  std::unordered_map<std::string, uint64_t> numbers_;
};

std::string shapes_text(const std::vector<ProfiledOperand>& operands) {
  std::string text;
  for (const ProfiledOperand& operand : operands) {
    if (operand.name.empty()) continue;
    text += (text.empty() ? "" : ", ") + std::string(operand.dtype == DType::undefined ? "" : treadle::name_of(operand.dtype));
    text += operand.shape ? to_string(*operand.shape) : "[?]";
    if (operand.row_step != 0) text += fmt::format(" strides [{}]", fmt::join(operand.strides(), ","));
    if (!operand.value.empty()) text += " = " + operand.value;
  }
  return text;
}

class PerfettoWriter {
 public:
  explicit PerfettoWriter(const TraceView& view)
      : view_(view), correlations_(view), gradients_(view, correlations_.size() + 1), pid_(static_cast<uint64_t>(getpid())) {}

  std::string write() {
    const std::vector<TraceRow> rows = rows_of(view_);
    size_t events = 0;
    for (const TraceRow& row : rows) events += row.spans.size();
    constexpr size_t kBytesPerEvent = 80;
    out_.text().reserve(events * kBytesPerEvent + 4096);
    snapshot_clocks();
    Message process, descriptor;
    process.number(1, pid_);
    process.bytes(6, "treadle");
    descriptor.number(1, kProcessTrack);
    descriptor.bytes(3, process.text());
    packet_with(packet::kTrackDescriptor, descriptor);
    for (const TraceRow& row : rows) write_row(row);
    return std::move(out_.text());
  }

 private:
  static constexpr uint64_t kProcessTrack = 1;
  static constexpr uint64_t kUnitBytes = 3;

  // The encoded parts that all events of one name in a row have in common.
  struct Prepared {
    std::string begin;   // the protobuf field of the event that begins a slice (a range of time)
    std::string packet;  // the part of a packet that follows the time
    bool ready = false;
    RecordKind kind{};
  };

  void packet_with(uint32_t field, const Message& message) {
    Message one;
    one.number(packet::kSequence, 1);
    one.bytes(field, message.text());
    out_.bytes(1, one.text());
  }

  // Writes pairs of times that relate the packets' clock (Perfetto's number 6, boot time) to the wall clock (number 1).
  void snapshot_clocks() {
    const Recording& recording = *view_.recording;
    int64_t last_ns = 0;
    snapshot_clocks(last_ns, recording.start_unix_ns);
    for (const ClockAnchor& anchor : recording.anchors) {
      const int64_t ns = std::llround(recording.to_ns(anchor.ticks));
      if (ns <= last_ns) continue;  // not later than the last anchor written
      snapshot_clocks(ns, anchor.unix_ns);
      last_ns = ns;
    }
  }

  void snapshot_clocks(int64_t ns, int64_t unix_ns) {
    Message boot, wall, snapshot;
    boot.number(1, 6);
    boot.number(2, static_cast<uint64_t>(ns) + kOffsetNs);
    wall.number(1, 1);
    wall.number(2, static_cast<uint64_t>(unix_ns));
    snapshot.bytes(1, boot.text());
    snapshot.bytes(1, wall.text());
    packet_with(packet::kClockSnapshot, snapshot);
  }

  void write_row(const TraceRow& row) {
    sequence_ = static_cast<uint64_t>(row.id()) + 2;
    const uint64_t track = sequence_ << 8U;
    if (row.thread->system_id != 0) describe_row(row, track);
    Message defaults, event_defaults;
    event_defaults.number(track_event::kTrack, track);
    defaults.bytes(packet::kTrackEvent, event_defaults.text());
    Message first;
    first.number(packet::kSequence, sequence_);
    first.number(packet::kFlags, packet::kStateCleared | packet::kNeedsState);
    first.bytes(packet::kDefaults, defaults.text());
    out_.bytes(1, first.text());

    names_ = InternedTexts(interned::kEventNames), categories_ = InternedTexts(interned::kCategories);
    annotations_ = InternedTexts(interned::kAnnotationNames), strings_ = InternedTexts(interned::kAnnotationStrings);
    prepared_.assign(view_.recording->names.size() + 1, {});
    Message end;
    end.number(track_event::kType, track_event::kEnd);
    const std::string end_packet = behind_time(end.text());
    replay(
        row, [&](const TraceSpan& span) { begin(span); }, [&](const TraceSpan& span) { append_packet(span.end_ns, end_packet); });
    for (const TraceSpan& span : row.spans)
      if (is_point(*span.record)) point(span);
  }

  void describe_row(const TraceRow& row, uint64_t track) {
    Message descriptor;
    descriptor.number(1, track);
    if (row.number == 0 && row.thread->system_id > 0) {
      Message thread;
      thread.number(1, pid_);
      thread.number(2, static_cast<uint64_t>(row.thread->system_id));
      thread.bytes(5, row.thread->name.empty() ? "thread" : valid_utf8(row.thread->name));
      descriptor.bytes(4, thread.text());
    } else {
      descriptor.number(5, kProcessTrack);
      descriptor.bytes(2, valid_utf8(row.title()));
    }
    packet_with(packet::kTrackDescriptor, descriptor);
  }

  void begin(const TraceSpan& span) {
    const Record& record = *span.record;
    const int64_t flow = correlations_.of(record);
    const std::vector<int64_t>&forward = gradients_.from(record), &backward = gradients_.to(record);
    const int64_t waited = view_.waited_ns(record);
    const bool dynamic = waited > 0 || (record.arg0 | record.arg1) != 0 || flow != 0 || !forward.empty() || !backward.empty();
    Prepared& known = prepared_[std::min<size_t>(record.name, prepared_.size() - 1)];
    Message additions;
    if (!known.ready || known.kind != record.kind) {
      Message event;
      event.number(track_event::kCategory, categories_.number(category_of(record), additions));
      event.number(track_event::kType, track_event::kBegin);
      event.number(track_event::kName, names_.number(view_.name(record), additions));
      describe_node(record, event, additions);
      known = {event.text(), behind_time(event.text()), true, record.kind};
    }
    if (!dynamic && additions.empty()) return append_packet(span.start_ns, known.packet);
    if (!dynamic) return append_event(span.start_ns, known.begin, &additions);
    Message event;
    event.text() = known.begin;
    add_arguments(record, event, additions);
    if (waited > 0) annotate(std::string("waited_ns"), waited, event, additions);
    if (flow != 0)
      event.fixed64(record.kind == RecordKind::launch ? track_event::kFlow : track_event::kLastFlow, static_cast<uint64_t>(flow));
    for (int64_t number : forward) event.fixed64(track_event::kFlow, static_cast<uint64_t>(number));
    for (int64_t number : backward) event.fixed64(track_event::kLastFlow, static_cast<uint64_t>(number));
    append_event(span.start_ns, event.text(), &additions);
  }

  void describe_node(const Record& record, Message& event, Message& additions) {
    const int32_t index = view_.node_index(record);
    if (index < 0) return;
    const ProfiledNode& node = (*view_.nodes)[static_cast<size_t>(index)];
    std::string sources;
    for (const std::string& source : node.sources) sources += (sources.empty() ? "" : ", ") + source;
    annotate("op", node.op_type, event, additions);
    annotate("kernel", node.kernel, event, additions);
    annotate("inputs", shapes_text(node.inputs), event, additions);
    annotate("outputs", shapes_text(node.outputs), event, additions);
    annotate("sources", sources, event, additions);
    std::string forward;
    for (int32_t of : node.forward) forward += (forward.empty() ? "" : ", ") + (*view_.nodes)[static_cast<size_t>(of)].name;
    annotate("forward", forward, event, additions);
    if (node.sequence >= 0) annotate(std::string("sequence number"), node.sequence, event, additions);
  }

  void annotate(const char* name, const std::string& value, Message& event, Message& additions) {
    if (value.empty()) return;
    Message one;
    one.number(annotation::kNameIid, annotations_.number(name, additions));
    one.number(annotation::kStringIid, strings_.number(value, additions));
    event.bytes(track_event::kAnnotation, one.text());
  }

  void annotate(const std::string& name, int64_t value, Message& event, Message& additions) {
    if (name.empty()) return;
    Message one;
    one.number(annotation::kNameIid, annotations_.number(name, additions));
    one.number(annotation::kInt, static_cast<uint64_t>(value));
    event.bytes(track_event::kAnnotation, one.text());
  }

  void add_arguments(const Record& record, Message& event, Message& additions) {
    if (record.name >= view_.recording->names.size()) return;
    const RecordName& name = view_.recording->names[record.name];
    const bool is_node = view_.node_index(record) >= 0;
    const bool is_known = (record.arg0 | record.arg1) != 0;
    annotate(name.arg0_label.empty() && is_node && is_known ? "flops" : name.arg0_label, record.arg0, event, additions);
    annotate(name.arg1_label.empty() && is_node && is_known ? "bytes" : name.arg1_label, record.arg1, event, additions);
  }

  void point(const TraceSpan& span) {
    const Record& record = *span.record;
    Message additions, event;
    if (is_of_memory(record)) {
      event.number(track_event::kCategory, categories_.number(category_of(record), additions));
      event.number(track_event::kType, track_event::kInstant);
      const char* what = record.kind == RecordKind::out_of_memory ? "out of memory" : record.arg0 < 0 ? "free" : "allocate";
      event.number(track_event::kName, names_.number(what, additions));
      annotate("holder", view_.name(record), event, additions);
      annotate("class", std::string(memory_class_name(BlockRecord::class_of(record.arg1))), event, additions);
      annotate("bytes", record.arg0, event, additions);
      annotate("block", static_cast<int64_t>(BlockRecord::number_of(record.arg1)), event, additions);
    } else if (record.kind == RecordKind::instant) {
      event.number(track_event::kCategory, categories_.number(category_of(record), additions));
      event.number(track_event::kType, track_event::kInstant);
      event.number(track_event::kName, names_.number(view_.name(record), additions));
      add_arguments(record, event, additions);
    } else {
      event.number(track_event::kType, track_event::kCounter);
      event.number(track_event::kTrack, counter_track(record));
      event.number(track_event::kCounterValue, static_cast<uint64_t>(record.arg0));
    }
    append_event(span.start_ns, event.text(), &additions);
  }

  uint64_t counter_track(const Record& record) {
    auto [found, is_new] = counters_.try_emplace(record.name, kProcessTrack + 1 + counters_.size());
    if (is_new) {
      Message descriptor;
      descriptor.number(1, found->second);
      descriptor.number(5, kProcessTrack);
      descriptor.bytes(2, valid_utf8(view_.name(record)));
      const bool bytes = record.name < view_.recording->names.size() && view_.recording->names[record.name].arg0_label == "bytes";
      Message counter;
      if (bytes) counter.number(3, kUnitBytes);
      descriptor.bytes(8, counter.text());
      packet_with(packet::kTrackDescriptor, descriptor);
    }
    return found->second;
  }

  static const std::string& category_of(const Record& record) {
    static const std::vector<std::string> kNames(kPerfettoCategories.begin(), kPerfettoCategories.end());
    return kNames[static_cast<size_t>(record.kind) % kNames.size()];
  }

  std::string behind_time(const std::string& event, const Message* additions = nullptr) const {
    Message rest;
    rest.number(packet::kSequence, sequence_);
    rest.number(packet::kFlags, packet::kNeedsState);
    if (additions && !additions->empty()) rest.bytes(packet::kInterned, additions->text());
    rest.bytes(packet::kTrackEvent, event);
    return std::move(rest.text());
  }

  void append_event(int64_t ns, const std::string& event, const Message* additions = nullptr) {
    append_packet(ns, behind_time(event, additions));
  }

  // Appends a packet. Encodes it directly into the file's buffer, because this happens twice per event.
  void append_packet(int64_t ns, const std::string& rest) {
    char head[2 * kMaxVarint + 2], time[kMaxVarint];
    const size_t time_size = encode(static_cast<uint64_t>(ns) + kOffsetNs, time);
    size_t size = 0;
    head[size++] = static_cast<char>(1U << 3U | 2U);
    size += encode(1 + time_size + rest.size(), head + size);
    head[size++] = static_cast<char>(packet::kTimestamp << 3U);
    std::memcpy(head + size, time, time_size);
    out_.text().append(head, size + time_size).append(rest);
  }

  // Offset of all times. It is needed because times of packets are unsigned, and loading may begin up to a minute before time 0.
  static constexpr uint64_t kOffsetNs = 100'000'000'000;

  const TraceView& view_;
  const Correlations correlations_;
  const GradientArrows gradients_;
  const uint64_t pid_;
  uint64_t sequence_ = 1;
  Message out_;
  InternedTexts names_{interned::kEventNames}, categories_{interned::kCategories}, annotations_{interned::kAnnotationNames},
      strings_{interned::kAnnotationStrings};
  std::vector<Prepared> prepared_;  // indexed by the record's name
  std::unordered_map<uint32_t, uint64_t> counters_;
};

}  // namespace

std::string to_perfetto_trace(const TraceView& view) { return PerfettoWriter(view).write(); }

}  // namespace treadle::profile
