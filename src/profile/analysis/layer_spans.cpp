#include "profile/analysis/layer_spans.h"

#include <algorithm>
#include <unordered_map>

namespace treadle::profile {
namespace {

using Layers = std::vector<uint32_t>;

size_t common_prefix(const Layers& a, const Layers& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

class LayerSpans {
 public:
  explicit LayerSpans(const TraceView& view) : view_(view), has_bodies_(view.nodes->size(), false) {
    for (const ProfiledNode& node : *view.nodes)
      if (node.parent >= 0) has_bodies_[static_cast<size_t>(node.parent)] = true;
    frames_.push_back({INT64_MAX});
  }

  void add(const TraceSpan& span) {
    const Record& record = *span.record;
    if (is_point(record)) return;
    while (frames_.back().end_ns <= span.start_ns) frames_.pop_back();
    const int32_t node = record.kind == RecordKind::node || record.kind == RecordKind::launch ? view_.node_index(record) : -1;
    if (node >= 0) {
      add_node(span, (*view_.layers)[static_cast<size_t>(node)]);
      if (has_bodies_[static_cast<size_t>(node)]) frames_.push_back({span.end_ns, 0, (*view_.layers)[static_cast<size_t>(node)]});
    } else if (record.kind == RecordKind::run || record.kind == RecordKind::user || record.kind == RecordKind::python ||
               record.kind == RecordKind::pool) {
      // Starts a new frame, so that the ranges of layers within this span end with the span.
      frames_.push_back({span.end_ns, 0, frames_.back().outer});
    }
  }

  struct Made {
    int64_t start_ns, end_ns;
    Record record;
  };
  std::vector<Made>& made() { return made_; }

 private:
  struct Frame {
    int64_t end_ns;              // end of the surrounding range
    uint16_t run = 0;            // number of the run that the latest node belongs to
    Layers outer;                // layers of the node around this frame
    Layers open;                 // layers of the latest node, except for those in `outer`
    std::vector<size_t> ranges;  // for each layer of `open`, the index of its range in `made_`
  };

  // Extends the ranges of layers that the node shares with the node before it, and begins ranges for its other layers. A node without a
  // layer, such as a sum of gradients, changes nothing, so that the next node may continue the same layer.
  void add_node(const TraceSpan& span, const Layers& layers) {
    if (layers.empty()) return;
    Frame& frame = frames_.back();
    if (frame.run != span.record->run) frame.open.clear(), frame.ranges.clear();
    frame.run = span.record->run;
    const size_t outer = common_prefix(layers, frame.outer);
    const Layers within(layers.begin() + static_cast<std::ptrdiff_t>(outer), layers.end());
    const size_t still_open = common_prefix(within, frame.open);
    frame.ranges.resize(still_open);
    for (size_t range : frame.ranges) {
      made_[range].end_ns = std::max(made_[range].end_ns, span.end_ns);
      made_[range].record.end = std::max(made_[range].record.end, span.record->end);
    }
    for (size_t i = still_open; i < within.size(); ++i) {
      frame.ranges.push_back(made_.size());
      made_.push_back(
          {span.start_ns, span.end_ns, {span.record->start, span.record->end, 0, 0, within[i], RecordKind::layer, span.record->run}});
    }
    frame.open = within;
  }

  const TraceView& view_;
  std::vector<bool> has_bodies_;
  std::vector<Frame> frames_;
  std::vector<Made> made_;
};

}  // namespace

std::vector<std::vector<uint32_t>> name_layers(const std::vector<ProfiledNode>& nodes, Recording& recording) {
  std::vector<Layers> layers;
  std::unordered_map<std::string, uint32_t> numbers;
  for (size_t i = 0; i < nodes.size(); ++i)
    for (const std::string& layer : nodes[i].layers) {
      const auto [found, is_new] = numbers.try_emplace(layer, static_cast<uint32_t>(recording.names.size()));
      if (is_new) recording.names.push_back({layer, {}, {}});
      layers.resize(nodes.size());
      layers[i].push_back(found->second);
    }
  return layers;
}

std::shared_ptr<const std::vector<Record>> add_layer_spans(const TraceView& view, std::vector<TraceSpan>& spans) {
  auto records = std::make_shared<std::vector<Record>>();
  LayerSpans layers(view);
  for (const TraceSpan& span : spans) layers.add(span);
  records->reserve(layers.made().size());
  const auto old_size = static_cast<std::ptrdiff_t>(spans.size());
  for (const LayerSpans::Made& made : layers.made()) {
    records->push_back(made.record);
    spans.push_back({made.start_ns, made.end_ns, &records->back()});
  }
  std::stable_sort(spans.begin() + old_size, spans.end(), is_outer);
  std::inplace_merge(spans.begin(), spans.begin() + old_size, spans.end(), is_outer);
  return records;
}

}  // namespace treadle::profile
